// The inner loop of dequant_int8.h for CPUs that have AVX-512 with VNNI: four rows of small blocks.
//
// Every number is rounded where SmallTile rounds it, so that both give the same bits. Every
// function carries its target; ask HasVnni() before calling one.
#ifndef RLX_KERNELS_DEQUANT_INT8_VNNI_H_
#define RLX_KERNELS_DEQUANT_INT8_VNNI_H_

#include <cstdint>
#include <cstring>

#include "dequant_int8_blocks.h"

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

// Thirty-two bytes of each of two rows.
RLX_VNNI inline __m512i TwoLoads(const uint8_t* first, const uint8_t* second) {
  return _mm512_inserti64x4(
      _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(first))),
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second)), 1);
}

// Sixteen bytes of each of two rows.
RLX_VNNI inline __m256i TwoSixteens(const uint8_t* first, const uint8_t* second) {
  return _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(first))),
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(second)), 1);
}

// Sixteen bytes of each row: the low nibbles come first.
RLX_VNNI inline __m512i TwoNibbles(const uint8_t* first, const uint8_t* second) {
  const __m512i bytes = _mm512_castsi256_si512(TwoSixteens(first, second));
  const __m512i twice =
      _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), bytes);
  const __m512i turned = _mm512_srlv_epi64(twice, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
  return _mm512_and_si512(turned, _mm512_set1_epi8(15));
}

// Sixteen is added to the codes of two rows where 32 bits of each are set.
RLX_VNNI inline __m512i TwoFifths(__m512i codes, const uint8_t* first, const uint8_t* second) {
  uint32_t low, high;
  std::memcpy(&low, first, sizeof(low));
  std::memcpy(&high, second, sizeof(high));
  const __mmask64 set = _mm512_kunpackd(high, low);
  return _mm512_mask_add_epi8(codes, set, codes, _mm512_set1_epi8(16));
}

// The codes of a block of each of two rows, kBias added as Block::Get has them.
template <typename Block>
struct TwoBlocks;

template <>
struct TwoBlocks<Q4_1> {
  RLX_VNNI static __m512i Get(const uint8_t* first, const uint8_t* second) {
    return TwoNibbles(first + 4, second + 4);
  }
};

template <>
struct TwoBlocks<Q4_0> {
  RLX_VNNI static __m512i Get(const uint8_t* first, const uint8_t* second) {
    return TwoNibbles(first + 2, second + 2);
  }
};

template <>
struct TwoBlocks<Q5_0> {
  RLX_VNNI static __m512i Get(const uint8_t* first, const uint8_t* second) {
    return TwoFifths(TwoNibbles(first + 6, second + 6), first + 2, second + 2);
  }
};

template <>
struct TwoBlocks<Q5_1> {
  RLX_VNNI static __m512i Get(const uint8_t* first, const uint8_t* second) {
    return TwoFifths(TwoNibbles(first + 8, second + 8), first + 4, second + 4);
  }
};

template <>
struct TwoBlocks<Q8_0> {
  RLX_VNNI static __m512i Get(const uint8_t* first, const uint8_t* second) {
    return _mm512_xor_si512(TwoLoads(first + 2, second + 2), _mm512_set1_epi8(-128));
  }
};

// The first two halves of a block: its scale, and its least number where it has one.
inline int HalvesOf(const uint8_t* block) {
  int both;
  std::memcpy(&both, block, sizeof(both));
  return both;
}

// Thirty-two bytes of a row of x, or eight of its whole numbers, for each of two rows.
RLX_VNNI inline __m512i Twice(const void* p) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}

// What sums of a row of x begin with.
template <int kBias>
RLX_VNNI inline __m512i Start(const Rounded& x, int64_t at) {
  if constexpr (kBias == 0) {
    (void)x, (void)at;
    return _mm512_setzero_si512();
  } else {
    return Twice(x.taken + at);
  }
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

// Bytes that are fetched before they are multiplied.
constexpr int64_t kAhead = 4096;

// y[m * stride + r] for kX rows of x and four of the weight, one after another.
template <typename Block, int kX>
RLX_VNNI void FourSmall(const uint8_t* weight, int64_t row_bytes, int64_t k, const Rounded* x,
                        float* y, int64_t stride) {
  using Two = TwoBlocks<Block>;
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
  for (int64_t i = 0; i < k / kGroup; ++i) {
    const uint8_t* row = weight + i * Block::kBytes;
    for (int64_t line = 0; line < 4 * Block::kBytes; line += 64) __builtin_prefetch(ahead + line);
    ahead += 4 * Block::kBytes;
    const uint8_t* row1 = row + row_bytes;
    const uint8_t* row2 = row1 + row_bytes;
    const uint8_t* row3 = row2 + row_bytes;
    const __m256 halves = _mm256_cvtph_ps(
        _mm_setr_epi32(HalvesOf(row), HalvesOf(row1), HalvesOf(row2), HalvesOf(row3)));
    const __m512 wide = _mm512_castps256_ps512(halves);
    const __m512 first_scale = _mm512_permutexvar_ps(of_first, wide);
    const __m512 second_scale = _mm512_permutexvar_ps(of_second, wide);
    const __m512i first = Two::Get(row, row1);
    const __m512i second = Two::Get(row2, row3);
#pragma GCC unroll 4
    for (int m = 0; m < kX; ++m) {
      const __m512i codes = Twice(x[m].codes + i * kGroup);
      const __m512i start = Start<Block::kBias>(x[m], i * 8);
      const __m512 scale = _mm512_set1_ps(x[m].scale[i]);
      const __m512i a = _mm512_dpbusd_epi32(start, first, codes);
      const __m512i b = _mm512_dpbusd_epi32(start, second, codes);
      acc[m][0] =
          _mm512_fmadd_ps(_mm512_cvtepi32_ps(a), _mm512_mul_ps(first_scale, scale), acc[m][0]);
      acc[m][1] =
          _mm512_fmadd_ps(_mm512_cvtepi32_ps(b), _mm512_mul_ps(second_scale, scale), acc[m][1]);
      if constexpr (Block::kLeast) {
        const __m256 sum = _mm256_set1_ps(x[m].sum[i]);
        rest[m] = _mm256_add_ps(rest[m], _mm256_mul_ps(halves, sum));
      }
    }
  }
  const __m256i odd = _mm256_setr_epi32(1, 3, 5, 7, 1, 3, 5, 7);
#pragma GCC unroll 4
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
