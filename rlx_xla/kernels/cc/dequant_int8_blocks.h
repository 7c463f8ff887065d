// Blocks of packed codes as the products of dequant_int8.h take them: thirty-two codes at once, as
// bytes without a sign, and scales.
//
// Every code has Block::kBias added, so that it is not below zero. Small blocks have 32 codes, a
// scale and perhaps a least number; those of 256 have whole numbers as scales (and leasts) of their
// groups, which one number, or two, multiply.
#ifndef RLX_KERNELS_DEQUANT_INT8_BLOCKS_H_
#define RLX_KERNELS_DEQUANT_INT8_BLOCKS_H_

#include <cstdint>
#include <cstring>

#include "blocks.h"

namespace rlx {

namespace int8 {

using blocks::Half;

constexpr int64_t kGroup = 32;  // codes that are multiplied at once
constexpr int64_t kSuper = 256;  // codes of a large block

typedef uint8_t Codes __attribute__((vector_size(32)));

inline Codes Load32(const uint8_t* p) {
  Codes v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// Sixteen bytes: their low nibbles, then their high ones.
inline Codes Nibbles(const uint8_t* p) {
#if defined(__AVX2__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(bytes),
                                               _mm_srli_epi16(bytes, 4), 1);
  return reinterpret_cast<Codes>(_mm256_and_si256(both, _mm256_set1_epi8(15)));
#else
  Codes v;
  for (int i = 0; i < 16; ++i) {
    v[i] = p[i] & 15;
    v[i + 16] = p[i] >> 4;
  }
  return v;
#endif
}

// Thirty-two bits, lowest first, as codes of 16 or 0.
inline Codes FifthBits(const uint8_t* p) {
#if defined(__AVX2__)
  int32_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  // Every byte gets its byte of the bits, and looks at one of them.
  const __m256i from = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                          0x0303030303030303);
  const __m256i looks = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull));
  const __m256i copies = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), from);
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(copies, looks), looks);
  return reinterpret_cast<Codes>(_mm256_and_si256(set, _mm256_set1_epi8(16)));
#else
  Codes v;
  for (int i = 0; i < 32; ++i) v[i] = static_cast<uint8_t>(((p[i / 8] >> (i % 8)) & 1) << 4);
  return v;
#endif
}

// Small blocks. kLeast: the number after the scale is added to all; its sum with x is then rounded
// to f16.

struct Q8_0 : blocks::Q8_0 {
  static constexpr int kBias = 128;
  static constexpr bool kLeast = false;
  static Codes Get(const uint8_t* b) { return Load32(b + 2) ^ 128; }
};

struct Q4_0 : blocks::Q4_0 {
  static constexpr int kBias = 8;
  static constexpr bool kLeast = false;
  static Codes Get(const uint8_t* b) { return Nibbles(b + 2); }
};

struct Q4_1 : blocks::Q4_1 {
  static constexpr int kBias = 0;
  static constexpr bool kLeast = true;
  static Codes Get(const uint8_t* b) { return Nibbles(b + 4); }
};

struct Q5_0 : blocks::Q5_0 {
  static constexpr int kBias = 16;
  static constexpr bool kLeast = false;
  static Codes Get(const uint8_t* b) { return Nibbles(b + 6) | FifthBits(b + 2); }
};

struct Q5_1 : blocks::Q5_1 {
  static constexpr int kBias = 0;
  static constexpr bool kLeast = true;
  static Codes Get(const uint8_t* b) { return Nibbles(b + 8) | FifthBits(b + 4); }
};

// Large blocks: Get<g>(b) is group g. Scales(b, scale, least) fills kScales scales, one or two for
// each group, and, where kLeast, eight leasts; kScaleAt is where their factors lie.

template <int kShift>
Codes Shifted(Codes v, uint8_t mask) {
  return (v >> kShift) & mask;
}

