// The inner loop of dequant_int8.h for CPUs that have AVX-512 with VNNI: four rows of blocks of 256
// codes, whose groups have whole numbers as scales.
//
// A group's sums of four products fit in sixteen bits, and are multiplied with the group's scale
// and added by one instruction; one number multiplies a block's sum. Rounded as LargeTile rounds,
// so that both give the same bits. Every function carries its target; ask HasVnni() before calling
// one.
#ifndef RLX_KERNELS_DEQUANT_INT8_SUPER_H_
#define RLX_KERNELS_DEQUANT_INT8_SUPER_H_

#include <cstdint>
#include <cstring>

#include "dequant_int8_vnni.h"

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace rlx {

namespace int8 {

// The codes of group g of a block of each of two rows, kBias added. A value of the class holds what
// groups share.
template <typename Block>
struct TwoGroups;

RLX_VNNI inline __m512i LowNibbles(__m512i v) {
  return _mm512_and_si512(v, _mm512_set1_epi8(15));
}

RLX_VNNI inline __m512i HighNibbles(__m512i v) {
  return LowNibbles(_mm512_srli_epi16(v, 4));
}

template <>
struct TwoGroups<Q4_K> {
  RLX_VNNI TwoGroups(const uint8_t* first, const uint8_t* second)
      : first_(first + 16), second_(second + 16) {}
  template <int kG>
  RLX_VNNI __m512i Get() const {
    const __m512i both = TwoLoads(first_ + kG / 2 * 32, second_ + kG / 2 * 32);
    return kG % 2 == 0 ? LowNibbles(both) : HighNibbles(both);
  }
  const uint8_t* first_;
  const uint8_t* second_;
};

template <>
struct TwoGroups<Q5_K> {
  RLX_VNNI TwoGroups(const uint8_t* first, const uint8_t* second)
      : fifth_(TwoLoads(first + 16, second + 16)), first_(first + 48), second_(second + 48) {}
  template <int kG>
  RLX_VNNI __m512i Get() const {
    const __m512i both = TwoLoads(first_ + kG / 2 * 32, second_ + kG / 2 * 32);
    const __m512i low = kG % 2 == 0 ? LowNibbles(both) : HighNibbles(both);
    const __mmask64 set = _mm512_test_epi8_mask(fifth_, _mm512_set1_epi8(char(1 << kG)));
    return _mm512_mask_add_epi8(low, set, low, _mm512_set1_epi8(16));
  }
  __m512i fifth_;
  const uint8_t* first_;
  const uint8_t* second_;
};

template <>
struct TwoGroups<Q6_K> {
  RLX_VNNI TwoGroups(const uint8_t* first, const uint8_t* second)
      : first_(first), second_(second) {}
  template <int kG>
  RLX_VNNI __m512i Get() const {
    constexpr int kHalf = kG / 4, kQuarter = kG % 4;
    constexpr int kLow = kHalf * 64 + kQuarter % 2 * 32, kTop = 128 + kHalf * 32;
    const __m512i both = TwoLoads(first_ + kLow, second_ + kLow);
    const __m512i low = kQuarter < 2 ? LowNibbles(both) : HighNibbles(both);
    const __m512i tops = TwoLoads(first_ + kTop, second_ + kTop);
    const __m512i top = kQuarter == 0   ? _mm512_slli_epi16(tops, 4)
                        : kQuarter == 1 ? _mm512_slli_epi16(tops, 2)
                        : kQuarter == 2 ? tops
                                        : _mm512_srli_epi16(tops, 2);
    return _mm512_ternarylogic_epi32(top, _mm512_set1_epi8(48), low, 0xea);  // (top & 48) | low
  }
  const uint8_t* first_;
  const uint8_t* second_;
};

// Four rows' scales, and leasts where there are any: Get<g>(pair) has lanes of those of group g of
// rows 2 * pair and 2 * pair + 1, above each sixteen bits of zeros; least is eight for each row.
template <typename Block>
struct FourScales {
  RLX_VNNI FourScales(const uint8_t* row, int64_t row_bytes) {
    const __m512i words = _mm512_inserti64x4(
        _mm512_castsi256_si512(TwoSixteens(row + 4, row + row_bytes + 4)),
        TwoSixteens(row + 2 * row_bytes + 4, row + 3 * row_bytes + 4), 1);
    // Of each row: four scales, four leasts, and what the others' low four bits are.
    const __m512i plain = _mm512_and_si512(words, _mm512_set1_epi8(63));
    const __m512i top = _mm512_and_si512(_mm512_srli_epi32(words, 2), _mm512_set1_epi8(48));
    const __m512i mixed = LowNibbles(_mm512_srlv_epi32(
        _mm512_shuffle_epi32(words, _MM_PERM_CCCC),
        _mm512_setr_epi32(0, 4, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0)));
    const __m512i rows = _mm512_unpacklo_epi32(plain, _mm512_or_si512(mixed, top));
    const __m512i sorted =
        _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), rows);
    const __m256i scales = _mm512_castsi512_si256(sorted);
    scale_[0] = _mm512_cvtepu8_epi32(_mm256_castsi256_si128(scales));
    scale_[1] = _mm512_cvtepu8_epi32(_mm256_extracti128_si256(scales, 1));
    least = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(sorted, 1));
  }
  template <int kG>
  RLX_VNNI __m512i Get(int pair) const {
    constexpr int kO = kG + 8;
    const __m512i from = _mm512_setr_epi32(kG, kG, kG, kG, kG, kG, kG, kG, kO, kO, kO, kO, kO, kO,
                                           kO, kO);
    return _mm512_permutexvar_epi32(from, scale_[pair]);
  }
  __m512i least;
  __m512i scale_[2];
};

