// The work of attention on a block of rows. No include guard: see wide.h.

namespace rlx {
namespace RLX_WIDE {

constexpr int64_t kDirectRows = 3;  // up to as many, keys and values are read where they lie

// How the scores of a row are made of its products.
struct LogitsOf {
  float scale;
  float softcap;        // 0 for none
  float hidden;         // what a hidden score becomes
  const float* bias;    // null for none
  const int32_t* keep;  // -1 where a key is seen; null where all are
  int64_t seen;         // columns [seen, seen_end) are seen
  int64_t seen_end;
  int64_t present;  // columns from there on are no keys
  bool floor;       // no score is below kHiddenScore
};

inline I Columns(int64_t first) {
  I v;
  for (int64_t i = 0; i < kW; ++i) v[i] = static_cast<int32_t>(first + i);
  return v;
}

// Turns the products of one row into scores, in place; returns the largest, passing over NaN. Of
// what makes scores, a plain row has the scale and the bias alone, and no column behind its keys.
template <bool kPlain>
float Logits(const LogitsOf& of, int64_t width, float* s) {
  const V lowest = Set(-std::numeric_limits<float>::infinity());
  const V scale = Set(of.scale);
  V most = lowest;
  for (int64_t j = 0; j < width; j += kW) {
    V x = LoadV(s + j) * scale;
    if (!kPlain && of.softcap != 0) x = Tanh(x / of.softcap) * of.softcap;
    if (of.bias != nullptr) x = x + LoadV(of.bias + j);
    if (!kPlain) {
      if (of.keep != nullptr) {
        I keep;
        std::memcpy(&keep, of.keep + j, sizeof(keep));
        x = Choose(keep, x, Set(of.hidden));
      }
      const I column = Columns(j);
      const I seen = (column >= static_cast<int32_t>(of.seen)) &
                     (column < static_cast<int32_t>(of.seen_end));
      x = Choose(seen, x, Set(of.hidden));
      if (of.floor) x = x < kHiddenScore ? Set(kHiddenScore) : x;
      x = Choose(column < static_cast<int32_t>(of.present), x, lowest);
    }
    most = Larger(x, most);
    StoreV(x, s + j);
  }
  return Most(most);
}

// Scores become weights exp(s - shift), in place; returns their sum.
inline float Weights(float shift, int64_t width, float* s) {
  const V less = Set(shift);
  V sum = {};
  for (int64_t j = 0; j < width; j += kW) {
    const V weight = Exp(LoadV(s + j) - less);
    sum = sum + weight;
    StoreV(weight, s + j);
  }
  return Sum(sum);
}

// s[m * kKeyBlock + j] = q[m] . k[j], where kM rows of q are padded with zeros.
template <int kM, typename T>
void DirectScores(const float* q, int64_t q_stride, const T* k, int64_t k_stride, int64_t keys,
                  int64_t depth, float* s) {
  constexpr int kJ = 4;
  const int64_t whole = depth / kW * kW;
  for (int64_t j = 0; j < keys; j += kJ) {
    V sums[kM][kJ] = {};
    const T* row[kJ];
    for (int i = 0; i < kJ; ++i) row[i] = k + std::min(j + i, keys - 1) * k_stride;
    for (int64_t d = 0; d < whole; d += kW) {
#pragma GCC unroll 4
      for (int i = 0; i < kJ; ++i) {
        const V key = LoadV(row[i] + d);
#pragma GCC unroll 4
        for (int m = 0; m < kM; ++m) sums[m][i] = MulAdd(LoadV(q + m * q_stride + d), key, sums[m][i]);
      }
    }
    if (whole < depth) {
      for (int i = 0; i < kJ; ++i) {
        const V key = LoadSome(row[i] + whole, depth - whole);
        for (int m = 0; m < kM; ++m) {
          sums[m][i] = MulAdd(LoadV(q + m * q_stride + whole), key, sums[m][i]);
        }
      }
    }
    for (int i = 0; i < kJ && j + i < keys; ++i) {
      for (int m = 0; m < kM; ++m) s[m * attention::kKeyBlock + j + i] = Sum(sums[m][i]);
    }
  }
}

// sums[m] += p[m] v, whose rows are read where they lie.
template <int kM, int kN, typename T>
void DirectColumns(const float* p, const T* v, int64_t v_stride, int64_t keys, int64_t columns,
                   float* sums, int64_t stride) {
  V acc[kM][kN] = {};
  const bool whole = columns >= kN * kW;
  for (int64_t j = 0; j < keys; ++j) {
    const T* row = v + j * v_stride;
#pragma GCC unroll 4
    for (int n = 0; n < kN; ++n) {
      const V value = whole ? LoadV(row + n * kW) : LoadSome(row + n * kW, columns - n * kW);
#pragma GCC unroll 4
      for (int m = 0; m < kM; ++m) {
        acc[m][n] = MulAdd(Set(p[m * attention::kKeyBlock + j]), value, acc[m][n]);
      }
    }
  }
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) {
      float* to = sums + m * stride + n * kW;
      StoreV(LoadV(to) + acc[m][n], to);
    }
  }
}

