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

// The numbers of a block of the same name in blocks.h, sixteen at a time: made from a block, it has
// Get<g>(low, high) for each group of 32.
template <typename Block>
struct Sixteens {
  static constexpr bool kHas = false;
};

struct Q4_0;
struct Q4_1;
struct Q5_0;
struct Q5_1;
struct Q8_0;
struct Q4_K;
struct Q5_K;
struct Q6_K;

inline void ScalesAndLeast(const uint8_t* b, float* scale, float* least);

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

// Sixteen signed bytes as numbers.
RLX_AVX512 inline __m512 Numbers16(const void* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(Bytes16(static_cast<const uint8_t*>(p))));
}

// (codes - bias) * d.
RLX_AVX512 inline __m512 Signed16(__m512i codes, int bias, __m512 d) {
  return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(codes, _mm512_set1_epi32(bias))), d);
}

// Codes from 0 to 15 of sixteen bytes; the low nibbles come first.
RLX_AVX512 inline void Nibbles16(const uint8_t* p, __m512i* low, __m512i* high) {
  const __m512i bytes = _mm512_cvtepu8_epi32(Bytes16(p));
  *low = _mm512_and_si512(bytes, _mm512_set1_epi32(15));
  *high = _mm512_srli_epi32(bytes, 4);
}

// The same with sixteen added where one of 32 bits is set.
RLX_AVX512 inline void Fives16(const uint8_t* p, const uint8_t* set, __m512i* low, __m512i* high) {
  const __m512i sixteen = _mm512_set1_epi32(16);
  uint16_t bits[2];
  std::memcpy(bits, set, sizeof(bits));
  Nibbles16(p, low, high);
  *low = _mm512_mask_add_epi32(*low, bits[0], *low, sixteen);
  *high = _mm512_mask_add_epi32(*high, bits[1], *high, sixteen);
}

template <>
struct Sixteens<Q8_0> {
  static constexpr bool kHas = true;
  RLX_AVX512 explicit Sixteens(const uint8_t* b) : b(b), d(HalfOfAll(b)) {}
  template <int kG>
  RLX_AVX512 void Get(__m512* low, __m512* high) const {
    *low = Signed16(_mm512_cvtepi8_epi32(Bytes16(b + 2)), 0, d);
    *high = Signed16(_mm512_cvtepi8_epi32(Bytes16(b + 18)), 0, d);
  }
  const uint8_t* b;
  __m512 d;
};

template <>
struct Sixteens<Q4_0> {
  static constexpr bool kHas = true;
  RLX_AVX512 explicit Sixteens(const uint8_t* b) : b(b), d(HalfOfAll(b)) {}
  template <int kG>
  RLX_AVX512 void Get(__m512* low, __m512* high) const {
    __m512i first, second;
    Nibbles16(b + 2, &first, &second);
    *low = Signed16(first, 8, d);
    *high = Signed16(second, 8, d);
  }
  const uint8_t* b;
  __m512 d;
};

template <>
struct Sixteens<Q5_0> {
  static constexpr bool kHas = true;
  RLX_AVX512 explicit Sixteens(const uint8_t* b) : b(b), d(HalfOfAll(b)) {}
  template <int kG>
  RLX_AVX512 void Get(__m512* low, __m512* high) const {
    __m512i first, second;
    Fives16(b + 6, b + 2, &first, &second);
    *low = Signed16(first, 16, d);
    *high = Signed16(second, 16, d);
  }
  const uint8_t* b;
  __m512 d;
};

template <>
struct Sixteens<Q4_1> {
  static constexpr bool kHas = true;
  RLX_AVX512 explicit Sixteens(const uint8_t* b) : b(b), d(HalfOfAll(b)), m(HalfOfAll(b + 2)) {}
  template <int kG>
  RLX_AVX512 void Get(__m512* low, __m512* high) const {
    __m512i first, second;
    Nibbles16(b + 4, &first, &second);
    *low = _mm512_fmadd_ps(_mm512_cvtepi32_ps(first), d, m);
    *high = _mm512_fmadd_ps(_mm512_cvtepi32_ps(second), d, m);
  }
  const uint8_t* b;
  __m512 d;
  __m512 m;
};

