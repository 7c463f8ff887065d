// Packed weights: blocks of codes with their scales, widened to f32 tile by tile.
//
// Computes: the numbers of GGUF's blocks (rows of them make a matrix [n, k]) and of integer codes
//   [k, n] with a scale, and perhaps a zero point, for each block of rows.
// Layout: as rlx/quant/schemes.py has it; the low nibble of a byte comes first.
// Numerics: as rlx/quant computes, but that a code's product with its scale is fused with the
//   least that is taken away.
// Source: the public layouts of the GGUF format (ggml).
#ifndef RLX_KERNELS_BLOCKS_H_
#define RLX_KERNELS_BLOCKS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "blocks_avx512.h"
#include "columns_avx512.h"
#include "matmul.h"
#include "numbers.h"

namespace rlx {

namespace blocks {

inline float Half(const uint8_t* p) {
  F16 half;
  std::memcpy(&half, p, sizeof(half));
  return ToFloat(half);
}

// Sixteen codes, a byte each.
typedef uint8_t Codes __attribute__((vector_size(16)));
typedef uint64_t Words __attribute__((vector_size(16)));

inline Codes Load16(const uint8_t* p) {
  Codes v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// out[0..16) = codes * scale + offset, fused.
inline void Put(Codes codes, float scale, float offset, float* out) {
#if defined(__AVX2__)
  const __m128i v = reinterpret_cast<__m128i>(codes);
  const __m256 s = _mm256_set1_ps(scale);
  const __m256 o = _mm256_set1_ps(offset);
  const __m256 low = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(v));
  const __m256 high = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(v, 8)));
  _mm256_storeu_ps(out, matmul::MulAdd(low, s, o));
  _mm256_storeu_ps(out + 8, matmul::MulAdd(high, s, o));
#else
  for (int i = 0; i < 16; ++i) out[i] = static_cast<float>(codes[i]) * scale + offset;
#endif
}

// out[0..16) = codes * scale, the codes being signed.
inline void PutSigned(Codes codes, float scale, float* out) {
#if defined(__AVX2__)
  const __m128i v = reinterpret_cast<__m128i>(codes);
  const __m256 s = _mm256_set1_ps(scale);
  const __m256 low = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v));
  const __m256 high = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(v, 8)));
  _mm256_storeu_ps(out, _mm256_mul_ps(low, s));
  _mm256_storeu_ps(out + 8, _mm256_mul_ps(high, s));
#else
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>(static_cast<int8_t>(codes[i])) * scale;
  }
#endif
}

// Sixteen bits, lowest first, as codes of `value` or 0.
inline Codes BitsAsCodes(const uint8_t* p, uint8_t value) {
  // Every byte has a copy of its eight bits, and looks at one of them.
  const Words copies = {p[0] * 0x0101010101010101ull, p[1] * 0x0101010101010101ull};
  const Words looks = {0x8040201008040201ull, 0x8040201008040201ull};
  const Codes set = reinterpret_cast<Codes>(copies & looks);
  return reinterpret_cast<Codes>(set != 0) & value;
}

// Each kind of block: how many elements it has, its bytes, and what they are.

struct Q8_0 {
  static constexpr int64_t kElements = 32;
  static constexpr int64_t kBytes = 34;
  static void Decode(const uint8_t* b, float* out) {
    const float d = Half(b);
    PutSigned(Load16(b + 2), d, out);
    PutSigned(Load16(b + 18), d, out + 16);
  }
};

struct Q4_0 {
  static constexpr int64_t kElements = 32;
  static constexpr int64_t kBytes = 18;
  static void Decode(const uint8_t* b, float* out) {
    const float d = Half(b);
    const Codes codes = Load16(b + 2);
    PutSigned((codes & 15) - 8, d, out);
    PutSigned((codes >> 4) - 8, d, out + 16);
  }
};

struct Q4_1 {
  static constexpr int64_t kElements = 32;
  static constexpr int64_t kBytes = 20;
  static void Decode(const uint8_t* b, float* out) {
    const float d = Half(b);
    const float m = Half(b + 2);
    const Codes codes = Load16(b + 4);
    Put(codes & 15, d, m, out);
    Put(codes >> 4, d, m, out + 16);
  }
};

