// Sorting of rows of any operands in vector lanes; see sort_vectors.h.
//
// Algorithm: a lone key is sorted as bare integers, of one byte by counting them; the bits that the
//   integers do not hold (sign of zero, NaN's payload) are put back from the input. Where operands
//   follow, a key and its position are one integer, so that no two are equal and the order is
//   stable. A key of 64 bits leaves its last ones out, as many as the position needs and the range
//   of the row's keys does not spare; keys that then look equal, and stand side by side, are put in
//   order afterwards.
#ifndef RLX_KERNELS_SORT_LANE_ROWS_H_
#define RLX_KERNELS_SORT_LANE_ROWS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "parallel.h"
#include "scratch.h"
#include "sort_digits.h"
#include "sort_keys.h"
#include "sort_vectors.h"

#if defined(__AVX2__)

namespace rlx {
namespace sort {

inline int BitWidth(uint64_t x) { return x == 0 ? 0 : 64 - __builtin_clzll(x); }

// Sorts rows of one shape; each thread has its own.
class LaneSorter {
 public:
  LaneSorter(const AnyPool& pool, const std::vector<SortOperand>& operands, int64_t n,
             int64_t num_keys)
      : pool_(pool),
        operands_(operands),
        n_(n),
        num_keys_(num_keys),
        bare_(operands.size() == 1),
        position_bits_(std::max(1, BitWidth(static_cast<uint64_t>(n - 1)))),
        work_(n * (bare_ && operands[0].bytes == 4 ? 4 : bare_ && operands[0].bytes > 1 ? 8 : 16)),
        order_(bare_ ? 0 : n),
        before_(num_keys > 1 ? n : 0) {}

  // in[i] and out[i] are the row of operand i.
  void Sort(const void* const* in, void* const* out) {
    if (bare_) {
      WithType(operands_[0].type, [&](auto* t) { SortBare(t, in[0], out[0]); });
      return;
    }
    for (int64_t key = num_keys_; key-- > 0;) {
      first_ = key == num_keys_ - 1;
      if (!first_) std::memcpy(before_.get(), order_.get(), sizeof(uint32_t) * n_);
      WithType(operands_[key].type, [&](auto* t) { OrderBy(t, in[key]); });
    }
    for (size_t i = 0; i < operands_.size(); ++i) {
      WithBytes(operands_[i].bytes, [&](auto* t) { Gather(t, in[i], out[i]); });
    }
  }

 private:
  template <typename Body>
  void Share(int64_t count, const Body& body) const {
    if (count < kParallelMin) return body(int64_t{0}, count);
    ParallelFor(pool_, count, kParallelMin / 2, body);
  }

  template <typename Key>
  Key* Work() const {
    return reinterpret_cast<Key*>(work_.get());
  }

  template <typename T>
  void SortBare(T*, const void* from, void* to) {
    using Key = SignedOf<T>;
    constexpr int64_t kCountMin = 512;
    const T* in = static_cast<const T*>(from);
    T* out = static_cast<T*>(to);
    if constexpr (sizeof(T) == 1) {
      if (n_ >= kCountMin) return SortBytes(in, out);
    }
    bool any;
    if (n_ < kParallelMin) {
      any = SortElementsOfThisCpu<T>()(in, n_, out, Work<Key>());
    } else {
      std::atomic<bool> lost{false};
      Key* keys = Work<Key>() + n_;
      if constexpr (sizeof(T) == sizeof(Key)) keys = reinterpret_cast<Key*>(out);
      Share(n_, [&, encode = EncodeOfThisCpu<T>()](int64_t begin, int64_t end) {
        if (encode(in + begin, end - begin, keys + begin)) lost.store(true);
      });
      SortKeys(pool_, keys, Work<Key>(), n_);
      Share(n_, [&, decode = DecodeOfThisCpu<T>()](int64_t begin, int64_t end) {
        decode(keys + begin, end - begin, out + begin);
      });
      any = lost.load();
    }
    if (any) RestoreBits(in, out, n_);
  }

