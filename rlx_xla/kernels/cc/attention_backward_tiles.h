// Gradients of attention for blocks of keys. No include guard: see wide.h.

namespace rlx {
namespace RLX_WIDE {

// Scores of a row become weights, in place, and the gradients of weights those of scores.
struct GradientOf {
  float shift;
  float factor;
  float delta;
  float scale;
  bool seen_only;  // scores up to `floor` have no gradient
  float floor;
};

inline void ScoreGradients(const GradientOf& of, int64_t width, float* scores, float* gradients,
                           const float* slope) {
  const V factor = Set(of.factor);
  const V delta = Set(of.delta);
  for (int64_t j = 0; j < width; j += kW) {
    const V score = LoadV(scores + j);
    const V weight = Exp(score - of.shift) * factor;
    V gradient = weight * (LoadV(gradients + j) - delta);
    if (of.seen_only) gradient = Choose(score <= of.floor, V{}, gradient);
    if (slope != nullptr) gradient = gradient * LoadV(slope + j);
    StoreV(weight, scores + j);
    StoreV(gradient * of.scale, gradients + j);
  }
}

template <typename T>
void AttentionGradientBlocks(const AttentionShape& s, const attention::GradientTask& task,
                             const T* q, const T* k, const T* v, const T* dy,
                             const AttentionGradients<T>& out) {
  constexpr int64_t kKeys = attention::kKeyBlock;
  constexpr int64_t kRows = attention::kRowBlock;
  const int64_t group = s.group();
  const int64_t rows = s.rows();
  const int64_t depth = Padded(s.depth);
  const int64_t v_depth = Padded(s.v_depth);
  const bool by_scores = out.q != nullptr || out.k != nullptr;
  Scratch<float> queries(rows * depth);
  Scratch<float> upstream(rows * v_depth);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t head = task.kv_head * group + row % group;
    Widen(q + s.q.At(task.b, row / group, head), 0, 1, s.depth, queries.get() + row * depth, depth);
    Widen(dy + s.y.At(task.b, row / group, head), 0, 1, s.v_depth,
          upstream.get() + row * v_depth, v_depth);
  }
  Scratch<float> keys(kKeys * depth);
  Scratch<float> keys_turned(s.depth * kKeys);
  Scratch<float> values_turned(by_scores ? s.v_depth * kKeys : 0);
  Scratch<float> scores(kRows * kKeys);
  Scratch<float> gradients(kRows * kKeys);
  Scratch<float> slopes(s.softcap != 0 ? kRows * kKeys : 0);
  Scratch<float> by_key(kKeys * depth);
  Scratch<float> by_value(kKeys * v_depth);
  const bool masked = s.mask != AttentionMask::kNone;
  const bool uniform = s.empty_rows == EmptyRows::kUniform;
  GradientOf of = {};
  of.scale = s.scale;
  of.seen_only = masked && (s.mask != AttentionMask::kBias || uniform);
  of.floor = uniform ? kHiddenScore : -std::numeric_limits<float>::infinity();
  for (int64_t key = task.key; key < task.key_end; key += kKeys) {
    const int64_t width = std::min(kKeys, task.key_end - key);
    const int64_t padded = Padded(width);
    const T* from = k + s.k.At(task.b, key, task.kv_head);
    WidenTurned(from, s.k.step, width, s.depth, keys_turned.get(), padded, padded);
    if (out.q != nullptr) Widen(from, s.k.step, width, s.depth, keys.get(), depth);
    if (by_scores) {
      WidenTurned(v + s.v.At(task.b, key, task.kv_head), s.v.step, width, s.v_depth,
                  values_turned.get(), padded, padded);
    }
    std::fill(by_key.get(), by_key.get() + kKeys * depth, 0.0f);
    std::fill(by_value.get(), by_value.get() + kKeys * v_depth, 0.0f);
    for (int64_t row = 0; row < rows; row += kRows) {
      const int64_t count = std::min(kRows, rows - row);
      const attention::RowsTask part = {task.b,      task.kv_head, row,   count,  key,
                                        key + width, nullptr,      false, nullptr};
      if (masked && s.mask != AttentionMask::kBias && task.finite[key / kKeys] &&
          task.stats.plain[row / kRows] && AllHidden(s, part, key, width)) {
        continue;
      }
      const float* query = queries.get() + row * depth;
      const float* up = upstream.get() + row * v_depth;
      Product<false>({query, depth, 1}, count, s.depth, keys_turned.get(), padded, padded,
                     scores.get(), kKeys);
      if (by_scores) {
        Product<false>({up, v_depth, 1}, count, s.v_depth, values_turned.get(), padded, padded,
                       gradients.get(), kKeys);
      }
      if (by_scores && s.softcap != 0) {
        for (int64_t r = 0; r < count; ++r) {
          for (int64_t j = 0; j < padded; j += kW) {
            const V t = Tanh(LoadV(scores.get() + r * kKeys + j) * s.scale / s.softcap);
            StoreV((1.0f - t) * (1.0f + t), slopes.get() + r * kKeys + j);
          }
        }
      }
      BlockLogits logits(s, part, key, width);
      for (int64_t r = 0; r < count; ++r) {
        of.shift = task.stats.shift[row + r];
        of.factor = task.stats.factor[row + r];
        of.delta = task.stats.delta[row + r];
        float* of_row = scores.get() + r * kKeys;
        logits.Row(r, of_row);
        if (!by_scores) {
          Weights(of.shift, padded, of_row);
          for (int64_t j = 0; j < padded; j += kW) StoreV(LoadV(of_row + j) * of.factor, of_row + j);
          continue;
        }
        ScoreGradients(of, padded, of_row, gradients.get() + r * kKeys,
                       s.softcap != 0 ? slopes.get() + r * kKeys : nullptr);
      }
      if (out.v != nullptr) {
        Product<true>({scores.get(), 1, kKeys}, width, count, up, v_depth, v_depth,
                      by_value.get(), v_depth);
      }
      if (out.k != nullptr) {
        Product<true>({gradients.get(), 1, kKeys}, width, count, query, depth, depth, by_key.get(),
                      depth);
      }
      if (out.q != nullptr) {
        Product<true>({gradients.get(), kKeys, 1}, count, width, keys.get(), depth, depth,
                      task.by_query + row * task.by_query_stride, task.by_query_stride);
      }
    }
    for (int64_t j = 0; j < width; ++j) {
      if (out.k != nullptr) {
        Narrow(by_key.get() + j * depth, s.depth, out.k + s.k.At(task.b, key + j, task.kv_head));
      }
      if (out.v != nullptr) {
        Narrow(by_value.get() + j * v_depth, s.v_depth,
               out.v + s.v.At(task.b, key + j, task.kv_head));
      }
    }
  }
}

}  // namespace RLX_WIDE
}  // namespace rlx
