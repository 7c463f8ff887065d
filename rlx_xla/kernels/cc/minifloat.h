// Packed weights of small floats, widened to f32 tile by tile: E2M1 nibbles and E4M3 or E5M2 bytes
// with their scales, and blocks that look codes up.
//
// Computes: the numbers of nvfp4 (nibbles [k, n], an E4M3 scale for each 16 rows and one scale for
//   all), fp8 (bytes [k, n], perhaps a scale for each column), and GGUF's MXFP4, NVFP4, IQ4_NL,
//   IQ4_XS and TQ2_0.
// Layout: as rlx/quant/schemes.py has it; the low nibble of a byte comes first.
// Numerics: as rlx/quant computes; scales below the normal numbers may count as zero.
// Source: OCP 8-bit floating point and microscaling formats (2023); the public layouts of GGUF (ggml).
#ifndef RLX_KERNELS_MINIFLOAT_H_
#define RLX_KERNELS_MINIFLOAT_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "blocks.h"
#include "columns_avx512.h"
#include "matmul.h"
#include "numbers.h"

namespace rlx {

namespace blocks {

// Twice the E2M1 numbers.
inline constexpr int8_t kE2m1Doubled[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                            0, -1, -2, -3, -4, -6, -8, -12};
// What the nibbles of IQ4_NL and IQ4_XS stand for.
inline constexpr int8_t kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                    1,    13,   25,  38,  53,  69,  89,  113};

// Sixteen entries of a table by sixteen codes below 16.
inline Codes LookUp(const int8_t* table, Codes codes) {
#if defined(__AVX2__)
  return reinterpret_cast<Codes>(
      _mm_shuffle_epi8(reinterpret_cast<__m128i>(Load16(reinterpret_cast<const uint8_t*>(table))),
                       reinterpret_cast<__m128i>(codes)));
#else
  Codes found;
  for (int i = 0; i < 16; ++i) found[i] = static_cast<uint8_t>(table[codes[i] & 15]);
  return found;
#endif
}

// E4M3 without infinities; both patterns of ones are NaN.
inline float FromE4m3(uint8_t code) {
  if ((code & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  // The same fields in an f16, whose exponent is eight less.
  const auto half = static_cast<uint16_t>((code & 0x80) << 8 | (code & 0x7f) << 7);
  return ToFloat(F16{half}) * 256.0f;
}

inline float FromE5m2(uint8_t code) { return ToFloat(F16{static_cast<uint16_t>(code << 8)}); }

// Half of the unsigned E4M3 number of a byte whose top bit is ignored; 0x7f is 0.
inline float HalfUe4m3(uint8_t code) {
  const auto half = static_cast<uint16_t>((code & 0x7f) << 7);
  return code == 0x7f ? 0.0f : ToFloat(F16{half}) * 128.0f;
}

struct Mxfp4 {
  static constexpr int64_t kElements = 32;
  static constexpr int64_t kBytes = 17;
  // Half of 2^(e - 127), which is subnormal below 2.
  static float Scale(const uint8_t* b) {
    const uint32_t e = b[0];
    return BitCast<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  }
  static void Decode(const uint8_t* b, float* out) {
    const float scale = Scale(b);
    const Codes codes = Load16(b + 1);
    PutSigned(LookUp(kE2m1Doubled, codes & 15), scale, out);
    PutSigned(LookUp(kE2m1Doubled, codes >> 4), scale, out + 16);
  }
};

struct Nvfp4 {
  static constexpr int64_t kElements = 64;
  static constexpr int64_t kBytes = 36;
  static void Decode(const uint8_t* b, float* out) {
    for (int g = 0; g < 4; ++g) {
      uint64_t bytes;
      std::memcpy(&bytes, b + 4 + g * 8, sizeof(bytes));
      // The low nibbles of eight bytes, and then the high ones.
      const Words both = {bytes & 0x0f0f0f0f0f0f0f0full, (bytes >> 4) & 0x0f0f0f0f0f0f0f0full};
      PutSigned(LookUp(kE2m1Doubled, reinterpret_cast<Codes>(both)), HalfUe4m3(b[g]),
                out + g * 16);
    }
  }
};

struct Iq4Nl {
  static constexpr int64_t kElements = 32;
  static constexpr int64_t kBytes = 18;
  static void Decode(const uint8_t* b, float* out) {
    const float d = Half(b);
    const Codes codes = Load16(b + 2);
    PutSigned(LookUp(kIq4, codes & 15), d, out);
    PutSigned(LookUp(kIq4, codes >> 4), d, out + 16);
  }
};

struct Iq4Xs {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 136;
  static float Scale(const uint8_t* b, int g) {
    const int high = b[2] | b[3] << 8;
    const int low = (b[4 + g / 2] >> (g % 2 * 4)) & 15;
    return static_cast<float>((low | ((high >> (2 * g)) & 3) << 4) - 32) * Half(b);
  }
  static void Decode(const uint8_t* b, float* out) {
    for (int g = 0; g < 8; ++g) {
      const float scale = Scale(b, g);
      const Codes codes = Load16(b + 8 + g * 16);
      PutSigned(LookUp(kIq4, codes & 15), scale, out + g * 32);
      PutSigned(LookUp(kIq4, codes >> 4), scale, out + g * 32 + 16);
    }
  }
};

struct Tq2_0 {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 66;
  static void Decode(const uint8_t* b, float* out) {
    const float d = Half(b + 64);
    for (int half = 0; half < 2; ++half) {
      Plane<0>(b + half * 32, d, out + half * 128);
      Plane<1>(b + half * 32, d, out + half * 128);
      Plane<2>(b + half * 32, d, out + half * 128);
      Plane<3>(b + half * 32, d, out + half * 128);
    }
  }
  template <int kPlane>
  static void Plane(const uint8_t* b, float d, float* out) {
    for (int i = 0; i < 2; ++i) {
      PutSigned(Field<2 * kPlane, 3>(b + i * 16) - 1, d, out + kPlane * 32 + i * 16);
    }
  }
};

#if defined(__x86_64__)

// Sixteen numbers of a table, which codes name by their low four bits, times d.
RLX_AVX512 inline __m512 LookUp16(const int8_t* table, __m512i codes, float d) {
  return _mm512_mul_ps(_mm512_permutexvar_ps(codes, Numbers16(table)), _mm512_set1_ps(d));
}

// Thirty-two numbers of sixteen bytes; the low nibbles come first.
RLX_AVX512 inline void LookUpBoth(const int8_t* table, const uint8_t* p, float d, __m512* low,
                                  __m512* high) {
  const __m512i codes = _mm512_cvtepu8_epi32(Bytes16(p));
  *low = LookUp16(table, codes, d);
  *high = LookUp16(table, _mm512_srli_epi32(codes, 4), d);
}

template <>
struct Sixteens<Mxfp4> {
  static constexpr bool kHas = true;
  RLX_AVX512 explicit Sixteens(const uint8_t* b) : b(b) {}
  template <int kG>
  RLX_AVX512 void Get(__m512* low, __m512* high) const {
    LookUpBoth(kE2m1Doubled, b + 1, Mxfp4::Scale(b), low, high);
  }
  const uint8_t* b;
};

template <>
struct Sixteens<Nvfp4> {
  static constexpr bool kHas = true;
  RLX_AVX512 explicit Sixteens(const uint8_t* b) : b(b) {
    // HalfUe4m3 of four bytes.
    int32_t bytes;
    std::memcpy(&bytes, b, sizeof(bytes));
    const __m128i codes = _mm_cvtepu8_epi16(_mm_cvtsi32_si128(bytes));
    const __m128i fields = _mm_slli_epi16(_mm_and_si128(codes, _mm_set1_epi16(0x7f)), 7);
    const __mmask8 numbers = _mm_cmpneq_epi16_mask(codes, _mm_set1_epi16(0x7f));
    const __m128 halves = _mm_mul_ps(_mm_cvtph_ps(fields), _mm_set1_ps(128.0f));
    _mm_storeu_ps(scale, _mm_maskz_mov_ps(numbers, halves));
  }
  template <int kG>
  RLX_AVX512 void Get(__m512* low, __m512* high) const {
    *low = Eight(2 * kG);
    *high = Eight(2 * kG + 1);
  }
  // Eight bytes: their low nibbles, and then the high ones.
  RLX_AVX512 __m512 Eight(int g) const {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(b + 4 + g * 8));
    const __m128i both = _mm_unpacklo_epi64(bytes, _mm_srli_epi64(bytes, 4));
    return LookUp16(kE2m1Doubled, _mm512_cvtepu8_epi32(both), scale[g]);
  }
  const uint8_t* b;
  float scale[4];
};

template <>
struct Sixteens<Iq4Nl> {
  static constexpr bool kHas = true;
  RLX_AVX512 explicit Sixteens(const uint8_t* b) : b(b) {}
  template <int kG>
  RLX_AVX512 void Get(__m512* low, __m512* high) const {
    LookUpBoth(kIq4, b + 2, Half(b), low, high);
  }
  const uint8_t* b;
};

template <>
struct Sixteens<Iq4Xs> {
  static constexpr bool kHas = true;
  RLX_AVX512 explicit Sixteens(const uint8_t* b) : b(b) {}
  template <int kG>
  RLX_AVX512 void Get(__m512* low, __m512* high) const {
    LookUpBoth(kIq4, b + 8 + kG * 16, Iq4Xs::Scale(b, kG), low, high);
  }
  const uint8_t* b;
};

#endif  // defined(__x86_64__)

enum class Byte { kE4m3, kE5m2 };

// to[i] = the number of byte i, for eight of them.
template <Byte kByte>
void WidenEight(const uint8_t* from, float* to) {
#if defined(__AVX2__) && defined(__F16C__)
  int64_t bytes;
  std::memcpy(&bytes, from, sizeof(bytes));
  const __m128i wide = _mm_cvtepu8_epi16(_mm_cvtsi64_si128(bytes));
  if constexpr (kByte == Byte::kE5m2) {
    _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_slli_epi16(wide, 8)));
  } else {
    const __m128i sign = _mm_set1_epi16(static_cast<int16_t>(0x8000));
    const __m128i rest = _mm_set1_epi16(0x3f80);
    const __m256 nan = _mm256_set1_ps(std::numeric_limits<float>::quiet_NaN());
    const __m128i fields = _mm_and_si128(_mm_slli_epi16(wide, 7), rest);
    const __m128i half = _mm_or_si128(_mm_and_si128(_mm_slli_epi16(wide, 8), sign), fields);
    const __m256i ones = _mm256_cvtepi16_epi32(_mm_cmpeq_epi16(fields, rest));
    const __m256 value = _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
    _mm256_storeu_ps(to, _mm256_blendv_ps(value, nan, _mm256_castsi256_ps(ones)));
  }
#else
  for (int i = 0; i < 8; ++i) {
    to[i] = kByte == Byte::kE5m2 ? FromE5m2(from[i]) : FromE4m3(from[i]);
  }
#endif
}