struct Q5_0 {
  static constexpr int64_t kElements = 32;
  static constexpr int64_t kBytes = 22;
  static void Decode(const uint8_t* b, float* out) {
    const float d = Half(b);
    const Codes codes = Load16(b + 6);
    PutSigned(((codes & 15) | BitsAsCodes(b + 2, 16)) - 16, d, out);
    PutSigned(((codes >> 4) | BitsAsCodes(b + 4, 16)) - 16, d, out + 16);
  }
};

struct Q5_1 {
  static constexpr int64_t kElements = 32;
  static constexpr int64_t kBytes = 24;
  static void Decode(const uint8_t* b, float* out) {
    const float d = Half(b);
    const float m = Half(b + 2);
    const Codes codes = Load16(b + 8);
    Put((codes & 15) | BitsAsCodes(b + 4, 16), d, m, out);
    Put((codes >> 4) | BitsAsCodes(b + 6, 16), d, m, out + 16);
  }
};

// A byte's two bits at a place that is known when this is compiled, or its one bit.
template <int kShift, int kMask>
Codes Field(const uint8_t* p) {
  return (Load16(p) >> kShift) & static_cast<uint8_t>(kMask);
}

struct Q2_K {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 84;
  static void Decode(const uint8_t* b, float* out) {
    const float d = Half(b + 80);
    const float m = Half(b + 82);
    for (int half = 0; half < 2; ++half) {
      Plane<0>(b, half, d, m, out);
      Plane<1>(b, half, d, m, out);
      Plane<2>(b, half, d, m, out);
      Plane<3>(b, half, d, m, out);
    }
  }
  template <int kPlane>
  static void Plane(const uint8_t* b, int half, float d, float m, float* out) {
    for (int i = 0; i < 2; ++i) {
      const int sub = half * 8 + kPlane * 2 + i;
      Put(Field<2 * kPlane, 3>(b + 16 + half * 32 + i * 16), static_cast<float>(b[sub] & 15) * d,
          -(static_cast<float>(b[sub] >> 4) * m), out + sub * 16);
    }
  }
};

struct Q3_K {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 110;
  static void Decode(const uint8_t* b, float* out) {
    const float d = Half(b + 108);
    Plane<0>(b, d, out);
    Plane<1>(b, d, out);
    Plane<2>(b, d, out);
    Plane<3>(b, d, out);
    Plane<4>(b, d, out);
    Plane<5>(b, d, out);
    Plane<6>(b, d, out);
    Plane<7>(b, d, out);
  }
  template <int kPlane>
  static void Plane(const uint8_t* b, float d, float* out) {
    for (int i = 0; i < 2; ++i) {
      const int sub = kPlane * 2 + i;
      const int low = sub < 8 ? b[96 + sub] & 15 : b[96 + sub - 8] >> 4;
      const int high = (b[104 + sub % 4] >> (sub / 4 * 2)) & 3;
      const float scale = static_cast<float>((low | high << 4) - 32) * d;
      // A bit that is not set takes four away.
      const Codes top = Field<kPlane, 1>(b + i * 16) << 2;
      const Codes codes = Field<kPlane % 4 * 2, 3>(b + 32 + kPlane / 4 * 32 + i * 16);
      PutSigned(codes + top - 4, scale, out + sub * 16);
    }
  }
};

// Six bits each for scale and least of the eight sub-blocks of Q4_K and Q5_K.
inline void ScalesAndLeast(const uint8_t* b, float* scale, float* least) {
  const float d = Half(b);
  const float m = Half(b + 2);
  const uint8_t* first = b + 4;
  const uint8_t* second = b + 8;
  const uint8_t* mixed = b + 12;
  for (int i = 0; i < 4; ++i) {
    scale[i] = static_cast<float>(first[i] & 63) * d;
    least[i] = static_cast<float>(second[i] & 63) * m;
    scale[4 + i] = static_cast<float>((mixed[i] & 15) | ((first[i] >> 2) & 48)) * d;
    least[4 + i] = static_cast<float>((mixed[i] >> 4) | ((second[i] >> 2) & 48)) * m;
  }
}

struct Q4_K {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 144;
  static void Decode(const uint8_t* b, float* out) {
    float scale[8];
    float least[8];
    ScalesAndLeast(b, scale, least);
    for (int g = 0; g < 4; ++g) {
      for (int i = 0; i < 2; ++i) {
        const Codes codes = Load16(b + 16 + g * 32 + i * 16);
        float* to = out + g * 64 + i * 16;
        Put(codes & 15, scale[2 * g], -least[2 * g], to);
        Put(codes >> 4, scale[2 * g + 1], -least[2 * g + 1], to + 32);
      }
    }
  }
};

