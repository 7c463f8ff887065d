// Attention without a matrix of all scores.
//
// Computes: y = softmax(mask(cap(scale * q k^T))) v, heads of q sharing those of k and v in groups.
// Layout: q, k, v and y by strides of batch, position and head; the elements of a head lie side by
//   side.
// Numerics: products, scores and softmax in f32, exp to 2 ulp; the weights are not rounded to the
//   type of v; the result is rounded once. A score that is hidden never counts, whatever it is; a
//   hidden v that is infinite or NaN does, as zero times it. Scores without keys: see EmptyRows.
// Algorithm: Dao et al. 2022, arXiv:2205.14135: a block of queries goes over blocks of keys, with
//   the largest score, the sum of weights and the weighted sum so far. The queries of a group of
//   heads are rows of one block. Blocks in which every key is hidden are passed over. Where there
//   are few rows, keys are read where they lie, and the keys are shared out among threads.
#ifndef RLX_KERNELS_ATTENTION_H_
#define RLX_KERNELS_ATTENTION_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "numbers.h"
#include "parallel.h"
#include "scratch.h"
#include "wide.h"

namespace rlx {

enum class AttentionMask {
  kNone,
  kCausal,
  kSlidingWindow,
  kCustom,
  kBias,
  kLengths,
  kCausalBias
};

// What a query gives that sees no key.
enum class EmptyRows { kZeros, kNan, kUniform };

// What a hidden score becomes for kUniform; softmax is then even over the hidden keys, and over all
// keys where no score is left below it (Floored).
constexpr float kHiddenScore = -0.7f * 3.4028235e38f;

// Where the heads of an operand lie, in elements.
struct HeadStrides {
  int64_t batch;
  int64_t step;
  int64_t head;

  int64_t At(int64_t b, int64_t s, int64_t h) const { return b * batch + s * step + h * head; }
};

struct AttentionShape {
  int64_t batch;
  int64_t queries;
  int64_t keys;
  int64_t heads;
  int64_t kv_heads;
  int64_t depth;    // of q and k
  int64_t v_depth;  // of v and the result
  HeadStrides q, k, v, y;
  float scale;
  float softcap;  // 0 for none
  AttentionMask mask;
  int64_t window;  // keys before a query's own that it sees, of kSlidingWindow
  EmptyRows empty_rows;
  // The mask of kCustom (a number below 0.5 hides), kBias and kCausalBias, with strides of batch,
  // head, query and key in elements, 0 where it is repeated; the ends of kLengths.
  const void* mask_data;
  ElementType mask_type;
  int64_t mask_strides[4];

