// Vectors of f32 in two widths: 32 bytes, which every CPU gets, and 64 bytes for those with AVX-512.
//
// wide_vectors.h is compiled once for each, into wide256 and wide512, and so are the tiles that
// kernels are made of: a file of tiles is included between RLX_BEGIN_WIDE512 and RLX_END_WIDE512
// with RLX_WIDE and RLX_WIDE_BYTES set, as below. Ask HasWide512() before calling into wide512. What
// is defined elsewhere, and a lambda, may be compiled without AVX-512: vectors are not passed to it.
#ifndef RLX_KERNELS_WIDE_H_
#define RLX_KERNELS_WIDE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "matmul.h"
#include "numbers.h"

#if defined(__x86_64__)
#define RLX_HAS_WIDE512 1
#if defined(__clang__)
#define RLX_BEGIN_WIDE512                                                                      \
  _Pragma("clang attribute push(__attribute__((target(\"avx512f,avx512bw,avx512dq,avx512vl\"))), " \
          "apply_to = function)")
#define RLX_END_WIDE512 _Pragma("clang attribute pop")
#else
#define RLX_BEGIN_WIDE512 \
  _Pragma("GCC push_options") _Pragma("GCC target(\"avx512f,avx512bw,avx512dq,avx512vl\")")
#define RLX_END_WIDE512 _Pragma("GCC pop_options")
#endif
#endif

namespace rlx {

// Turns a block of eight rows and eight columns.
inline void Turn8(const Lanes<float>* rows, Lanes<float>* columns) {
#if defined(__AVX2__)
  __m256 pairs[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  __m256 fours[8];
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    columns[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    columns[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
#else
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 8; ++j) columns[j][i] = rows[i][j];
  }
#endif
}

}  // namespace rlx

#define RLX_TILES "wide_vectors.h"
#include "each_width.h"

namespace rlx {

inline bool HasWide512() {
#if defined(RLX_HAS_WIDE512)
  return matmul::HasAvx512();
#else
  return false;
#endif
}

}  // namespace rlx

#endif  // RLX_KERNELS_WIDE_H_
