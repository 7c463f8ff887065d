// The products of conv_rows.h. No include guard: see wide.h.

namespace rlx {
namespace RLX_WIDE {

// Sums of tiles are 24 registers of 32, or 12 of 16.
constexpr int64_t kRowVectors = RLX_WIDE_BYTES == 64 ? 4 : 2;  // of a panel, at most
constexpr int64_t kRowSums = RLX_WIDE_BYTES == 64 ? 24 : 12;

// What is multiplied of some rows: numbers [skip, skip + depth) of what each of some taps meets, of
// which the rows are `step` apart; and where sums lie.
struct RowStretch {
  const float* const* x;
  float* const* acc;
  int64_t taps;
  int64_t step;
  int64_t skip;
  int64_t depth;
  bool first;  // sums begin at zero

  RowStretch From(int64_t row) const {
    RowStretch rest = *this;
    rest.x += row;
    rest.acc += row;
    return rest;
  }
};

// acc[m][c] (+)= the sum over taps and k of x[m][skip + k] * w(k, c), for kN vectors of columns and
// a w whose taps follow each other. With kWatch, returns zeros, or NaN where an element of w is not
// finite.
template <int kM, int kN, bool kWatch>
V RowTile(const RowStretch& s, RowPanel w) {
  V sums[kM][kN];
  V finite = V{}, other = V{};
  float* to[kM];
#pragma GCC unroll 12
  for (int m = 0; m < kM; ++m) {
    to[m] = s.acc[m];
#pragma GCC unroll 4
    for (int n = 0; n < kN; ++n) sums[m][n] = s.first ? V{} : LoadV(to[m] + n * kW);
  }
  const float* const* x = s.x;
  for (int64_t tap = 0; tap < s.taps; ++tap, x += s.step) {
    const float* row[kM];
#pragma GCC unroll 12
    for (int m = 0; m < kM; ++m) row[m] = x[m] + s.skip;
    for (int64_t k = 0; k < s.depth; ++k, w.data += w.stride) {
      V factor[kN];
#pragma GCC unroll 4
      for (int n = 0; n < kN; ++n) {
        factor[n] = LoadV(w.data + n * kW);
        if (!kWatch) continue;
        V& found = n % 2 == 0 ? finite : other;
        found += factor[n] - factor[n];
      }
#pragma GCC unroll 12
      for (int m = 0; m < kM; ++m) {
        const V value = Set(row[m][k]);
#pragma GCC unroll 4
        for (int n = 0; n < kN; ++n) sums[m][n] = MulAdd(value, factor[n], sums[m][n]);
      }
    }
  }
#pragma GCC unroll 12
  for (int m = 0; m < kM; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kN; ++n) StoreV(sums[m][n], to[m] + n * kW);
  }
  return finite + other;
}

// RowTile of `rows` rows, at most kM.
template <int kM, int kN, bool kWatch>
V OneTile(int64_t rows, const RowStretch& s, RowPanel w) {
  if constexpr (kM > 1) {
    if (rows < kM) return OneTile<kM - 1, kN, kWatch>(rows, s, w);
  }
  return RowTile<kM, kN, kWatch>(s, w);
}

// Rows [begin, end), in tiles of nearly one size.
template <int kN>
void TilesOfRows(int64_t begin, int64_t end, const RowStretch& s, RowPanel w) {
  constexpr int64_t kMost = std::min<int64_t>(12, kRowSums / kN);
  for (int64_t tiles = (end - begin + kMost - 1) / kMost; tiles > 0; --tiles) {
    const int64_t count = (end - begin + tiles - 1) / tiles;
    OneTile<kMost, kN, false>(count, s.From(begin), w);
    begin += count;
  }
}

// All rows; only the first `inside` of them are not zeros, and the others are multiplied where an
// element of w is not finite.
template <int kN>
void RowsTimesPanel(int64_t inside, int64_t rows, const RowStretch& s, RowPanel w) {
  if (inside == 0 || inside == rows) return TilesOfRows<kN>(0, rows, s, w);
  // Sums of one row less leave registers for what is found out about w.
  constexpr int64_t kMost = std::min<int64_t>(10, kRowSums / kN - 1);
  const int64_t tiles = (inside + kMost) / (kMost + 1);
  const int64_t count = std::min(kMost, (inside + tiles - 1) / tiles);
  const V finite = OneTile<kMost, kN, true>(count, s, w);
  TilesOfRows<kN>(count, inside, s, w);
  if (Sum(finite) != 0) TilesOfRows<kN>(inside, rows, s, w);
}

inline void MultiplyRows(int64_t vectors, int64_t inside, int64_t rows, const RowStretch& s,
                         RowPanel w) {
  switch (vectors) {
    case 1: return RowsTimesPanel<1>(inside, rows, s, w);
#if RLX_WIDE_BYTES == 64
    case 2: return RowsTimesPanel<2>(inside, rows, s, w);
    case 3: return RowsTimesPanel<3>(inside, rows, s, w);
#endif
    default: return RowsTimesPanel<kRowVectors>(inside, rows, s, w);
  }
}

// The weights of `columns` output channels, each `row` numbers on, for `channels` input channels of
// `taps` numbers: to[(tap * channels + i) * width + o], with zeros up to the width.
inline void TurnWeights(const float* w, int64_t row, int64_t columns, int64_t channels,
                        int64_t taps, int64_t width, float* to) {
  const int64_t depth = channels * taps;
  Scratch<int64_t> target(depth + kW);  // where number k of a row goes
  for (int64_t i = 0; i < channels; ++i) {
    for (int64_t tap = 0; tap < taps; ++tap) target[i * taps + tap] = (tap * channels + i) * width;
  }
  std::fill(target.get() + depth, target.get() + depth + kW, 0);
  for (int64_t o = 0; o < width; o += kW, to += kW) {
    const int64_t whole = std::min(kW, columns - o);
    const float* from = w + o * row;
    for (int64_t k = 0; k < depth; k += kW) {
      V rows[kW], turned[kW];
      const int64_t count = std::min(kW, depth - k);
      const int64_t* at = target.get() + k;
      if (whole == kW && count == kW) {
#pragma GCC unroll 16
        for (int64_t i = 0; i < kW; ++i) {
          rows[i] = LoadV(from + i * row + k);
          __builtin_prefetch(to + at[i], 1);
        }
      } else {
#pragma GCC unroll 16
        for (int64_t i = 0; i < kW; ++i) {
          rows[i] = i < whole ? LoadSome(from + i * row + k, count) : V{};
        }
      }
      TurnV(rows, turned);
      if (count == kW) {
#pragma GCC unroll 16
        for (int64_t i = 0; i < kW; ++i) StoreV(turned[i], to + at[i]);
      } else {
        for (int64_t i = 0; i < count; ++i) StoreV(turned[i], to + at[i]);
      }
    }
  }
}

// to[c * to_step + r] = from[r * step + c] for `rows` rows of `columns` numbers.
inline void TurnMatrix(const float* from, int64_t step, int64_t rows, int64_t columns, float* to,
                       int64_t to_step) {
  for (int64_t r = 0; r < rows; r += kW) {
    const int64_t count = std::min(kW, rows - r);
    for (int64_t c = 0; c < columns; c += kW) {
      const int64_t some = std::min(kW, columns - c);
      V block[kW], turned[kW];
#pragma GCC unroll 16
      for (int64_t i = 0; i < kW; ++i) {
        block[i] = i < count ? LoadSome(from + (r + i) * step + c, some) : V{};
      }
      TurnV(block, turned);
      for (int64_t i = 0; i < some; ++i) StoreSome(turned[i], count, to + (c + i) * to_step + r);
    }
  }
}

// Sums of rows, `width` apart, as results of output channels that are `places` apart.
template <typename T>
void StoreTurned(const float* acc, int64_t width, int64_t rows, int64_t columns, int64_t places,
                 T* y) {
  for (int64_t r = 0; r < rows; r += kW) {
    const int64_t count = std::min(kW, rows - r);
    for (int64_t c = 0; c < columns; c += kW) {
      V block[kW], turned[kW];
#pragma GCC unroll 16
      for (int64_t i = 0; i < kW; ++i) {
        block[i] = i < count ? LoadV(acc + (r + i) * width + c) : V{};
      }
      TurnV(block, turned);
      const int64_t channels = std::min(kW, columns - c);
      for (int64_t i = 0; i < channels; ++i) {
        T* to = y + (c + i) * places + r;
        if constexpr (std::is_same_v<T, float>) {
          StoreSome(turned[i], count, to);
        } else {
          float wide[kW];
          StoreV(turned[i], wide);
          matmul::NarrowRow(wide, count, to);
        }
      }
    }
  }
}

// Pieces [begin, end) of a problem: each is a block of rows and a panel of columns.
template <typename Problem>
void ConvolveRows(const Problem& problem, const RowPieces& pieces, int64_t begin, int64_t end) {
  const int64_t most = pieces.panel;
  const int64_t taps = problem.Taps();
  const int64_t depth = problem.Depth();
  const int64_t together = std::min(depth, problem.Together());  // of a tap, that are prepared
  Scratch<float> sums(pieces.block * most);
  Scratch<float> prepared(problem.Prepared(together, most));
  Scratch<float*> acc(pieces.block);
  RowTable table(taps, pieces.block, depth, problem.Joined(), problem.Copies());
  int64_t made = -1;  // the table's block, and the panel that is prepared
  int64_t ready = -1;
  for (int64_t at = begin; at < end; ++at) {
    const RowPiece piece(pieces, at);
    const int64_t column = piece.panel * most;
    const int64_t m = piece.block * pieces.block;
    const int64_t rows = std::min(pieces.block, pieces.rows - m);
    const int64_t columns = std::min(most, pieces.columns - column);
    const int64_t width = (columns + kW - 1) / kW * kW;
    const int64_t block = piece.problem * pieces.blocks + piece.block;
    if (made != block) problem.Fill(piece.problem, m, rows, &table);
    made = block;
    // Sums are results where these are f32 and lie in whole vectors.
    float* to = sums.get();
    int64_t step = width;
    float* direct = columns == width ? problem.Direct(piece.problem, m, column, &step) : nullptr;
    if (direct != nullptr) to = direct;
    RowStretch s = {};
    s.acc = acc.get();
    s.step = pieces.block;
    s.first = depth > 0 && taps > 0 && (table.together > 1 || table.inside[0] == rows);
    for (int64_t r = 0; r < rows && !s.first; ++r) {
      std::fill(to + r * step, to + r * step + width, 0.0f);
    }
    for (int64_t early = 0; early < depth; early += together) {
      const int64_t late = std::min(depth, early + together);
      const int64_t panel = piece.problem * pieces.panels + piece.panel;
      if (ready != panel || together < depth) {
        problem.Prepare(piece.problem, column, columns, width, early, late, prepared.get());
      }
      ready = panel;
      for (int64_t tap = 0; tap < taps; tap += s.taps) {
        s.taps = std::min(table.together, taps - tap);
        const int32_t* order = table.order.get() + tap * pieces.block;
        for (int64_t r = 0; r < rows; ++r) acc[r] = to + order[r] * step;
        s.x = table.x.get() + tap * pieces.block;
        const int64_t inside = table.together > 1 ? rows : table.inside[tap];
        for (s.skip = early; s.skip < late; s.skip += s.depth) {
          s.depth = table.together > 1 ? depth : std::min(kRowDepth, late - s.skip);
          const RowPanel w = problem.Source(piece.problem, column, columns, width, tap, s.skip,
                                             early, late, prepared.get());
          MultiplyRows(width / kW, inside, rows, s, w);
          s.first = false;
        }
      }
    }
    if (direct == nullptr) {
      problem.Store(sums.get(), width, piece.problem, m, rows, column, columns);
    }
  }
}

}  // namespace RLX_WIDE
}  // namespace rlx
