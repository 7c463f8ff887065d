// Products of fixed_blocks.h with rows of blocks of 256, whose eight groups share a scale.
//
// Computes, layout and numerics: as fixed_blocks.h has them.
// Algorithm: the scales of a block's groups are unpacked once for four rows.
#ifndef RLX_KERNELS_FIXED_SUPER_H_
#define RLX_KERNELS_FIXED_SUPER_H_

#include <algorithm>
#include <cstdint>

#include "blocks.h"
#include "dequant_int8_super.h"
#include "fixed_blocks.h"
#include "fixed_point.h"

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined vectors of its own intrinsics for ours.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace rlx {

namespace fixed {

// Blocks of 256. A value of the class holds what four rows' groups share; Get<g>: the codes of
// group g, kBias added. kApart: each half of a group has a scale of its own.
template <typename Block>
struct FourOf {
  static constexpr bool kHas = false;
};

template <>
struct FourOf<blocks::Q4_K> {
  static constexpr bool kHas = true, kApart = false, kLeast = true;
  static constexpr int kBias = 0, kScaleAt = 0;
  RLX_FIXED void Set(const uint8_t* from, int64_t apart) {
    p = from;
    stride = apart;
  }
  template <int kG>
  RLX_FIXED Codes Get() const {
    const uint8_t* at = p + 16 + kG / 2 * 32;
    const __m512i first = FourSixteens(at, stride), last = FourSixteens(at + 16, stride);
    if constexpr (kG % 2 == 0) return {int8::LowNibbles(first), int8::LowNibbles(last)};
    return {int8::HighNibbles(first), int8::HighNibbles(last)};
  }
  const uint8_t* p;
  int64_t stride;
};

template <>
struct FourOf<blocks::Q5_K> {
  static constexpr bool kHas = true, kApart = false, kLeast = true;
  static constexpr int kBias = 0, kScaleAt = 0;
  RLX_FIXED void Set(const uint8_t* from, int64_t apart) {
    p = from;
    stride = apart;
    fifths = {FourSixteens(p + 16, stride), FourSixteens(p + 32, stride)};
  }
  template <int kG>
  RLX_FIXED Codes Get() const {
    const uint8_t* at = p + 48 + kG / 2 * 32;
    const __m512i first = FourSixteens(at, stride), last = FourSixteens(at + 16, stride);
    const __m512i bit = _mm512_set1_epi8(static_cast<char>(1 << kG));
    Codes codes = {int8::LowNibbles(first), int8::LowNibbles(last)};
    if constexpr (kG % 2 != 0) codes = {int8::HighNibbles(first), int8::HighNibbles(last)};
    return WithFifths(codes, _mm512_test_epi8_mask(fifths.low, bit),
                      _mm512_test_epi8_mask(fifths.high, bit));
  }
  const uint8_t* p;
  int64_t stride;
  Codes fifths;
};

template <>
struct FourOf<blocks::Q6_K> {
  static constexpr bool kHas = true, kApart = true, kLeast = false;
  static constexpr int kBias = 32, kScaleAt = 208;
  RLX_FIXED void Set(const uint8_t* from, int64_t apart) {
    p = from;
    stride = apart;
  }
  template <int kG>
  RLX_FIXED Codes Get() const {
    const uint8_t* low = p + kG / 4 * 64 + kG % 2 * 32;
    const uint8_t* top = p + 128 + kG / 4 * 32;
    return {Half<kG % 4>(low, top), Half<kG % 4>(low + 16, top + 16)};
  }
  template <int kQuarter>
  RLX_FIXED __m512i Half(const uint8_t* low, const uint8_t* top) const {
    const __m512i both = FourSixteens(low, stride), tops = FourSixteens(top, stride);
    const __m512i four = kQuarter < 2 ? int8::LowNibbles(both) : int8::HighNibbles(both);
    const __m512i two = kQuarter == 0   ? _mm512_slli_epi16(tops, 4)
                        : kQuarter == 1 ? _mm512_slli_epi16(tops, 2)
                        : kQuarter == 2 ? tops
                                        : _mm512_srli_epi16(tops, 2);
    return _mm512_ternarylogic_epi32(two, _mm512_set1_epi8(48), four, 0xea);  // (two & 48) | four
  }
  const uint8_t* p;
  int64_t stride;
};

// The same rows as BlockRows has, of blocks of 256.
template <typename Block>
struct LargeRows {
  static constexpr int kBias = FourOf<Block>::kBias;
  static constexpr bool kTurned = false;
  static constexpr int kMostTwice = FourOf<Block>::kApart ? 2 : 4;
  LargeRows From(int64_t row) const { return {data + row * stride, stride}; }
  LargeRows Repeated() const { return {data, 0}; }

  const uint8_t* data;
  int64_t stride;
};

// Scales of eight groups of four rows as numbers: Get<g> has those of group g for each row's lanes.
template <typename Block>
struct Scales {
  RLX_FIXED void Set(const uint8_t* p, int64_t stride, __m128 factor) {
    const int8::FourScales<Block> whole(p, stride);
    whole_least = whole.least;
    const __m512i of[2] = {_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                           _mm512_setr_epi32(2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3)};
#pragma GCC unroll 2
    for (int pair = 0; pair < 2; ++pair) {
      const __m512 factors = _mm512_permutexvar_ps(of[pair], _mm512_castps128_ps512(factor));
      scale[pair] = _mm512_mul_ps(_mm512_cvtepi32_ps(whole.scale_[pair]), factors);
    }
  }
  template <int kG>
  RLX_FIXED __m512 Get() const {
    constexpr int kA = kG, kB = kG + 8, kC = kG + 16, kD = kG + 24;
    const __m512i from = _mm512_setr_epi32(kA, kA, kA, kA, kB, kB, kB, kB, kC, kC, kC, kC, kD, kD,
                                           kD, kD);
    return _mm512_permutex2var_ps(scale[0], from, scale[1]);
  }
  __m512 scale[2];
  __m512i whole_least;  // sixteen bits each, eight for each row
};

// Those of sixteen halves of groups.
template <>
struct Scales<blocks::Q6_K> {
  RLX_FIXED void Set(const uint8_t* p, int64_t stride, __m128 factor) {
    __m512 row[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const auto* at = reinterpret_cast<const __m128i*>(p + r * stride + 192);
      row[r] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at)));
    }
    const __m512 of = ForRows(factor);
    // Four numbers of each row lie side by side in each of the four vectors.
    const __m512 a = _mm512_shuffle_f32x4(row[0], row[1], 0x44);
    const __m512 b = _mm512_shuffle_f32x4(row[0], row[1], 0xee);
    const __m512 c = _mm512_shuffle_f32x4(row[2], row[3], 0x44);
    const __m512 d = _mm512_shuffle_f32x4(row[2], row[3], 0xee);
    scale[0] = _mm512_mul_ps(_mm512_shuffle_f32x4(a, c, 0x88), of);
    scale[1] = _mm512_mul_ps(_mm512_shuffle_f32x4(a, c, 0xdd), of);
    scale[2] = _mm512_mul_ps(_mm512_shuffle_f32x4(b, d, 0x88), of);
    scale[3] = _mm512_mul_ps(_mm512_shuffle_f32x4(b, d, 0xdd), of);
  }
  template <int kHalf>
  RLX_FIXED __m512 Get() const {
    return _mm512_permute_ps(scale[kHalf / 4], kHalf % 4 * 0x55);
  }
  __m512 scale[4];
};