template <>
struct FourScales<Q6_K> {
  RLX_VNNI FourScales(const uint8_t* row, int64_t row_bytes) : least(_mm512_setzero_si512()) {
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const auto* p = reinterpret_cast<const __m128i*>(row + r * row_bytes + 192);
      scale_[r] = _mm512_and_si512(_mm512_cvtepi8_epi32(_mm_loadu_si128(p)),
                                   _mm512_set1_epi32(0xffff));
    }
  }
  template <int kG>
  RLX_VNNI __m512i Get(int pair) const {
    constexpr int kA = 2 * kG, kB = kA + 1, kC = kA + 16, kD = kB + 16;
    const __m512i from = _mm512_setr_epi32(kA, kA, kA, kA, kB, kB, kB, kB, kC, kC, kC, kC, kD, kD,
                                           kD, kD);
    return _mm512_permutex2var_epi32(scale_[2 * pair], from, scale_[2 * pair + 1]);
  }
  __m512i least;
  __m512i scale_[4];
};

template <typename Block, int kG, int kX>
RLX_VNNI inline void AddTwoGroups(const TwoGroups<Block>& blocks, __m512i scale, const Rounded* x,
                                  int64_t at, __m512i* sums) {
  const __m512i w = blocks.template Get<kG>();
#pragma GCC unroll 4
  for (int m = 0; m < kX; ++m) {
    const __m512i codes = Twice(x[m].codes + at + kG * kGroup);
    const __m512i start = Start<Block::kBias>(x[m], at / 4 + kG * 8);
    sums[m] = _mm512_dpwssd_epi32(sums[m], _mm512_dpbusd_epi32(start, w, codes), scale);
  }
}

// The halves at `p` in four rows.
RLX_VNNI inline __m128 FourHalves(const uint8_t* p, int64_t row_bytes) {
  uint16_t half[4];
  for (int r = 0; r < 4; ++r) std::memcpy(half + r, p + r * row_bytes, sizeof(half[r]));
  int64_t all;
  std::memcpy(&all, half, sizeof(all));
  return _mm_cvtph_ps(_mm_cvtsi64_si128(all));
}