  // Counts each value and writes it so many times.
  template <typename T>
  void SortBytes(const T* in, T* out) const {
    constexpr int kCounters = 4;  // the same byte in a row does not wait for itself
    constexpr int kLowest = std::is_signed_v<T> ? -128 : 0;
    uint32_t counts[kCounters][256] = {};
    int64_t i = 0;
    for (; i + kCounters <= n_; i += kCounters) {
      for (int c = 0; c < kCounters; ++c) ++counts[c][static_cast<uint8_t>(in[i + c])];
    }
    for (; i < n_; ++i) ++counts[0][static_cast<uint8_t>(in[i])];
    for (int value = kLowest; value < kLowest + 256; ++value) {
      const uint8_t byte = static_cast<uint8_t>(value);
      uint32_t count = 0;
      for (int c = 0; c < kCounters; ++c) count += counts[c][byte];
      std::memset(out, byte, count);
      out += count;
    }
  }

  // Reorders order_ so that the key ascends, equal keys staying as they were; the first time, from
  // the order of the input.
  template <typename T>
  void OrderBy(T*, const void* from) {
    const T* in = static_cast<const T*>(from);
    if constexpr (sizeof(T) == 8) {
      OrderByLong(in);
    } else {
      if constexpr (sizeof(T) < 4) {
        if (8 * static_cast<int>(sizeof(T)) + position_bits_ <= 32) {
          return OrderByPacked<int32_t>(in, position_bits_);
        }
      }
      OrderByPacked<int64_t>(in, 32);
    }
  }

  // Key and position are one number, of which the position has the last `bits`.
  template <typename Packed, typename T>
  void OrderByPacked(const T* in, int bits) {
    using U = std::make_unsigned_t<Packed>;
    constexpr U kSign = U{1} << (8 * sizeof(U) - 1);
    Packed* packed = Work<Packed>();
    const uint32_t* before = before_.get();
    Share(n_, [&](int64_t begin, int64_t end) {
      if (first_) {
        for (int64_t i = begin; i < end; ++i) {
          const U key = static_cast<U>(sort::Encode(in[i]));
          packed[i] = static_cast<Packed>((key << bits | static_cast<U>(i)) ^ kSign);
        }
      } else {
        for (int64_t i = begin; i < end; ++i) {
          const U key = static_cast<U>(sort::Encode(in[before[i]]));
          packed[i] = static_cast<Packed>((key << bits | static_cast<U>(i)) ^ kSign);
        }
      }
    });
    SortKeys(pool_, packed, packed + n_, n_);
    TakePositions(packed, static_cast<uint32_t>((uint64_t{1} << bits) - 1));
  }

  template <typename Packed>
  void TakePositions(const Packed* packed, uint32_t mask) {
    uint32_t* order = order_.get();
    const uint32_t* before = before_.get();
    Share(n_, [&](int64_t begin, int64_t end) {
      if (first_) {
        for (int64_t i = begin; i < end; ++i) order[i] = static_cast<uint32_t>(packed[i]) & mask;
      } else {
        for (int64_t i = begin; i < end; ++i) {
          order[i] = before[static_cast<uint32_t>(packed[i]) & mask];
        }
      }
    });
  }

