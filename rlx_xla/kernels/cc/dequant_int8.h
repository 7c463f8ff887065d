// Products of inputs rounded to signed bytes with rows of packed blocks.
//
// Computes: y[m, n] = sum over k of r(x)[m, k] * w[n, k], where r rounds every block of x to signed
//   bytes with one scale, and sums of codes within a block are whole numbers.
// Layout: row-major; k is a multiple of the blocks' elements.
// Numerics: as rlx/ops/quantized/rounded.py says.
// Algorithm: x is rounded once; each weight's codes are unpacked in registers and multiplied, two
//   or four bytes at a time, with those of up to four rows of x.
#ifndef RLX_KERNELS_DEQUANT_INT8_H_
#define RLX_KERNELS_DEQUANT_INT8_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "dequant_int8_blocks.h"
#include "dequant_int8_super.h"
#include "dequant_int8_vnni.h"
#include "parallel.h"
#include "scratch.h"

#define RLX_INT8 pairs
#define RLX_INT8_VNNI 0
#include "dequant_int8_tiles.h"
#undef RLX_INT8
#undef RLX_INT8_VNNI

// Multiplications of four bytes in vectors of 32 bytes.
#if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define RLX_HAS_AVX_VNNI 1
#define RLX_INT8 fours
#define RLX_INT8_VNNI 1
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avxvnni"))), apply_to = function)
#include "dequant_int8_tiles.h"
#pragma clang attribute pop
#else
#pragma GCC push_options
#pragma GCC target("avxvnni")
#include "dequant_int8_tiles.h"
#pragma GCC pop_options
#endif
#undef RLX_INT8
#undef RLX_INT8_VNNI
#endif

namespace rlx {

namespace int8 {

// Tests take the other path by clearing it.
inline bool allow_avx_vnni = true;

inline bool HasAvxVnni() {
#if defined(RLX_HAS_AVX_VNNI)
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1u << 4)) != 0;
  }();
  return has && allow_avx_vnni;
#else
  return false;
#endif
}

// What RoundBlock fills; the pointers are those of Rounded.
struct RoundedTo {
  int8_t* codes;
  float* scale;
  float* sum;
  int16_t* total;
  int32_t* taken;
};

// Sums of four codes each, times -kBias.
template <int kBias>
void Taken(const int8_t* codes, int32_t* taken) {
#if defined(__AVX2__)
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(static_cast<char>(kBias)), v);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(taken),
                      _mm256_madd_epi16(pairs, _mm256_set1_epi16(-1)));
#else
  for (int q = 0; q < 8; ++q) {
    taken[q] = -kBias * (codes[4 * q] + codes[4 * q + 1] + codes[4 * q + 2] + codes[4 * q + 3]);
  }
#endif
}

// Rounds numbers to codes: the scale, which is NaN where one of them is not finite.
inline float RoundCodes(const float* x, int64_t size, int8_t* codes) {
  int32_t most_bits = 0;  // those of numbers that are not below zero are in the numbers' order
  for (int64_t i = 0; i < size; ++i) {
    int32_t bits;
    std::memcpy(&bits, x + i, sizeof(bits));
    most_bits = std::max(most_bits, bits & 0x7fffffff);
  }
  if (most_bits >= 0x7f800000) {
    std::memset(codes, 0, size);
    return std::numeric_limits<float>::quiet_NaN();
  }
  float most;
  std::memcpy(&most, &most_bits, sizeof(most));
  float inverse = 127.0f / most;
  // What is zero, or so small that this has no finite inverse, rounds to zero.
  if (!(inverse <= std::numeric_limits<float>::max())) inverse = 0.0f;
  for (int64_t i = 0; i < size; ++i) {
    // Adding and taking away 1.5 · 2^23 rounds to the nearest, ties to even.
    const auto code = static_cast<int32_t>((x[i] * inverse + 12582912.0f) - 12582912.0f);
    codes[i] = static_cast<int8_t>(std::clamp(code, -127, 127));
  }
  return most / 127.0f;
}

// Rounds one block of x.
template <typename Block>
void RoundBlock(const float* x, const RoundedTo& to) {
  constexpr int kSize = Block::kElements;
  const float scale = RoundCodes(x, kSize, to.codes);
  *to.scale = kSize == kGroup ? ToFloat(FromFloat<F16>(scale)) : scale;
  for (int g = 0; g < kSize / kGroup; ++g) {
    const int8_t* codes = to.codes + g * kGroup;
    if constexpr (Block::kBias != 0) Taken<Block::kBias>(codes, to.taken + g * 8);
    if constexpr (Block::kLeast) {
      int32_t total = 0;
      for (int i = 0; i < kGroup; ++i) total += codes[i];
      if constexpr (kIsLarge<Block>) {
        to.total[g] = static_cast<int16_t>(total);
      } else {
        *to.sum = ToFloat(FromFloat<F16>(static_cast<float>(total) * scale));
      }
    }
  }
}