// The same for any number.
template <Byte kByte>
void WidenBytes(const uint8_t* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) WidenEight<kByte>(from + i, to + i);
  for (; i < count; ++i) to[i] = kByte == Byte::kE5m2 ? FromE5m2(from[i]) : FromE4m3(from[i]);
}

// A matrix [k, cols] of bytes; scale, unless it is null, has one number for each column.
template <Byte kByte>
struct ColumnsOfBytes {
  const uint8_t* codes;
  const float* scale;
  int64_t cols;

  static constexpr bool kPlain = false;
  static constexpr bool kFew = true;

  matmul::Tile<float> Get(int64_t row, int64_t rows, int64_t col, int64_t count, int64_t unit,
                          float* buffer, int64_t stride, int64_t ahead) const {
    for (int64_t r = 0; r < rows; ++r) {
      const uint8_t* from = codes + (row + r) * cols + col;
      float* to = buffer + r * stride;
      for (int64_t line = 0; line < count; line += 64) __builtin_prefetch(from + ahead + line);
      int64_t done = 0;
#if defined(__x86_64__)
      if (matmul::HasAvx512()) {
        done = columns::Widen<Kind>(from, count, {scale ? scale + col : nullptr, nullptr}, to);
      }
#endif
      WidenBytes<kByte>(from + done, count - done, to + done);
      if (scale != nullptr) {
        for (int64_t c = done; c < count; ++c) to[c] *= scale[col + c];
      }
      std::fill(to + count, to + matmul::RoundUp(count, unit), 0.0f);
    }
    return {buffer, stride};
  }

#if defined(__x86_64__)
  using Kind = std::conditional_t<kByte == Byte::kE5m2, columns::E5m2, columns::E4m3>;

