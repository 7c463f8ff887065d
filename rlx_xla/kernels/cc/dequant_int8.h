// Products of inputs rounded to signed bytes with rows of packed blocks.
//
// Computes: y[m, n] = sum over k of r(x)[m, k] * w[n, k], where r rounds every block of x to signed
//   bytes with one scale, and sums of codes within a block are whole numbers.
// Layout: row-major; k is a multiple of the blocks' elements.
// Numerics: as rlx/ops/quantized/rounded.py says.
// Algorithm: x is rounded once; each weight's codes are unpacked in registers and multiplied, a
//   pair of bytes at a time, with those of up to four rows of x.
#ifndef RLX_KERNELS_DEQUANT_INT8_H_
#define RLX_KERNELS_DEQUANT_INT8_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "blocks.h"
#include "dequant_int8_vnni.h"
#include "parallel.h"
#include "scratch.h"

namespace rlx {

namespace int8 {

using blocks::BitsAsCodes;
using blocks::Codes;
using blocks::Field;
using blocks::Half;
using blocks::Load16;

constexpr int64_t kGroup = 32;  // elements that are multiplied at once

// A group: thirty-two codes with a scale for each half, and what is added to all of them.
struct Unit {
  Codes low;
  Codes high;
  float low_scale;
  float high_scale;
  float least;
};

// Each kind of block: Get(b, g) is its g-th group. kSigned: codes may be below zero. kLeast: groups
// have a least number; its sum with x is rounded to f16 where kHalfSums.
struct Q8_0 : blocks::Q8_0 {
  static constexpr bool kSigned = true, kLeast = false, kHalfSums = false;
  static Unit Get(const uint8_t* b, int) {
    const float d = Half(b);
    return {Load16(b + 2), Load16(b + 18), d, d, 0.0f};
  }
};

struct Q4_0 : blocks::Q4_0 {
  static constexpr bool kSigned = true, kLeast = false, kHalfSums = false;
  static Unit Get(const uint8_t* b, int) {
    const float d = Half(b);
    const Codes codes = Load16(b + 2);
    return {(codes & 15) - 8, (codes >> 4) - 8, d, d, 0.0f};
  }
};

struct Q4_1 : blocks::Q4_1 {
  static constexpr bool kSigned = false, kLeast = true, kHalfSums = true;
  static Unit Get(const uint8_t* b, int) {
    const float d = Half(b);
    const Codes codes = Load16(b + 4);
    return {codes & 15, codes >> 4, d, d, Half(b + 2)};
  }
};

struct Q5_0 : blocks::Q5_0 {
  static constexpr bool kSigned = true, kLeast = false, kHalfSums = false;
  static Unit Get(const uint8_t* b, int) {
    const float d = Half(b);
    const Codes codes = Load16(b + 6);
    return {((codes & 15) | BitsAsCodes(b + 2, 16)) - 16,
            ((codes >> 4) | BitsAsCodes(b + 4, 16)) - 16, d, d, 0.0f};
  }
};

struct Q5_1 : blocks::Q5_1 {
  static constexpr bool kSigned = false, kLeast = true, kHalfSums = true;
  static Unit Get(const uint8_t* b, int) {
    const float d = Half(b);
    const Codes codes = Load16(b + 8);
    return {(codes & 15) | BitsAsCodes(b + 4, 16), (codes >> 4) | BitsAsCodes(b + 6, 16), d, d,
            Half(b + 2)};
  }
};

// Scale and least of sub-block g of Q4_K and Q5_K.
inline void ScaleAndLeast(const uint8_t* b, int g, float* scale, float* least) {
  const uint8_t* first = b + 4;
  const int i = g & 3;
  const int s = g < 4 ? first[i] & 63 : (first[8 + i] & 15) | ((first[i] >> 2) & 48);
  const int m = g < 4 ? first[4 + i] & 63 : (first[8 + i] >> 4) | ((first[4 + i] >> 2) & 48);
  *scale = static_cast<float>(s) * Half(b);
  *least = -(static_cast<float>(m) * Half(b + 2));
}

struct Q4_K : blocks::Q4_K {
  static constexpr bool kSigned = false, kLeast = true, kHalfSums = false;
  static Unit Get(const uint8_t* b, int g) {
    float d, m;
    ScaleAndLeast(b, g, &d, &m);
    const uint8_t* from = b + 16 + g / 2 * 32;
    const int shift = g % 2 * 4;
    return {(Load16(from) >> shift) & 15, (Load16(from + 16) >> shift) & 15, d, d, m};
  }
};

struct Q5_K : blocks::Q5_K {
  static constexpr bool kSigned = false, kLeast = true, kHalfSums = false;
  static Unit Get(const uint8_t* b, int g) {
    float d, m;
    ScaleAndLeast(b, g, &d, &m);
    const uint8_t* from = b + 48 + g / 2 * 32;
    const int shift = g % 2 * 4;
    const Codes low = ((Load16(b + 16) >> g) & 1) << 4;
    const Codes high = ((Load16(b + 32) >> g) & 1) << 4;
    return {((Load16(from) >> shift) & 15) | low, ((Load16(from + 16) >> shift) & 15) | high, d, d,
            m};
  }
};

struct Q6_K : blocks::Q6_K {
  static constexpr bool kSigned = true, kLeast = false, kHalfSums = false;
  static Unit Get(const uint8_t* b, int g) {
    const float d = Half(b + 208);
    const int half = g / 4, quarter = g % 4;
    const uint8_t* low = b + half * 64 + quarter % 2 * 32;
    const uint8_t* top = b + 128 + half * 32;
    const int shift = quarter / 2 * 4;
    const auto* scale = reinterpret_cast<const int8_t*>(b + 192 + g * 2);
    const auto codes = [&](int at) {
      return (((Load16(low + at) >> shift) & 15) |
              (((Load16(top + at) >> (quarter * 2)) & 3) << 4)) - 32;
    };
    return {codes(0), codes(16), static_cast<float>(scale[0]) * d,
            static_cast<float>(scale[1]) * d, 0.0f};
  }
};

// A row of x: codes, and for each group the scale and the sum of the rounded numbers.
struct Rounded {
  int8_t* codes;
  float* scale;
  float* sum;
};

// Rounds one block of `size` numbers.
inline void RoundBlock(const float* x, int64_t size, bool half_sums, const Rounded& to) {
  float most = 0.0f;
  bool finite = true;
  for (int64_t i = 0; i < size; ++i) {
    const float a = std::fabs(x[i]);
    finite &= a <= std::numeric_limits<float>::max();
    most = std::max(most, a);
  }
  const float scale = most / 127.0f;
  const float inverse = finite && most > 0.0f ? 127.0f / most : 0.0f;
  float stored = size == 32 ? ToFloat(FromFloat<F16>(scale)) : scale;
  if (!finite) stored = std::numeric_limits<float>::quiet_NaN();
  for (int64_t g = 0; g < size / kGroup; ++g) {
    int32_t total = 0;
    for (int64_t i = g * kGroup; i < (g + 1) * kGroup; ++i) {
      const float product = finite ? x[i] * inverse : 0.0f;
      // Adding and taking away 1.5 · 2^23 rounds to the nearest, ties to even.
      const int32_t code = static_cast<int32_t>((product + 12582912.0f) - 12582912.0f);
      to.codes[i] = static_cast<int8_t>(std::clamp(code, -127, 127));
      total += to.codes[i];
    }
    to.scale[g] = stored;
    const auto sum = static_cast<float>(total);
    to.sum[g] = half_sums && finite ? ToFloat(FromFloat<F16>(sum * scale)) : sum * stored;
  }
}

// Sums of four products each of w's codes with those of x, as f32.
template <bool kSigned>
Lanes<float> Dot(const Unit& w, const int8_t* x) {
#if defined(__AVX2__)
  const __m256i a = _mm256_set_m128i(reinterpret_cast<__m128i>(w.high),
                                     reinterpret_cast<__m128i>(w.low));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  // The first factor must not be signed: x takes w's sign.
  const __m256i pairs = kSigned ? _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(b, a))
                                : _mm256_maddubs_epi16(a, b);
  return _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#else
  Lanes<float> sums;
  for (int lane = 0; lane < 8; ++lane) {
    int32_t sum = 0;
    for (int i = 0; i < 4; ++i) {
      const int at = lane * 4 + i;
      const uint8_t code = at < 16 ? w.low[at] : w.high[at - 16];
      sum += static_cast<int32_t>(static_cast<int8_t>(code)) * x[at];
    }
    sums[lane] = static_cast<float>(sum);
  }
  return sums;
#endif
}

inline Lanes<float> Scales(const Unit& w, float x) {
  const float a = w.low_scale * x, b = w.high_scale * x;
  return Lanes<float>{a, a, a, a, b, b, b, b};
}

inline float Total(Lanes<float> v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

// y[m * stride] for kX rows of x and one of the weight.
template <typename Block, int kX>
void RowTile(const uint8_t* row, int64_t k, const Rounded* x, float* y, int64_t stride) {
  constexpr int kGroups = Block::kElements / kGroup;
  Lanes<float> acc[kX] = {};
  float rest[kX] = {};
  int64_t at = 0;
  for (int64_t i = 0; i < k; i += Block::kElements, row += Block::kBytes) {
    __builtin_prefetch(row + 1024);
#pragma GCC unroll 8
    for (int g = 0; g < kGroups; ++g, ++at) {
      const Unit w = Block::Get(row, g);
      for (int m = 0; m < kX; ++m) {
        const Lanes<float> sums = Dot<Block::kSigned>(w, x[m].codes + at * kGroup);
        acc[m] = matmul::MulAdd(sums, Scales(w, x[m].scale[at]), acc[m]);
        if constexpr (Block::kLeast) rest[m] += w.least * x[m].sum[at];
      }
    }
  }
  for (int m = 0; m < kX; ++m) y[m * stride] = Total(acc[m]) + rest[m];
}

// y[m * stride + j - begin] for kX rows of x and those of the weight from begin to end.
template <typename Block, int kX>
void Rows(const uint8_t* weight, int64_t begin, int64_t end, int64_t k, const Rounded* x, float* y,
          int64_t stride) {
  const int64_t row_bytes = k / Block::kElements * Block::kBytes;
  int64_t j = begin;
#if defined(__x86_64__)
  if constexpr (TwoBlocks<Block>::kHas) {
    if (HasVnni()) {
      for (; j + 4 <= end; j += 4) {
        FourRows<Block, kX>(weight + j * row_bytes, k, x, y + j - begin, stride);
      }
    }
  }
#endif
  for (; j < end; ++j) RowTile<Block, kX>(weight + j * row_bytes, k, x, y + j - begin, stride);
}

constexpr int64_t kRows = 4;
constexpr int64_t kGrain = 1 << 17;  // products that are worth a piece of their own

// y[rows, n] of x[rows, k] and weight[n, bytes].
template <typename Block, typename Pool, typename T>
void Matmul(const Pool& pool, const T* x, int64_t rows, int64_t k, const uint8_t* weight, int64_t n,
            T* y) {
  const int64_t groups = k / kGroup;
  const Scratch<int8_t> codes(rows * k);
  const Scratch<float> scales(rows * groups);
  const Scratch<float> sums(rows * groups);
  const Scratch<float> made(rows * n);
  const auto of = [&](int64_t m) {
    return Rounded{codes.get() + m * k, scales.get() + m * groups, sums.get() + m * groups};
  };
  const auto round = [&](int64_t begin, int64_t end) {
    float wide[Block::kElements];
    for (int64_t m = begin; m < end; ++m) {
      const Rounded to = of(m);
      for (int64_t i = 0; i < k; i += Block::kElements) {
        for (int64_t j = 0; j < Block::kElements; ++j) wide[j] = ToFloat(x[m * k + i + j]);
        const int64_t g = i / kGroup;
        RoundBlock(wide, Block::kElements, Block::kHalfSums,
                   {to.codes + i, to.scale + g, to.sum + g});
      }
    }
  };
  ParallelFor(pool, rows, kGrain / (k + 1) + 1, round);
  ParallelFor(pool, n, kGrain / (rows * k + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t first = 0; first < rows; first += kRows) {
      const int64_t count = std::min(kRows, rows - first);
      Rounded tile[kRows] = {};
      for (int64_t m = 0; m < count; ++m) tile[m] = of(first + m);
      float* to = made.get() + first * n + begin;
      switch (count) {
        case 1: Rows<Block, 1>(weight, begin, end, k, tile, to, n); break;
        case 2: Rows<Block, 2>(weight, begin, end, k, tile, to, n); break;
        case 3: Rows<Block, 3>(weight, begin, end, k, tile, to, n); break;
        default: Rows<Block, 4>(weight, begin, end, k, tile, to, n); break;
      }
    }
    for (int64_t m = 0; m < rows; ++m) {
      for (int64_t j = begin; j < end; ++j) y[m * n + j] = FromFloat<T>(made[m * n + j]);
    }
  });
}

}  // namespace int8

}  // namespace rlx

#endif  // RLX_KERNELS_DEQUANT_INT8_H_
