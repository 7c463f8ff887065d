// Products of few rows of x, in fixed point, with rows of packed blocks, for CPUs that have AVX-512
// with VNNI.
//
// Computes: y[m, n] = sum over k of x[m, k] * w[n, k].
// Layout: row-major; k is a multiple of the blocks' elements.
// Numerics: x as fixed_point.h says; sums of a group's codes times its digits are whole numbers,
//   below 2^27 before they are joined, which rounds what f32 does not hold; they are fused with f32
//   sums over kDepth groups, which are added up. Groups that do not split are multiplied as floats,
//   and so is everything where a result is not finite: a scale that is not makes each number of its
//   group so, which sums of codes do not show. Scales with which numbers may be infinite count as
//   NaN.
// Algorithm: the codes of a group of four rows fill two vectors: the first and last sixteen of
//   each. Three instructions each multiply them with the three digits of x. Weights are read from
//   end to end, eight rows at a time.
#ifndef RLX_KERNELS_FIXED_BLOCKS_H_
#define RLX_KERNELS_FIXED_BLOCKS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "blocks.h"
#include "dequant_int8_super.h"
#include "fixed_point.h"
#include "minifloat.h"
#include "parallel.h"
#include "products.h"

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined vectors of its own intrinsics for ours.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace rlx {

namespace fixed {

#define RLX_FIXED RLX_VNNI __attribute__((always_inline)) inline

// Sixteen bytes at p of each of four rows.
RLX_FIXED __m512i FourSixteens(const uint8_t* p, int64_t stride) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(int8::TwoSixteens(p, p + stride)),
                            int8::TwoSixteens(p + 2 * stride, p + 3 * stride), 1);
}

// Which of the sixteen bits that each lane of sixteen bytes has from byte kAt on are set.
template <int kAt>
RLX_FIXED __mmask64 FourBits(__m512i lanes) {
  constexpr int64_t kFirst = kAt * 0x0101010101010101;
  const __m512i bytes = _mm512_broadcast_i32x4(
      _mm_set_epi64x(kFirst + 0x0101010101010101, kFirst));
  const __m512i looks = _mm512_set1_epi64(static_cast<int64_t>(0x8040201008040201));
  return _mm512_test_epi8_mask(_mm512_shuffle_epi8(lanes, bytes), looks);
}

// Codes without sign of sixteen numbers of each of four rows: the first and the last of a group.
struct Codes {
  __m512i low;
  __m512i high;
};

RLX_FIXED Codes NibblesOf(__m512i bytes) {
  return {int8::LowNibbles(bytes), int8::HighNibbles(bytes)};
}

RLX_FIXED Codes WithFifths(Codes c, __mmask64 low, __mmask64 high) {
  const __m512i sixteen = _mm512_set1_epi8(16);
  return {_mm512_mask_add_epi8(c.low, low, c.low, sixteen),
          _mm512_mask_add_epi8(c.high, high, c.high, sixteen)};
}

// Codes of five bits: four of each lie kAt bytes behind p, and before them the fifth ones.
template <int kAt>
RLX_FIXED Codes Fives(const uint8_t* p, int64_t stride) {
  const __m512i heads = FourSixteens(p, stride);
  return WithFifths(NibblesOf(FourSixteens(p + kAt, stride)), FourBits<kAt - 4>(heads),
                    FourBits<kAt - 2>(heads));
}

// What a table of sixteen signed bytes has for the codes, 128 added.
RLX_FIXED Codes LookUp(Codes c, const int8_t* table) {
  const __m512i all = _mm512_xor_si512(
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))),
      _mm512_set1_epi8(-128));
  return {_mm512_shuffle_epi8(all, c.low), _mm512_shuffle_epi8(all, c.high)};
}

// 2^(e - 128) of each byte e, as bits; NaN where twelve times it, the largest E2M1 number, is
// infinite, and for 255, which may mean NaN: sums of codes do not show either.
constexpr std::array<uint32_t, 256> PowersOfBytes() {
  std::array<uint32_t, 256> made = {0x00200000, 0x00400000};
  for (uint32_t e = 2; e < 256; ++e) made[e] = e < 253 ? (e - 1) << 23 : 0x7fc00000;
  return made;
}

RLX_FIXED __m128 FourPowers(const uint8_t* p, int64_t stride) {
  static constexpr std::array<uint32_t, 256> kPowers = PowersOfBytes();
  const auto at = [&](int r) { return static_cast<int>(kPowers[p[r * stride]]); };
  return _mm_castsi128_ps(_mm_setr_epi32(at(0), at(1), at(2), at(3)));
}

// A group of each of four rows. Get: its codes, kBias added. A block begins with its scale, a power
// of two where kPower, or else an f16, and, where kLeast, with that of what is added.
template <typename Block>
struct Four {
  static constexpr bool kHas = false;
};

template <>
struct Four<blocks::Q4_0> {
  static constexpr bool kHas = true, kPower = false, kLeast = false;
  static constexpr int kBias = 8;
  RLX_FIXED static Codes Get(const uint8_t* p, int64_t stride) {
    return NibblesOf(FourSixteens(p + 2, stride));
  }
};