  int64_t GroupRows() const { return std::numeric_limits<int32_t>::max(); }

  columns::Scales OfGroup(int64_t, int64_t, int64_t, float*) const { return {nullptr, nullptr}; }

  void FetchScales(int64_t, int64_t, int64_t) const {}  // one for each column

  float Finish(int64_t col, float sum) const {
    const float whole = kByte == Byte::kE5m2 ? sum : sum / columns::E4m3::kFactor;
    return scale == nullptr ? whole : whole * scale[col];
  }
#endif
};

// A matrix [k, cols] of E2M1 nibbles, cols even; rows [16 i, 16 i + 16) have the E4M3 scales
// scale[i], a row of cols, whose NaN counts as 0; `whole`, unless it is null, scales all.
struct ColumnsOfNvfp4 {
  const uint8_t* codes;
  const uint8_t* scale;
  const float* whole;
  int64_t cols;

  static constexpr bool kPlain = false;
  static constexpr bool kFew = true;
  static constexpr int64_t kGroup = 16;

  matmul::Tile<float> Get(int64_t row, int64_t rows, int64_t col, int64_t count, int64_t unit,
                          float* buffer, int64_t stride, int64_t ahead) const {
    float scales[matmul::kColumnWidth];
    for (int64_t r = 0; r < rows; ++r) {
      if (r == 0 || (row + r) % kGroup == 0) {
        const uint8_t* of = scale + (row + r) / kGroup * cols + col;
        int64_t c = 0;
#if defined(__x86_64__)
        if (matmul::HasAvx512()) c = columns::HalvesOfE4m3(of, count, scales);
#endif
        for (; c < count; ++c) {
          scales[c] = (of[c] & 0x7f) == 0x7f ? 0.0f : FromE4m3(of[c]) * 0.5f;
        }
      }
      const uint8_t* from = codes + ((row + r) * cols + col) / 2;
      float* to = buffer + r * stride;
      for (int64_t line = 0; line < count / 2; line += 64) {
        __builtin_prefetch(from + ahead / 2 + line);
      }
      int64_t done = 0;
#if defined(__x86_64__)
      if (matmul::HasAvx512()) done = columns::Widen<Kind>(from, count, {scales, nullptr}, to);
#endif
      Widen(from + done / 2, count - done, to + done);
      for (int64_t c = done; c < count; ++c) to[c] *= scales[c];
      if (whole != nullptr) {
        for (int64_t c = 0; c < count; ++c) to[c] *= *whole;
      }
      std::fill(to + count, to + matmul::RoundUp(count, unit), 0.0f);
    }
    return {buffer, stride};
  }

#if defined(__x86_64__)
  using Kind = columns::Nibbles<kE2m1Doubled>;

