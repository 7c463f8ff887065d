// The inner loops of matmul.h in vectors of 64 bytes, for CPUs that have AVX-512.
//
// Every function carries its target, so that the file is compiled for the baseline; ask
// HasAvx512() before calling one.
#ifndef RLX_KERNELS_MATMUL_AVX512_H_
#define RLX_KERNELS_MATMUL_AVX512_H_

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>

#define RLX_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

namespace rlx {

namespace matmul {

// Tests take the other path by clearing it.
inline bool allow_avx512 = true;

inline bool HasAvx512() {
  static const bool has = __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return has && allow_avx512;
}

// acc[m * acc_stride + c] += x[m] . w[:, c] for 64 columns.
template <int kX>
RLX_AVX512 void OuterTile512(const float* w, int64_t w_stride, int64_t k, const float* x,
                             int64_t x_stride, float* acc, int64_t acc_stride) {
  __m512 sums[kX][4];
#pragma GCC unroll 8
  for (int m = 0; m < kX; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) sums[m][v] = _mm512_setzero_ps();
  }
  for (int64_t i = 0; i < k; ++i) {
    __m512 weight[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) weight[v] = _mm512_loadu_ps(w + i * w_stride + v * 16);
#pragma GCC unroll 8
    for (int m = 0; m < kX; ++m) {
      const __m512 value = _mm512_set1_ps(x[m * x_stride + i]);
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) sums[m][v] = _mm512_fmadd_ps(value, weight[v], sums[m][v]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kX; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      float* to = acc + m * acc_stride + v * 16;
      _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), sums[m][v]));
    }
  }
}

// acc[rows, width] += x[rows, k] w[k, width]; width is a multiple of 64.
inline void OuterRows512(const float* w, int64_t w_stride, int64_t width, int64_t k,
                         const float* x, int64_t x_stride, int64_t rows, float* acc,
                         int64_t acc_stride) {
  while (rows > 0) {
    const int64_t taken = rows >= 6 ? 6 : rows >= 4 ? 4 : rows >= 2 ? 2 : 1;
    for (int64_t c = 0; c < width; c += 64) {
      switch (taken) {
        case 6: OuterTile512<6>(w + c, w_stride, k, x, x_stride, acc + c, acc_stride); break;
        case 4: OuterTile512<4>(w + c, w_stride, k, x, x_stride, acc + c, acc_stride); break;
        case 2: OuterTile512<2>(w + c, w_stride, k, x, x_stride, acc + c, acc_stride); break;
        default: OuterTile512<1>(w + c, w_stride, k, x, x_stride, acc + c, acc_stride); break;
      }
    }
    rows -= taken;
    x += taken * x_stride;
    acc += taken * acc_stride;
  }
}

// sums[m * 32 + j * 8 ..] += eight lanes of x[m] . w[j] for kX rows of x and four of w; k is a
// multiple of 8.
template <int kX>
RLX_AVX512 void DotTile512(const float* w, int64_t w_stride, const float* x, int64_t x_stride,
                           int64_t k, float* sums) {
  __m512 acc[kX][4];
#pragma GCC unroll 4
  for (int m = 0; m < kX; ++m) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) acc[m][j] = _mm512_setzero_ps();
  }
  for (int64_t i = 0; i < k; i += 16) {
    const __mmask16 mask = i + 16 <= k ? 0xffff : 0xff;
    __m512 weight[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) weight[j] = _mm512_maskz_loadu_ps(mask, w + j * w_stride + i);
#pragma GCC unroll 4
    for (int m = 0; m < kX; ++m) {
      const __m512 value = _mm512_maskz_loadu_ps(mask, x + m * x_stride + i);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) acc[m][j] = _mm512_fmadd_ps(value, weight[j], acc[m][j]);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kX; ++m) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      alignas(64) float lanes[16];
      _mm512_store_ps(lanes, acc[m][j]);
      const __m256 both = _mm256_add_ps(_mm256_load_ps(lanes), _mm256_load_ps(lanes + 8));
      float* to = sums + m * 32 + j * 8;
      _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), both));
    }
  }
}

inline void DotRows512(const float* w, int64_t w_stride, const float* x, int64_t x_stride,
                       int64_t rows, int64_t k, float* sums) {
  int64_t m = 0;
  for (; m + 4 <= rows; m += 4) {
    DotTile512<4>(w, w_stride, x + m * x_stride, x_stride, k, sums + m * 32);
  }
  switch (rows - m) {
    case 3: DotTile512<3>(w, w_stride, x + m * x_stride, x_stride, k, sums + m * 32); break;
    case 2: DotTile512<2>(w, w_stride, x + m * x_stride, x_stride, k, sums + m * 32); break;
    case 1: DotTile512<1>(w, w_stride, x + m * x_stride, x_stride, k, sums + m * 32); break;
    default: break;
  }
}

}  // namespace matmul

}  // namespace rlx

#endif  // defined(__x86_64__)

#endif  // RLX_KERNELS_MATMUL_AVX512_H_
