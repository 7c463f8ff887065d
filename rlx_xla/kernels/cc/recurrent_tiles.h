// The layers of recurrent.h. No include guard: see wide.h.

namespace rlx {
namespace RLX_WIDE {

constexpr int64_t kPanel = (RLX_WIDE_BYTES == 64 ? 4 : 2) * kW;

// kW columns, from c on, of the panels of a weight [gates * hidden, depth]: each panel is kPanel
// columns of [depth, gates * padded].
template <typename T>
void PanelColumns(const T* w, int64_t gates, int64_t hidden, int64_t depth, int64_t c, float* out) {
  const int64_t padded = Padded(hidden);
  const int64_t panel = c / kPanel * kPanel;
  const int64_t width = std::min(kPanel, gates * padded - panel);
  const int64_t whole = std::min(kW, hidden - c % padded);
  const T* from = w + (c / padded * hidden + c % padded) * depth;
  float* to = out + panel * depth + c - panel;
  for (int64_t d = 0; d < depth; d += kW) {
    const int64_t count = std::min(kW, depth - d);
    V rows[kW], turned[kW];
#pragma GCC unroll 16
    for (int64_t i = 0; i < kW; ++i) {
      rows[i] = i < whole ? LoadSome(from + i * depth + d, count) : V{};
    }
    TurnV(rows, turned);
    for (int64_t i = 0; i < count; ++i) StoreV(turned[i], to + (d + i) * width);
  }
}

template <typename T>
void GateRow(const T* bias, int64_t gates, int64_t hidden, float* out) {
  for (int64_t g = 0; g < gates; ++g) {
    Widen(bias + g * hidden, 0, 1, hidden, out + g * Padded(hidden), Padded(hidden));
  }
}

// c[kM rows, kN vectors] = from + a b; rows of `from` are from_stride apart.
template <int kM, int kN>
void PanelTile(Factor a, int64_t depth, const float* b, int64_t b_stride, const float* from,
               int64_t from_stride, float* c, int64_t c_stride) {
  V sums[kM][kN];
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kN; ++n) sums[m][n] = V{};
  }
  for (int64_t k = 0; k < depth; ++k) {
    V factor[kN];
#pragma GCC unroll 4
    for (int n = 0; n < kN; ++n) factor[n] = LoadV(b + k * b_stride + n * kW);
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) {
      const V value = Set(a.data[m * a.row + k]);
#pragma GCC unroll 4
      for (int n = 0; n < kN; ++n) sums[m][n] = MulAdd(value, factor[n], sums[m][n]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kN; ++n) {
      StoreV(LoadV(from + m * from_stride + n * kW) + sums[m][n], c + m * c_stride + n * kW);
    }
  }
}

// The same for any rows, in tiles of nearly one size, at most kM.
template <int kM, int kN>
void PanelRows(Factor a, int64_t rows, int64_t depth, const float* b, int64_t b_stride,
               const float* from, int64_t from_stride, float* c, int64_t c_stride) {
  if constexpr (kM > 1) {
    if (rows < kM) {
      return PanelRows<kM - 1, kN>(a, rows, depth, b, b_stride, from, from_stride, c, c_stride);
    }
  }
  for (int64_t tiles = (rows + kM - 1) / kM; tiles > 0; --tiles) {
    const int64_t count = (rows + tiles - 1) / tiles;
    if (count == kM) {
      PanelTile<kM, kN>(a, depth, b, b_stride, from, from_stride, c, c_stride);
    } else {
      PanelRows<kM, kN>(a, count, depth, b, b_stride, from, from_stride, c, c_stride);
    }
    rows -= count;
    a.data += count * a.row;
    from += count * from_stride;
    c += count * c_stride;
  }
}

// c[rows, columns] = from + a b, where b lies in panels, and `from` is c or one row. Sums are taken
// of stretches of the depth, for the sake of their last bits.
inline void PanelProduct(Factor a, int64_t rows, int64_t depth, const float* panels,
                         int64_t columns, const float* from, float* c, int64_t c_stride) {
  constexpr int kMost = RLX_WIDE_BYTES == 64 ? 8 : 6;
  for (int64_t n = 0; n < columns; n += kPanel) {
    const int64_t width = std::min(kPanel, columns - n);
    for (int64_t k = 0; k < depth; k += recurrent::kStretch) {
      const int64_t some = std::min(recurrent::kStretch, depth - k);
      const Factor part = {a.data + k, a.row, 1};
      const float* b = panels + n * depth + k * width;
      const bool begins = k == 0 && from != c;
      const float* first = begins ? from + n : c + n;
      const int64_t step = begins ? 0 : c_stride;
      float* to = c + n;
      if (RLX_WIDE_BYTES == 64 && width == kPanel && rows <= 6) {
        PanelRows<6, kPanel / kW>(part, rows, some, b, width, first, step, to, c_stride);
        continue;
      }
      int64_t done = 0;
      for (; done + 2 * kW <= width; done += 2 * kW) {
        PanelRows<kMost, 2>(part, rows, some, b + done, width, first + done, step, to + done,
                            c_stride);
      }
      if (done == width) continue;
      PanelRows<kMost, 1>(part, rows, some, b + done, width, first + done, step, to + done,
                          c_stride);
    }
  }
}

