// The inner loop of dequant_int8.h for CPUs that have AVX-512 with VNNI, for blocks of 32 codes.
//
// Every number is rounded where RowTile rounds it, so that both give the same bits. Every function
// carries its target; ask HasVnni() before calling one.
#ifndef RLX_KERNELS_DEQUANT_INT8_VNNI_H_
#define RLX_KERNELS_DEQUANT_INT8_VNNI_H_

#include <cstdint>
#include <cstring>

#include "blocks.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define RLX_VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined vectors of its own intrinsics for ours.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace rlx {

namespace int8 {

inline bool HasVnni() {
  static const bool has = __builtin_cpu_supports("avx512vnni");
  return has && matmul::HasAvx512();
}

// The codes of a block of each of two rows, as bytes without a sign; kBias was added to each.
template <typename Block>
struct TwoBlocks {
  static constexpr bool kHas = false;
};
struct Q8_0;
struct Q4_0;
struct Q4_1;

// Sixteen bytes of each row: the low nibbles come first.
RLX_VNNI inline __m512i Nibbles(const uint8_t* first, const uint8_t* second) {
  const __m256i bytes = _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(first))),
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(second)), 1);
  const __m512i twice = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3),
                                                 _mm512_castsi256_si512(bytes));
  const __m512i turned = _mm512_srlv_epi64(twice, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
  return _mm512_and_si512(turned, _mm512_set1_epi8(15));
}

template <>
struct TwoBlocks<Q4_1> {
  static constexpr bool kHas = true;
  static constexpr int kBias = 0;
  RLX_VNNI static __m512i Get(const uint8_t* first, const uint8_t* second) {
    return Nibbles(first + 4, second + 4);
  }
};

template <>
struct TwoBlocks<Q4_0> {
  static constexpr bool kHas = true;
  static constexpr int kBias = 8;
  RLX_VNNI static __m512i Get(const uint8_t* first, const uint8_t* second) {
    return Nibbles(first + 2, second + 2);
  }
};

template <>
struct TwoBlocks<Q8_0> {
  static constexpr bool kHas = true;
  static constexpr int kBias = 128;
  RLX_VNNI static __m512i Get(const uint8_t* first, const uint8_t* second) {
    const __m512i codes = _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(first + 2))),
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second + 2)), 1);
    return _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
  }
};

// The first two halves of a block: its scale, and its least number where it has one.
inline int HalvesOf(const uint8_t* block) {
  int both;
  std::memcpy(&both, block, sizeof(both));
  return both;
}

// The sums of the eight lanes of four rows, two a vector, in the order of Total.
RLX_VNNI inline __m128 Totals(__m512 first, __m512 second) {
  const __m256 row[4] = {_mm512_castps512_ps256(first), _mm512_extractf32x8_ps(first, 1),
                         _mm512_castps512_ps256(second), _mm512_extractf32x8_ps(second, 1)};
  __m128 four[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    four[r] = _mm_add_ps(_mm256_castps256_ps128(row[r]), _mm256_extractf128_ps(row[r], 1));
  }
  const __m128 low = _mm_add_ps(_mm_unpacklo_ps(four[0], four[1]),
                                _mm_unpackhi_ps(four[0], four[1]));
  const __m128 high = _mm_add_ps(_mm_unpacklo_ps(four[2], four[3]),
                                 _mm_unpackhi_ps(four[2], four[3]));
  return _mm_add_ps(_mm_movelh_ps(low, high), _mm_movehl_ps(high, low));
}

// y[m * stride + r] for kX rows of x and four of the weight, one after another.
template <typename Block, int kX, typename Row>
RLX_VNNI void FourRows(const uint8_t* weight, int64_t k, const Row* x, float* y, int64_t stride) {
  using Two = TwoBlocks<Block>;
  constexpr int64_t kAhead = 4096;
  const int64_t row_bytes = k / Block::kElements * Block::kBytes;
  const __m512i bias = _mm512_set1_epi8(static_cast<char>(Two::kBias));
  const __m512i of_first = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2);
  const __m512i of_second = _mm512_setr_epi32(4, 4, 4, 4, 4, 4, 4, 4, 6, 6, 6, 6, 6, 6, 6, 6);
  __m512 acc[kX][2];
  __m256 rest[kX];
#pragma GCC unroll 4
  for (int m = 0; m < kX; ++m) {
    acc[m][0] = acc[m][1] = _mm512_setzero_ps();
    rest[m] = _mm256_setzero_ps();
  }
  const uint8_t* ahead = weight + kAhead;
  for (int64_t i = 0; i < k / Block::kElements; ++i) {
    const uint8_t* row = weight + i * Block::kBytes;
    for (int64_t line = 0; line < 4 * Block::kBytes; line += 64) __builtin_prefetch(ahead + line);
    ahead += 4 * Block::kBytes;
    const uint8_t* row1 = row + row_bytes;
    const uint8_t* row2 = row1 + row_bytes;
    const uint8_t* row3 = row2 + row_bytes;
    const __m256 halves = _mm256_cvtph_ps(
        _mm_setr_epi32(HalvesOf(row), HalvesOf(row1), HalvesOf(row2), HalvesOf(row3)));
    const __m512i first = Two::Get(row, row1);
    const __m512i second = Two::Get(row2, row3);
#pragma GCC unroll 4
    for (int m = 0; m < kX; ++m) {
      const __m512i codes = _mm512_broadcast_i64x4(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x[m].codes + i * 32)));
      const __m256 both = _mm256_blend_ps(_mm256_set1_ps(x[m].scale[i]),
                                          _mm256_set1_ps(x[m].sum[i]), 0xaa);
      const __m256 scaled = _mm256_mul_ps(halves, both);
      const __m512 scales = _mm512_castps256_ps512(scaled);
      __m512i a = _mm512_dpbusd_epi32(_mm512_setzero_si512(), first, codes);
      __m512i b = _mm512_dpbusd_epi32(_mm512_setzero_si512(), second, codes);
      if constexpr (Two::kBias != 0) {
        const __m512i added = _mm512_dpbusd_epi32(_mm512_setzero_si512(), bias, codes);
        a = _mm512_sub_epi32(a, added);
        b = _mm512_sub_epi32(b, added);
      }
      acc[m][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a),
                                  _mm512_permutexvar_ps(of_first, scales), acc[m][0]);
      acc[m][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(b),
                                  _mm512_permutexvar_ps(of_second, scales), acc[m][1]);
      if constexpr (Block::kLeast) rest[m] = _mm256_add_ps(rest[m], scaled);
    }
  }
  const __m256i odd = _mm256_setr_epi32(1, 3, 5, 7, 1, 3, 5, 7);
  for (int m = 0; m < kX; ++m) {
    const __m128 total = Totals(acc[m][0], acc[m][1]);
    const __m128 least = _mm256_castps256_ps128(_mm256_permutevar8x32_ps(rest[m], odd));
    _mm_storeu_ps(y + m * stride, _mm_add_ps(total, least));
  }
}

}  // namespace int8

}  // namespace rlx

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif  // defined(__x86_64__)

#endif  // RLX_KERNELS_DEQUANT_INT8_VNNI_H_
