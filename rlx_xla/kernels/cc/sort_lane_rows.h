// Sorting of rows of any operands in vector lanes; see sort_vectors.h.
//
// Algorithm: a lone key is sorted as bare integers, of one byte by counting them, and of two in a
//   long row (sort_counts.h); the bits that the integers do not hold (sign of zero, NaN's payload)
//   are put back from the input. Where operands follow, a key and its position are one integer, so
//   that no two are equal and the order is stable. A key of 64 bits leaves its last ones out, as many as the position needs and the range
//   of the row's keys does not spare; keys that then look equal, and stand side by side, are put in
//   order afterwards.
// No include guard: see each_width.h.

#include "sort_tiles.h"

namespace rlx {
namespace sort {
namespace RLX_WIDE {

// Loops over elements stand apart from the lambdas that share them out: see wide.h.

// Writes element and position as one number of ordered bits, the position in the last `bits` of
// them; where `before`, position i is of the element before[i].
template <typename Packed, typename T>
void Pack(const T* x, const uint32_t* before, int64_t begin, int64_t end, int bits,
          Packed* packed) {
  using U = std::make_unsigned_t<Packed>;
  constexpr U kSign = U{1} << (8 * sizeof(U) - 1);
  for (int64_t i = begin; i < end; ++i) {
    const U key = static_cast<U>(sort::Encode(before == nullptr ? x[i] : x[before[i]]));
    packed[i] = static_cast<Packed>((key << bits | static_cast<U>(i)) ^ kSign);
  }
}

// The same for the distance of the key from the least one, without its last bits.
template <typename T>
void PackLong(const T* x, const uint32_t* before, int64_t begin, int64_t end, int64_t least,
              int left_out, int bits, int64_t* packed) {
  constexpr uint64_t kSign = uint64_t{1} << 63;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t key = SignedKey(before == nullptr ? x[i] : x[before[i]]);
    const uint64_t above = static_cast<uint64_t>(key) - static_cast<uint64_t>(least);
    packed[i] = static_cast<int64_t>((above >> left_out << bits | static_cast<uint64_t>(i)) ^
                                     kSign);
  }
}

template <typename T>
void FindRange(const T* x, int64_t n, int64_t* least, int64_t* most) {
  int64_t low = std::numeric_limits<int64_t>::max();
  int64_t high = std::numeric_limits<int64_t>::min();
  for (int64_t i = 0; i < n; ++i) {
    const int64_t key = SignedKey(x[i]);
    low = std::min(low, key);
    high = std::max(high, key);
  }
  *least = low;
  *most = high;
}

template <typename Packed>
void TakePositions(const Packed* packed, const uint32_t* before, int64_t begin, int64_t end,
                   uint32_t mask, uint32_t* order) {
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t position = static_cast<uint32_t>(packed[i]) & mask;
    order[i] = before == nullptr ? position : before[position];
  }
}

// The elements that Pack packed; returns whether there may be other bits in one of them.
template <typename Packed, typename T>
bool Unpack(const Packed* packed, int64_t begin, int64_t end, int bits, T* x) {
  using U = std::make_unsigned_t<Packed>;
  constexpr U kSign = U{1} << (8 * sizeof(U) - 1);
  int lost = 0;
  for (int64_t i = begin; i < end; ++i) {
    const BitsOf<T> key = static_cast<BitsOf<T>>((static_cast<U>(packed[i]) ^ kSign) >> bits);
    if constexpr (kIsFloat<T>) {
      lost |= (key == sort::Encode(T{})) | (key == static_cast<BitsOf<T>>(~BitsOf<T>{0}));
    }
    x[i] = sort::Decode<T>(key);
  }
  return lost != 0;
}

// Whether neighbours in packed[0..n], n + 1 of them, are equal but for the position.
inline bool AnyAlike(const int64_t* packed, int64_t n, int bits) {
  int any = 0;
  for (int64_t i = 0; i < n; ++i) {
    any |= static_cast<uint64_t>(packed[i] ^ packed[i + 1]) >> bits == 0;
  }
  return any != 0;
}

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
    made_ = false;
    for (int64_t key = num_keys_; key-- > 0;) {
      first_ = key == num_keys_ - 1;
      if (!first_) std::memcpy(before_.get(), order_.get(), sizeof(uint32_t) * n_);
      WithType(operands_[key].type, [&](auto* t) { OrderBy(t, in[key], out[key]); });
    }
    for (size_t i = made_ ? 1 : 0; i < operands_.size(); ++i) {
      GatherBytes(pool_, operands_[i].bytes, in[i], order_.get(), n_, out[i]);
    }
  }

 private:
  template <typename Key>
  Key* Work() const {
    return reinterpret_cast<Key*>(work_.get());
  }

  template <typename T>
  void SortBare(T*, const void* from, void* to) {
    using Key = SignedOf<T>;
    constexpr int64_t kCountMin = 512;
    constexpr int64_t kCountShortsMin = 1 << 18;
    const T* in = static_cast<const T*>(from);
    T* out = static_cast<T*>(to);
    if constexpr (sizeof(T) == 1) {
      if (n_ >= kCountMin) return SortBytes(in, out);
    }
    if constexpr (sizeof(T) == 2) {
      if (n_ >= kCountShortsMin) return SortShorts(pool_, in, n_, out);
    }
    Key* keys = Work<Key>() + n_;
    if constexpr (sizeof(T) == sizeof(Key)) keys = reinterpret_cast<Key*>(out);
    bool any;
    if (n_ < kParallelMin) {
      any = RLX_WIDE::Encode<T>(in, n_, keys);
      RLX_WIDE::Sort<Key>(keys, Work<Key>(), n_, false, std::numeric_limits<Key>::min());
      RLX_WIDE::Decode<T>(keys, n_, out);
    } else {
      std::atomic<bool> lost{false};
      ShareOut(pool_, n_, [&](int64_t begin, int64_t end) {
        if (RLX_WIDE::Encode<T>(in + begin, end - begin, keys + begin)) lost.store(true);
      });
      SortKeys(pool_, keys, Work<Key>(), n_);
      ShareOut(pool_, n_, [&](int64_t begin, int64_t end) {
        RLX_WIDE::Decode<T>(keys + begin, end - begin, out + begin);
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
  void OrderBy(T*, const void* from, void* to) {
    const T* in = static_cast<const T*>(from);
    T* out = static_cast<T*>(to);
    if constexpr (sizeof(T) == 8) {
      OrderByLong(in);
    } else {
      if constexpr (sizeof(T) < 4) {
        if (8 * static_cast<int>(sizeof(T)) + position_bits_ <= 32) {
          return OrderByPacked<int32_t>(in, out, position_bits_);
        }
      }
      OrderByPacked<int64_t>(in, out, 32);
    }
  }

  template <typename Packed, typename T>
  void OrderByPacked(const T* in, T* out, int bits) {
    Packed* packed = Work<Packed>();
    ShareOut(pool_, n_, [&](int64_t begin, int64_t end) {
      Pack<Packed, T>(in, Before(), begin, end, bits, packed);
    });
    SortKeys(pool_, packed, packed + n_, n_);
    Order(packed, bits);
    // Elements are made of their keys where none lacks a bit: that is sooner than to gather them.
    if (num_keys_ > 1) return;
    std::atomic<bool> lost{false};
    ShareOut(pool_, n_, [&](int64_t begin, int64_t end) {
      if (Unpack(packed, begin, end, bits, out)) lost.store(true);
    });
    made_ = !lost.load();
  }

  // From where positions are; null for the input.
  const uint32_t* Before() const { return first_ ? nullptr : before_.get(); }

  template <typename Packed>
  void Order(const Packed* packed, int bits) {
    const uint32_t mask = static_cast<uint32_t>((uint64_t{1} << bits) - 1);
    ShareOut(pool_, n_, [&](int64_t begin, int64_t end) {
      TakePositions(packed, Before(), begin, end, mask, order_.get());
    });
  }

  template <typename T>
  void OrderByLong(const T* in) {
    int64_t least;
    int64_t most;
    FindRange(in, n_, &least, &most);
    const int range_bits = BitWidth(static_cast<uint64_t>(most) - static_cast<uint64_t>(least));
    const int left_out = std::max(0, range_bits + position_bits_ - 64);
    int64_t* packed = Work<int64_t>();
    ShareOut(pool_, n_, [&](int64_t begin, int64_t end) {
      PackLong(in, Before(), begin, end, least, left_out, position_bits_, packed);
    });
    SortKeys(pool_, packed, packed + n_, n_);
    if (left_out > 0) OrderAlike(in, packed);
    Order(packed, position_bits_);
  }

  // Puts in order what is equal but for the position.
  template <typename T>
  void OrderAlike(const T* in, int64_t* packed) const {
    constexpr int64_t kStep = 512;
    const auto alike = [&](int64_t i) {
      return static_cast<uint64_t>(packed[i] ^ packed[i + 1]) >> position_bits_ == 0;
    };
    for (int64_t i = 0; i + 1 < n_;) {
      const int64_t limit = std::min(i + kStep, n_ - 1);
      if (!AnyAlike(packed + i, limit - i, position_bits_)) {
        i = limit;
        continue;
      }
      while (i < limit) {
        const int64_t begin = i;
        while (i + 1 < n_ && alike(i)) ++i;
        if (i > begin) OrderRun(in, packed + begin, i + 1 - begin);
        ++i;
      }
    }
  }

  template <typename T>
  void OrderRun(const T* in, int64_t* run, int64_t n) const {
    constexpr int64_t kDigitsMin = 256;
    const uint32_t mask = static_cast<uint32_t>((uint64_t{1} << position_bits_) - 1);
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
  bool made_ = false;  // whether the result of the first operand is written
};

}  // namespace RLX_WIDE
}  // namespace sort
}  // namespace rlx