  int64_t group() const { return heads / kv_heads; }
  // Rows that share keys: row r is query r / group() of head r % group() of a group.
  int64_t rows() const { return group() * queries; }
};

namespace attention {

// Whether the kind of mask alone leaves every query a key, its own at least. A row whose scores are
// all -Inf is then a plain softmax of them.
inline bool AlwaysSees(const AttentionShape& s) {
  const bool before =
      s.mask == AttentionMask::kCausal || s.mask == AttentionMask::kSlidingWindow;
  return s.mask == AttentionMask::kNone || (before && s.keys >= s.queries);
}

// Whether no score may be below kHiddenScore: a bias hides keys by -Inf, which is then even too.
inline bool Floored(const AttentionShape& s) {
  return s.empty_rows == EmptyRows::kUniform && s.mask == AttentionMask::kBias;
}

constexpr int64_t kRowBlock = 96;
constexpr int64_t kKeyBlock = 128;

// Calls f with a pointer of the element type.
template <typename F>
void WithElements(ElementType type, const void* data, const F& f) {
  switch (type) {
    case ElementType::kU8: return f(static_cast<const uint8_t*>(data));
    case ElementType::kI8: return f(static_cast<const int8_t*>(data));
    case ElementType::kU16: return f(static_cast<const uint16_t*>(data));
    case ElementType::kI16: return f(static_cast<const int16_t*>(data));
    case ElementType::kU32: return f(static_cast<const uint32_t*>(data));
    case ElementType::kI32: return f(static_cast<const int32_t*>(data));
    case ElementType::kU64: return f(static_cast<const uint64_t*>(data));
    case ElementType::kI64: return f(static_cast<const int64_t*>(data));
    case ElementType::kBf16: return f(static_cast<const Bf16*>(data));
    case ElementType::kF16: return f(static_cast<const F16*>(data));
    case ElementType::kF32: return f(static_cast<const float*>(data));
    case ElementType::kF64: return f(static_cast<const double*>(data));
  }
}

template <typename T>
bool Hides(T x) {
  if constexpr (kIsFloat<T>) {
    return static_cast<float>(ToFloat(x)) < 0.5f;
  } else {
    return x <= 0;
  }
}

// Keys [begin, end) may be seen by a query.
struct Seen {
  int64_t begin;
  int64_t end;
};

inline Seen SeenBy(const AttentionShape& s, int64_t b, int64_t query) {
  Seen seen = {0, s.keys};
  const int64_t place = s.keys - s.queries + query;
  switch (s.mask) {
    case AttentionMask::kSlidingWindow:
      seen.begin = std::clamp<int64_t>(place - s.window, 0, s.keys);
      [[fallthrough]];
    case AttentionMask::kCausal:
    case AttentionMask::kCausalBias:
      seen.end = std::clamp<int64_t>(place + 1, 0, s.keys);
      break;
    case AttentionMask::kLengths:
      WithElements(s.mask_type, s.mask_data, [&](const auto* ends) {
        using T = std::decay_t<decltype(*ends)>;
        if constexpr (!kIsFloat<T>) {
          const int64_t end = static_cast<int64_t>(ends[b]);
          seen.end = std::clamp<int64_t>(end, 0, s.keys);
        }
      });
      break;
    default:
      break;
  }
  return seen;
}

inline bool Ranged(const AttentionShape& s) {
  return s.mask == AttentionMask::kCausal || s.mask == AttentionMask::kSlidingWindow ||
         s.mask == AttentionMask::kLengths || s.mask == AttentionMask::kCausalBias;
}

inline bool Biased(const AttentionShape& s) {
  return s.mask == AttentionMask::kBias || s.mask == AttentionMask::kCausalBias;
}

// Element (b, h, query, key) of the mask, and how far the next key's is.
inline int64_t MaskAt(const AttentionShape& s, int64_t b, int64_t h, int64_t query, int64_t key) {
  return b * s.mask_strides[0] + h * s.mask_strides[1] + query * s.mask_strides[2] +
         key * s.mask_strides[3];
}

// keep[j] is -1 where a key of [key, key + n) is seen by a query, and 0 where it is hidden.
// Returns whether any is seen.
inline bool KeepOf(const AttentionShape& s, int64_t at, int64_t n, int32_t* keep) {
  int32_t any = 0;
  WithElements(s.mask_type, s.mask_data, [&](const auto* mask) {
    const int64_t step = s.mask_strides[3];
    if (step == 1) {
      for (int64_t j = 0; j < n; ++j) keep[j] = Hides(mask[at + j]) ? 0 : -1;
    } else {
      for (int64_t j = 0; j < n; ++j) keep[j] = Hides(mask[at + j * step]) ? 0 : -1;
    }
  });
  for (int64_t j = 0; j < n; ++j) any |= keep[j];
  return any != 0;
}

inline void BiasOf(const AttentionShape& s, int64_t at, int64_t n, float* bias) {
  WithElements(s.mask_type, s.mask_data, [&](const auto* mask) {
    const int64_t step = s.mask_strides[3];
    using T = std::decay_t<decltype(*mask)>;
    if constexpr (kIsFloat<T>) {
      for (int64_t j = 0; j < n; ++j) bias[j] = static_cast<float>(ToFloat(mask[at + j * step]));
    }
  });
}

template <typename T>
bool AllFinite(const T* x, int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    uint32_t any = 0;
    for (int64_t i = 0; i < n; ++i) {
      any |= static_cast<uint32_t>((BitCast<uint32_t>(x[i]) & 0x7f800000) == 0x7f800000);
    }
    return any == 0;
  } else {
    uint16_t any = 0;
    for (int64_t i = 0; i < n; ++i) {
      any |= static_cast<uint16_t>((x[i].bits & kInfinityBits<T>) == kInfinityBits<T>);
    }
    return any == 0;
  }
}

// What is so far known of rows: the largest score, the sum of weights, the weighted sums.
struct Running {
  float* most;
  float* total;
  float* sums;
  int64_t stride;  // of sums
};

// The part of the work that a call of Rows does.
struct RowsTask {
  int64_t b;
  int64_t kv_head;
  int64_t row;   // the first one
  int64_t rows;  // at most kRowBlock
  int64_t key;   // the first one, a multiple of kKeyBlock
  int64_t key_end;
  const uint8_t* finite;  // whether v is, for each block of keys; null where none is passed over
  bool exact;             // `most` is known already, and nothing is passed over
  float* work;            // WorkSize(s) numbers, aligned to 64 bytes
};

// How many numbers a call of Rows works with: queries, scores, and keys and values of a block.
inline int64_t WorkSize(const AttentionShape& s) {
  const int64_t rows = std::min(kRowBlock, s.rows());
  const int64_t depth = wide256::Padded(s.depth) + 8;  // in either width
  const int64_t v_depth = wide256::Padded(s.v_depth) + 8;
  return rows * (depth + kKeyBlock) + (depth + v_depth) * kKeyBlock;
}

}  // namespace attention

}  // namespace rlx