// acc[m] += codes of a half of a group times x.
template <int kHalf>
RLX_FIXED __m512 AddHalf(__m512i codes, __m512 scale, const Row& x, int64_t group,
                               __m512 acc) {
  const int8_t* digits = x.digits + group * kDigits + kHalf * 16;
  const int32_t* start = x.start + group * 16 + kHalf * 8;
  const __m512i top = _mm512_slli_epi32(Dot(Sixteen(start), codes, digits), 8);
  const __m512i first = Dot(top, codes, digits + kGroup);
  const __m512i rest = Dot(Sixteen(start + 4), codes, digits + 2 * kGroup);
  const __m512 of = _mm512_mul_ps(scale, _mm512_set1_ps(x.unit[group]));
  return _mm512_fmadd_ps(Joined(first, rest), of, acc);
}

template <typename Block, int kG, int kX, int kFours>
RLX_FIXED void AddGroup(const FourOf<Block>* four, const Scales<Block>* scales, const Row* x,
                        int64_t block, __m512 (*acc)[kFours]) {
  using Of = FourOf<Block>;
  const int64_t group = block * 8 + kG;
  Codes codes[kFours];
#pragma GCC unroll 2
  for (int f = 0; f < kFours; ++f) codes[f] = four[f].template Get<kG>();
  if constexpr (Of::kApart) {
#pragma GCC unroll 2
    for (int f = 0; f < kFours; ++f) {
      const __m512 low = scales[f].template Get<2 * kG>();
      const __m512 high = scales[f].template Get<2 * kG + 1>();
#pragma GCC unroll 4
      for (int m = 0; m < kX; ++m) {
        acc[m][f] = AddHalf<0>(codes[f].low, low, x[m], group, acc[m][f]);
        acc[m][f] = AddHalf<1>(codes[f].high, high, x[m], group, acc[m][f]);
      }
    }
  } else {
#pragma GCC unroll 4
    for (int m = 0; m < kX; ++m) {
      __m512 made[kFours];
      Products<Of::kBias, kFours>(codes, x[m], group, made);
      const __m512 unit = _mm512_set1_ps(x[m].unit[group]);
#pragma GCC unroll 2
      for (int f = 0; f < kFours; ++f) {
        const __m512 of = _mm512_mul_ps(scales[f].template Get<kG>(), unit);
        acc[m][f] = _mm512_fmadd_ps(made[f], of, acc[m][f]);
      }
    }
  }
}

