// Few rows of bf16 times matrices of bf16, for CPUs that multiply pairs of bf16 (AVX512_BF16).
//
// Computes: as matmul.h.
// Layout: row-major; no row needs to be aligned to more than its elements.
// Numerics: products are exact and are added one by one to sums in f32. Operands and sums below
//   f32's normal numbers count as zero, as they do wherever XLA computes. The order of sums depends
//   on the sizes alone, not on the number of threads.
// Algorithm: by rows, rows of weights are multiplied as they lie, one for one row of x and four for
//   more. By columns, two rows of weights are woven into pairs in registers; the sums of a stretch
//   of columns lie in the first-level cache, of columns 4 to 7 of every eight apart from those of 0
//   to 3. Either way a matrix is read in the order in which it lies, and what is read soon is
//   fetched: memory is what one row waits for.
#ifndef RLX_KERNELS_MATMUL_BF16_H_
#define RLX_KERNELS_MATMUL_BF16_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "matmul.h"
#include "matmul_avx512.h"
#include "numbers.h"
#include "parallel.h"
#include "scratch.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define RLX_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined vectors of its own intrinsics for ours.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace rlx {

namespace bf16 {

using matmul::RoundUp;
using matmul::Tile;

constexpr int64_t kPairs = 32;  // elements of a vector
constexpr int64_t kGrain = 64 * 1024;  // elements of weights that are worth a second thread

// Tests take the other path by clearing it.
inline bool allow = true;

inline bool Has() {
  static const bool has = __builtin_cpu_supports("avx512bf16");
  return has && allow && matmul::HasAvx512();
}

RLX_BF16 inline __m512 Dot(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

// The first `count` of kPairs elements, up to all of them.
inline uint32_t First(int64_t count) { return count >= kPairs ? ~0u : (1u << count) - 1; }

// By rows.

// Bytes that are fetched ahead; one row leaves more room in the first-level cache.
template <int kX>
constexpr int64_t kFetch = kX == 1 ? 4096 : 2048;
constexpr int64_t kRowTile = 4;   // rows of weights that are taken at once for several rows of x

// y[m * y_stride + j] = x[m] . w[j] for kX rows of x and kW of weights, each with kSets sums.
template <int kX, int kW, int kSets, typename Y>
RLX_BF16 void DotTile(const Bf16* w, const Bf16* x, int64_t k, Y* y, int64_t y_stride) {
  __m512 sums[kSets][kX][kW];
#pragma GCC unroll 4
  for (int s = 0; s < kSets; ++s) {
#pragma GCC unroll 4
    for (int m = 0; m < kX; ++m) {
#pragma GCC unroll 4
      for (int j = 0; j < kW; ++j) sums[s][m][j] = _mm512_setzero_ps();
    }
  }
  int64_t i = 0;
  for (; i + kSets * kPairs <= k; i += kSets * kPairs) {
#pragma GCC unroll 4
    for (int s = 0; s < kSets; ++s) {
      __m512i weight[kW];
#pragma GCC unroll 4
      for (int j = 0; j < kW; ++j) {
        const Bf16* from = w + j * k + i + s * kPairs;
        _mm_prefetch(reinterpret_cast<const char*>(from) + kFetch<kX>, _MM_HINT_T0);
        weight[j] = _mm512_loadu_si512(from);
      }
#pragma GCC unroll 4
      for (int m = 0; m < kX; ++m) {
        const __m512i value = _mm512_loadu_si512(x + m * k + i + s * kPairs);
#pragma GCC unroll 4
        for (int j = 0; j < kW; ++j) sums[s][m][j] = Dot(sums[s][m][j], value, weight[j]);
      }
    }
  }
  for (; i < k; i += kPairs) {
    const __mmask32 mask = First(k - i);
    __m512i weight[kW];
#pragma GCC unroll 4
    for (int j = 0; j < kW; ++j) weight[j] = _mm512_maskz_loadu_epi16(mask, w + j * k + i);
#pragma GCC unroll 4
    for (int m = 0; m < kX; ++m) {
      const __m512i value = _mm512_maskz_loadu_epi16(mask, x + m * k + i);
#pragma GCC unroll 4
      for (int j = 0; j < kW; ++j) sums[0][m][j] = Dot(sums[0][m][j], value, weight[j]);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kX; ++m) {
#pragma GCC unroll 4
    for (int j = 0; j < kW; ++j) {
#pragma GCC unroll 4
      for (int s = 1; s < kSets; ++s) sums[0][m][j] = _mm512_add_ps(sums[0][m][j], sums[s][m][j]);
      y[m * y_stride + j] = FromFloat<Y>(_mm512_reduce_add_ps(sums[0][m][j]));
    }
  }
}

// The same for any number of rows of x, in tiles of up to four that are as even as can be.
template <int kW, typename Y>
void DotRows(const Bf16* w, const Bf16* x, int64_t rows, int64_t k, Y* y, int64_t y_stride) {
  for (int64_t tiles = (rows + 3) / 4; tiles > 0; --tiles) {
    const int64_t taken = (rows + tiles - 1) / tiles;
    switch (taken) {
      case 1: DotTile<1, kW, kW == 1 ? 4 : 2>(w, x, k, y, y_stride); break;
      case 2: DotTile<2, kW, 2>(w, x, k, y, y_stride); break;
      case 3: DotTile<3, kW, kW == 1 ? 2 : 1>(w, x, k, y, y_stride); break;
      default: DotTile<4, kW, kW == 1 ? 2 : 1>(w, x, k, y, y_stride); break;
    }
    rows -= taken;
    x += taken * k;
    y += taken * y_stride;
  }
}

// y[rows, n] = x[rows, k] w[n, k] for columns [begin, end) of y.
template <typename Y>
void ByRows(const Bf16* w, int64_t begin, int64_t end, const Bf16* x, int64_t rows, int64_t k,
            Y* y, int64_t y_stride) {
  int64_t n = begin;
  for (; rows > 1 && n + kRowTile <= end; n += kRowTile) {
    DotRows<kRowTile>(w + n * k, x, rows, k, y + n, y_stride);
  }
  for (; n < end; ++n) DotRows<1>(w + n * k, x, rows, k, y + n, y_stride);
}

// By columns.

constexpr int64_t kStep = 8;  // rows of weights that are taken at once

// The pair of two numbers, in every place.
RLX_BF16 inline __m512i Pair(const Bf16* x) {
  int32_t both;
  std::memcpy(&both, x, sizeof(both));
  return _mm512_set1_epi32(both);
}

// Sums of 32 columns: acc[m * acc_stride + c] += x[m] . w[:, c] for kX rows of x, with `depth` rows
// of weights, of which the columns in `mask` are read; pair(m, i) is x[m][i, i + 1] in every place.
// For each row of weights a line of what is read one block later is fetched: from `next` on where
// rows follow each other, and else `depth` rows further.
template <int kX, bool kMasked, bool kWhole, typename PairOf>
RLX_BF16 inline __attribute__((always_inline)) void OuterTile(
    const Bf16* w, int64_t w_stride, int64_t depth, __mmask32 mask, const PairOf& pair,
    const Bf16* next, float* acc, int64_t acc_stride) {
  __m512 low[kX];
  __m512 high[kX];
#pragma GCC unroll 8
  for (int m = 0; m < kX; ++m) {
    low[m] = _mm512_loadu_ps(acc + m * acc_stride);
    high[m] = _mm512_loadu_ps(acc + m * acc_stride + 16);
  }
  const auto row = [=](int64_t i) RLX_BF16 {
    const Bf16* from = w + i * w_stride;
    const Bf16* soon = kWhole ? next + i * kPairs : from + depth * w_stride;
    _mm_prefetch(reinterpret_cast<const char*>(soon), _MM_HINT_T0);
    return kMasked ? _mm512_maskz_loadu_epi16(mask, from) : _mm512_loadu_si512(from);
  };
#pragma GCC unroll 4
  for (int64_t i = 0; i < depth; i += 2) {
    const __m512i first = row(i);
    const __m512i second = i + 1 < depth ? row(i + 1) : _mm512_setzero_si512();
    const __m512i pairs = _mm512_unpacklo_epi16(first, second);
    const __m512i others = _mm512_unpackhi_epi16(first, second);
#pragma GCC unroll 8
    for (int m = 0; m < kX; ++m) {
      const __m512i value = pair(m, i);
      low[m] = Dot(low[m], value, pairs);
      high[m] = Dot(high[m], value, others);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kX; ++m) {
    _mm512_storeu_ps(acc + m * acc_stride, low[m]);
    _mm512_storeu_ps(acc + m * acc_stride + 16, high[m]);
  }
}

// A block of a matrix by columns.
struct Block {
  const Bf16* data;
  int64_t stride;
  int64_t depth;
  int64_t count;
};

// The same for all columns of a block. Rows of x have a zero behind an odd depth. Up to four rows
// of x are taken faster where the block has kDepth rows.
template <int kX, bool kWhole, int kDepth = kStep>
RLX_BF16 void OuterColumns(const Block& w, const Bf16* x, int64_t x_stride, float* acc,
                           int64_t acc_stride) {
  const Bf16* next = w.data + w.depth * w.stride;
  int64_t c = 0;
  if constexpr (kX <= 4) {
    if (w.depth == kDepth) {  // the pairs of x stay in registers
      __m512i pairs[kX][kDepth / 2];
#pragma GCC unroll 4
      for (int m = 0; m < kX; ++m) {
#pragma GCC unroll 4
        for (int i = 0; i < kDepth / 2; ++i) pairs[m][i] = Pair(x + m * x_stride + 2 * i);
      }
      const auto pair = [&](int m, int64_t i) RLX_BF16 { return pairs[m][i / 2]; };
      for (; c + kPairs <= w.count; c += kPairs, next += kDepth * kPairs) {
        OuterTile<kX, false, kWhole>(w.data + c, w.stride, kDepth, 0, pair, next, acc + c,
                                     acc_stride);
      }
    }
  }
  const auto pair = [=](int m, int64_t i) RLX_BF16 { return Pair(x + m * x_stride + i); };
  for (; c + kPairs <= w.count; c += kPairs, next += w.depth * kPairs) {
    OuterTile<kX, false, kWhole>(w.data + c, w.stride, w.depth, 0, pair, next, acc + c, acc_stride);
  }
  if (c < w.count) {
    OuterTile<kX, true, kWhole>(w.data + c, w.stride, w.depth, First(w.count - c), pair, next,
                                acc + c, acc_stride);
  }
}

// The same for any number of rows of x, in tiles of up to eight that are as even as can be.
template <bool kWhole>
void OuterRows(const Block& w, const Bf16* x, int64_t x_stride, int64_t rows, float* acc,
               int64_t acc_stride) {
  for (int64_t tiles = (rows + 7) / 8; tiles > 0; --tiles) {
    const int64_t taken = (rows + tiles - 1) / tiles;
    switch (taken) {
      case 1: OuterColumns<1, kWhole>(w, x, x_stride, acc, acc_stride); break;
      case 2: OuterColumns<2, kWhole>(w, x, x_stride, acc, acc_stride); break;
      case 3: OuterColumns<3, kWhole>(w, x, x_stride, acc, acc_stride); break;
      case 4: OuterColumns<4, kWhole>(w, x, x_stride, acc, acc_stride); break;
      case 5: OuterColumns<5, kWhole>(w, x, x_stride, acc, acc_stride); break;
      case 6: OuterColumns<6, kWhole>(w, x, x_stride, acc, acc_stride); break;
      case 7: OuterColumns<7, kWhole>(w, x, x_stride, acc, acc_stride); break;
      default: OuterColumns<8, kWhole>(w, x, x_stride, acc, acc_stride); break;
    }
    rows -= taken;
    x += taken * x_stride;
    acc += taken * acc_stride;
  }
}

// acc += x w for a block of any depth; acc has a multiple of kPairs columns.
inline void ByColumns(const Block& w, const Bf16* x, int64_t x_stride, int64_t rows, float* acc,
                      int64_t acc_stride) {
  const bool whole = w.count == w.stride;
  // For one row as many as leave room for the next in the first-level cache.
  const bool few = whole && rows == 1;
  const int64_t step = few && w.count > 2048   ? kStep / 4
                       : few && w.count > 1024 ? kStep / 2
                       : rows <= 4             ? kStep
                                               : 2 * kStep;
  for (int64_t i = 0; i < w.depth; i += step, x += step) {
    const Block block = {w.data + i * w.stride, w.stride, std::min(step, w.depth - i), w.count};
    if (step == kStep / 4) {
      OuterColumns<1, true, kStep / 4>(block, x, x_stride, acc, acc_stride);
    } else if (step == kStep / 2) {
      OuterColumns<1, true, kStep / 2>(block, x, x_stride, acc, acc_stride);
    } else if (whole) {
      OuterRows<true>(block, x, x_stride, rows, acc, acc_stride);
    } else {
      OuterRows<false>(block, x, x_stride, rows, acc, acc_stride);
    }
  }
}

// The sums of `count` columns, from `pieces` of them that lie `stride` apart, in their order.
template <typename Y>
RLX_BF16 void Finish(const float* acc, int64_t pieces, int64_t stride, int64_t count, Y* y) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second =
      _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  for (int64_t c = 0; c < count; c += kPairs, acc += kPairs) {
    __m512 low = _mm512_loadu_ps(acc);
    __m512 high = _mm512_loadu_ps(acc + 16);
    for (int64_t p = 1; p < pieces; ++p) {
      low = _mm512_add_ps(low, _mm512_loadu_ps(acc + p * stride));
      high = _mm512_add_ps(high, _mm512_loadu_ps(acc + p * stride + 16));
    }
    alignas(64) float sums[kPairs];
    _mm512_store_ps(sums, _mm512_permutex2var_ps(low, first, high));
    _mm512_store_ps(sums + 16, _mm512_permutex2var_ps(low, second, high));
    matmul::NarrowRow(sums, std::min(kPairs, count - c), y + c);
  }
}

// y[batch, rows, n] = x[batch, rows, k] w[batch, n, k].
template <typename Pool, typename Y>
void ProductByRows(const Pool& pool, const MatmulShape& s, const Bf16* x, const Bf16* w, Y* y) {
  const int64_t stretches = (s.n + kRowTile - 1) / kRowTile;
  const int64_t cost = kRowTile * (s.k + 1) * (8 + s.rows) / 8;
  ParallelFor(pool, s.batch * stretches, kGrain / cost + 1, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end;) {
      const int64_t b = at / stretches;
      const int64_t last = std::min(end, (b + 1) * stretches);
      const int64_t from = at % stretches * kRowTile;
      const int64_t to = std::min(s.n, from + (last - at) * kRowTile);
      ByRows(w + b * s.n * s.k, from, to, x + b * s.rows * s.k, s.rows, s.k, y + b * s.rows * s.n,
             s.n);
      at = last;
    }
  });
}

// How a product by columns is divided: each task has a stretch of columns and a piece of the sums.
// Pieces, which depend on the sizes alone, are made where there are few stretches.
struct Division {
  explicit Division(const MatmulShape& s)
      : width(s.rows == 1 ? 4096 : s.rows <= 8 ? 1024 : 512),
        stretches((s.n + width - 1) / width),
        depth(s.k),
        stride(RoundUp(s.n, kPairs)) {
    constexpr int64_t kTasks = 8;
    constexpr int64_t kLeastDepth = 64;
    const int64_t wanted = std::min(kTasks / (s.batch * stretches), s.k / kLeastDepth);
    if (wanted > 1) depth = RoundUp((s.k + wanted - 1) / wanted, 2 * kStep);
    pieces = depth == 0 ? 1 : (s.k + depth - 1) / depth;
  }