template <>
struct Four<blocks::Q4_1> {
  static constexpr bool kHas = true, kPower = false, kLeast = true;
  static constexpr int kBias = 0;
  RLX_FIXED static Codes Get(const uint8_t* p, int64_t stride) {
    return NibblesOf(FourSixteens(p + 4, stride));
  }
};

template <>
struct Four<blocks::Q5_0> {
  static constexpr bool kHas = true, kPower = false, kLeast = false;
  static constexpr int kBias = 16;
  RLX_FIXED static Codes Get(const uint8_t* p, int64_t stride) {
    return Fives<6>(p, stride);
  }
};

template <>
struct Four<blocks::Q5_1> {
  static constexpr bool kHas = true, kPower = false, kLeast = true;
  static constexpr int kBias = 0;
  RLX_FIXED static Codes Get(const uint8_t* p, int64_t stride) {
    return Fives<8>(p, stride);
  }
};

template <>
struct Four<blocks::Q8_0> {
  static constexpr bool kHas = true, kPower = false, kLeast = false;
  static constexpr int kBias = 128;
  RLX_FIXED static Codes Get(const uint8_t* p, int64_t stride) {
    const __m512i sign = _mm512_set1_epi8(-128);
    return {_mm512_xor_si512(FourSixteens(p + 2, stride), sign),
            _mm512_xor_si512(FourSixteens(p + 18, stride), sign)};
  }
};

template <>
struct Four<blocks::Iq4Nl> {
  static constexpr bool kHas = true, kPower = false, kLeast = false;
  static constexpr int kBias = 128;
  RLX_FIXED static Codes Get(const uint8_t* p, int64_t stride) {
    return LookUp(NibblesOf(FourSixteens(p + 2, stride)), blocks::kIq4);
  }
};

template <>
struct Four<blocks::Mxfp4> {
  static constexpr bool kHas = true, kPower = true, kLeast = false;
  static constexpr int kBias = 128;
  RLX_FIXED static Codes Get(const uint8_t* p, int64_t stride) {
    return LookUp(NibblesOf(FourSixteens(p + 1, stride)), blocks::kE2m1Doubled);
  }
};

RLX_FIXED __m512i Sixteen(const void* p) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}

// sums += codes . the sixteen digits at p, of each half of a group or of both.
RLX_FIXED __m512i Dot(__m512i sums, __m512i codes, const int8_t* p) {
  return _mm512_dpbusd_epi32(sums, codes, Sixteen(p));
}

RLX_FIXED __m512i DotBoth(__m512i sums, const Codes& codes, const int8_t* p) {
  return Dot(Dot(sums, codes.low, p), codes.high, p + 16);
}

// 256 * first + rest, where `first` is of the first two digits.
RLX_FIXED __m512 Joined(__m512i first, __m512i rest) {
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(first), _mm512_set1_ps(256.0f),
                         _mm512_cvtepi32_ps(rest));
}

// Codes less kBias of kFours times four rows times a group of x, over its unit. What is read of x
// serves all rows.
template <int kBias, int kFours>
RLX_FIXED void Products(const Codes* codes, const Row& x, int64_t group, __m512* made) {
  const int8_t* digits = x.digits + group * kDigits;
  __m512i first[kFours], rest[kFours];
#pragma GCC unroll 2
  for (int f = 0; f < kFours; ++f) {
    first[f] = rest[f] = _mm512_setzero_si512();
    if constexpr (kBias != 0) {
      first[f] = Sixteen(x.start + group * 8);
      rest[f] = Sixteen(x.start + group * 8 + 4);
    }
    first[f] = _mm512_slli_epi32(DotBoth(first[f], codes[f], digits), 8);
    first[f] = DotBoth(first[f], codes[f], digits + kGroup);
    made[f] = Joined(first[f], DotBoth(rest[f], codes[f], digits + 2 * kGroup));
  }
}

// Number r of four in each of the four lanes of row r.
RLX_FIXED __m512 ForRows(__m128 four) {
  const __m512i of = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  return _mm512_permutexvar_ps(of, _mm512_castps128_ps512(four));
}

// The sums of each row's four lanes.
RLX_FIXED __m128 Sums(__m512 v) {
  const __m512 pairs = _mm512_add_ps(v, _mm512_permute_ps(v, 0x4e));
  const __m512 all = _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0xb1));
  const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
  return _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, all));
}

// Fetches what follows these rows, as many bytes as are multiplied meanwhile.
template <int64_t kBytes>
RLX_FIXED void Fetch(const uint8_t** next) {
#pragma GCC unroll 16
  for (int64_t line = 0; line < kBytes; line += 64) __builtin_prefetch(*next + line);
  *next += kBytes;
}