// exp of numbers from -88 to 88, and of NaN.
inline V CellExp(V x) {
  const ExpParts parts = PartsOfExp(x);
  return parts.factor * reinterpret_cast<V>((parts.power + 127) << 23);
}

// 1 / x of numbers that are at least 1; an estimate of 14 bits is made good where there is one.
inline V Inverse(V x) {
#if RLX_WIDE_BYTES == 64
  const V about = _mm512_maskz_rcp14_ps(0xffff, x);
  const V missing = MulAdd(-x, about, Set(1.0f));
  return MulAdd(about, missing, about);
#else
  return 1.0f / x;
#endif
}

// Logistic, with no result below e^-87.
inline V Sigmoid(V x) {
  V t = -x;
  t = t > 87.0f ? Set(87.0f) : t;
  t = t < -87.0f ? Set(-87.0f) : t;
  return Inverse(1.0f + CellExp(t));
}

inline V CellTanh(V x) {
  const V size = SizeOf(x);
  const V twice = size > 16.0f ? Set(32.0f) : size + size;
  return TanhOf(x, MulAdd(Inverse(CellExp(twice) + 1.0f), Set(-2.0f), Set(1.0f)));
}

// One step of a cell for one row; `entering` holds all gates, which an LSTM writes over, or for a
// GRU those of the input, and `kept` then those of the state.
inline void Cell(RecurrentKind kind, int64_t padded, float* entering, const float* kept,
                 float* hidden, float* cell) {
  if (kind == RecurrentKind::kLstm) {
    // Two loops: more of their chains, which are long, are under way at once.
    for (int64_t j = 0; j < padded; j += kW) {
      const V forget = Sigmoid(LoadV(entering + padded + j));
      const V offered = CellTanh(LoadV(entering + 2 * padded + j));
      const V taken = Sigmoid(LoadV(entering + j)) * offered;
      StoreV(MulAdd(forget, LoadV(cell + j), taken), cell + j);
      StoreV(Sigmoid(LoadV(entering + 3 * padded + j)), entering + 3 * padded + j);
    }
    for (int64_t j = 0; j < padded; j += kW) {
      StoreV(LoadV(entering + 3 * padded + j) * CellTanh(LoadV(cell + j)), hidden + j);
    }
    return;
  }
  for (int64_t j = 0; j < padded; j += kW) {
    const V first = LoadV(entering + j);
    switch (kind) {
      case RecurrentKind::kPlain:
        StoreV(CellTanh(first), hidden + j);
        break;
      case RecurrentKind::kRelu:
        StoreV(first < 0.0f ? V{} : first, hidden + j);
        break;
      case RecurrentKind::kLstm:
        break;
      case RecurrentKind::kGru: {
        const V reset = Sigmoid(first + LoadV(kept + j));
        const V keep = Sigmoid(LoadV(entering + padded + j) + LoadV(kept + padded + j));
        const V offered =
            CellTanh(MulAdd(reset, LoadV(kept + 2 * padded + j), LoadV(entering + 2 * padded + j)));
        StoreV(MulAdd(keep, LoadV(hidden + j), (1.0f - keep) * offered), hidden + j);
        break;
      }
      case RecurrentKind::kGruResetFirst: {
        const V keep = Sigmoid(LoadV(entering + padded + j) + LoadV(kept + padded + j));
        const V offered = CellTanh(LoadV(entering + 2 * padded + j) + LoadV(kept + 2 * padded + j));
        StoreV(MulAdd(keep, LoadV(hidden + j), (1.0f - keep) * offered), hidden + j);
        break;
      }
    }
  }
}

