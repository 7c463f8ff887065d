// Sums of one row of x with four rows of blocks in vectors of 64 bytes: the numbers of the blocks
// never leave the registers.
//
// Every number is rounded where Decode and DotRows512 round it, so that both ways give the same
// bits. Every function carries its target; ask HasAvx512() before calling one.
#ifndef RLX_KERNELS_BLOCKS_AVX512_H_
#define RLX_KERNELS_BLOCKS_AVX512_H_

#include <cstdint>
#include <cstring>

#include "matmul_avx512.h"

namespace rlx {

namespace blocks {

// The numbers of a block of the same name in blocks.h, sixteen at a time.
template <typename Block>
struct Sixteens {
  static constexpr bool kHas = false;
};

struct Q4_0;
struct Q4_1;
struct Q8_0;

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined vectors of its own intrinsics for ours.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

RLX_AVX512 inline __m512 HalfOfAll(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}

RLX_AVX512 inline __m128i Bytes16(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

template <>
struct Sixteens<Q8_0> {
  static constexpr bool kHas = true;
  RLX_AVX512 static void Get(const uint8_t* b, __m512* low, __m512* high) {
    const __m512 d = HalfOfAll(b);
    *low = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(Bytes16(b + 2))), d);
    *high = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(Bytes16(b + 18))), d);
  }
};

// Codes from 0 to 15 of sixteen bytes; the low nibbles come first.
RLX_AVX512 inline void Nibbles16(const uint8_t* p, __m512i* low, __m512i* high) {
  const __m512i bytes = _mm512_cvtepu8_epi32(Bytes16(p));
  *low = _mm512_and_si512(bytes, _mm512_set1_epi32(15));
  *high = _mm512_srli_epi32(bytes, 4);
}

template <>
struct Sixteens<Q4_0> {
  static constexpr bool kHas = true;
  RLX_AVX512 static void Get(const uint8_t* b, __m512* low, __m512* high) {
    const __m512 d = HalfOfAll(b);
    const __m512i eight = _mm512_set1_epi32(8);
    __m512i first, second;
    Nibbles16(b + 2, &first, &second);
    *low = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(first, eight)), d);
    *high = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(second, eight)), d);
  }
};

template <>
struct Sixteens<Q4_1> {
  static constexpr bool kHas = true;
  RLX_AVX512 static void Get(const uint8_t* b, __m512* low, __m512* high) {
    const __m512 d = HalfOfAll(b);
    const __m512 m = HalfOfAll(b + 2);
    __m512i first, second;
    Nibbles16(b + 4, &first, &second);
    *low = _mm512_fmadd_ps(_mm512_cvtepi32_ps(first), d, m);
    *high = _mm512_fmadd_ps(_mm512_cvtepi32_ps(second), d, m);
  }
};

// sums[r * 8 ..] += eight lanes of x . row r for four rows, `count` blocks of 32 elements of each.
template <typename Block>
RLX_AVX512 void DotBlocks512(const uint8_t* weight, int64_t row_bytes, int64_t block_bytes,
                             int64_t count, const float* x, float* sums) {
  constexpr int64_t kAhead = 4096;
  __m512 acc[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) acc[r] = _mm512_setzero_ps();
  const uint8_t* ahead = weight + kAhead;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t line = 0; line < 4 * block_bytes; line += 64) __builtin_prefetch(ahead + line);
    ahead += 4 * block_bytes;
    const __m512 first = _mm512_loadu_ps(x + i * 32);
    const __m512 second = _mm512_loadu_ps(x + i * 32 + 16);
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      __m512 low, high;
      Sixteens<Block>::Get(weight + r * row_bytes + i * block_bytes, &low, &high);
      acc[r] = _mm512_fmadd_ps(first, low, acc[r]);
      acc[r] = _mm512_fmadd_ps(second, high, acc[r]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    alignas(64) float lanes[16];
    _mm512_store_ps(lanes, acc[r]);
    const __m256 both = _mm256_add_ps(_mm256_load_ps(lanes), _mm256_load_ps(lanes + 8));
    _mm256_storeu_ps(sums + r * 8, _mm256_add_ps(_mm256_loadu_ps(sums + r * 8), both));
  }
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif  // defined(__x86_64__)

}  // namespace blocks

}  // namespace rlx

#endif  // RLX_KERNELS_BLOCKS_AVX512_H_
