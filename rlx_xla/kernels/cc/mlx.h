// Packed weights of MLX's affine form: rows of codes side by side in their bits, a scale and a bias
// for each group of 32, 64 or 128.
//
// Computes: code * scale + bias, of a matrix [n, k], for codes of 2, 3, 4, 5, 6 or 8 bits.
// Layout: as rlx/quant/schemes.py has it; the lowest bits of a row's bytes come first.
// Numerics: the product is fused with the bias.
// Algorithm: sixteen codes lie in 2 * bits bytes. A shuffle gives each lane of sixteen bits the two
//   bytes that hold its code, a product moves the code to the top, a shift brings it down.
#ifndef RLX_KERNELS_MLX_H_
#define RLX_KERNELS_MLX_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "blocks_avx512.h"
#include "matmul.h"
#include "numbers.h"

namespace rlx {

namespace mlx {

constexpr int64_t kTaken = 32;  // codes that are unpacked at once

#if defined(__AVX2__)

// For each of sixteen codes that begin `base` bytes into a vector: which two bytes hold it, and
// what moves it to the top.
template <int kBits>
constexpr std::array<int8_t, 32> BytesOfCodes(int base) {
  std::array<int8_t, 32> made = {};
  for (int i = 0; i < 16; ++i) {
    const int first = base + i * kBits / 8;
    made[2 * i] = static_cast<int8_t>(first);
    made[2 * i + 1] = static_cast<int8_t>(first < 15 ? first + 1 : -1);  // none: zero
  }
  return made;
}

template <int kBits>
constexpr std::array<uint16_t, 16> FactorsOfCodes() {
  std::array<uint16_t, 16> made = {};
  for (int i = 0; i < 16; ++i) {
    made[i] = static_cast<uint16_t>(1 << (16 - kBits - i * kBits % 8));
  }
  return made;
}

// Codes [16 * kHalf, 16 * kHalf + 16) of 32, as lanes of sixteen bits; nothing beyond them is read.
template <int kBits, int kHalf>
inline __m256i Sixteen(const uint8_t* p) {
  // Both halves of few bits come from what is read once; else the second one is read by its end.
  constexpr int kBase = kHalf == 0 ? 0 : kBits < 4 ? 2 * kBits : 16 - 2 * kBits;
  alignas(32) static constexpr std::array<int8_t, 32> kPlaces = BytesOfCodes<kBits>(kBase);
  alignas(32) static constexpr std::array<uint16_t, 16> kFactors = FactorsOfCodes<kBits>();
  __m128i bytes;
  if constexpr (kBits == 2) {
    bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  } else if constexpr (kBits == 3) {
    int32_t last;
    std::memcpy(&last, p + 8, sizeof(last));
    bytes = _mm_insert_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)), last, 2);
  } else {
    bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + kHalf * (4 * kBits - 16)));
  }
  const __m256i pairs =
      _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes),
                          _mm256_load_si256(reinterpret_cast<const __m256i*>(kPlaces.data())));
  const __m256i factors = _mm256_load_si256(reinterpret_cast<const __m256i*>(kFactors.data()));
  return _mm256_srli_epi16(_mm256_mullo_epi16(pairs, factors), 16 - kBits);
}

// out[0..16) = codes * scale + bias.
inline void Put(__m256i codes, __m256 scale, __m256 bias, float* out) {
  const __m256i low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(codes));
  const __m256i high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(codes, 1));
  _mm256_storeu_ps(out, matmul::MulAdd(_mm256_cvtepi32_ps(low), scale, bias));
  _mm256_storeu_ps(out + 8, matmul::MulAdd(_mm256_cvtepi32_ps(high), scale, bias));
}

#endif  // defined(__AVX2__)

// out[0..32) = codes * scale + bias.
template <int kBits>
inline void Unpack(const uint8_t* p, float scale, float bias, float* out) {
#if defined(__AVX2__)
  const __m256 s = _mm256_set1_ps(scale), b = _mm256_set1_ps(bias);
  Put(Sixteen<kBits, 0>(p), s, b, out);
  Put(Sixteen<kBits, 1>(p), s, b, out + 16);
#else
  for (int i = 0; i < kTaken; ++i) {
    const int bit = i * kBits;
    uint32_t code = p[bit / 8] >> (bit % 8);
    if (bit % 8 + kBits > 8) code |= static_cast<uint32_t>(p[bit / 8 + 1]) << (8 - bit % 8);
    out[i] = static_cast<float>(code & ((1u << kBits) - 1)) * scale + bias;
  }
#endif
}

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined vectors of its own intrinsics for ours.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

template <int kBits, int kHalf>
RLX_AVX512 inline __m512 Sixteen512(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(Sixteen<kBits, kHalf>(p)));
}

