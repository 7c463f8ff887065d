// Index of the largest or smallest element of each row or column.
//
// Computes: for x of shape [rows, cols], cols >= 1, the position of the maximum (or minimum); or
//   for x of shape [n, inner], the position along n for each of some columns.
// Layout: row-major, any alignment.
// Numerics: jax.lax.argmax and argmin. A NaN beats every number; among NaNs and among equal
//   values the first position wins; -0 equals +0.
// Algorithm: one pass over blocks that stay in the first-level cache. A block's best value is
//   found in vector lanes without indices; only a block that improves on the row so far is
//   remembered, and the position is searched in that block alone, at the end. Columns go down the
//   rows together, each with its best value and position.
#ifndef RLX_KERNELS_ARGREDUCE_H_
#define RLX_KERNELS_ARGREDUCE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace rlx {

enum class Extreme { kMax, kMin };

namespace argreduce {

constexpr int64_t kVectorBytes = 32;
constexpr int64_t kBlockBytes = 8192;

template <Extreme kind, typename T>
bool Better(T a, T b) {
  return kind == Extreme::kMax ? a > b : a < b;
}

template <typename T>
bool IsNan(T x) {
  return x != x;
}

template <typename T>
struct BlockBest {
  T value;       // meaningless where has_nan
  bool has_nan;
};

// The best value of x[0..n), n >= 1.
template <Extreme kind, typename T>
BlockBest<T> BestOfBlock(const T* x, int64_t n) {
  typedef T Vector __attribute__((vector_size(kVectorBytes)));
  constexpr int64_t kLanes = kVectorBytes / static_cast<int64_t>(sizeof(T));
  constexpr int64_t kUnroll = 4;
  const auto load = [](const T* p) {
    Vector v;
    std::memcpy(&v, p, sizeof(v));
    return v;
  };
  T best = x[0];
  bool has_nan = IsNan(x[0]);
  int64_t i = 0;
  if (n >= kUnroll * kLanes) {
    Vector acc[kUnroll];
    for (int64_t u = 0; u < kUnroll; ++u) acc[u] = load(x + u * kLanes);
    auto nan = acc[0] != acc[0];
    for (; i + kUnroll * kLanes <= n; i += kUnroll * kLanes) {
      for (int64_t u = 0; u < kUnroll; ++u) {
        const Vector v = load(x + i + u * kLanes);
        acc[u] = (kind == Extreme::kMax ? v > acc[u] : v < acc[u]) ? v : acc[u];
        if (std::is_floating_point_v<T>) nan |= v != v;
      }
    }
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      has_nan |= nan[lane] != 0;
      for (int64_t u = 0; u < kUnroll; ++u) {
        if (Better<kind>(static_cast<T>(acc[u][lane]), best)) best = acc[u][lane];
      }
    }
  }
  for (; i < n; ++i) {
    has_nan |= IsNan(x[i]);
    if (Better<kind>(x[i], best)) best = x[i];
  }
  return {best, has_nan};
}

// First position in x[0..n) where `hit` holds for the element; one exists.
template <typename T, typename Hit>
int64_t FindFirst(const T* x, int64_t n, Hit hit) {
  constexpr int64_t kStep = 64;
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    int any = 0;
    for (int64_t j = 0; j < kStep; ++j) any |= hit(x[i + j]);
    if (any) break;
  }
  while (i + 1 < n && !hit(x[i])) ++i;
  return i;
}

template <Extreme kind, typename T>
int64_t Row(const T* x, int64_t cols) {
  constexpr int64_t kBlock = kBlockBytes / static_cast<int64_t>(sizeof(T));
  T best = x[0];
  int64_t best_block = 0;
  for (int64_t begin = 0; begin < cols; begin += kBlock) {
    const int64_t n = std::min(kBlock, cols - begin);
    const BlockBest<T> block = BestOfBlock<kind>(x + begin, n);
    if (block.has_nan) return begin + FindFirst(x + begin, n, IsNan<T>);
    if (Better<kind>(block.value, best) || begin == 0) {
      best = block.value;
      best_block = begin;
    }
  }
  return best_block + FindFirst(x + best_block, std::min(kBlock, cols - best_block),
                                [best](T v) { return v == best; });
}

}  // namespace argreduce

// Writes the position for each row of x[rows, cols]; cols >= 1 and fits Index.
template <Extreme kind, typename T, typename Index>
void ArgReduce(const T* x, int64_t rows, int64_t cols, Index* out) {
  for (int64_t row = 0; row < rows; ++row) {
    out[row] = static_cast<Index>(argreduce::Row<kind>(x + row * cols, cols));
  }
}

// The same for columns [0, columns) of x[n, inner]: positions along n. n >= 1 and fits Index.
template <Extreme kind, typename T, typename Index>
void ArgReduceColumns(const T* x, int64_t n, int64_t inner, int64_t columns, Index* out) {
  // Positions are as wide as the elements, so that both take the same lanes.
  using Position = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
  constexpr int64_t kColumns = 512;
  T best[kColumns];
  Position position[kColumns];
  for (int64_t begin = 0; begin < columns; begin += kColumns) {
    const int64_t size = std::min(kColumns, columns - begin);
    std::memcpy(best, x + begin, sizeof(T) * size);
    std::memset(position, 0, sizeof(Position) * size);
    for (int64_t i = 1; i < n; ++i) {
      const T* row = x + i * inner + begin;
      for (int64_t c = 0; c < size; ++c) {
        const T value = row[c];
        // A NaN is better than every number, and nothing is better than a NaN.
        const bool worse = kind == Extreme::kMax ? value <= best[c] : value >= best[c];
        const bool take = !worse & (best[c] == best[c]);
        best[c] = take ? value : best[c];
        position[c] = take ? static_cast<Position>(i) : position[c];
      }
    }
    for (int64_t c = 0; c < size; ++c) out[begin + c] = static_cast<Index>(position[c]);
  }
}

}  // namespace rlx

#endif  // RLX_KERNELS_ARGREDUCE_H_