struct Q5_K {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 176;
  static void Decode(const uint8_t* b, float* out) {
    float scale[8];
    float least[8];
    ScalesAndLeast(b, scale, least);
    Group<0>(b, scale, least, out);
    Group<1>(b, scale, least, out);
    Group<2>(b, scale, least, out);
    Group<3>(b, scale, least, out);
  }
  template <int kGroup>
  static void Group(const uint8_t* b, const float* scale, const float* least, float* out) {
    for (int i = 0; i < 2; ++i) {
      const Codes codes = Load16(b + 48 + kGroup * 32 + i * 16);
      const Codes low_top = Field<2 * kGroup, 1>(b + 16 + i * 16) << 4;
      const Codes high_top = Field<2 * kGroup + 1, 1>(b + 16 + i * 16) << 4;
      float* to = out + kGroup * 64 + i * 16;
      Put((codes & 15) | low_top, scale[2 * kGroup], -least[2 * kGroup], to);
      Put((codes >> 4) | high_top, scale[2 * kGroup + 1], -least[2 * kGroup + 1], to + 32);
    }
  }
};

struct Q6_K {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 210;
  static void Decode(const uint8_t* b, float* out) {
    const float d = Half(b + 208);
    for (int half = 0; half < 2; ++half) {
      Quarter<0>(b, half, d, out);
      Quarter<1>(b, half, d, out);
      Quarter<2>(b, half, d, out);
      Quarter<3>(b, half, d, out);
    }
  }
  template <int kQuarter>
  static void Quarter(const uint8_t* b, int half, float d, float* out) {
    for (int i = 0; i < 2; ++i) {
      const int sub = half * 8 + kQuarter * 2 + i;
      const uint8_t* low = b + half * 64 + kQuarter % 2 * 32 + i * 16;
      const uint8_t* top = b + 128 + half * 32 + i * 16;
      const Codes codes = Field<kQuarter / 2 * 4, 15>(low) | Field<kQuarter * 2, 3>(top) << 4;
      const float scale = static_cast<float>(static_cast<int8_t>(b[192 + sub])) * d;
      PutSigned(codes - 32, scale, out + sub * 16);
    }
  }
};

struct Q8_K {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 292;
  static void Decode(const uint8_t* b, float* out) {
    float d;
    std::memcpy(&d, b, sizeof(d));
    for (int i = 0; i < 256; i += 16) PutSigned(Load16(b + 4 + i), d, out + i);
  }
};

// Rows of blocks: a matrix [n, cols], where cols is a multiple of the block's elements.
template <typename Block>
struct RowsOfBlocks {
  const uint8_t* data;
  int64_t cols;

  static constexpr bool kPlain = false;

  matmul::Tile<float> Get(int64_t row, int64_t rows, int64_t col, int64_t count, int64_t unit,
                          float* buffer, int64_t stride, int64_t ahead) const {
    static_assert(matmul::kRowDepth % Block::kElements == 0);
    (void)unit;  // blocks are multiples of it
    const int64_t row_bytes = cols / Block::kElements * Block::kBytes;
    const int64_t ahead_bytes = ahead / Block::kElements * Block::kBytes;
    for (int64_t r = 0; r < rows; ++r) {
      const uint8_t* block = data + (row + r) * row_bytes + col / Block::kElements * Block::kBytes;
      float* to = buffer + r * stride;
      for (int64_t i = 0; i < count; i += Block::kElements) {
        for (int64_t line = 0; line < Block::kBytes; line += 64) {
          __builtin_prefetch(block + ahead_bytes + line);
        }
        Block::Decode(block, to + i);
        block += Block::kBytes;
      }
    }
    return {buffer, stride};
  }

  // sums[r] += the lanes of x . row + r for one row of x and kRowTile of these; false where this
  // CPU has no way that is better than Get.
  bool Dot(int64_t row, int64_t rows, const float* x, matmul::F* sums) const {
#if defined(__x86_64__)
    if constexpr (Sixteens<Block>::kHas) {
      if (rows == matmul::kRowTile && matmul::HasAvx512()) {
        const int64_t count = cols / Block::kElements;
        DotBlocks512<Block>(data + row * count * Block::kBytes, count,
                            matmul::kRowDepth / Block::kElements, x,
                            reinterpret_cast<float*>(sums));
        return true;
      }
    }
#endif
    (void)row, (void)rows, (void)x, (void)sums;
    return false;
  }
};