#define RLX_TILES "attention_tiles.h"
#include "each_width.h"

namespace rlx {

namespace attention {

template <typename T>
void Rows(const AttentionShape& s, const RowsTask& task, const T* q, const T* k, const T* v,
          const Running& out) {
#if defined(RLX_HAS_WIDE512)
  if (HasWide512()) return wide512::AttentionRows(s, task, q, k, v, out);
#endif
  wide256::AttentionRows(s, task, q, k, v, out);
}

// Whether sums are such that an earlier, larger weight may have hidden what is infinite, or that
// keys were passed over which count after all.
inline bool NeedsExact(const AttentionShape& s, const Running& run, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    if (s.empty_rows == EmptyRows::kUniform && !(run.most[r] > kHiddenScore)) return true;
    if (!AllFinite(run.sums + r * run.stride, s.v_depth)) return true;
  }
  return false;
}

// What the sums of a row are multiplied by.
inline float FactorOf(const AttentionShape& s, float total) {
  if (total != 0) return 1 / total;  // NaN also
  const bool zeros = s.empty_rows == EmptyRows::kZeros && !AlwaysSees(s);
  const bool nan = !zeros && !Floored(s) && s.keys > 0;
  return nan ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
}

// Rows with all keys: the sums are not yet divided.
template <typename T>
void WholeRows(const AttentionShape& s, RowsTask task, const T* q, const T* k, const T* v,
               const Running& run) {
  task.key = 0;
  task.key_end = s.keys;
  task.exact = false;
  Rows(s, task, q, k, v, run);
  if (!NeedsExact(s, run, task.rows)) return;
  task.exact = true;
  Rows(s, task, q, k, v, run);
}

template <typename T>
void WriteRows(const AttentionShape& s, const RowsTask& task, const Running& run, T* y) {
  const int64_t group = s.group();
  for (int64_t r = 0; r < task.rows; ++r) {
    const int64_t row = task.row + r;
    float* sums = run.sums + r * run.stride;
    const float factor = FactorOf(s, run.total[r]);
    for (int64_t d = 0; d < s.v_depth; ++d) sums[d] *= factor;
    T* to = y + s.y.At(task.b, row / group, task.kv_head * group + row % group);
    wide256::Narrow(sums, s.v_depth, to);
  }
}

// For each batch, head and block of keys, whether x is finite.
template <typename Pool, typename T>
std::vector<uint8_t> FiniteBlocks(const Pool& pool, const AttentionShape& s, const T* x,
                                  const HeadStrides& strides, int64_t depth) {
  const int64_t blocks = (s.keys + kKeyBlock - 1) / kKeyBlock;
  std::vector<uint8_t> finite(s.batch * s.kv_heads * blocks);
  ParallelFor(pool, static_cast<int64_t>(finite.size()), 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / blocks;
      const int64_t key = i % blocks * kKeyBlock;
      const int64_t last = std::min(key + kKeyBlock, s.keys);
      bool all = true;
      for (int64_t j = key; j < last && all; ++j) {
        all = AllFinite(x + strides.At(head / s.kv_heads, j, head % s.kv_heads), depth);
      }
      finite[i] = all;
    }
  });
  return finite;
}

// Blocks from both ends in turn: pieces of a causal mask then cost about the same.
inline int64_t Evened(int64_t i, int64_t count) { return i % 2 == 0 ? i / 2 : count - 1 - i / 2; }

