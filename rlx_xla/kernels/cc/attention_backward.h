// Gradients of attention by q, k and v, without a matrix of all scores.
//
// Computes: P = the weights, dP = dy v^T, dS = P (dP - sum over keys of P dP) where a key is seen,
//   times the slope of the cap; dq = scale dS k, dk = scale dS^T q, dv = P^T dy, summed over the
//   heads that share keys.
// Layout: as attention.h; the gradients lie as q, k and v do.
// Numerics: all in f32; the weights are not rounded to the type of v; each result is rounded once.
// Algorithm: attention.h gives the largest score, the sum of weights and the result of each row;
//   the sum over keys of P dP is that of dy times the result. A block of keys then goes over the
//   blocks of rows with its own gradients, and adds to those of the queries.
#ifndef RLX_KERNELS_ATTENTION_BACKWARD_H_
#define RLX_KERNELS_ATTENTION_BACKWARD_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention.h"

namespace rlx {

// Where gradients go; null where one is not wanted.
template <typename T>
struct AttentionGradients {
  T* q;
  T* k;
  T* v;
};

namespace attention {

// What is known of the rows of a head before the gradients: the weight of a score s is
// exp(s - shift) * factor; delta is the sum over keys of P dP.
struct RowStats {
  float* shift;
  float* factor;
  float* delta;
  uint8_t* plain;  // for each block of rows: all finite, so that hidden keys may be passed over
};

// Keys [key, key_end) of one head of k and v, and the rows that share them.
struct GradientTask {
  int64_t b;
  int64_t kv_head;
  int64_t key;
  int64_t key_end;
  const uint8_t* finite;  // whether k and v are, for each block of keys
  RowStats stats;
  float* by_query;  // sums of dq, [rows, by_query_stride]; null where not wanted
  int64_t by_query_stride;
};

}  // namespace attention

}  // namespace rlx

#define RLX_TILES "attention_backward_tiles.h"
#include "each_width.h"