// The state's part of the gates of a GRU, for `count` rows; `now` are those of the input, and
// `reset` is filled with r h where the state is reset first.
inline void KeptGates(const RecurrentShape& s, const recurrent::Direction& way, int64_t count,
                      const float* now, const float* hidden, float* reset, float* kept) {
  const int64_t padded = Padded(s.hidden);
  const int64_t columns = GatesOf(s.kind) * padded;
  const Factor states = {hidden, padded, 1};
  if (s.kind == RecurrentKind::kGru) {
    return PanelProduct(states, count, s.hidden, way.kept, columns, way.hidden_bias, kept, columns);
  }
  const int64_t early = 2 * padded;
  PanelProduct(states, count, s.hidden, way.kept, early, way.hidden_bias, kept, columns);
  for (int64_t i = 0; i < count; ++i) {
    const float* entering = now + i * recurrent::kSteps * columns;
    for (int64_t j = 0; j < padded; j += kW) {
      const V gate = Sigmoid(LoadV(entering + j) + LoadV(kept + i * columns + j));
      StoreV(gate * LoadV(hidden + i * padded + j), reset + i * padded + j);
    }
  }
  PanelProduct({reset, padded, 1}, count, s.hidden, way.kept + early * s.hidden, padded,
               way.hidden_bias + early, kept + early, columns);
}

// Sequences [begin, end) of a batch through all steps of one direction.
inline void Sequences(const RecurrentShape& s, const recurrent::Direction& way, int64_t begin,
                      int64_t end) {
  constexpr int64_t kSteps = recurrent::kSteps;
  const int64_t padded = Padded(s.hidden);
  const int64_t columns = GatesOf(s.kind) * padded;
  const int64_t count = end - begin;
  const bool gru = IsGru(s.kind);
  Scratch<float> gates(count * kSteps * columns);
  Scratch<float> kept(gru ? count * columns : 0);
  Scratch<float> reset(s.kind == RecurrentKind::kGruResetFirst ? count * padded : 0);
  Scratch<float> hidden(count * padded);
  Scratch<float> cell(count * padded);
  Widen(way.hidden + begin * s.hidden, s.hidden, count, s.hidden, hidden.get(), padded);
  if (way.cell != nullptr) {
    Widen(way.cell + begin * s.hidden, s.hidden, count, s.hidden, cell.get(), padded);
  }
  for (int64_t done = 0; done < s.steps; done += kSteps) {
    const int64_t steps = std::min(kSteps, s.steps - done);
    const int64_t first = way.backward ? s.steps - done - steps : done;
    for (int64_t i = 0; i < count; ++i) {
      float* rows = gates.get() + i * kSteps * columns;
      if (way.width == 0) {
        for (int64_t t = 0; t < steps; ++t) {
          std::memcpy(rows + t * columns, way.bias, columns * sizeof(float));
        }
      }
      const float* x = way.x + ((begin + i) * s.steps + first) * way.width;
      PanelProduct({x, way.width, 1}, steps, way.width, way.entering, columns, way.bias, rows,
                   columns);
    }
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t t = way.backward ? steps - 1 - step : step;
      float* now = gates.get() + t * columns;
      if (gru) {
        KeptGates(s, way, count, now, hidden.get(), reset.get(), kept.get());
      } else {
        PanelProduct({hidden.get(), padded, 1}, count, s.hidden, way.kept, columns, now, now,
                     kSteps * columns);
      }
      for (int64_t i = 0; i < count; ++i) {
        float* h = hidden.get() + i * padded;
        const int64_t token = (begin + i) * s.steps + first + t;
        if (way.mask == nullptr || way.mask[token]) {
          Cell(s.kind, padded, now + i * kSteps * columns,
               gru ? kept.get() + i * columns : nullptr, h, cell.get() + i * padded);
        }
        std::memcpy(way.y + token * way.y_stride, h, s.hidden * sizeof(float));
      }
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(way.hidden + (begin + i) * s.hidden, hidden.get() + i * padded,
                s.hidden * sizeof(float));
    if (way.cell != nullptr) {
      std::memcpy(way.cell + (begin + i) * s.hidden, cell.get() + i * padded,
                  s.hidden * sizeof(float));
    }
  }
}

template <typename Pool, typename T>
void WidenAll(const Pool& pool, const T* in, int64_t n, float* out) {
  ParallelFor(pool, n, 64 * 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = ToFloat(in[i]);
  });
}