template <int kM, typename T>
void DirectSums(const float* p, const T* v, int64_t v_stride, int64_t keys, int64_t depth,
                float* sums, int64_t stride) {
  int64_t d = 0;
  for (; d + 4 * kW <= depth; d += 4 * kW) {
    DirectColumns<kM, 4>(p, v + d, v_stride, keys, depth - d, sums + d, stride);
  }
  for (; d < depth; d += kW) {
    DirectColumns<kM, 1>(p, v + d, v_stride, keys, depth - d, sums + d, stride);
  }
}

// Whether every key of a block is hidden from every row of a task, so that it may be passed over.
inline bool AllHidden(const AttentionShape& s, const attention::RowsTask& task, int64_t key,
                      int64_t width) {
  const int64_t group = s.group();
  const int64_t last_row = task.row + task.rows - 1;
  const bool uniform = s.empty_rows == EmptyRows::kUniform;
  if (s.mask == AttentionMask::kCustom) {
    if (uniform) return false;  // it counts in rows that see no key at all
    int32_t keep[attention::kKeyBlock];
    for (int64_t row = task.row; row <= last_row; ++row) {
      const int64_t head = task.kv_head * group + row % group;
      const int64_t at = attention::MaskAt(s, task.b, head, row / group, key);
      if (attention::KeepOf(s, at, width, keep)) return false;
      if (s.mask_strides[1] == 0 && s.mask_strides[2] == 0) break;
    }
    return true;
  }
  const attention::Seen first = attention::SeenBy(s, task.b, task.row / group);
  const attention::Seen last = attention::SeenBy(s, task.b, last_row / group);
  if (uniform && first.begin >= first.end) return false;
  return key >= last.end || key + width <= first.begin;
}

// How the scores of a block of keys are made, row by row.
struct BlockLogits {
  const AttentionShape& s;
  const attention::RowsTask& task;
  int64_t key;
  int64_t width;
  LogitsOf of;
  alignas(64) int32_t keep[attention::kKeyBlock];
  alignas(64) float bias[attention::kKeyBlock];

  BlockLogits(const AttentionShape& shape, const attention::RowsTask& rows, int64_t first,
              int64_t count)
      : s(shape), task(rows), key(first), width(count), of{}, keep{}, bias{} {
    of.scale = s.scale;
    of.softcap = s.softcap;
    const bool uniform = s.empty_rows == EmptyRows::kUniform && s.mask != AttentionMask::kNone;
    of.floor = attention::Floored(s);
    of.hidden = uniform ? kHiddenScore : -std::numeric_limits<float>::infinity();
    of.present = width;
    of.seen_end = width;
  }

  // Row r of the products becomes scores; returns the largest.
  float Row(int64_t r, float* scores) {
    const int64_t row = task.row + r;
    const int64_t query = row / s.group();
    const int64_t padded = Padded(width);
    bool plain = s.softcap == 0 && padded == width && !of.floor;
    if (attention::Ranged(s)) {
      const attention::Seen seen = attention::SeenBy(s, task.b, query);
      of.seen = std::clamp<int64_t>(seen.begin - key, 0, width);
      of.seen_end = std::clamp<int64_t>(seen.end - key, 0, width);
      plain = plain && of.seen == 0 && of.seen_end == width;
    }
    if (s.mask == AttentionMask::kCustom || attention::Biased(s)) {
      const int64_t head = task.kv_head * s.group() + row % s.group();
      const int64_t at = attention::MaskAt(s, task.b, head, query, key);
      if (s.mask == AttentionMask::kCustom) {
        plain = false;
        attention::KeepOf(s, at, width, keep);
        of.keep = keep;
      } else if (padded == width && s.mask_type == ElementType::kF32 && s.mask_strides[3] == 1) {
        of.bias = static_cast<const float*>(s.mask_data) + at;
      } else {
        attention::BiasOf(s, at, width, bias);
        of.bias = bias;
      }
    }
    return plain ? Logits<true>(of, padded, scores) : Logits<false>(of, padded, scores);
  }
};

