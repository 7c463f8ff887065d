// Products of few rows of x, in fixed point, with rows of packed blocks, for CPUs that have AVX-512
// with VNNI.
//
// Computes: y[m, n] = sum over k of x[m, k] * w[n, k].
// Layout: row-major; k is a multiple of the blocks' elements.
// Numerics: x as fixed_point.h says; sums of a group's codes times its digits are whole numbers, at
//   most rounded to f32 once; they are fused with f32 sums over groups. Groups that do not split
//   are multiplied as floats, and so is everything where a result is not finite: a scale that is
//   not makes each number of its group so, which sums of codes do not show.
// Algorithm: the codes of a group of four rows fill two vectors: the first and last sixteen of
//   each. Three instructions each multiply them with the three digits of x. Weights are read from
//   end to end, eight rows at a time.
#ifndef RLX_KERNELS_FIXED_BLOCKS_H_
#define RLX_KERNELS_FIXED_BLOCKS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

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

// 2^(e - 128) of bytes; NaN for 255 where kNan.
template <bool kNan>
RLX_FIXED __m128 FourPowers(const uint8_t* p, int64_t stride) {
  const __m128i e = _mm_setr_epi32(p[0], p[stride], p[2 * stride], p[3 * stride]);
  const __m128i normal = _mm_slli_epi32(_mm_sub_epi32(e, _mm_set1_epi32(1)), 23);
  const __m128i tiny = _mm_sllv_epi32(_mm_set1_epi32(0x00200000), e);
  const __m128i made = _mm_mask_mov_epi32(
      normal, _mm_cmplt_epi32_mask(e, _mm_set1_epi32(2)), tiny);
  if constexpr (!kNan) return _mm_castsi128_ps(made);
  return _mm_castsi128_ps(_mm_mask_mov_epi32(
      made, _mm_cmpeq_epi32_mask(e, _mm_set1_epi32(255)), _mm_set1_epi32(0x7fc00000)));
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
// kMostTwice, the rows of x up to which registers hold the sums of eight of these; kBytes, those of a row's group; of group i of the four rows 4 * f and on, the codes, the scale of
// each row's lanes and, where kLeast, what is added for each row; FetchScales, which fetches what the
// rows after 4 * kFours have at group i; Data, where the codes lie; From, the rows from another one
// on; and Repeated, in which the first row comes again and again.
template <typename Block>
struct BlockRows {
  using Of = Four<Block>;
  static constexpr int kBias = Of::kBias;
  static constexpr bool kLeast = Of::kLeast, kTurned = false;
  static constexpr int kMostTwice = 4;
  static constexpr int64_t kBytes = Block::kBytes;
  RLX_FIXED Codes Get(int64_t i, int f) const { return Of::Get(At(i, f), stride); }
  RLX_FIXED __m512 Scale(int64_t i, int f) const {
    const uint8_t* p = At(i, f);
    return ForRows(Of::kPower ? FourPowers<false>(p, stride) : int8::FourHalves(p, stride));
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

// y[m * stride + r] for kX rows of x and 4 * kFours of `rows`.
template <int kX, int kFours, typename Rows>
RLX_VNNI void SmallTile(const Rows rows, int64_t groups, const Row* x, float* y, int64_t stride) {
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
  const uint8_t* next = rows.Data() + 4 * kFours * rows.RowBytes();
  for (int64_t i = 0; i < groups; ++i) {
    Fetch<4 * kFours * Rows::kBytes>(&next);
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
      const __m512 unit = _mm512_set1_ps(x[m].unit[i]);
#pragma GCC unroll 2
      for (int f = 0; f < kFours; ++f) {
        acc[m][f] = _mm512_fmadd_ps(made[f], _mm512_mul_ps(scale[f], unit), acc[m][f]);
        if constexpr (Rows::kLeast) {
          rest[m][f] = _mm_fmadd_ps(least[f], _mm_set1_ps(x[m].sum[i]), rest[m][f]);
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
      _mm_storeu_ps(y + m * stride + 4 * f, sums);
    }
  }
}

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

// y[m * stride + r] for kX rows of x and 4 * kFours of blocks of 256.
template <typename Block, int kX, int kFours>
RLX_VNNI void LargeTile(const uint8_t* weight, int64_t row_bytes, int64_t groups, const Row* x,
                        float* y, int64_t stride) {
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
  const uint8_t* next = weight + 4 * kFours * row_bytes;
  for (int64_t i = 0; i < groups / 8; ++i, weight += Block::kBytes) {
    Fetch<4 * kFours * Block::kBytes>(&next);
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
      _mm_storeu_ps(y + m * stride + 4 * f, sums);
    }
  }
}

}  // namespace fixed

}  // namespace rlx

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif  // defined(__x86_64__)

#endif  // RLX_KERNELS_FIXED_BLOCKS_H_