// The leasts of eight groups of rows 2 * kPair and 2 * kPair + 1, as numbers.
template <int kPair>
RLX_FIXED __m512 Leasts(__m512i least, __m512 factors) {
  constexpr int kA = 2 * kPair, kB = kA + 1;
  const __m512i of = _mm512_setr_epi32(kA, kA, kA, kA, kA, kA, kA, kA, kB, kB, kB, kB, kB, kB, kB,
                                       kB);
  const __m256i half = _mm512_extracti64x4_epi64(least, kPair);
  return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(half)),
                       _mm512_permutexvar_ps(of, factors));
}

// What SmallStretch makes, of blocks of 256, [from, to) of which are taken.
template <typename Block, int kX, int kFours>
RLX_FIXED void LargeStretch(const LargeRows<Block>& rows, int64_t from, int64_t to, const Row* x,
                            const uint8_t** next, float* y, int64_t stride) {
  using Of = FourOf<Block>;
  __m512 acc[kX][kFours];
  __m512 rest[kX][kFours][2];
#pragma GCC unroll 4
  for (int m = 0; m < kX; ++m) {
#pragma GCC unroll 2
    for (int f = 0; f < kFours; ++f) {
      acc[m][f] = rest[m][f][0] = rest[m][f][1] = _mm512_setzero_ps();
    }
  }
  const int64_t row_bytes = rows.stride;
  const uint8_t* weight = rows.data + from * Block::kBytes;
  for (int64_t i = from; i < to; ++i, weight += Block::kBytes) {
    Fetch<4 * kFours * Block::kBytes>(next);
    Scales<Block> scales[kFours];
    FourOf<Block> four[kFours];
#pragma GCC unroll 2
    for (int f = 0; f < kFours; ++f) {
      const uint8_t* p = weight + 4 * f * row_bytes;
      scales[f].Set(p, row_bytes, int8::FourHalves(p + Of::kScaleAt, row_bytes));
      four[f].Set(p, row_bytes);
      if constexpr (Of::kLeast) {
        const __m512i whole = scales[f].whole_least;
        const __m512 factors = _mm512_castps128_ps512(int8::FourHalves(p + 2, row_bytes));
        const __m512 first = Leasts<0>(whole, factors), second = Leasts<1>(whole, factors);
#pragma GCC unroll 4
        for (int m = 0; m < kX; ++m) {
          const __m512 sums = _mm512_broadcast_f32x8(_mm256_loadu_ps(x[m].sum + i * 8));
          rest[m][f][0] = _mm512_fnmadd_ps(first, sums, rest[m][f][0]);
          rest[m][f][1] = _mm512_fnmadd_ps(second, sums, rest[m][f][1]);
        }
      }
    }
    AddGroup<Block, 0, kX, kFours>(four, scales, x, i, acc);
    AddGroup<Block, 1, kX, kFours>(four, scales, x, i, acc);
    AddGroup<Block, 2, kX, kFours>(four, scales, x, i, acc);
    AddGroup<Block, 3, kX, kFours>(four, scales, x, i, acc);
    AddGroup<Block, 4, kX, kFours>(four, scales, x, i, acc);
    AddGroup<Block, 5, kX, kFours>(four, scales, x, i, acc);
    AddGroup<Block, 6, kX, kFours>(four, scales, x, i, acc);
    AddGroup<Block, 7, kX, kFours>(four, scales, x, i, acc);
  }
#pragma GCC unroll 4
  for (int m = 0; m < kX; ++m) {
#pragma GCC unroll 2
    for (int f = 0; f < kFours; ++f) {
      __m128 sums = Sums(acc[m][f]);
      if constexpr (Of::kLeast) {
        sums = _mm_add_ps(sums, int8::Totals(rest[m][f][0], rest[m][f][1]));
      }
      Put(sums, from == 0, y + m * stride + 4 * f);
    }
  }
}

template <typename Block, int kX, int kFours>
RLX_VNNI void LargeTile(const LargeRows<Block>& rows, int64_t groups, const Row* x, float* y,
                        int64_t stride) {
  const uint8_t* next = rows.data + 4 * kFours * rows.stride;
  const int64_t blocks = groups / 8;
  int64_t from = 0;
  do {
    const int64_t to = std::min(blocks, from + kDepth / 8);
    LargeStretch<Block, kX, kFours>(rows, from, to, x, &next, y, stride);
    from = to;
  } while (from < blocks);
}

}  // namespace fixed

}  // namespace rlx

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif  // defined(__x86_64__)

#endif  // RLX_KERNELS_FIXED_SUPER_H_
