// The k largest elements of each row, in descending order, and their positions.
//
// Computes: for x of shape [rows, n], values[rows, k] and indices[rows, k].
// Layout: row-major, elements aligned to their size.
// Numerics: jax.lax.top_k. Elements are in total order, -NaN < -inf < ... < -0 < 0 < ... < NaN;
//   of equal ones the first comes first. With `nan_is_lowest` a NaN counts, and is returned, as
//   -inf.
// Algorithm: one pass keeps candidates above a floor; a block none of whose elements is above it
//   costs a vector comparison. What comes later and equals the floor loses by its position. Few
//   candidates are kept in order, and the least is the floor; many are collected until they are
//   full, then sorted, and the best k stay.
#ifndef RLX_KERNELS_TOP_K_H_
#define RLX_KERNELS_TOP_K_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "numbers.h"
#include "scratch.h"
#if defined(__AVX2__)
#include "sort_vectors.h"
#endif

namespace rlx {

namespace top_k {

constexpr int64_t kStep = 32;
constexpr int64_t kOrderedMax = 128;  // the most candidates that are kept in order

// A signed integer in the total order of the elements; T has at most 32 bits.
template <typename T, bool kNanIsLowest>
int32_t KeyOf(T x) {
  using Bits = BitsOf<T>;
  using Signed = std::make_signed_t<Bits>;
  constexpr Bits kMagnitude = static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1);
  const Bits bits = BitCast<Bits>(x);
  if constexpr (kIsFloat<T>) {
    // Without a choice, which would become a branch that nobody can predict.
    const Bits sign = static_cast<Bits>(BitCast<Signed>(bits) >> (8 * sizeof(T) - 1));
    const Signed key = BitCast<Signed>(static_cast<Bits>(bits ^ (sign & kMagnitude)));
    if constexpr (kNanIsLowest) {
      constexpr Signed kLowest = static_cast<Signed>(-kInfinityBits<T> - 1);  // of -inf
      return static_cast<Bits>(bits & kMagnitude) > kInfinityBits<T> ? kLowest : key;
    }
    return key;
  } else if constexpr (std::is_signed_v<T>) {
    return x;
  } else if constexpr (sizeof(T) == 4) {
    return BitCast<int32_t>(static_cast<uint32_t>(bits ^ (kMagnitude + 1)));
  } else {
    return bits;
  }
}

template <typename T>
T ElementOf(int32_t key) {
  using Bits = BitsOf<T>;
  constexpr Bits kMagnitude = static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1);
  const Bits bits = static_cast<Bits>(key);
  if constexpr (kIsFloat<T>) {
    return BitCast<T>(static_cast<Bits>(key < 0 ? bits ^ kMagnitude : bits));
  } else if constexpr (!std::is_signed_v<T> && sizeof(T) == 4) {
    return BitCast<T>(static_cast<Bits>(bits ^ (kMagnitude + 1)));
  } else {
    return BitCast<T>(bits);
  }
}

// Key and position as one integer: a lesser one comes first.
inline int64_t Pack(int32_t key, int64_t position) {
  const uint64_t high = static_cast<uint32_t>(~key);
  return BitCast<int64_t>(high << 32 | static_cast<uint64_t>(position));
}

inline int32_t PackedKey(int64_t packed) { return ~static_cast<int32_t>(packed >> 32); }

inline int32_t PackedPosition(int64_t packed) {
  return BitCast<int32_t>(static_cast<uint32_t>(packed));
}

// How many candidates are held before the best k are chosen from them.
inline int64_t Capacity(int64_t n, int64_t k) {
  return k <= kOrderedMax ? k : std::min(n, 4 * k + 1024);
}

// Selects from rows of one shape; each thread has its own.
template <typename T, bool kNanIsLowest>
class Selector {
 public:
  Selector(int64_t n, int64_t k)
      : n_(n),
        k_(k),
        capacity_(Capacity(n, k)),
        held_(capacity_ + kStep),
        spare_(k > kOrderedMax ? capacity_ + kStep : 0) {}

  void Row(const T* x, T* values, int32_t* indices) {
    if (k_ <= kOrderedMax) {
      KeepInOrder(x);
    } else {
      Collect(x);
    }
    for (int64_t i = 0; i < k_; ++i) {
      values[i] = ElementOf<T>(PackedKey(held_[i]));
      indices[i] = PackedPosition(held_[i]);
    }
  }

 private:
  static int32_t Key(T x) { return KeyOf<T, kNanIsLowest>(x); }

  // Calls visit(begin, end) for the blocks of x[first..n) that have a key above floor().
  template <typename Floor, typename Visit>
  void AboveFloor(const T* x, int64_t first, const Floor& floor, const Visit& visit) const {
    int64_t begin = first;
    for (; begin + kStep <= n_; begin += kStep) {
      int32_t best = std::numeric_limits<int32_t>::min();
      for (int64_t j = 0; j < kStep; ++j) best = std::max(best, Key(x[begin + j]));
      if (best > floor()) visit(begin, begin + kStep);
    }
    if (begin < n_) visit(begin, n_);
  }

  void KeepInOrder(const T* x) {
    int64_t* held = held_.get();
    const auto insert = [held](int64_t last, int64_t packed) {
      int64_t at = last;
      for (; at > 0 && held[at - 1] > packed; --at) held[at] = held[at - 1];
      held[at] = packed;
    };
    for (int64_t i = 0; i < k_; ++i) insert(i, Pack(Key(x[i]), i));
    int32_t floor = PackedKey(held[k_ - 1]);
    AboveFloor(x, k_, [&] { return floor; }, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int32_t key = Key(x[i]);
        if (key <= floor) continue;
        insert(k_ - 1, Pack(key, i));
        floor = PackedKey(held[k_ - 1]);
      }
    });
  }

  void Collect(const T* x) {
    int64_t* held = held_.get();
    int64_t count = 0;
    for (; count < capacity_; ++count) held[count] = Pack(Key(x[count]), count);
    int32_t floor = KeepBest(&count);
    AboveFloor(x, capacity_, [&] { return floor; }, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int32_t key = Key(x[i]);
        held[count] = Pack(key, i);
        count += key > floor;
      }
      if (count > capacity_) floor = KeepBest(&count);
    });
    KeepBest(&count);
  }

  // Brings the best k of at least as many to the front, in order; returns the key of the last.
  int32_t KeepBest(int64_t* count) {
    int64_t* held = held_.get();
#if defined(__AVX2__)
    // In vector lanes all are sorted sooner than the best are found.
    sort::SortKeys<int64_t>(held, spare_.get(), *count);
#else
    std::nth_element(held, held + k_ - 1, held + *count);
    std::sort(held, held + k_);
#endif
    *count = k_;
    return PackedKey(held[k_ - 1]);
  }

  const int64_t n_;
  const int64_t k_;
  const int64_t capacity_;
  Scratch<int64_t> held_;
  Scratch<int64_t> spare_;
};

}  // namespace top_k

// For x[rows, n]; 1 <= k <= n < 2^31.
template <typename T, bool kNanIsLowest>
void TopK(const T* x, int64_t rows, int64_t n, int64_t k, T* values, int32_t* indices) {
  top_k::Selector<T, kNanIsLowest> selector(n, k);
  for (int64_t row = 0; row < rows; ++row) {
    selector.Row(x + row * n, values + row * k, indices + row * k);
  }
}

}  // namespace rlx

#endif  // RLX_KERNELS_TOP_K_H_