// The keys of a few rows shared out: every share has its own sums, which are joined at the end.
template <typename Pool, typename T>
void SharedKeys(const Pool& pool, const AttentionShape& s, int64_t shares, const uint8_t* finite,
                const T* q, const T* k, const T* v, T* y) {
  const int64_t heads = s.batch * s.kv_heads;
  const int64_t blocks = (s.keys + kKeyBlock - 1) / kKeyBlock;
  const int64_t stride = wide256::Padded(wide256::Padded(s.v_depth) + 8);
  const int64_t each = (blocks + shares - 1) / shares * kKeyBlock;
  const int64_t rows = s.rows();
  Scratch<float> most(heads * shares * rows);
  Scratch<float> total(heads * shares * rows);
  Scratch<float> sums(heads * shares * rows * stride);
  const auto running = [&](int64_t i) {
    return Running{most.get() + i * rows, total.get() + i * rows, sums.get() + i * rows * stride,
                   stride};
  };
  const auto task = [&](int64_t head) {
    RowsTask made = {head / s.kv_heads, head % s.kv_heads, 0, rows, 0, s.keys, nullptr, false,
                     nullptr};
    if (finite != nullptr) made.finite = finite + head * blocks;
    return made;
  };
  ParallelFor(pool, heads * shares, 1, [&](int64_t begin, int64_t end) {
    const Scratch<float> work(WorkSize(s));
    for (int64_t i = begin; i < end; ++i) {
      RowsTask part = task(i / shares);
      part.work = work.get();
      part.key = std::min(i % shares * each, s.keys);
      part.key_end = std::min(part.key + each, s.keys);
      Rows(s, part, q, k, v, running(i));
    }
  });
  for (int64_t head = 0; head < heads; ++head) {
    const Running joined = running(head * shares);
    for (int64_t r = 0; r < rows; ++r) {
      float largest = joined.most[r];
      for (int64_t i = 1; i < shares; ++i) {
        largest = std::max(largest, running(head * shares + i).most[r]);
      }
      const float shift = largest == -std::numeric_limits<float>::infinity() ? 0 : largest;
      float sum = 0;
      float* to = joined.sums + r * stride;
      for (int64_t i = 0; i < shares; ++i) {
        const Running part = running(head * shares + i);
        const float weight = std::exp(part.most[r] - shift);
        sum += weight * part.total[r];
        const float* from = part.sums + r * stride;
        for (int64_t d = 0; d < s.v_depth; ++d) {
          to[d] = (i == 0 ? 0 : to[d]) + weight * from[d];
        }
      }
      joined.most[r] = largest;
      joined.total[r] = sum;
    }
    const RowsTask whole = task(head);
    if (NeedsExact(s, joined, rows)) {
      const Scratch<float> work(WorkSize(s));
      RowsTask again = whole;
      again.exact = true;
      again.work = work.get();
      Rows(s, again, q, k, v, joined);
    }
    WriteRows(s, whole, joined, y);
  }
}

}  // namespace attention

template <typename Pool, typename T>
void Attention(const Pool& pool, const AttentionShape& s, const T* q, const T* k, const T* v,
               T* y) {
  using namespace attention;
  constexpr int64_t kGrain = 256 * 1024;  // products that are worth a second thread
  const int64_t heads = s.batch * s.kv_heads;
  const int64_t blocks = (s.keys + kKeyBlock - 1) / kKeyBlock;
  if (heads * s.rows() * s.v_depth == 0) return;
  std::vector<uint8_t> finite;
  const bool ranged = Ranged(s) || s.mask == AttentionMask::kCustom;
  if (ranged) finite = FiniteBlocks(pool, s, v, s.v, s.v_depth);
  const int64_t threads = pool.Threads();
  const int64_t row_blocks = (s.rows() + kRowBlock - 1) / kRowBlock;
  const int64_t cost = std::max<int64_t>(1, s.keys * (s.depth + s.v_depth));
  if (row_blocks == 1 && heads < 4 * threads && threads > 1 &&
      heads * s.rows() * cost > 2 * kGrain) {
    const int64_t shares = std::min(blocks, (4 * threads + heads - 1) / heads);
    if (shares > 1) {
      return SharedKeys(pool, s, shares, ranged ? finite.data() : nullptr, q, k, v, y);
    }
  }
  const int64_t per_block = cost * std::min(s.rows(), kRowBlock);
  ParallelFor(pool, heads * row_blocks, kGrain / per_block + 1, [&](int64_t begin, int64_t end) {
    const int64_t stride = wide256::Padded(wide256::Padded(s.v_depth) + 8);
    const int64_t most_rows = std::min(kRowBlock, s.rows());
    const Scratch<float> numbers(kRowBlock * 2 + most_rows * stride + WorkSize(s));
    float* const work = numbers.get() + 2 * kRowBlock;
    float* const sums = work + WorkSize(s);
    const Running run = {numbers.get(), numbers.get() + kRowBlock, sums, stride};
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / row_blocks;
      const int64_t row = Evened(i % row_blocks, row_blocks) * kRowBlock;
      const RowsTask task = {head / s.kv_heads,
                             head % s.kv_heads,
                             row,
                             std::min(kRowBlock, s.rows() - row),
                             0,
                             s.keys,
                             ranged ? finite.data() + head * blocks : nullptr,
                             false,
                             work};
      WholeRows(s, task, q, k, v, run);
      WriteRows(s, task, run, y);
    }
  });
}

}  // namespace rlx

#endif  // RLX_KERNELS_ATTENTION_H_
