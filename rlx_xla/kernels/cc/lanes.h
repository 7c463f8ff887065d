// Vectors of 32 bytes, by the compiler's vector extensions.
#ifndef RLX_KERNELS_LANES_H_
#define RLX_KERNELS_LANES_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace rlx {

constexpr int64_t kVectorBytes = 32;

template <typename T>
constexpr int64_t kLanes = kVectorBytes / static_cast<int64_t>(sizeof(T));

template <typename T>
struct LanesOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};

template <typename T>
using Lanes = typename LanesOf<T>::type;

template <typename T>
Lanes<T> Load(const T* p) {
  Lanes<T> v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

template <typename T>
void Store(Lanes<T> v, T* p) {
  std::memcpy(p, &v, sizeof(v));
}

template <typename T>
Lanes<T> Broadcast(T x) {
  return x - Lanes<T>{};  // x - 0 is x, the sign of zero included
}

// Lane i of the result is lane i - kBy of v, and `fill` in the first kBy lanes.
template <int kBy, typename T>
Lanes<T> ShiftUp(Lanes<T> v, Lanes<T> fill) {
#if defined(__clang__)
  if constexpr (kLanes<T> == 4) {
    return __builtin_shufflevector(fill, v, kBy > 0 ? 0 : 4, kBy > 1 ? 1 : 5 - kBy,
                                   kBy > 2 ? 2 : 6 - kBy, kBy > 3 ? 3 : 7 - kBy);
  } else {
    return __builtin_shufflevector(fill, v, kBy > 0 ? 0 : 8, kBy > 1 ? 1 : 9 - kBy,
                                   kBy > 2 ? 2 : 10 - kBy, kBy > 3 ? 3 : 11 - kBy,
                                   kBy > 4 ? 4 : 12 - kBy, kBy > 5 ? 5 : 13 - kBy,
                                   kBy > 6 ? 6 : 14 - kBy, kBy > 7 ? 7 : 15 - kBy);
  }
#else
  using Index = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
  if constexpr (kLanes<T> == 4) {
    const Lanes<Index> from = {kBy > 0 ? 0 : 4, kBy > 1 ? 1 : 5 - kBy, kBy > 2 ? 2 : 6 - kBy,
                               kBy > 3 ? 3 : 7 - kBy};
    return __builtin_shuffle(fill, v, from);
  } else {
    const Lanes<Index> from = {kBy > 0 ? 0 : 8,       kBy > 1 ? 1 : 9 - kBy,
                               kBy > 2 ? 2 : 10 - kBy, kBy > 3 ? 3 : 11 - kBy,
                               kBy > 4 ? 4 : 12 - kBy, kBy > 5 ? 5 : 13 - kBy,
                               kBy > 6 ? 6 : 14 - kBy, kBy > 7 ? 7 : 15 - kBy};
    return __builtin_shuffle(fill, v, from);
  }
#endif
}

}  // namespace rlx

#endif  // RLX_KERNELS_LANES_H_
