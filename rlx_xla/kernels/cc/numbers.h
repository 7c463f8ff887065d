// Element types of the kernels: the 16-bit floats, which C++ lacks, and a name for every type.
//
// Numerics: a 16-bit float widens to f32 exactly; an f32 narrows to the nearest, ties to even,
//   too large to infinity, and a NaN to a quiet NaN.
#ifndef RLX_KERNELS_NUMBERS_H_
#define RLX_KERNELS_NUMBERS_H_

#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace rlx {

template <typename To, typename From>
To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

struct Bf16 {
  uint16_t bits;
};

struct F16 {
  uint16_t bits;
};

enum class ElementType { kU8, kI8, kU16, kI16, kU32, kI32, kU64, kI64, kBf16, kF16, kF32, kF64 };

inline float ToFloat(Bf16 x) { return BitCast<float>(static_cast<uint32_t>(x.bits) << 16); }

inline float ToFloat(F16 x) {
#if defined(__F16C__)
  return _cvtsh_ss(x.bits);
#else
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t magnitude = x.bits & 0x7fff;
  if (magnitude >= 0x7c00) return BitCast<float>(sign | 0x7f800000 | (magnitude << 13));
  // Scaling by a power of two is exact and takes subnormals along.
  const float scaled = BitCast<float>(magnitude << 13) * 0x1p112f;
  return BitCast<float>(sign | BitCast<uint32_t>(scaled));
#endif
}

inline float ToFloat(float x) { return x; }
inline double ToFloat(double x) { return x; }

template <typename T>
T FromFloat(float x);

template <>
inline float FromFloat<float>(float x) {
  return x;
}

template <>
inline Bf16 FromFloat<Bf16>(float x) {
  const uint32_t bits = BitCast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return {static_cast<uint16_t>(x != x ? (bits >> 16) | 0x40 : rounded)};
}

template <>
inline F16 FromFloat<F16>(float x) {
#if defined(__F16C__)
  return {static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT))};
#else
  const uint32_t bits = BitCast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00)};
  if (magnitude >= 0x477ff000) return {static_cast<uint16_t>(sign | 0x7c00)};
  uint32_t half;
  if (magnitude < 0x38800000) {  // a subnormal: the sum rounds it to a multiple of 2^-24
    half = BitCast<uint32_t>(BitCast<float>(magnitude) + 0.5f) - 0x3f000000;
  } else {
    half = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
#endif
}

// Unsigned integer of a type's size.
template <typename T>
using BitsOf = std::conditional_t<
    sizeof(T) == 1, uint8_t,
    std::conditional_t<sizeof(T) == 2, uint16_t,
                       std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;

// Bits of +infinity, for the float types.
template <typename T>
constexpr BitsOf<T> kInfinityBits = 0;
template <>
inline constexpr uint16_t kInfinityBits<Bf16> = 0x7f80;
template <>
inline constexpr uint16_t kInfinityBits<F16> = 0x7c00;
template <>
inline constexpr uint32_t kInfinityBits<float> = 0x7f800000;
template <>
inline constexpr uint64_t kInfinityBits<double> = 0x7ff0000000000000;

template <typename T>
constexpr bool kIsFloat = kInfinityBits<T> != 0;

}  // namespace rlx

#endif  // RLX_KERNELS_NUMBERS_H_