template <typename Pool, typename T>
void RecurrentLayers(const Pool& pool, const RecurrentShape& s, const RecurrentData<T>& data) {
  const int64_t gates = GatesOf(s.kind);
  const int64_t columns = gates * Padded(s.hidden);
  const int64_t tokens = s.batch * s.steps;
  const int64_t states = s.batch * s.hidden;
  const int64_t out_width = s.directions * s.hidden;
  const int64_t widest = std::max(s.width, s.layers > 1 ? out_width : 0);
  const bool lstm = s.kind == RecurrentKind::kLstm;
  constexpr bool kWhole = std::is_same_v<T, float>;
  Scratch<float> widened(kWhole ? 0 : tokens * s.width);
  Scratch<float> between(s.layers > 1 || !kWhole ? tokens * out_width : 0);
  Scratch<float> other(s.layers > 1 ? tokens * out_width : 0);
  Scratch<float> entering(s.directions * columns * widest);
  Scratch<float> kept(s.directions * columns * s.hidden);
  Scratch<float> biases(2 * s.directions * columns);
  Scratch<float> hidden(s.directions * states);
  Scratch<float> cell(s.directions * states);
  const float* x = nullptr;
  if constexpr (kWhole) {
    x = data.x;
  } else {
    WidenAll(pool, data.x, tokens * s.width, widened.get());
    x = widened.get();
  }
  int64_t width = s.width;
  const T* w_ih = data.w_ih;
  float* targets[2] = {between.get(), other.get()};
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    float* y = targets[layer % 2];
    if constexpr (kWhole) {
      if (layer + 1 == s.layers) y = data.y;
    }
    const int64_t first = layer * s.directions;
    const int64_t weights = gates * s.hidden;
    // A GRU that resets its state first multiplies its last gate apart.
    const int64_t early = (s.kind == RecurrentKind::kGruResetFirst ? 2 : gates) * Padded(s.hidden);
    const int64_t sets = columns / kW;
    const int64_t grain = 16 * 1024 / (kW * (width + s.hidden)) + 1;
    ParallelFor(pool, s.directions * sets, grain, [&](int64_t begin, int64_t end) {
      for (int64_t set = begin; set < end; ++set) {
        const int64_t way = set / sets;
        const int64_t c = set % sets * kW;
        PanelColumns(w_ih + way * weights * width, gates, s.hidden, width, c,
                     entering.get() + way * columns * widest);
        const T* w_hh = data.w_hh + (first + way) * weights * s.hidden;
        float* panels = kept.get() + way * columns * s.hidden;
        if (c < early) {
          PanelColumns(w_hh, early / Padded(s.hidden), s.hidden, s.hidden, c, panels);
        } else {
          PanelColumns(w_hh + 2 * s.hidden * s.hidden, 1, s.hidden, s.hidden, c - early,
                       panels + early * s.hidden);
        }
      }
    });
    for (int64_t way = 0; way < s.directions; ++way) {
      const int64_t at = first + way;
      GateRow(data.bias + at * weights, gates, s.hidden, biases.get() + 2 * way * columns);
      if (data.hidden_bias != nullptr) {
        GateRow(data.hidden_bias + at * weights, gates, s.hidden,
                biases.get() + (2 * way + 1) * columns);
      }
      for (int64_t i = 0; i < states; ++i) {
        const int64_t from = at * states + i;
        hidden[way * states + i] =
            data.first_hidden == nullptr ? 0 : ToFloat(data.first_hidden[from]);
        cell[way * states + i] = data.first_cell == nullptr ? 0 : ToFloat(data.first_cell[from]);
      }
    }
    const int64_t pieces =
        std::max<int64_t>(1, std::min(s.batch, std::max((s.batch + recurrent::kPiece - 1) /
                                                            recurrent::kPiece,
                                                        pool.Threads() / s.directions)));
    ParallelFor(pool, s.directions * pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t way = i / pieces;
        const int64_t piece = i % pieces;
        recurrent::Direction one = {};
        one.x = x;
        one.width = width;
        one.entering = entering.get() + way * columns * widest;
        one.kept = kept.get() + way * columns * s.hidden;
        one.bias = biases.get() + 2 * way * columns;
        one.hidden_bias = one.bias + columns;
        one.mask = data.mask;
        one.backward = way == 1;
        one.y = y + way * s.hidden;
        one.y_stride = out_width;
        one.hidden = hidden.get() + way * states;
        one.cell = lstm ? cell.get() + way * states : nullptr;
        Sequences(s, one, piece * s.batch / pieces, (piece + 1) * s.batch / pieces);
      }
    });
    if (data.last_hidden != nullptr) {
      Narrow(hidden.get(), s.directions * states, data.last_hidden + first * states);
    }
    if (data.last_cell != nullptr) {
      Narrow(cell.get(), s.directions * states, data.last_cell + first * states);
    }
    w_ih += s.directions * weights * width;
    x = y;
    width = out_width;
  }
  if constexpr (!kWhole) Narrow(x, tokens * out_width, data.y);
}

}  // namespace RLX_WIDE
}  // namespace rlx