  template <typename T>
  void OrderByLong(const T* in) {
    constexpr uint64_t kSign = uint64_t{1} << 63;
    const uint32_t* before = before_.get();
    int64_t least = std::numeric_limits<int64_t>::max();
    int64_t most = std::numeric_limits<int64_t>::min();
    for (int64_t i = 0; i < n_; ++i) {
      const int64_t key = SignedKey(in[i]);
      least = std::min(least, key);
      most = std::max(most, key);
    }
    const int range_bits = BitWidth(static_cast<uint64_t>(most) - static_cast<uint64_t>(least));
    const int left_out = std::max(0, range_bits + position_bits_ - 64);
    int64_t* packed = Work<int64_t>();
    Share(n_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t key = SignedKey(in[first_ ? i : before[i]]);
        const uint64_t above = static_cast<uint64_t>(key) - static_cast<uint64_t>(least);
        const uint64_t high = above >> left_out << position_bits_;
        packed[i] = static_cast<int64_t>((high | static_cast<uint64_t>(i)) ^ kSign);
      }
    });
    SortKeys(pool_, packed, packed + n_, n_);
    const uint32_t mask = static_cast<uint32_t>((uint64_t{1} << position_bits_) - 1);
    if (left_out > 0) OrderAlike(in, packed, mask);
    TakePositions(packed, mask);
  }

  // Puts in order what is equal but for the position.
  template <typename T>
  void OrderAlike(const T* in, int64_t* packed, uint32_t mask) const {
    constexpr int64_t kStep = 64;
    const auto alike = [&](int64_t i) {
      return (packed[i] ^ packed[i + 1]) >> position_bits_ == 0;
    };
    for (int64_t i = 0; i + 1 < n_;) {
      if (i + kStep < n_) {
        bool any = false;
        for (int64_t j = i; j < i + kStep; ++j) any |= alike(j);
        if (!any) {
          i += kStep;
          continue;
        }
      }
      const int64_t limit = std::min(i + kStep, n_ - 1);
      for (; i < limit; ++i) {
        if (!alike(i)) continue;
        const int64_t begin = i;
        while (i + 1 < n_ && alike(i)) ++i;
        OrderRun(in, packed + begin, i + 1 - begin, mask);
      }
    }
  }

  template <typename T>
  void OrderRun(const T* in, int64_t* run, int64_t n, uint32_t mask) const {
    constexpr int64_t kDigitsMin = 256;
    const auto key_of = [&](int64_t packed) {
      const uint32_t position = static_cast<uint32_t>(packed) & mask;
      return sort::Encode(in[first_ ? position : before_[position]]);
    };
    if (n < kDigitsMin) {
      // Positions ascend, so the sort has to be stable; for a few, by insertion.
      for (int64_t i = 1; i < n; ++i) {
        const int64_t now = run[i];
        const uint64_t key = key_of(now);
        int64_t at = i;
        for (; at > 0 && key_of(run[at - 1]) > key; --at) run[at] = run[at - 1];
        run[at] = now;
      }
      return;
    }
    Scratch<Pair<uint64_t>> items(2 * n);
    Scratch<uint32_t> counts(kCounts);
    for (int64_t i = 0; i < n; ++i) {
      items[i] = {key_of(run[i]), static_cast<uint32_t>(run[i]) & mask};
    }
    const Pair<uint64_t>* sorted = SortItems(Alone{}, items.get(), items.get() + n, n,
                                             counts.get());
    for (int64_t i = 0; i < n; ++i) run[i] = sorted[i].index;
  }

  template <typename T>
  void Gather(T*, const void* from, void* to) const {
    const T* in = static_cast<const T*>(from);
    T* out = static_cast<T*>(to);
    const uint32_t* order = order_.get();
    if constexpr (std::is_same_v<T, uint32_t>) {
      // The usual companion of a key is the position itself.
      if (CountsUp(in, n_)) {
        std::memcpy(out, order, sizeof(T) * n_);
        return;
      }
    }
    Share(n_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = in[order[i]];
    });
  }

  const AnyPool& pool_;
  const std::vector<SortOperand>& operands_;
  const int64_t n_;
  const int64_t num_keys_;
  const bool bare_;
  const int position_bits_;
  Scratch<char> work_;
  Scratch<uint32_t> order_;
  Scratch<uint32_t> before_;
  bool first_ = true;  // whether the order is still that of the input
};

}  // namespace sort
}  // namespace rlx

#endif  // __AVX2__

#endif  // RLX_KERNELS_SORT_LANE_ROWS_H_