// Rows of blocks of one group each, from one on. Every kind of rows has: kBias, kLeast and kTurned;
// kFar, whether products of scales and units may leave f32's range; kLarger, a power of two that
// multiplies the scales and leasts that they give; kMostTwice, the rows of x up to which registers
// hold the sums of eight of these; kBytes, those of a row's group; of group i of the four rows 4 *
// f and on, the codes, the scale of each row's lanes and, where kLeast, what is added for each row;
// FetchScales, which fetches what the rows after 4 * kFours have at group i; Data, where the codes
// lie; From, the rows from another one on; and Repeated, in which the first row comes again and
// again.
template <typename Block>
struct BlockRows {
  using Of = Four<Block>;
  static constexpr int kBias = Of::kBias;
  static constexpr bool kLeast = Of::kLeast, kTurned = false, kFar = Of::kPower;
  static constexpr float kLarger = 1.0f;
  static constexpr int kMostTwice = 4;
  static constexpr int64_t kBytes = Block::kBytes;
  RLX_FIXED Codes Get(int64_t i, int f) const { return Of::Get(At(i, f), stride); }
  RLX_FIXED __m512 Scale(int64_t i, int f) const {
    const uint8_t* p = At(i, f);
    return ForRows(Of::kPower ? FourPowers(p, stride) : int8::FourHalves(p, stride));
  }
  RLX_FIXED __m128 Least(int64_t i, int f) const {
    return int8::FourHalves(At(i, f) + 2, stride);
  }
  RLX_FIXED const uint8_t* At(int64_t i, int f) const { return data + 4 * f * stride + i * kBytes; }
  template <int kFours>
  RLX_FIXED void FetchScales(int64_t) const {}  // they lie in the blocks
  const uint8_t* Data() const { return data; }
  int64_t RowBytes() const { return stride; }
  BlockRows From(int64_t row) const { return {data + row * stride, stride}; }
  BlockRows Repeated() const { return {data, 0}; }

  const uint8_t* data;
  int64_t stride;
};

// Groups whose products are added up before their sums are: rounding does not grow with all of k.
constexpr int64_t kDepth = 128;

// y[r], to which `sums` of four rows are added, but for the first.
RLX_FIXED void Put(__m128 sums, bool first, float* y) {
  _mm_storeu_ps(y, first ? sums : _mm_add_ps(_mm_loadu_ps(y), sums));
}

// y[m * stride + r] for kX rows of x and 4 * kFours of `rows`, of groups [from, to); they are added
// to those of the groups before.
template <int kX, int kFours, typename Rows>
RLX_FIXED void SmallStretch(const Rows& rows, int64_t from, int64_t to, const Row* x,
                            const uint8_t** next, float* y, int64_t stride) {
  __m512 acc[kX][kFours];
  __m128 rest[kX][kFours];
#pragma GCC unroll 4
  for (int m = 0; m < kX; ++m) {
#pragma GCC unroll 2
    for (int f = 0; f < kFours; ++f) {
      acc[m][f] = _mm512_setzero_ps();
      rest[m][f] = _mm_setzero_ps();
    }
  }
  for (int64_t i = from; i < to; ++i) {
    Fetch<4 * kFours * Rows::kBytes>(next);
    rows.template FetchScales<kFours>(i);
    Codes codes[kFours];
    __m512 scale[kFours];
    __m128 least[kFours];
#pragma GCC unroll 2
    for (int f = 0; f < kFours; ++f) {
      scale[f] = rows.Scale(i, f);
      codes[f] = rows.Get(i, f);
      if constexpr (Rows::kLeast) least[f] = rows.Least(i, f);
    }
#pragma GCC unroll 4
    for (int m = 0; m < kX; ++m) {
      __m512 made[kFours];
      Products<Rows::kBias, kFours>(codes, x[m], i, made);
      const __m512 unit = _mm512_set1_ps(x[m].unit[i] * (1 / Rows::kLarger));
#pragma GCC unroll 2
      for (int f = 0; f < kFours; ++f) {
        if constexpr (Rows::kFar) {
          acc[m][f] = _mm512_fmadd_ps(_mm512_mul_ps(made[f], unit), scale[f], acc[m][f]);
        } else {
          acc[m][f] = _mm512_fmadd_ps(made[f], _mm512_mul_ps(scale[f], unit), acc[m][f]);
        }
        if constexpr (Rows::kLeast) {
          const __m128 sum = _mm_set1_ps(x[m].sum[i] * (1 / Rows::kLarger));
          rest[m][f] = _mm_fmadd_ps(least[f], sum, rest[m][f]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kX; ++m) {
#pragma GCC unroll 2
    for (int f = 0; f < kFours; ++f) {
      __m128 sums = Sums(acc[m][f]);
      if constexpr (Rows::kLeast) sums = _mm_add_ps(sums, rest[m][f]);
      Put(sums, from == 0, y + m * stride + 4 * f);
    }
  }
}

// The same of all groups.
template <int kX, int kFours, typename Rows>
RLX_VNNI void SmallTile(const Rows rows, int64_t groups, const Row* x, float* y, int64_t stride) {
  const uint8_t* next = rows.Data() + 4 * kFours * rows.RowBytes();
  int64_t from = 0;
  do {
    const int64_t to = std::min(groups, from + kDepth);
    SmallStretch<kX, kFours>(rows, from, to, x, &next, y, stride);
    from = to;
  } while (from < groups);
}

}  // namespace fixed

}  // namespace rlx

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif  // defined(__x86_64__)

#endif  // RLX_KERNELS_FIXED_BLOCKS_H_