// Six bits each for the scales and leasts of the eight groups of Q4_K and Q5_K.
inline void SixBitScales(const uint8_t* b, int32_t* scale, int16_t* least) {
  uint32_t first, second, mixed;  // four bytes each
  std::memcpy(&first, b + 4, sizeof(first));
  std::memcpy(&second, b + 8, sizeof(second));
  std::memcpy(&mixed, b + 12, sizeof(mixed));
  const uint32_t scales[2] = {first & 0x3f3f3f3f,
                              (mixed & 0x0f0f0f0f) | ((first >> 2) & 0x30303030)};
  const uint32_t leasts[2] = {second & 0x3f3f3f3f,
                              ((mixed >> 4) & 0x0f0f0f0f) | ((second >> 2) & 0x30303030)};
#if defined(__AVX2__)
  const __m128i s = _mm_cvtsi64_si128(static_cast<int64_t>(scales[0] | uint64_t{scales[1]} << 32));
  const __m128i m = _mm_cvtsi64_si128(static_cast<int64_t>(leasts[0] | uint64_t{leasts[1]} << 32));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(scale), _mm256_cvtepu8_epi32(s));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(least), _mm_cvtepu8_epi16(m));
#else
  for (int i = 0; i < 8; ++i) {
    scale[i] = static_cast<int32_t>((scales[i / 4] >> (i % 4 * 8)) & 255);
    least[i] = static_cast<int16_t>((leasts[i / 4] >> (i % 4 * 8)) & 255);
  }
#endif
}

struct Q4_K : blocks::Q4_K {
  static constexpr int kBias = 0;
  static constexpr bool kLeast = true;
  static constexpr int kScales = 8;
  static constexpr int kScaleAt = 0;
  static void Scales(const uint8_t* b, int32_t* scale, int16_t* least) {
    SixBitScales(b, scale, least);
  }
  template <int kG>
  static Codes Get(const uint8_t* b) {
    return Shifted<kG % 2 * 4>(Load32(b + 16 + kG / 2 * 32), 15);
  }
};

struct Q5_K : blocks::Q5_K {
  static constexpr int kBias = 0;
  static constexpr bool kLeast = true;
  static constexpr int kScales = 8;
  static constexpr int kScaleAt = 0;
  static void Scales(const uint8_t* b, int32_t* scale, int16_t* least) {
    SixBitScales(b, scale, least);
  }
  template <int kG>
  static Codes Get(const uint8_t* b) {
    const Codes fifth = Shifted<kG>(Load32(b + 16), 1) << 4;
    return Shifted<kG % 2 * 4>(Load32(b + 48 + kG / 2 * 32), 15) | fifth;
  }
};

struct Q6_K : blocks::Q6_K {
  static constexpr int kBias = 32;
  static constexpr bool kLeast = false;
  static constexpr int kScales = 16;
  static constexpr int kScaleAt = 208;
  static void Scales(const uint8_t* b, int32_t* scale, int16_t*) {
    for (int i = 0; i < 16; ++i) scale[i] = static_cast<int8_t>(b[192 + i]);
  }
  template <int kG>
  static Codes Get(const uint8_t* b) {
    constexpr int kHalf = kG / 4, kQuarter = kG % 4;
    const Codes low = Load32(b + kHalf * 64 + kQuarter % 2 * 32);
    const Codes top = Load32(b + 128 + kHalf * 32);
    return Shifted<kQuarter / 2 * 4>(low, 15) | Shifted<kQuarter * 2>(top, 3) << 4;
  }
};

template <typename Block>
inline constexpr bool kIsLarge = Block::kElements == kSuper;

// Rows of x. Codes, and for each block the scale; for each group their sum, as what is multiplied
// with a least number: a number for small blocks, a whole one for large ones.
struct Rounded {
  const int8_t* codes;
  const float* scale;
  const float* sum;
  const int16_t* total;
  const int32_t* taken;  // of four codes each, their sum times -kBias; not where kBias is 0

  template <int kBias>
  const int32_t* TakenAt(int64_t at) const {
    return kBias == 0 ? nullptr : taken + at;
  }
};

}  // namespace int8

}  // namespace rlx

#endif  // RLX_KERNELS_DEQUANT_INT8_BLOCKS_H_