// A matrix [k, cols] of integer codes; rows [i * block, (i + 1) * block) have scale[i] and, unless
// it is null, zero[i]: a row of cols each. cols is even where the codes are nibbles.
template <bool kNibbles>
struct ColumnsOfCodes {
  const uint8_t* codes;
  const float* scale;
  const float* zero;
  int64_t block;
  int64_t cols;

  static constexpr bool kPlain = false;
  static constexpr bool kFew = true;

  matmul::Tile<float> Get(int64_t row, int64_t rows, int64_t col, int64_t count, int64_t unit,
                          float* buffer, int64_t stride, int64_t ahead) const {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = (row + r) * cols + col;
      const int64_t of = (row + r) / block * cols + col;
      float* to = buffer + r * stride;
      const uint8_t* from = codes + (kNibbles ? at / 2 : at);
      const int64_t bytes = kNibbles ? count / 2 : count;
      for (int64_t line = 0; line < bytes; line += 64) {
        __builtin_prefetch(from + (kNibbles ? ahead / 2 : ahead) + line);
      }
      int64_t done = 0;
#if defined(__x86_64__)
      if (matmul::HasAvx512()) {
        done = columns::Widen<Kind>(from, count, {scale + of, zero ? zero + of : nullptr}, to);
      }
#endif
      Widen(from + (kNibbles ? done / 2 : done), count - done, to + done);
      if (zero != nullptr) {
        for (int64_t c = done; c < count; ++c) to[c] = (to[c] - zero[of + c]) * scale[of + c];
      } else {
        for (int64_t c = done; c < count; ++c) to[c] *= scale[of + c];
      }
      std::fill(to + count, to + matmul::RoundUp(count, unit), 0.0f);
    }
    return {buffer, stride};
  }

#if defined(__x86_64__)
  using Kind = std::conditional_t<kNibbles, columns::Nibbles<columns::kWhole>, columns::Int8>;

  int64_t GroupRows() const { return block; }

  columns::Scales OfGroup(int64_t group, int64_t col, int64_t count, float* buffer) const {
    const float* of = scale + group * cols + col;
    const float* less = zero == nullptr ? nullptr : zero + group * cols + col;
    if constexpr (!kNibbles) return {of, less};
    columns::TurnAll(of, count, buffer);
    if (less == nullptr) return {buffer, nullptr};
    columns::TurnAll(less, count, buffer + count);
    return {buffer, buffer + count};
  }

  void FetchScales(int64_t group, int64_t col, int64_t count) const {
    for (int64_t c = 0; c < count; c += 16) {
      __builtin_prefetch(scale + group * cols + col + c, 0, 2);
      if (zero != nullptr) __builtin_prefetch(zero + group * cols + col + c, 0, 2);
    }
  }

  float Finish(int64_t, float sum) const { return sum; }
#endif

 private:
  static void Widen(const uint8_t* from, int64_t count, float* to) {
    if constexpr (kNibbles) {
      int64_t i = 0;
#if defined(__AVX2__)
      const __m128i mask = _mm_set1_epi8(15);
      for (; i + 16 <= count; i += 16) {
        int64_t bytes;
        std::memcpy(&bytes, from + i / 2, sizeof(bytes));
        const __m128i wide = _mm_cvtepu8_epi16(_mm_cvtsi64_si128(bytes));
        // Both nibbles of a byte, the low one first, as two bytes.
        const __m128i code = _mm_and_si128(_mm_or_si128(wide, _mm_slli_epi16(wide, 4)), mask);
        _mm256_storeu_ps(to + i, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(code)));
        _mm256_storeu_ps(to + i + 8,
                         _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(code, 8))));
      }
#endif
      for (; i < count; i += 2) {
        to[i] = static_cast<float>(from[i / 2] & 15);
        to[i + 1] = static_cast<float>(from[i / 2] >> 4);
      }
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(static_cast<int8_t>(from[i]));
    }
  }
};

}  // namespace blocks

}  // namespace rlx

#endif  // RLX_KERNELS_BLOCKS_H_
