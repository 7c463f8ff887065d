// Few rows of f32 times matrices of f32 by columns, for CPUs that have AVX-512.
//
// Computes: y[m, n] = sum over k of x[m, k] * w[k, n].
// Layout: row-major.
// Numerics: products are fused with their sums, which are f32. The order of sums depends on the
//   sizes alone, not on the number of threads.
// Algorithm: blocks of 384 columns and 16 rows of w, 32 where x has more than eight, are multiplied
//   where they lie by tiles of eight rows of x and 48 columns, whose sums stay in registers; the
//   next block is fetched meanwhile, half of it by each of the first two rows of tiles, so that
//   neither waits for memory. No weight is copied: with so few rows a panel would not be used often
//   enough. What a task has summed up is finished while it is in the cache.
#ifndef RLX_KERNELS_MATMUL_F32_H_
#define RLX_KERNELS_MATMUL_F32_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "matmul.h"
#include "matmul_avx512.h"
#include "parallel.h"
#include "scratch.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace rlx {

namespace f32 {

constexpr int64_t kVector = 16;
constexpr int kVectors = 3;                       // of a tile
constexpr int64_t kColumns = kVector * kVectors;  // of a tile
constexpr int64_t kRows = 8;                      // of x in a tile
constexpr int64_t kDepth = 32;                    // the most rows of w in a block
constexpr int64_t kFewDepth = 16;                 // the same for one row of tiles
constexpr int64_t kWidth = 8 * kColumns;          // columns of a block
constexpr int64_t kGrain = 256 * 1024;            // products that are worth a second thread

// A block of a matrix. The first one of a sum starts it.
struct Block {
  const float* data;
  int64_t stride;
  int64_t depth;
  int64_t count;
  bool first;
  const float* next;  // the block that is multiplied after it, or itself
};

// Which rows of the next block a tile asks for.
enum class Fetch { kNone, kAll, kFirstHalf, kSecondHalf };

// acc[m * acc_stride + c] (+)= x[m] . w[:, c] for kX rows of x and up to kColumns columns from c
// on. Of a masked tile `left` columns exist.
template <int kX, bool kMasked, Fetch kFetch>
RLX_AVX512 void Tile(const Block& w, int64_t c, int64_t left, const float* x, int64_t x_stride,
                     float* acc, int64_t acc_stride) {
  __mmask16 masks[kVectors];
#pragma GCC unroll 3
  for (int v = 0; v < kVectors; ++v) {
    const int64_t here = left - v * kVector;
    masks[v] = !kMasked || here >= kVector ? 0xffff : here <= 0 ? 0 : (1u << here) - 1;
  }
  const auto load = [&](const float* from, int v) RLX_AVX512 {
    return kMasked ? _mm512_maskz_loadu_ps(masks[v], from) : _mm512_loadu_ps(from);
  };
  const auto fetch = [](const float* from, int v) RLX_AVX512 {
    _mm_prefetch(reinterpret_cast<const char*>(from + v * kVector), _MM_HINT_T0);
  };
  __m512 sums[kX][kVectors];
#pragma GCC unroll 8
  for (int m = 0; m < kX; ++m) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      sums[m][v] =
          w.first ? _mm512_setzero_ps() : load(acc + m * acc_stride + c + v * kVector, v);
    }
  }
  const float* row = w.data + c;
  const float* next = w.next + c;
  if constexpr (kFetch == Fetch::kSecondHalf) next += w.depth / 2 * w.stride;
  for (int64_t i = 0; i < w.depth; ++i, row += w.stride) {
    if constexpr (kFetch == Fetch::kAll) {
      fetch(next, 0);
      fetch(next, 1);
      fetch(next, 2);
      next += w.stride;
    } else if constexpr (kFetch != Fetch::kNone) {
      if (i % 2 == 0) {
        fetch(next, 0);
        fetch(next, 1);
      } else {
        fetch(next, 2);
        next += w.stride;
      }
    }
    __m512 weight[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) weight[v] = load(row + v * kVector, v);
#pragma GCC unroll 8
    for (int m = 0; m < kX; ++m) {
      const __m512 value = _mm512_set1_ps(x[m * x_stride + i]);
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sums[m][v] = _mm512_fmadd_ps(value, weight[v], sums[m][v]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kX; ++m) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      _mm512_mask_storeu_ps(acc + m * acc_stride + c + v * kVector, masks[v], sums[m][v]);
    }
  }
}

// The same for all columns of a block.
template <int kX, Fetch kFetch>
void Columns(const Block& w, const float* x, int64_t x_stride, float* acc, int64_t acc_stride) {
  int64_t c = 0;
  for (; c + kColumns <= w.count; c += kColumns) {
    Tile<kX, false, kFetch>(w, c, kColumns, x, x_stride, acc, acc_stride);
  }
  if (c < w.count) Tile<kX, true, kFetch>(w, c, w.count - c, x, x_stride, acc, acc_stride);
}

template <Fetch kFetch>
void TileOfRows(int64_t rows, const Block& w, const float* x, int64_t x_stride, float* acc,
                int64_t acc_stride) {
  switch (rows) {
    case 1: return Columns<1, kFetch>(w, x, x_stride, acc, acc_stride);
    case 2: return Columns<2, kFetch>(w, x, x_stride, acc, acc_stride);
    case 3: return Columns<3, kFetch>(w, x, x_stride, acc, acc_stride);
    case 4: return Columns<4, kFetch>(w, x, x_stride, acc, acc_stride);
    case 5: return Columns<5, kFetch>(w, x, x_stride, acc, acc_stride);
    case 6: return Columns<6, kFetch>(w, x, x_stride, acc, acc_stride);
    case 7: return Columns<7, kFetch>(w, x, x_stride, acc, acc_stride);
    default: return Columns<8, kFetch>(w, x, x_stride, acc, acc_stride);
  }
}

