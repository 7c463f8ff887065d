// Few rows of f32 times matrices of f32 by columns, for CPUs that have AVX-512.
//
// Computes: y[m, n] = sum over k of x[m, k] * w[k, n].
// Layout: row-major.
// Numerics: products are fused with their sums, which are f32. The order of sums depends on the
//   sizes alone, not on the number of threads.
// Algorithm: blocks of 16 rows and 384 columns of w are multiplied where they lie by tiles of eight
//   rows of x and 48 columns, whose sums stay in registers; the next block is fetched meanwhile. No
//   weight is copied: with so few rows a panel would not be used often enough.
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
constexpr int64_t kDepth = 16;                    // rows of w in a block
constexpr int64_t kWidth = 8 * kColumns;          // and columns
constexpr int64_t kGrain = 256 * 1024;            // products that are worth a second thread

// A block of a matrix. The first one of a sum starts it.
struct Block {
  const float* data;
  int64_t stride;
  int64_t depth;
  int64_t count;
  bool first;
};

// acc[m * acc_stride + c] (+)= x[m] . w[:, c] for kX rows of x and up to kColumns columns from c
// on. Of a masked tile `left` columns exist. kFetch asks for the same tile of the next block.
template <int kX, bool kMasked, bool kFetch>
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
  for (int64_t i = 0; i < w.depth; ++i, row += w.stride) {
    __m512 weight[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (kFetch) {
        const float* next = row + w.depth * w.stride + v * kVector;
        _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T0);
      }
      weight[v] = load(row + v * kVector, v);
    }
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
template <int kX, bool kFetch>
void Columns(const Block& w, const float* x, int64_t x_stride, float* acc, int64_t acc_stride) {
  int64_t c = 0;
  for (; c + kColumns <= w.count; c += kColumns) {
    Tile<kX, false, kFetch>(w, c, kColumns, x, x_stride, acc, acc_stride);
  }
  if (c < w.count) Tile<kX, true, kFetch>(w, c, w.count - c, x, x_stride, acc, acc_stride);
}

template <bool kFetch>
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

// acc = x w for a matrix of any depth and at most kWidth columns; rows of x are taken in tiles of
// up to eight that are as even as can be.
inline void Multiply(const float* w, int64_t stride, int64_t depth, int64_t count, const float* x,
                     int64_t x_stride, int64_t rows, float* acc, int64_t acc_stride) {
  for (int64_t i = 0; i < depth; i += kDepth) {
    const Block block = {w + i * stride, stride, std::min(kDepth, depth - i), count, i == 0};
    int64_t m = 0;
    for (int64_t tiles = (rows + kRows - 1) / kRows; tiles > 0; --tiles) {
      const int64_t taken = (rows - m + tiles - 1) / tiles;
      if (m == 0) {
        TileOfRows<true>(taken, block, x + i, x_stride, acc, acc_stride);
      } else {
        TileOfRows<false>(taken, block, x + m * x_stride + i, x_stride, acc + m * acc_stride,
                          acc_stride);
      }
      m += taken;
    }
  }
}

// y[batch, rows, n] = x[batch, rows, k] w[batch, k, n]. Each task has a stretch of columns and a
// piece of the sums; pieces are made where there are few stretches.
template <typename Pool, typename Y>
void Product(const Pool& pool, const MatmulShape& s, const float* x, const float* w, Y* y) {
  constexpr int64_t kTasks = 4;
  constexpr int64_t kLeastDepth = 192;
  const int64_t size = s.batch * s.rows * s.n;
  if (size == 0) return;
  if (s.k == 0) {
    std::fill_n(y, size, FromFloat<Y>(0.0f));
    return;
  }
  const int64_t stretches = (s.n + kWidth - 1) / kWidth;
  const int64_t wanted =
      std::max<int64_t>(1, std::min(kTasks / (s.batch * stretches), s.k / kLeastDepth));
  const int64_t depth = matmul::RoundUp((s.k + wanted - 1) / wanted, kDepth);
  const int64_t pieces = (s.k + depth - 1) / depth;
  constexpr bool kInPlace = std::is_same_v<Y, float>;  // the first piece, which others are added to
  const Scratch<float> scratch((kInPlace ? pieces - 1 : pieces) * size);
  const auto sums = [&](int64_t piece) -> float* {
    if constexpr (kInPlace) {
      return piece == 0 ? y : scratch.get() + (piece - 1) * size;
    } else {
      return scratch.get() + piece * size;
    }
  };
  const int64_t cost = s.rows * depth * std::min(kWidth, s.n);
  ParallelFor(pool, s.batch * pieces * stretches, kGrain / cost + 1, [&](int64_t begin,
                                                                         int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t c = at % stretches * kWidth;
      const int64_t piece = at / stretches % pieces;
      const int64_t b = at / stretches / pieces;
      const int64_t first = piece * depth;
      Multiply(w + (b * s.k + first) * s.n + c, s.n, std::min(depth, s.k - first),
               std::min(kWidth, s.n - c), x + b * s.rows * s.k + first, s.k, s.rows,
               sums(piece) + b * s.rows * s.n + c, s.n);
    }
  });
  if (kInPlace && pieces == 1) return;
  ParallelFor(pool, size, kGrain, [&](int64_t begin, int64_t end) {
    float* total = sums(0);
    for (int64_t piece = 1; piece < pieces; ++piece) {
      const float* more = sums(piece);
      for (int64_t i = begin; i < end; ++i) total[i] += more[i];
    }
    if constexpr (!kInPlace) matmul::NarrowRow(total + begin, end - begin, y + begin);
  });
}

}  // namespace f32

}  // namespace rlx

#endif  // defined(__x86_64__)

#endif  // RLX_KERNELS_MATMUL_F32_H_