// y[m * stride + j - begin] for kX rows of x and those of the weight from begin to end.
template <typename Block, int kX>
void Rows(const uint8_t* weight, int64_t begin, int64_t end, int64_t k, const Rounded* x, float* y,
          int64_t stride) {
  const int64_t row_bytes = k / Block::kElements * Block::kBytes;
  const uint8_t* from = weight + begin * row_bytes;
  int64_t count = end - begin;
#if defined(__x86_64__)
  if (HasVnni()) {
    for (; count >= 4; count -= 4, from += 4 * row_bytes, y += 4) {
      if constexpr (kIsLarge<Block>) {
        FourLarge<Block, kX>(from, row_bytes, k, x, y, stride);
      } else {
        FourSmall<Block, kX>(from, row_bytes, k, x, y, stride);
      }
    }
  }
#endif
#if defined(RLX_HAS_AVX_VNNI)
  if (HasAvxVnni()) return fours::Tiles<Block, kX>(from, row_bytes, count, k, x, y, stride);
#endif
  pairs::Tiles<Block, kX>(from, row_bytes, count, k, x, y, stride);
}

constexpr int64_t kRows = 4;
constexpr int64_t kGrain = 1 << 17;  // products that are worth a piece of their own
constexpr int64_t kStretch = 1 << 17;  // bytes of weights that stay cached while rows of x go by

// Rows of x, rounded.
template <typename Block>
class RoundedRows {
 public:
  RoundedRows(int64_t rows, int64_t k)
      : k_(k),
        blocks_(k / Block::kElements),
        codes_(rows * k),
        scale_(rows * blocks_),
        sum_(kSums ? rows * blocks_ : 0),
        total_(kTotals ? rows * k / kGroup : 0),
        taken_(Block::kBias != 0 ? rows * k / 4 : 0) {}

  Rounded Row(int64_t m) const {
    return {codes_.get() + m * k_, scale_.get() + m * blocks_,
            kSums ? sum_.get() + m * blocks_ : nullptr,
            kTotals ? total_.get() + m * k_ / kGroup : nullptr,
            Block::kBias != 0 ? taken_.get() + m * k_ / 4 : nullptr};
  }

  template <typename T>
  void Round(int64_t m, const T* x) const {
    for (int64_t b = 0; b < blocks_; ++b) {
      const int64_t at = m * blocks_ + b;
      const int64_t group = at * (Block::kElements / kGroup);
      const RoundedTo to = {codes_.get() + at * Block::kElements, scale_.get() + at,
                            kSums ? sum_.get() + at : nullptr,
                            kTotals ? total_.get() + group : nullptr,
                            Block::kBias != 0 ? taken_.get() + group * 8 : nullptr};
      if constexpr (std::is_same_v<T, float>) {
        RoundBlock<Block>(x + b * Block::kElements, to);
      } else {
        float wide[Block::kElements];
        for (int64_t i = 0; i < Block::kElements; i += matmul::kWide) {
          Store<float>(matmul::LoadWide(x + b * Block::kElements + i), wide + i);
        }
        RoundBlock<Block>(wide, to);
      }
    }
  }

 private:
  static constexpr bool kSums = Block::kLeast && !kIsLarge<Block>;
  static constexpr bool kTotals = Block::kLeast && kIsLarge<Block>;
  int64_t k_;
  int64_t blocks_;
  Scratch<int8_t> codes_;
  Scratch<float> scale_;
  Scratch<float> sum_;
  Scratch<int16_t> total_;
  Scratch<int32_t> taken_;
};

// y[rows, n] of x[rows, k] and weight[n, bytes].
template <typename Block, typename Pool, typename T>
void Matmul(const Pool& pool, const T* x, int64_t rows, int64_t k, const uint8_t* weight, int64_t n,
            T* y) {
  constexpr bool kDirect = std::is_same_v<T, float>;
  const RoundedRows<Block> rounded(rows, k);
  const Scratch<float> made(kDirect ? 0 : rows * n);
  float* out = made.get();
  if constexpr (kDirect) out = y;
  ParallelFor(pool, rows, kGrain / (k + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) rounded.Round(m, x + m * k);
  });
  const int64_t row_bytes = k / Block::kElements * Block::kBytes;
  const int64_t stretch = std::max<int64_t>(4, kStretch / (row_bytes + 1) / 4 * 4);
  ParallelFor(pool, n, kGrain / (rows * k + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t from = begin; from < end; from += stretch) {
      const int64_t to = std::min(from + stretch, end);
      for (int64_t first = 0; first < rows; first += kRows) {
        const int64_t count = std::min(kRows, rows - first);
        Rounded tile[kRows] = {};
        for (int64_t m = 0; m < count; ++m) tile[m] = rounded.Row(first + m);
        float* made_at = out + first * n + from;
        switch (count) {
          case 1: Rows<Block, 1>(weight, from, to, k, tile, made_at, n); break;
          case 2: Rows<Block, 2>(weight, from, to, k, tile, made_at, n); break;
          case 3: Rows<Block, 3>(weight, from, to, k, tile, made_at, n); break;
          default: Rows<Block, 4>(weight, from, to, k, tile, made_at, n); break;
        }
      }
    }
    if constexpr (!kDirect) {
      for (int64_t m = 0; m < rows; ++m) {
        for (int64_t j = begin; j < end; ++j) y[m * n + j] = FromFloat<T>(made[m * n + j]);
      }
    }
  });
}

}  // namespace int8

}  // namespace rlx

#endif  // RLX_KERNELS_DEQUANT_INT8_H_
