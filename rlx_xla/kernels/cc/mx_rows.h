// Packed weights of MLX's mxfp4 and mxfp8 and of mxfp4x2: rows of E2M1 nibbles or E4M3 bytes, a power
// of two for each group of them, and, for mxfp4x2, two planes of such rows that are added.
//
// Computes: the numbers of a matrix [n, k].
// Layout: as rlx/quant/schemes.py has it; the low nibble of a byte comes first.
// Numerics: as rlx/quant computes: products with powers of two are exact.
// Source: OCP microscaling formats (2023).
#ifndef RLX_KERNELS_MX_ROWS_H_
#define RLX_KERNELS_MX_ROWS_H_

#include <cstdint>

#include "blocks.h"
#include "matmul.h"
#include "minifloat.h"
#include "numbers.h"

namespace rlx {

namespace blocks {

// 2^(e - 127 - kLess), NaN for 255.
template <int kLess>
float PowerOfTwo(uint32_t e) {
  if (e == 255) return BitCast<float>(0x7fc00000u);
  const uint32_t from = e + 1 - kLess;  // 0 and below are subnormal
  return BitCast<float>(from < 2 ? 0x00200000u << (e + 1 - kLess) : (from - 1) << 23);
}

// Sixteen bytes as 32 codes, the low nibble first.
inline void InOrder(const uint8_t* p, Codes* first, Codes* second) {
  const Codes bytes = Load16(p);
  const Codes low = bytes & 15, high = bytes >> 4;
#if defined(__AVX2__)
  const auto a = reinterpret_cast<__m128i>(low), b = reinterpret_cast<__m128i>(high);
  *first = reinterpret_cast<Codes>(_mm_unpacklo_epi8(a, b));
  *second = reinterpret_cast<Codes>(_mm_unpackhi_epi8(a, b));
#else
  for (int i = 0; i < 8; ++i) {
    (*first)[2 * i] = low[i];
    (*first)[2 * i + 1] = high[i];
    (*second)[2 * i] = low[8 + i];
    (*second)[2 * i + 1] = high[8 + i];
  }
#endif
}

constexpr int64_t kMxTaken = 32;  // codes that are unpacked at once

// A matrix [n, cols], cols a multiple of block, which is one of 32, of nibbles, or else bytes, with
// scales [n, cols / block]; and the same again, after both, for each plane.
template <bool kNibbles>
struct RowsOfMx {
  const uint8_t* codes;
  const uint8_t* scale;
  int64_t n;
  int64_t cols;
  int64_t block;
  int64_t planes;

  static constexpr bool kPlain = false;

  matmul::Tile<float> Get(int64_t row, int64_t rows, int64_t col, int64_t count, int64_t unit,
                          float* buffer, int64_t stride, int64_t ahead) const {
    static_assert(matmul::kRowDepth % kMxTaken == 0);
    (void)unit;  // what is unpacked at once is a multiple of it
    for (int64_t plane = 0; plane < planes; ++plane) {
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t from = (plane * n + row + r) * cols + col;
        for (int64_t i = 0; i < count; i += kMxTaken) {
          const int64_t at = from + i;
          float* to = buffer + r * stride + i;
          const uint8_t* p = codes + (kNibbles ? at / 2 : at);
          __builtin_prefetch(p + (kNibbles ? ahead / 2 : ahead));
          if (plane == 0) {
            Unpack(p, scale[at / block], to);
          } else {
            float more[kMxTaken];
            Unpack(p, scale[at / block], more);
            for (int64_t c = 0; c < kMxTaken; ++c) to[c] += more[c];
          }
        }
      }
    }
    return {buffer, stride};
  }

 private:
  static void Unpack(const uint8_t* p, uint8_t scale, float* out) {
    if constexpr (kNibbles) {
      const float half = PowerOfTwo<1>(scale);
      Codes first, second;
      InOrder(p, &first, &second);
      PutSigned(LookUp(kE2m1Doubled, first), half, out);
      PutSigned(LookUp(kE2m1Doubled, second), half, out + 16);
    } else {
      const float whole = PowerOfTwo<0>(scale);
      for (int64_t c = 0; c < kMxTaken; c += 8) WidenEight<Byte::kE4m3>(p + c, out + c);
      for (int64_t c = 0; c < kMxTaken; ++c) out[c] *= whole;
    }
  }
};

}  // namespace blocks

}  // namespace rlx

#endif  // RLX_KERNELS_MX_ROWS_H_