template <>
struct Sixteens<Q5_1> {
  static constexpr bool kHas = true;
  RLX_AVX512 explicit Sixteens(const uint8_t* b) : b(b), d(HalfOfAll(b)), m(HalfOfAll(b + 2)) {}
  template <int kG>
  RLX_AVX512 void Get(__m512* low, __m512* high) const {
    __m512i first, second;
    Fives16(b + 8, b + 4, &first, &second);
    *low = _mm512_fmadd_ps(_mm512_cvtepi32_ps(first), d, m);
    *high = _mm512_fmadd_ps(_mm512_cvtepi32_ps(second), d, m);
  }
  const uint8_t* b;
  __m512 d;
  __m512 m;
};

// The nibbles of group kG of sixteen bytes that two groups share.
template <int kG>
RLX_AVX512 __m512i NibblesOf(const uint8_t* p) {
  const __m512i bytes = _mm512_cvtepu8_epi32(Bytes16(p));
  if constexpr (kG % 2 == 0) return _mm512_and_si512(bytes, _mm512_set1_epi32(15));
  return _mm512_srli_epi32(bytes, 4);
}

template <>
struct Sixteens<Q4_K> {
  static constexpr bool kHas = true;
  RLX_AVX512 explicit Sixteens(const uint8_t* b) : b(b) { ScalesAndLeast(b, scale, least); }
  template <int kG>
  RLX_AVX512 void Get(__m512* low, __m512* high) const {
    const uint8_t* p = b + 16 + kG / 2 * 32;
    const __m512 d = _mm512_set1_ps(scale[kG]);
    const __m512 m = _mm512_set1_ps(-least[kG]);
    *low = _mm512_fmadd_ps(_mm512_cvtepi32_ps(NibblesOf<kG>(p)), d, m);
    *high = _mm512_fmadd_ps(_mm512_cvtepi32_ps(NibblesOf<kG>(p + 16)), d, m);
  }
  const uint8_t* b;
  float scale[8];
  float least[8];
};

template <>
struct Sixteens<Q5_K> {
  static constexpr bool kHas = true;
  RLX_AVX512 explicit Sixteens(const uint8_t* b) : b(b) { ScalesAndLeast(b, scale, least); }
  template <int kG>
  RLX_AVX512 void Get(__m512* low, __m512* high) const {
    const uint8_t* p = b + 48 + kG / 2 * 32;
    const __m512 d = _mm512_set1_ps(scale[kG]);
    const __m512 m = _mm512_set1_ps(-least[kG]);
    *low = _mm512_fmadd_ps(_mm512_cvtepi32_ps(Fifth<kG>(NibblesOf<kG>(p), b + 16)), d, m);
    *high = _mm512_fmadd_ps(_mm512_cvtepi32_ps(Fifth<kG>(NibblesOf<kG>(p + 16), b + 32)), d, m);
  }
  template <int kG>
  RLX_AVX512 static __m512i Fifth(__m512i codes, const uint8_t* p) {
    const __mmask16 set = _mm_test_epi8_mask(Bytes16(p), _mm_set1_epi8(static_cast<char>(1 << kG)));
    return _mm512_mask_add_epi32(codes, set, codes, _mm512_set1_epi32(16));
  }
  const uint8_t* b;
  float scale[8];
  float least[8];
};