template <typename T>
void AttentionRows(const AttentionShape& s, const attention::RowsTask& task, const T* q, const T* k,
                   const T* v, const attention::Running& out) {
  constexpr int64_t kKeys = attention::kKeyBlock;
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const int64_t group = s.group();
  const int64_t rows = task.rows;
  const int64_t depth = Padded(s.depth);
  const int64_t v_depth = Padded(s.v_depth);
  const bool direct = rows <= kDirectRows;
  float* const queries = task.work;
  float* const scores = queries + rows * depth;
  float* const turned = scores + rows * kKeys;
  float* const values = turned + s.depth * kKeys;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = task.row + r;
    const T* from = q + s.q.At(task.b, row / group, task.kv_head * group + row % group);
    Widen(from, 0, 1, s.depth, queries + r * depth, depth);
  }
  if (!task.exact) std::fill(out.most, out.most + rows, kLowest);
  std::fill(out.total, out.total + rows, 0.0f);
  for (int64_t r = 0; r < rows; ++r) {
    std::fill(out.sums + r * out.stride, out.sums + r * out.stride + v_depth, 0.0f);
  }
  for (int64_t key = task.key; key < task.key_end; key += kKeys) {
    const int64_t width = std::min(kKeys, task.key_end - key);
    if (task.finite != nullptr && !task.exact && task.finite[key / kKeys] &&
        AllHidden(s, task, key, width)) {
      continue;
    }
    const T* keys = k + s.k.At(task.b, key, task.kv_head);
    const T* from = v + s.v.At(task.b, key, task.kv_head);
    if (direct) {
      switch (rows) {
        case 1: DirectScores<1>(queries, depth, keys, s.k.step, width, s.depth, scores); break;
        case 2: DirectScores<2>(queries, depth, keys, s.k.step, width, s.depth, scores); break;
        default: DirectScores<3>(queries, depth, keys, s.k.step, width, s.depth, scores); break;
      }
      for (int64_t r = 0; r < rows; ++r) {
        std::fill(scores + r * kKeys + width, scores + r * kKeys + Padded(width), 0.0f);
      }
    } else {
      const int64_t padded = Padded(width);
      WidenTurned(keys, s.k.step, width, s.depth, turned, padded, padded);
      Product<false>({queries, depth, 1}, rows, s.depth, turned, padded, padded,
                     scores, kKeys);
    }
    BlockLogits logits(s, task, key, width);
    for (int64_t r = 0; r < rows; ++r) {
      float* of_row = scores + r * kKeys;
      const float largest = logits.Row(r, of_row);
      const float before = out.most[r];
      const float most = task.exact ? before : std::max(before, largest);
      const float shift = most == kLowest ? 0.0f : most;
      const float sum = Weights(shift, Padded(width), of_row);
      if (before == kLowest) {
        out.most[r] = most;  // what was summed up so far is zero, or stays NaN
      } else if (most != before) {
        const float factor = Exp(Set(before - shift))[0];
        out.total[r] *= factor;
        float* sums = out.sums + r * out.stride;
        for (int64_t d = 0; d < v_depth; d += kW) StoreV(LoadV(sums + d) * factor, sums + d);
        out.most[r] = most;
      }
      out.total[r] += sum;
    }
    if (direct) {
      switch (rows) {
        case 1: DirectSums<1>(scores, from, s.v.step, width, s.v_depth, out.sums, out.stride); break;
        case 2: DirectSums<2>(scores, from, s.v.step, width, s.v_depth, out.sums, out.stride); break;
        default: DirectSums<3>(scores, from, s.v.step, width, s.v_depth, out.sums, out.stride); break;
      }
    } else {
      Widen(from, s.v.step, width, s.v_depth, values, v_depth);
      Product<true>({scores, kKeys, 1}, rows, width, values, v_depth, v_depth,
                    out.sums, out.stride);
    }
  }
}

}  // namespace RLX_WIDE
}  // namespace rlx