// y[m * stride + r] for kX rows of x and four of the weight, one after another.
template <typename Block, int kX>
RLX_VNNI void FourLarge(const uint8_t* weight, int64_t row_bytes, int64_t k, const Rounded* x,
                        float* y, int64_t stride) {
  const __m512i of_pair[2] = {
      _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
      _mm512_setr_epi32(2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3)};
  const __m512i of_rows = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  __m512 acc[kX][2];
  __m512 rest[kX];
#pragma GCC unroll 4
  for (int m = 0; m < kX; ++m) acc[m][0] = acc[m][1] = rest[m] = _mm512_setzero_ps();
  const uint8_t* ahead = weight + kAhead;
  for (int64_t i = 0; i < k / kSuper; ++i) {
    const uint8_t* row = weight + i * Block::kBytes;
    for (int64_t line = 0; line < 4 * Block::kBytes; line += 64) __builtin_prefetch(ahead + line);
    ahead += 4 * Block::kBytes;
    const FourScales<Block> scales(row, row_bytes);
    const __m512 factor = _mm512_castps128_ps512(FourHalves(row + Block::kScaleAt, row_bytes));
    const int64_t at = i * kSuper;
#pragma GCC unroll 2
    for (int pair = 0; pair < 2; ++pair) {
      const TwoGroups<Block> two(row + 2 * pair * row_bytes, row + (2 * pair + 1) * row_bytes);
      __m512i sums[kX];
#pragma GCC unroll 4
      for (int m = 0; m < kX; ++m) sums[m] = _mm512_setzero_si512();
      AddTwoGroups<Block, 0, kX>(two, scales.template Get<0>(pair), x, at, sums);
      AddTwoGroups<Block, 1, kX>(two, scales.template Get<1>(pair), x, at, sums);
      AddTwoGroups<Block, 2, kX>(two, scales.template Get<2>(pair), x, at, sums);
      AddTwoGroups<Block, 3, kX>(two, scales.template Get<3>(pair), x, at, sums);
      AddTwoGroups<Block, 4, kX>(two, scales.template Get<4>(pair), x, at, sums);
      AddTwoGroups<Block, 5, kX>(two, scales.template Get<5>(pair), x, at, sums);
      AddTwoGroups<Block, 6, kX>(two, scales.template Get<6>(pair), x, at, sums);
      AddTwoGroups<Block, 7, kX>(two, scales.template Get<7>(pair), x, at, sums);
      const __m512 of = _mm512_permutexvar_ps(of_pair[pair], factor);
#pragma GCC unroll 4
      for (int m = 0; m < kX; ++m) {
        const __m512 scale = _mm512_mul_ps(of, _mm512_set1_ps(x[m].scale[i]));
        acc[m][pair] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[m]), scale, acc[m][pair]);
      }
    }
    if constexpr (Block::kLeast) {
      const __m512 of = _mm512_permutexvar_ps(
          of_rows, _mm512_castps128_ps512(FourHalves(row + 2, row_bytes)));
#pragma GCC unroll 4
      for (int m = 0; m < kX; ++m) {
        const __m512i totals = _mm512_broadcast_i32x4(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(x[m].total + i * 8)));
        const __m512 sum = _mm512_cvtepi32_ps(_mm512_madd_epi16(scales.least, totals));
        const __m512 scale = _mm512_mul_ps(of, _mm512_set1_ps(x[m].scale[i]));
        rest[m] = _mm512_fnmadd_ps(sum, scale, rest[m]);
      }
    }
  }
  const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
#pragma GCC unroll 4
  for (int m = 0; m < kX; ++m) {
    const __m512 pairs = _mm512_add_ps(rest[m], _mm512_permute_ps(rest[m], 0x4e));
    const __m512 sums = _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0xb1));
    const __m128 taken = _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, sums));
    _mm_storeu_ps(y + m * stride, _mm_add_ps(Totals(acc[m][0], acc[m][1]), taken));
  }
}

}  // namespace int8

}  // namespace rlx

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif  // defined(__x86_64__)

#endif  // RLX_KERNELS_DEQUANT_INT8_SUPER_H_