template <>
struct Sixteens<Q6_K> {
  static constexpr bool kHas = true;
  RLX_AVX512 explicit Sixteens(const uint8_t* b) : b(b) {
    const __m512i scales = _mm512_cvtepi8_epi32(Bytes16(b + 192));
    _mm512_storeu_ps(scale, _mm512_mul_ps(_mm512_cvtepi32_ps(scales), HalfOfAll(b + 208)));
  }
  template <int kG>
  RLX_AVX512 void Get(__m512* low, __m512* high) const {
    constexpr int kHalf = kG / 4, kQuarter = kG % 4;
    const uint8_t* p = b + kHalf * 64 + kQuarter % 2 * 32;
    const uint8_t* top = b + 128 + kHalf * 32;
    *low = Signed16(Codes<kQuarter>(p, top), 32, _mm512_set1_ps(scale[2 * kG]));
    *high = Signed16(Codes<kQuarter>(p + 16, top + 16), 32, _mm512_set1_ps(scale[2 * kG + 1]));
  }
  template <int kQuarter>
  RLX_AVX512 static __m512i Codes(const uint8_t* p, const uint8_t* top) {
    const __m512i high =
        _mm512_and_si512(_mm512_srli_epi32(_mm512_cvtepu8_epi32(Bytes16(top)), 2 * kQuarter),
                         _mm512_set1_epi32(3));
    return _mm512_or_si512(NibblesOf<kQuarter / 2>(p), _mm512_slli_epi32(high, 4));
  }
  const uint8_t* b;
  float scale[16];
};

// acc[r] += the lanes of x . group kG of block r.
template <int kG, typename Block>
RLX_AVX512 inline void AddGroup512(const Sixteens<Block>* blocks, const float* x, __m512* acc) {
  const __m512 first = _mm512_loadu_ps(x + kG * 32);
  const __m512 second = _mm512_loadu_ps(x + kG * 32 + 16);
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    __m512 low, high;
    blocks[r].template Get<kG>(&low, &high);
    acc[r] = _mm512_fmadd_ps(first, low, acc[r]);
    acc[r] = _mm512_fmadd_ps(second, high, acc[r]);
  }
}

// sums[r * 8 ..] += eight lanes of x . row r for four rows of `count` blocks, one after another. As
// DotRows512 would, it adds up `stretch` blocks at a time.
template <typename Block>
RLX_AVX512 void DotBlocks512(const uint8_t* weight, int64_t count, int64_t stretch, const float* x,
                             float* sums) {
  constexpr int64_t kBytes = Block::kBytes;
  constexpr int64_t kAhead = 8192;  // so far away that memory answers in time
  const uint8_t* ahead = weight + kAhead;
  __m256 total[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) total[r] = _mm256_loadu_ps(sums + r * 8);
  for (int64_t i = 0; i < count;) {
    __m512 acc[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) acc[r] = _mm512_setzero_ps();
    for (const int64_t end = count - i < stretch ? count : i + stretch; i < end; ++i) {
      for (int64_t line = 0; line < 4 * kBytes; line += 64) __builtin_prefetch(ahead + line);
      ahead += 4 * kBytes;
      const uint8_t* block = weight + i * kBytes;
      const Sixteens<Block> blocks[4] = {
          Sixteens<Block>(block), Sixteens<Block>(block + count * kBytes),
          Sixteens<Block>(block + 2 * count * kBytes), Sixteens<Block>(block + 3 * count * kBytes)};
      const float* from = x + i * Block::kElements;
      AddGroup512<0>(blocks, from, acc);
      if constexpr (Block::kElements > 32) AddGroup512<1>(blocks, from, acc);
      if constexpr (Block::kElements > 64) {
        AddGroup512<2>(blocks, from, acc);
        AddGroup512<3>(blocks, from, acc);
        AddGroup512<4>(blocks, from, acc);
        AddGroup512<5>(blocks, from, acc);
        AddGroup512<6>(blocks, from, acc);
        AddGroup512<7>(blocks, from, acc);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const __m256 both = _mm256_add_ps(_mm512_castps512_ps256(acc[r]),
                                        _mm512_extractf32x8_ps(acc[r], 1));
      total[r] = _mm256_add_ps(total[r], both);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) _mm256_storeu_ps(sums + r * 8, total[r]);
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif  // defined(__x86_64__)

}  // namespace blocks

}  // namespace rlx

#endif  // RLX_KERNELS_BLOCKS_AVX512_H_