  int64_t GroupRows() const { return kGroup; }

  void FetchScales(int64_t group, int64_t col, int64_t count) const {
    for (int64_t c = 0; c < count; c += 64) {
      __builtin_prefetch(scale + group * cols + col + c, 0, 2);
    }
  }

  columns::Scales OfGroup(int64_t group, int64_t col, int64_t count, float* buffer) const {
    columns::HalvesOfE4m3(scale + group * cols + col, count, buffer);
    columns::TurnAll(buffer, count, buffer);
    return {buffer, nullptr};
  }

  float Finish(int64_t, float sum) const { return whole == nullptr ? sum : sum * *whole; }
#endif

 private:
  static void Widen(const uint8_t* from, int64_t count, float* to) {
    int64_t i = 0;
#if defined(__AVX2__)
    const __m128i mask = _mm_set1_epi8(15);
    for (; i + 16 <= count; i += 16) {
      int64_t bytes;
      std::memcpy(&bytes, from + i / 2, sizeof(bytes));
      const __m128i wide = _mm_cvtepu8_epi16(_mm_cvtsi64_si128(bytes));
      const __m128i code = _mm_and_si128(_mm_or_si128(wide, _mm_slli_epi16(wide, 4)), mask);
      const auto value = reinterpret_cast<__m128i>(
          LookUp(kE2m1Doubled, reinterpret_cast<Codes>(code)));
      _mm256_storeu_ps(to + i, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(value)));
      _mm256_storeu_ps(to + i + 8,
                       _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(value, 8))));
    }
#endif
    for (; i < count; i += 2) {
      to[i] = static_cast<float>(kE2m1Doubled[from[i / 2] & 15]);
      to[i + 1] = static_cast<float>(kE2m1Doubled[from[i / 2] >> 4]);
    }
  }
};

}  // namespace blocks

}  // namespace rlx

#endif  // RLX_KERNELS_MINIFLOAT_H_