  int64_t width;
  int64_t stretches;
  int64_t depth;  // of a piece
  int64_t pieces;
  int64_t stride;  // of rows of sums
};

// y[batch, rows, n] = x[batch, rows, k] w[batch, k, n].
template <typename Pool, typename Y>
void ProductByColumns(const Pool& pool, const MatmulShape& s, const Bf16* x, const Bf16* w, Y* y) {
  const Division d(s);
  // Rows of an odd length get a zero at their end.
  const int64_t x_stride = RoundUp(s.k, 2);
  const bool odd = x_stride != s.k;
  Scratch<Bf16> even(odd ? s.batch * s.rows * x_stride : 0);
  for (int64_t r = 0; odd && r < s.batch * s.rows; ++r) {
    std::copy(x + r * s.k, x + (r + 1) * s.k, even.get() + r * x_stride);
    even[r * x_stride + s.k] = {0};
  }
  if (odd) x = even.get();
  Scratch<float> acc(s.batch * d.pieces * s.rows * d.stride);
  const int64_t cost = std::min(d.width, s.n) * (d.depth + 1) * (8 + s.rows) / 8;
  ParallelFor(pool, s.batch * d.pieces * d.stretches, kGrain / cost + 1,
              [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t c = at % d.stretches * d.width;
      const int64_t first = at / d.stretches % d.pieces * d.depth;
      const int64_t b = at / d.stretches / d.pieces;
      const int64_t count = std::min(d.width, s.n - c);
      float* sums = acc.get() + at / d.stretches * s.rows * d.stride + c;
      for (int64_t m = 0; m < s.rows; ++m) {
        std::fill_n(sums + m * d.stride, RoundUp(count, kPairs), 0.0f);
      }
      ByColumns({w + (b * s.k + first) * s.n + c, s.n, std::min(d.depth, s.k - first), count},
                x + b * s.rows * x_stride + first, x_stride, s.rows, sums, d.stride);
    }
  });
  ParallelFor(pool, s.batch * s.rows, kGrain / (s.n * d.pieces) + 1,
              [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* sums = acc.get() + (r / s.rows * d.pieces * s.rows + r % s.rows) * d.stride;
      Finish(sums, d.pieces, s.rows * d.stride, s.n, y + r * s.n);
    }
  });
}

// y[batch, rows, n] = x[batch, rows, k] w.
template <typename Pool, typename Y>
void Product(const Pool& pool, const MatmulShape& s, const Bf16* x, const Bf16* w, Y* y) {
  if (s.batch == 0 || s.rows == 0 || s.n == 0) return;
  s.by_rows ? ProductByRows(pool, s, x, w, y) : ProductByColumns(pool, s, x, w, y);
}

}  // namespace bf16

}  // namespace rlx

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif  // defined(__x86_64__)

#endif  // RLX_KERNELS_MATMUL_BF16_H_