namespace rlx {

namespace attention {

template <typename T>
void Gradients(const AttentionShape& s, const GradientTask& task, const T* q, const T* k,
               const T* v, const T* dy, const AttentionGradients<T>& out) {
#if defined(RLX_HAS_WIDE512)
  if (HasWide512()) return wide512::AttentionGradientBlocks(s, task, q, k, v, dy, out);
#endif
  wide256::AttentionGradientBlocks(s, task, q, k, v, dy, out);
}

// Fills the statistics of a block of rows.
template <typename T>
void StatsOf(const AttentionShape& s, const RowsTask& task, const T* q, const T* k, const T* v,
             const T* dy, const Running& run, const RowStats& stats) {
  WholeRows(s, task, q, k, v, run);
  const int64_t group = s.group();
  bool plain = true;
  for (int64_t r = 0; r < task.rows; ++r) {
    const int64_t row = task.row + r;
    const int64_t head = task.kv_head * group + row % group;
    const float factor = FactorOf(s, run.total[r]);
    const float most = run.most[r];
    const T* upstream = dy + s.y.At(task.b, row / group, head);
    const float* sums = run.sums + r * run.stride;
    float delta = 0;
    for (int64_t d = 0; d < s.v_depth; ++d) delta += ToFloat(upstream[d]) * (sums[d] * factor);
    stats.shift[row] = most == -std::numeric_limits<float>::infinity() ? 0 : most;
    stats.factor[row] = factor;
    stats.delta[row] = delta;
    plain = plain && AllFinite(&delta, 1) && AllFinite(&factor, 1) &&
            AllFinite(upstream, s.v_depth) &&
            AllFinite(q + s.q.At(task.b, row / group, head), s.depth) &&
            (s.empty_rows != EmptyRows::kUniform || most > kHiddenScore);
  }
  stats.plain[task.row / kRowBlock] = plain;
}

}  // namespace attention

template <typename Pool, typename T>
void AttentionBackward(const Pool& pool, const AttentionShape& s, const T* q, const T* k,
                       const T* v, const T* dy, const AttentionGradients<T>& out) {
  using namespace attention;
  const int64_t heads = s.batch * s.kv_heads;
  const int64_t rows = s.rows();
  const int64_t blocks = (s.keys + kKeyBlock - 1) / kKeyBlock;
  const int64_t row_blocks = (rows + kRowBlock - 1) / kRowBlock;
  std::vector<uint8_t> finite = FiniteBlocks(pool, s, v, s.v, s.v_depth);
  const std::vector<uint8_t> finite_k = FiniteBlocks(pool, s, k, s.k, s.depth);
  // Rows go by the values alone; keys by both.
  std::vector<uint8_t> both(finite.size());
  for (size_t i = 0; i < both.size(); ++i) both[i] = finite[i] & finite_k[i];
  Scratch<float> numbers(3 * heads * rows);
  std::vector<uint8_t> plain(heads * row_blocks);
  const auto stats_of = [&](int64_t head) {
    float* at = numbers.get() + 3 * head * rows;
    return RowStats{at, at + rows, at + 2 * rows, plain.data() + head * row_blocks};
  };
  ParallelFor(pool, heads * row_blocks, 1, [&](int64_t begin, int64_t end) {
    const int64_t stride = wide256::Padded(wide256::Padded(s.v_depth) + 8);
    Scratch<float> sums(kRowBlock * (stride + 2));
    const Scratch<float> work(WorkSize(s));
    const Running run = {sums.get(), sums.get() + kRowBlock, sums.get() + 2 * kRowBlock, stride};
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / row_blocks;
      const int64_t row = Evened(i % row_blocks, row_blocks) * kRowBlock;
      const RowsTask task = {head / s.kv_heads,
                             head % s.kv_heads,
                             row,
                             std::min(kRowBlock, rows - row),
                             0,
                             s.keys,
                             finite.data() + head * blocks,
                             false,
                             work.get()};
      StatsOf(s, task, q, k, v, dy, run, stats_of(head));
    }
  });
  // Few heads share their keys out among threads; each share has its own sums of dq.
  const int64_t wanted = heads > 0 ? (2 * pool.Threads() + heads - 1) / heads : 1;
  const int64_t shares = std::max<int64_t>(1, std::min(blocks, wanted));
  const int64_t each = (blocks + shares - 1) / shares * kKeyBlock;
  const int64_t stride = wide256::Padded(wide256::Padded(s.depth) + 8);
  Scratch<float> by_query(out.q == nullptr ? 0 : heads * shares * rows * stride);
  ParallelFor(pool, heads * shares, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / shares;
      GradientTask task = {};
      task.b = head / s.kv_heads;
      task.kv_head = head % s.kv_heads;
      task.key = std::min(i % shares * each, s.keys);
      task.key_end = std::min(task.key + each, s.keys);
      task.finite = both.data() + head * blocks;
      task.stats = stats_of(head);
      task.by_query = out.q == nullptr ? nullptr : by_query.get() + i * rows * stride;
      task.by_query_stride = stride;
      if (task.by_query != nullptr) {
        std::fill(task.by_query, task.by_query + rows * stride, 0.0f);
      }
      Gradients(s, task, q, k, v, dy, out);
    }
  });
  if (out.q == nullptr) return;
  ParallelFor(pool, heads * rows, 4096 / s.depth + 1, [&](int64_t begin, int64_t end) {
    const int64_t group = s.group();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / rows;
      const int64_t row = i % rows;
      float* sums = by_query.get() + (head * shares * rows + row) * stride;
      for (int64_t share = 1; share < shares; ++share) {
        const float* more = sums + share * rows * stride;
        for (int64_t d = 0; d < s.depth; ++d) sums[d] += more[d];
      }
      T* to = out.q + s.q.At(head / s.kv_heads, row / group,
                             head % s.kv_heads * group + row % group);
      wide256::Narrow(sums, s.depth, to);
    }
  });
}

}  // namespace rlx

#endif  // RLX_KERNELS_ATTENTION_BACKWARD_H_
