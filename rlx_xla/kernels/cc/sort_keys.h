// Integers that are ordered as elements are, and element types as C++ types.
//
// Numerics: the order of jax.lax.sort. -0 equals 0, NaN comes last and all NaNs are equal.
#ifndef RLX_KERNELS_SORT_KEYS_H_
#define RLX_KERNELS_SORT_KEYS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "numbers.h"

namespace rlx {

struct SortOperand {
  const void* in;
  void* out;
  int64_t bytes;     // of one element: 1, 2, 4, 8 or 16
  ElementType type;  // read for keys only
};

namespace sort {

// A pool of threads of any type, so that what uses it is compiled once.
class AnyPool {
 public:
  template <typename Pool>
  explicit AnyPool(const Pool& pool)
      : pool_(&pool),
        threads_([](const void* p) { return static_cast<const Pool*>(p)->Threads(); }),
        schedule_([](const void* p, void (*task)(void*), void* data) {
          return static_cast<const Pool*>(p)->Schedule(task, data);
        }) {}

  int64_t Threads() const { return threads_(pool_); }
  bool Schedule(void (*task)(void*), void* data) const { return schedule_(pool_, task, data); }

 private:
  const void* pool_;
  int64_t (*threads_)(const void*);
  bool (*schedule_)(const void*, void (*)(void*), void*);
};

// A pool of one thread.
struct Alone {
  int64_t Threads() const { return 1; }
  bool Schedule(void (*)(void*), void*) const { return false; }
};

// An unsigned integer that is ordered as the elements are.
template <typename T>
BitsOf<T> Encode(T x) {
  using U = BitsOf<T>;
  constexpr U kSign = static_cast<U>(U{1} << (8 * sizeof(U) - 1));
  const U bits = BitCast<U>(x);
  if constexpr (kIsFloat<T>) {
    const U magnitude = static_cast<U>(bits & static_cast<U>(~kSign));
    const U flip = (bits & kSign) != 0 ? static_cast<U>(~U{0}) : kSign;
    const U ordered = magnitude == 0 ? kSign : static_cast<U>(bits ^ flip);
    return magnitude > kInfinityBits<T> ? static_cast<U>(~U{0}) : ordered;
  } else {
    return std::is_signed_v<T> ? static_cast<U>(bits ^ kSign) : bits;
  }
}

// The inverse, for a key that is neither a NaN's nor -0's.
template <typename T>
T Decode(BitsOf<T> key) {
  using U = BitsOf<T>;
  constexpr U kSign = static_cast<U>(U{1} << (8 * sizeof(U) - 1));
  if constexpr (kIsFloat<T>) {
    const U flip = (key & kSign) != 0 ? kSign : static_cast<U>(~U{0});
    return BitCast<T>(static_cast<U>(key ^ flip));
  } else {
    return BitCast<T>(std::is_signed_v<T> ? static_cast<U>(key ^ kSign) : key);
  }
}

// Whether Decode(Encode(x)) may have other bits than x.
template <typename T>
bool LosesBits(T x) {
  using U = BitsOf<T>;
  if constexpr (!kIsFloat<T>) return false;
  constexpr U kSign = static_cast<U>(U{1} << (8 * sizeof(U) - 1));
  const U bits = BitCast<U>(x);
  return (bits == kSign) | (static_cast<U>(bits & static_cast<U>(~kSign)) > kInfinityBits<T>);
}

// A signed integer of 32 or 64 bits that is ordered as the elements are.
template <typename T>
using SignedOf = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;

template <typename T>
SignedOf<T> SignedKey(T x) {
  using Signed = std::make_signed_t<BitsOf<T>>;
  constexpr Signed kHighest = static_cast<Signed>(static_cast<BitsOf<T>>(~BitsOf<T>{0}) >> 1);
  const Signed bits = BitCast<Signed>(x);
  if constexpr (kIsFloat<T>) {
    const Signed magnitude = static_cast<Signed>(bits & kHighest);
    const Signed key = static_cast<Signed>(bits < 0 ? -magnitude : bits);  // of -0, that of 0
    return magnitude > static_cast<Signed>(kInfinityBits<T>) ? kHighest : key;
  } else if constexpr (std::is_signed_v<T>) {
    return bits;
  } else if constexpr (sizeof(T) >= 4) {
    return static_cast<Signed>(bits ^ ~kHighest);
  } else {
    return x;
  }
}

// The inverse, for a key that is neither a NaN's nor -0's.
template <typename T>
T FromSignedKey(SignedOf<T> key) {
  using Bits = BitsOf<T>;
  using Signed = std::make_signed_t<Bits>;
  constexpr Signed kLowest = static_cast<Signed>(Bits{1} << (8 * sizeof(T) - 1));
  if constexpr (kIsFloat<T>) {
    const Signed plain = static_cast<Signed>(key);
    return BitCast<T>(static_cast<Signed>(plain < 0 ? kLowest - plain : plain));
  } else if constexpr (std::is_signed_v<T> || sizeof(T) < 4) {
    return static_cast<T>(key);
  } else {
    return BitCast<T>(static_cast<Signed>(key ^ kLowest));
  }
}

// Calls f with a null pointer of the element type.
template <typename F>
void WithType(ElementType type, const F& f) {
  switch (type) {
    case ElementType::kU8: return f(static_cast<uint8_t*>(nullptr));
    case ElementType::kI8: return f(static_cast<int8_t*>(nullptr));
    case ElementType::kU16: return f(static_cast<uint16_t*>(nullptr));
    case ElementType::kI16: return f(static_cast<int16_t*>(nullptr));
    case ElementType::kU32: return f(static_cast<uint32_t*>(nullptr));
    case ElementType::kI32: return f(static_cast<int32_t*>(nullptr));
    case ElementType::kU64: return f(static_cast<uint64_t*>(nullptr));
    case ElementType::kI64: return f(static_cast<int64_t*>(nullptr));
    case ElementType::kBf16: return f(static_cast<Bf16*>(nullptr));
    case ElementType::kF16: return f(static_cast<F16*>(nullptr));
    case ElementType::kF32: return f(static_cast<float*>(nullptr));
    case ElementType::kF64: return f(static_cast<double*>(nullptr));
  }
}

// Whether x[i] = x[0] + i * step throughout, as 32-bit numbers wrap.
inline bool IsProgression(const uint32_t* x, int64_t n, uint32_t* step) {
  constexpr int64_t kStep = 64;
  *step = n > 1 ? x[1] - x[0] : 0;
  for (int64_t begin = 0; begin < n; begin += kStep) {
    const int64_t end = std::min(begin + kStep, n);
    bool good = true;
    for (int64_t i = begin; i < end; ++i) good &= x[i] == x[0] + static_cast<uint32_t>(i) * *step;
    if (!good) return false;
  }
  return true;
}

struct Wide {
  uint64_t half[2];
};

// Calls f with a null pointer of a trivial type of the size.
template <typename F>
void WithBytes(int64_t bytes, const F& f) {
  switch (bytes) {
    case 1: return f(static_cast<uint8_t*>(nullptr));
    case 2: return f(static_cast<uint16_t*>(nullptr));
    case 4: return f(static_cast<uint32_t*>(nullptr));
    case 8: return f(static_cast<uint64_t*>(nullptr));
    default: return f(static_cast<Wide*>(nullptr));
  }
}

// Puts back the bits that keys do not hold: out[0..n) is sorted, in[0..n) is the input.
template <typename T>
void RestoreBits(const T* in, T* out, int64_t n) {
  const auto is_nan = [](T x) { return Encode(x) == static_cast<BitsOf<T>>(~BitsOf<T>{0}); };
  const BitsOf<T> zero = Encode(T{});
  T* nan = std::partition_point(out, out + n, [&](T x) { return !is_nan(x); });
  T* zeros = std::partition_point(out, nan, [&](T x) { return Encode(x) < zero; });
  for (int64_t i = 0; i < n; ++i) {
    if (is_nan(in[i])) {
      *nan++ = in[i];
    } else if (Encode(in[i]) == zero) {
      *zeros++ = in[i];
    }
  }
}

}  // namespace sort
}  // namespace rlx

#endif  // RLX_KERNELS_SORT_KEYS_H_