// acc = x w for a matrix of any depth and at most kWidth columns, whose successor is `after`; rows
// of x are taken in tiles of up to eight that are as even as can be.
inline void Multiply(const float* w, const float* after, int64_t stride, int64_t depth,
                     int64_t count, const float* x, int64_t x_stride, int64_t rows, float* acc,
                     int64_t acc_stride) {
  const int64_t tiles = (rows + kRows - 1) / kRows;
  const int64_t most = tiles == 1 ? kFewDepth : kDepth;
  for (int64_t i = 0; i < depth; i += most) {
    const float* at = w + i * stride;
    const float* next = i + most < depth ? at + most * stride : after;
    const Block block = {at, stride, std::min(most, depth - i), count, i == 0, next};
    int64_t m = 0;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t taken = (rows - m + tiles - tile - 1) / (tiles - tile);
      const float* from = x + m * x_stride + i;
      float* to = acc + m * acc_stride;
      if (tiles == 1) {
        TileOfRows<Fetch::kAll>(taken, block, from, x_stride, to, acc_stride);
      } else if (tile == 0) {
        TileOfRows<Fetch::kFirstHalf>(taken, block, from, x_stride, to, acc_stride);
      } else if (tile == 1) {
        TileOfRows<Fetch::kSecondHalf>(taken, block, from, x_stride, to, acc_stride);
      } else {
        TileOfRows<Fetch::kNone>(taken, block, from, x_stride, to, acc_stride);
      }
      m += taken;
    }
  }
}

// Leaves sums of products as they are.
struct NoFinish {
  void operator()(float*, int64_t, int64_t, int64_t, int64_t) const {}
};

// y[batch, rows, n] = x[batch, rows, k] w[batch, k, n]. Each task has a stretch of columns and a
// piece of the sums; pieces are made where there are few stretches. Of f32 results
// finish(y, stride, rows, column, columns) is called once for every part.
template <typename Pool, typename Y, typename Finish = NoFinish>
void Product(const Pool& pool, const MatmulShape& s, const float* x, const float* w, Y* y,
             const Finish& finish = {}) {
  constexpr int64_t kTasks = 4;
  constexpr int64_t kLeastDepth = 192;
  const int64_t size = s.batch * s.rows * s.n;
  if (size == 0) return;
  const int64_t stretches = (s.n + kWidth - 1) / kWidth;
  const int64_t wanted =
      std::max<int64_t>(1, std::min(kTasks / (s.batch * stretches), s.k / kLeastDepth));
  const int64_t depth = matmul::RoundUp((s.k + wanted - 1) / wanted, kDepth);
  const int64_t pieces = depth == 0 ? 0 : (s.k + depth - 1) / depth;
  constexpr bool kInPlace = std::is_same_v<Y, float>;  // the first piece, which others are added to
  const Scratch<float> scratch((kInPlace ? std::max<int64_t>(pieces - 1, 0) : pieces) * size);
  const auto sums = [&](int64_t piece) -> float* {
    if constexpr (kInPlace) {
      return piece == 0 ? y : scratch.get() + (piece - 1) * size;
    } else {
      return scratch.get() + piece * size;
    }
  };
  const auto at_stretch = [&](int64_t at) {
    const int64_t piece = at / stretches % pieces;
    const int64_t b = at / stretches / pieces;
    return w + (b * s.k + piece * depth) * s.n + at % stretches * kWidth;
  };
  const int64_t cost = std::max<int64_t>(1, s.rows * depth * std::min(kWidth, s.n));
  ParallelFor(pool, s.batch * pieces * stretches, kGrain / cost + 1, [&](int64_t begin,
                                                                         int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t c = at % stretches * kWidth;
      const int64_t piece = at / stretches % pieces;
      const int64_t b = at / stretches / pieces;
      const int64_t first = piece * depth;
      const float* from = at_stretch(at);
      const int64_t count = std::min(kWidth, s.n - c);
      float* to = sums(piece) + b * s.rows * s.n + c;
      Multiply(from, at + 1 < end ? at_stretch(at + 1) : from, s.n, std::min(depth, s.k - first),
               count, x + b * s.rows * s.k + first, s.k, s.rows, to, s.n);
      if constexpr (kInPlace) {
        if (pieces == 1) finish(to, s.n, s.rows, c, count);
      }
    }
  });
  if (kInPlace && pieces == 1) return;
  ParallelFor(pool, s.batch * s.rows, kGrain / s.n + 1, [&](int64_t begin, int64_t end) {
    float* total = sums(0);
    if (pieces == 0) {
      if constexpr (kInPlace) std::fill(y + begin * s.n, y + end * s.n, 0.0f);
    }
    for (int64_t piece = 1; piece < pieces; ++piece) {
      const float* more = sums(piece);
      for (int64_t i = begin * s.n; i < end * s.n; ++i) total[i] += more[i];
    }
    if constexpr (kInPlace) {
      finish(y + begin * s.n, s.n, end - begin, 0, s.n);
    } else if (pieces == 0) {
      std::fill(y + begin * s.n, y + end * s.n, FromFloat<Y>(0.0f));
    } else {
      matmul::NarrowRow(total + begin * s.n, (end - begin) * s.n, y + begin * s.n);
    }
  });
}

}  // namespace f32

}  // namespace rlx

#endif  // defined(__x86_64__)

#endif  // RLX_KERNELS_MATMUL_F32_H_