// sums[r * 8 ..] += eight lanes of x . row r for four rows, one after another; `at(r, g)` gives the
// scale and bias of group g of row r. As DotRows512 would, it adds up kRowDepth columns at a time.
template <int kBits, typename At>
RLX_AVX512 void DotCodes512(const uint8_t* weight, int64_t cols, int64_t block, const At& at,
                            const float* x, float* sums) {
  constexpr int64_t kAhead = 8192;
  const int64_t row_bytes = cols * kBits / 8;
  for (int64_t from = 0; from < cols; from += matmul::kRowDepth) {
    const int64_t to = std::min(from + matmul::kRowDepth, cols);
    __m512 acc[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) acc[r] = _mm512_setzero_ps();
    for (int64_t i = from; i < to; i += kTaken) {
      const __m512 first = _mm512_loadu_ps(x + i), second = _mm512_loadu_ps(x + i + 16);
      const uint8_t* p = weight + i / 8 * kBits;
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r, p += row_bytes) {
        __builtin_prefetch(p + kAhead);
        float scale, bias;
        at(r, i / block, &scale, &bias);
        const __m512 s = _mm512_set1_ps(scale), b = _mm512_set1_ps(bias);
        acc[r] = _mm512_fmadd_ps(first, _mm512_fmadd_ps(Sixteen512<kBits, 0>(p), s, b), acc[r]);
        acc[r] = _mm512_fmadd_ps(second, _mm512_fmadd_ps(Sixteen512<kBits, 1>(p), s, b), acc[r]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const __m256 both = _mm256_add_ps(_mm512_castps512_ps256(acc[r]),
                                        _mm512_extractf32x8_ps(acc[r], 1));
      _mm256_storeu_ps(sums + r * 8, _mm256_add_ps(_mm256_loadu_ps(sums + r * 8), both));
    }
  }
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif  // defined(__x86_64__)

// A matrix [n, cols], cols a multiple of block, which is one of 32; scales and biases [n,
// cols / block] of type S.
template <typename S>
struct Rows {
  const uint8_t* codes;
  const S* scale;
  const S* bias;
  int64_t cols;
  int64_t block;
  int bits;

  static constexpr bool kPlain = false;

  matmul::Tile<float> Get(int64_t row, int64_t rows, int64_t col, int64_t count, int64_t unit,
                          float* buffer, int64_t stride, int64_t ahead) const {
    static_assert(matmul::kRowDepth % kTaken == 0);
    (void)unit;  // what is unpacked at once is a multiple of it
    switch (bits) {
      case 2: return Tile<2>(row, rows, col, count, buffer, stride, ahead);
      case 3: return Tile<3>(row, rows, col, count, buffer, stride, ahead);
      case 4: return Tile<4>(row, rows, col, count, buffer, stride, ahead);
      case 5: return Tile<5>(row, rows, col, count, buffer, stride, ahead);
      case 6: return Tile<6>(row, rows, col, count, buffer, stride, ahead);
      default: return Tile<8>(row, rows, col, count, buffer, stride, ahead);
    }
  }

  // As RowsOfBlocks has it.
  bool Dot(int64_t row, int64_t rows, const float* x, matmul::F* sums) const {
#if defined(__x86_64__)
    if (rows == matmul::kRowTile && matmul::HasAvx512()) {
      auto* to = reinterpret_cast<float*>(sums);
      switch (bits) {
        case 2: return DotOf<2>(row, x, to);
        case 3: return DotOf<3>(row, x, to);
        case 4: return DotOf<4>(row, x, to);
        case 5: return DotOf<5>(row, x, to);
        case 6: return DotOf<6>(row, x, to);
        default: return DotOf<8>(row, x, to);
      }
    }
#endif
    (void)row, (void)rows, (void)x, (void)sums;
    return false;
  }

 private:
  template <int kBits>
  matmul::Tile<float> Tile(int64_t row, int64_t rows, int64_t col, int64_t count, float* buffer,
                           int64_t stride, int64_t ahead) const {
    for (int64_t r = 0; r < rows; ++r) {
      const uint8_t* from = codes + ((row + r) * cols + col) / 8 * kBits;
      const int64_t group = (row + r) * (cols / block);
      for (int64_t i = 0; i < count; i += kTaken) {
        const uint8_t* p = from + i / 8 * kBits;
        const int64_t g = group + (col + i) / block;
        __builtin_prefetch(p + ahead / 8 * kBits);
        Unpack<kBits>(p, ToFloat(scale[g]), ToFloat(bias[g]), buffer + r * stride + i);
      }
    }
    return {buffer, stride};
  }

#if defined(__x86_64__)
  template <int kBits>
  bool DotOf(int64_t row, const float* x, float* sums) const {
    const int64_t groups = cols / block;
    const S* scales = scale + row * groups;
    const S* biases = bias + row * groups;
    const auto at = [=](int64_t r, int64_t g, float* s, float* b) {
      *s = ToFloat(scales[r * groups + g]);
      *b = ToFloat(biases[r * groups + g]);
    };
    DotCodes512<kBits>(codes + row * cols / 8 * kBits, cols, block, at, x, sums);
    return true;
  }
#endif
};

}  // namespace mlx

}  // namespace rlx

#endif  // RLX_KERNELS_MLX_H_
