// Inputs of products in fixed point: each group of 32 numbers as whole numbers of 24 bits and a
// unit, so that codes of weights are multiplied as they are, four bytes an instruction.
//
// Computes: x is about unit * (65536 * a + 256 * b + c), with signed bytes a, b and c; the unit is
//   the least power of two that does for the largest number of the group.
// Numerics: a number is at most half a unit off, 2^-23 of the largest of its group: what f32 loses
//   of a sum that the largest is a part of. Where one number is larger than all others of its group
//   together, or one is not finite or all are tiny, they are not split but multiplied as floats;
//   but for what bytes hold as they are.
// Source: the splitting of operands is that of K. Ozaki et al., Numer. Algorithms 59 (2012).
#ifndef RLX_KERNELS_FIXED_POINT_H_
#define RLX_KERNELS_FIXED_POINT_H_

#include <cstdint>

#include "dequant_int8_vnni.h"
#include "numbers.h"

namespace rlx {

namespace fixed {

constexpr int64_t kGroup = 32;
constexpr int64_t kDigits = 3 * kGroup;  // bytes of a group: all its a, all its b, all its c

// Tests take the other path by clearing it.
inline bool allow = true;

inline bool Has() {
#if defined(__x86_64__)
  return allow && int8::HasVnni();
#else
  return false;
#endif
}

// A row of x: for each group its digits and unit; what sums of products with biased codes begin
// with, for each of four lanes of four numbers; and the sum of its numbers.
struct Row {
  const int8_t* digits;
  const float* unit;
  const int32_t* start;
  const float* sum;
};

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined vectors of its own intrinsics for ours.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

// The most that three digits hold.
constexpr float kMost = 127 * 65536 + 127 * 256 + 127;

// The unit of a group whose largest number has these bits; 0 where the group is to be multiplied as
// floats: above, numbers are not finite; below, products with scales leave f32's range.
inline float UnitOf(float most) {
  constexpr int32_t kLeastExponent = 127 - 76;
  const int32_t exponent = BitCast<int32_t>(most) >> 23;
  if (exponent == 255 || exponent < kLeastExponent) return 0.0f;
  const float unit = BitCast<float>((exponent - 22) << 23);
  return most > kMost * unit ? 2 * unit : unit;
}

// The three digits of sixteen numbers.
struct Digits16 {
  __m128i digit[3];
};

RLX_VNNI inline Digits16 Split16(__m512i v) {
  const __m512i half = _mm512_set1_epi32(128);
  const __m512i second = _mm512_srai_epi32(_mm512_add_epi32(v, half), 8);
  const __m512i first = _mm512_srai_epi32(_mm512_add_epi32(second, half), 8);
  return {{_mm512_cvtepi32_epi8(first), _mm512_cvtepi32_epi8(second), _mm512_cvtepi32_epi8(v)}};
}

// Sums of four digits each of sixteen numbers, times -kBias, as 65536 * first + rest: what the
// second digits have of whole 256 is in `first`, so that `rest` is small, which f32 holds exactly.
template <int kBias>
RLX_VNNI inline void StartOf(const Digits16& d, __m128i* first, __m128i* rest) {
  const __m128i bias = _mm_set1_epi8(static_cast<char>(kBias));
  const __m128i zero = _mm_setzero_si128();
  const __m128i second = _mm_dpbusd_epi32(zero, bias, d.digit[1]);
  const __m128i left = _mm_slli_epi32(_mm_and_si128(second, _mm_set1_epi32(255)), 8);
  const __m128i whole = _mm_srai_epi32(second, 8);
  *first = _mm_sub_epi32(zero, _mm_dpbusd_epi32(whole, bias, d.digit[0]));
  *rest = _mm_sub_epi32(zero, _mm_dpbusd_epi32(left, bias, d.digit[2]));
}

// Whether a group of x splits: its digits, unit, start and sum are filled in, and else are those
// of zeros. kBias is added to codes; kApart: each half of a group has sums of its own; kTurned:
// numbers of even places come first.
template <int kBias, bool kApart, bool kTurned>
RLX_VNNI bool SplitGroup(const float* x, int8_t* digits, float* unit, int32_t* start, float* sum) {
  __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16);
  if constexpr (kTurned) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const __m512 evens = _mm512_permutex2var_ps(low, even, high);
    high = _mm512_permutex2var_ps(low, odd, high);
    low = evens;
  }
  const __m512 first = _mm512_abs_ps(low), second = _mm512_abs_ps(high);
  // As whole numbers, so that NaN is the largest.
  const float most = BitCast<float>(_mm512_reduce_max_epi32(
      _mm512_max_epi32(_mm512_castps_si512(first), _mm512_castps_si512(second))));
  *unit = most == 0.0f ? 1.0f : UnitOf(most);
  bool split = *unit != 0.0f;
  __m512i v[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  if (split) {
    const __m512 inverse = _mm512_set1_ps(1.0f / *unit);
    v[0] = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
    v[1] = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
    if (_mm512_reduce_add_ps(_mm512_add_ps(first, second)) < 2 * most) {
      // One is larger than all others together: what is lost must be nothing. The numbers are
      // compared, not their quotients, which may be too small for f32.
      const __m512 whole = _mm512_set1_ps(*unit);
      const __m512 a = _mm512_mul_ps(_mm512_cvtepi32_ps(v[0]), whole);
      const __m512 b = _mm512_mul_ps(_mm512_cvtepi32_ps(v[1]), whole);
      split = (_mm512_cmpneq_ps_mask(a, low) | _mm512_cmpneq_ps_mask(b, high)) == 0;
    }
  }
  if (!split) {
    *unit = 1.0f;
    v[0] = v[1] = _mm512_setzero_si512();
  }
  *sum = static_cast<float>(_mm512_reduce_add_epi32(_mm512_add_epi32(v[0], v[1]))) * *unit;
  const Digits16 d[2] = {Split16(v[0]), Split16(v[1])};
#pragma GCC unroll 3
  for (int i = 0; i < 3; ++i) {
    auto* to = reinterpret_cast<__m128i*>(digits + i * kGroup);
    _mm_storeu_si128(to, d[0].digit[i]);
    _mm_storeu_si128(to + 1, d[1].digit[i]);
  }
  if constexpr (kBias != 0) {
    auto* to = reinterpret_cast<__m128i*>(start);
    __m128i begin[4];
    StartOf<kBias>(d[0], begin, begin + 1);
    StartOf<kBias>(d[1], begin + 2, begin + 3);
    if constexpr (kApart) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) _mm_storeu_si128(to + i, begin[i]);
    } else {
      _mm_storeu_si128(to, _mm_add_epi32(begin[0], begin[2]));
      _mm_storeu_si128(to + 1, _mm_add_epi32(begin[1], begin[3]));
    }
  }
  return split;
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif  // defined(__x86_64__)

}  // namespace fixed

}  // namespace rlx

#endif  // RLX_KERNELS_FIXED_POINT_H_
