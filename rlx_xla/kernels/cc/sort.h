// Stable sort of rows by one or more keys; further operands follow.
//
// Computes: operands[i] of shape [outer, n, inner], each permuted along n so that the keys (the
//   first `num_keys` operands, the first one most significant) ascend; equal keys keep their order.
// Layout: row-major, elements aligned to their size.
// Numerics: jax.lax.sort. -0 equals 0, NaN comes last and all NaNs are equal, so elements keep
//   their bits. Subnormals are compared exactly.
// Algorithm: short rows count, for each element, how many come before it (no branches, vector
//   lanes); others are sorted by digits of their bits, least significant first, with digits in
//   which all elements agree left out. One long row is shared out over threads, each of which
//   counts and moves its own stretch. Lone keys are sorted as bare integers, and the bits that
//   the integers do not hold (sign of zero, NaN's payload) are put back from the input.
#ifndef RLX_KERNELS_SORT_H_
#define RLX_KERNELS_SORT_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "numbers.h"
#include "parallel.h"
#include "scratch.h"

namespace rlx {

struct SortOperand {
  const void* in;
  void* out;
  int64_t bytes;     // of one element: 1, 2, 4, 8 or 16
  ElementType type;  // read for keys only
};

namespace sort {

constexpr int64_t kRankMax = 96;           // longest row sorted by counting ranks
constexpr int64_t kWideDigitMin = 1 << 14;  // shortest row with 11-bit digits
constexpr int64_t kParallelMin = 1 << 16;  // shortest row that several threads share
constexpr int64_t kTile = 16;              // columns that are turned into rows at once

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

template <typename U>
struct Pair {
  U key;
  uint32_t index;
};

template <typename U>
U KeyOf(U key) {
  return key;
}
template <typename U>
U KeyOf(Pair<U> pair) {
  return pair.key;
}

template <typename Item>
using KeyType = decltype(KeyOf(Item{}));

// Sorts items[0..n) by digits of `kBits`, moving between `items` and `spare`; returns the one
// that holds the result. `counts` has kDigits * 2^kBits places.
template <int kBits, typename Item>
Item* SortByDigits(Item* items, Item* spare, int64_t n, uint32_t* counts) {
  using U = KeyType<Item>;
  constexpr int kDigits = (8 * static_cast<int>(sizeof(U)) + kBits - 1) / kBits;
  constexpr int kValues = 1 << kBits;
  std::memset(counts, 0, sizeof(uint32_t) * kDigits * kValues);
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t key = KeyOf(items[i]);
    for (int d = 0; d < kDigits; ++d) {
      ++counts[d * kValues + ((key >> (d * kBits)) & (kValues - 1))];
    }
  }
  for (int d = 0; d < kDigits; ++d) {
    uint32_t* place = counts + d * kValues;
    const uint64_t first = KeyOf(items[0]);
    if (place[(first >> (d * kBits)) & (kValues - 1)] == n) continue;
    uint32_t sum = 0;
    for (int v = 0; v < kValues; ++v) {
      const uint32_t count = place[v];
      place[v] = sum;
      sum += count;
    }
    for (int64_t i = 0; i < n; ++i) {
      const Item item = items[i];
      const uint64_t key = KeyOf(item);
      spare[place[(key >> (d * kBits)) & (kValues - 1)]++] = item;
    }
    std::swap(items, spare);
  }
  return items;
}

// The same by several threads, each with its own stretch of the items.
template <int kBits, typename Item, typename Pool>
Item* SortByDigitsOn(const Pool& pool, Item* items, Item* spare, int64_t n) {
  using U = KeyType<Item>;
  constexpr int kDigits = (8 * static_cast<int>(sizeof(U)) + kBits - 1) / kBits;
  constexpr int64_t kValues = int64_t{1} << kBits;
  const int64_t parts = pool.Threads();
  const int64_t part = (n + parts - 1) / parts;
  Scratch<uint32_t> counts(parts * kValues);
  for (int d = 0; d < kDigits; ++d) {
    const int shift = d * kBits;
    ParallelFor(pool, parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        uint32_t* count = counts.get() + p * kValues;
        std::memset(count, 0, sizeof(uint32_t) * kValues);
        const int64_t last = std::min((p + 1) * part, n);
        for (int64_t i = p * part; i < last; ++i) {
          ++count[(static_cast<uint64_t>(KeyOf(items[i])) >> shift) & (kValues - 1)];
        }
      }
    });
    uint32_t sum = 0;
    bool alike = false;
    for (int64_t v = 0; v < kValues; ++v) {
      const uint32_t before = sum;
      for (int64_t p = 0; p < parts; ++p) {
        const uint32_t count = counts[p * kValues + v];
        counts[p * kValues + v] = sum;
        sum += count;
      }
      alike |= sum - before == n;
    }
    if (alike) continue;
    ParallelFor(pool, parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        uint32_t* place = counts.get() + p * kValues;
        const int64_t last = std::min((p + 1) * part, n);
        for (int64_t i = p * part; i < last; ++i) {
          const Item item = items[i];
          spare[place[(static_cast<uint64_t>(KeyOf(item)) >> shift) & (kValues - 1)]++] = item;
        }
      }
    });
    std::swap(items, spare);
  }
  return items;
}

// A pool of one thread.
struct Alone {
  int64_t Threads() const { return 1; }
  bool Schedule(void (*)(void*), void*) const { return false; }
};

template <typename Item, typename Pool>
Item* SortItems(const Pool& pool, Item* items, Item* spare, int64_t n, uint32_t* counts) {
  if constexpr (sizeof(KeyType<Item>) > 2) {
    if (n >= kWideDigitMin) {
      if (n >= kParallelMin && pool.Threads() > 1) {
        return SortByDigitsOn<11>(pool, items, spare, n);
      }
      return SortByDigits<11>(items, spare, n, counts);
    }
  }
  return SortByDigits<8>(items, spare, n, counts);
}

// Places for the counts of one row, whatever its length.
constexpr int64_t kCounts = 6 * 2048;

// rank[i] = how many of keys[0..n) come before keys[i]; n <= kRankMax.
template <typename Signed>
void Ranks(const Signed* keys, int64_t n, Signed* rank) {
  for (int64_t i = 0; i < n; ++i) rank[i] = 0;
  for (int64_t i = 0; i < n; ++i) {
    const Signed key = keys[i];
    Signed before = 0;
    for (int64_t j = i + 1; j < n; ++j) {
      const Signed less = keys[j] < key;
      before += less;
      rank[j] += 1 - less;
    }
    rank[i] += before;
  }
}

// Ranks of a short row of elements of T.
template <typename T>
void RanksOf(const T* x, int64_t n, int32_t* rank) {
  using Signed = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
  using U = std::make_unsigned_t<Signed>;
  constexpr U kSign = U{1} << (8 * sizeof(U) - 1);
  if (n < 1) return;
  Signed keys[kRankMax];
  Signed found[kRankMax];
  for (int64_t i = 0; i < n; ++i) {
    const U key = Encode(x[i]);
    keys[i] = BitCast<Signed>(sizeof(T) >= 4 ? static_cast<U>(key ^ kSign) : key);
  }
  Ranks(keys, n, found);
  for (int64_t i = 0; i < n; ++i) rank[i] = static_cast<int32_t>(found[i]);
}

template <typename T>
void Place(const void* in, void* out, int64_t n, const int32_t* rank) {
  const T* from = static_cast<const T*>(in);
  T* to = static_cast<T*>(out);
  for (int64_t i = 0; i < n; ++i) to[rank[i]] = from[i];
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

// Sorts rows of one shape; each thread has its own.
template <typename Pool>
class RowSorter {
 public:
  RowSorter(const Pool& pool, const std::vector<SortOperand>& operands, int64_t n,
            int64_t num_keys)
      : pool_(pool),
        operands_(operands),
        n_(n),
        num_keys_(num_keys),
        short_(n <= kRankMax),
        bare_(operands.size() == 1 && !short_),
        work_(short_ ? 0 : 2 * n * ItemBytes()),
        order_(bare_ ? 0 : n),
        counts_(short_ ? 0 : kCounts) {}

  // in[i] and out[i] are the row of operand i.
  void Sort(const void* const* in, void* const* out) {
    if (n_ == 0) return;
    if (bare_) {
      WithType(operands_[0].type, [&](auto* t) { SortBare(t, in[0], out[0]); });
    } else if (short_ && num_keys_ == 1) {
      WithType(operands_[0].type, [&](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        RanksOf(static_cast<const T*>(in[0]), n_, rank_);
      });
      for (size_t i = 0; i < operands_.size(); ++i) {
        WithBytes(operands_[i].bytes, [&](auto* t) {
          Place<std::remove_pointer_t<decltype(t)>>(in[i], out[i], n_, rank_);
        });
      }
    } else {
      for (int64_t key = num_keys_; key-- > 0;) {
        WithType(operands_[key].type,
                 [&](auto* t) { OrderBy(t, in[key], /*first=*/key == num_keys_ - 1); });
      }
      for (size_t i = 0; i < operands_.size(); ++i) {
        WithBytes(operands_[i].bytes, [&](auto* t) { Gather(t, in[i], out[i]); });
      }
    }
  }

 private:
  int64_t ItemBytes() const {
    int64_t widest = 4;
    for (int64_t key = 0; key < num_keys_; ++key) {
      widest = std::max(widest, operands_[key].bytes);
    }
    return operands_.size() == 1 ? operands_[0].bytes : 2 * widest;
  }

  template <typename Body>
  void Share(int64_t count, const Body& body) const {
    if (count < kParallelMin) return body(int64_t{0}, count);
    ParallelFor(pool_, count, kParallelMin / 2, body);
  }

  template <typename T>
  void SortBare(T*, const void* from, void* to) {
    using U = BitsOf<T>;
    const T* in = static_cast<const T*>(from);
    T* out = static_cast<T*>(to);
    U* items = reinterpret_cast<U*>(work_.get());
    std::atomic<bool> lost{false};
    Share(n_, [&](int64_t begin, int64_t end) {
      bool any = false;
      for (int64_t i = begin; i < end; ++i) {
        items[i] = Encode(in[i]);
        any |= LosesBits(in[i]);
      }
      if (any) lost.store(true, std::memory_order_relaxed);
    });
    const U* sorted = SortItems(pool_, items, items + n_, n_, counts_.get());
    Share(n_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = Decode<T>(sorted[i]);
    });
    if (lost.load(std::memory_order_relaxed)) RestoreBits(in, out, n_);
  }

  // Reorders order_ so that the key ascends, equal keys staying as they were; where `first`,
  // from the order of the input.
  template <typename T>
  void OrderBy(T*, const void* from, bool first) {
    const T* in = static_cast<const T*>(from);
    uint32_t* order = order_.get();
    if (short_) {
      T keys[kRankMax];
      uint32_t before[kRankMax];
      for (int64_t i = 0; i < n_; ++i) {
        before[i] = first ? static_cast<uint32_t>(i) : order[i];
        keys[i] = in[before[i]];
      }
      RanksOf(keys, n_, rank_);
      for (int64_t i = 0; i < n_; ++i) order[rank_[i]] = before[i];
      return;
    }
    using Item = Pair<std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>>;
    // Digits that are zero throughout cost nothing but the counting.
    Item* items = reinterpret_cast<Item*>(work_.get());
    Share(n_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const uint32_t index = first ? static_cast<uint32_t>(i) : order[i];
        items[i] = {Encode(in[index]), index};
      }
    });
    const Item* sorted = SortItems(pool_, items, items + n_, n_, counts_.get());
    Share(n_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) order[i] = sorted[i].index;
    });
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

  static bool CountsUp(const uint32_t* x, int64_t n) {
    constexpr int64_t kStep = 64;
    for (int64_t begin = 0; begin < n; begin += kStep) {
      const int64_t end = std::min(begin + kStep, n);
      bool good = true;
      for (int64_t i = begin; i < end; ++i) good &= x[i] == static_cast<uint32_t>(i);
      if (!good) return false;
    }
    return true;
  }

  const Pool& pool_;
  const std::vector<SortOperand>& operands_;
  const int64_t n_;
  const int64_t num_keys_;
  const bool short_;
  const bool bare_;
  Scratch<char> work_;
  Scratch<uint32_t> order_;
  Scratch<uint32_t> counts_;
  int32_t rank_[kRankMax];
};

template <typename T>
void TileToRows(const T* in, int64_t n, int64_t inner, int64_t lanes, T* rows) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t lane = 0; lane < lanes; ++lane) rows[lane * n + i] = in[i * inner + lane];
  }
}

template <typename T>
void RowsToTile(const T* rows, int64_t n, int64_t inner, int64_t lanes, T* out) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t lane = 0; lane < lanes; ++lane) out[i * inner + lane] = rows[lane * n + i];
  }
}

// Sorts columns [begin, end) of the outer * tiles, where a tile is up to kTile columns.
inline void SortTiles(const std::vector<SortOperand>& operands, int64_t n, int64_t inner,
                      int64_t num_keys, int64_t begin, int64_t end) {
  const size_t count = operands.size();
  const int64_t tiles = (inner + kTile - 1) / kTile;
  int64_t bytes = 0;
  for (const SortOperand& operand : operands) bytes += (operand.bytes * n * kTile + 63) / 64 * 64;
  Scratch<char> rows(2 * bytes);
  std::vector<char*> in_rows(count);
  std::vector<char*> out_rows(count);
  char* next = rows.get();
  for (size_t i = 0; i < count; ++i) {
    const int64_t size = (operands[i].bytes * n * kTile + 63) / 64 * 64;
    in_rows[i] = next;
    out_rows[i] = next + size;
    next += 2 * size;
  }
  const Alone alone;
  RowSorter<Alone> sorter(alone, operands, n, num_keys);
  std::vector<const void*> in(count);
  std::vector<void*> out(count);
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t column = tile % tiles * kTile;
    const int64_t offset = tile / tiles * n * inner + column;
    const int64_t lanes = std::min(kTile, inner - column);
    for (size_t i = 0; i < count; ++i) {
      WithBytes(operands[i].bytes, [&](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        TileToRows(static_cast<const T*>(operands[i].in) + offset, n, inner, lanes,
                   reinterpret_cast<T*>(in_rows[i]));
      });
    }
    for (int64_t lane = 0; lane < lanes; ++lane) {
      for (size_t i = 0; i < count; ++i) {
        in[i] = in_rows[i] + lane * n * operands[i].bytes;
        out[i] = out_rows[i] + lane * n * operands[i].bytes;
      }
      sorter.Sort(in.data(), out.data());
    }
    for (size_t i = 0; i < count; ++i) {
      WithBytes(operands[i].bytes, [&](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        RowsToTile(reinterpret_cast<const T*>(out_rows[i]), n, inner, lanes,
                   static_cast<T*>(operands[i].out) + offset);
      });
    }
  }
}

template <typename Pool>
void SortRows(const Pool& pool, const std::vector<SortOperand>& operands, int64_t n,
              int64_t num_keys, int64_t begin, int64_t end) {
  const size_t count = operands.size();
  RowSorter<Pool> sorter(pool, operands, n, num_keys);
  std::vector<const void*> in(count);
  std::vector<void*> out(count);
  for (int64_t row = begin; row < end; ++row) {
    for (size_t i = 0; i < count; ++i) {
      const int64_t offset = row * n * operands[i].bytes;
      in[i] = static_cast<const char*>(operands[i].in) + offset;
      out[i] = static_cast<char*>(operands[i].out) + offset;
    }
    sorter.Sort(in.data(), out.data());
  }
}

}  // namespace sort

// Sorts operands of shape [outer, n, inner] along n; n < 2^31, 1 <= num_keys <= operands.
template <typename Pool>
void Sort(const Pool& pool, const std::vector<SortOperand>& operands, int64_t outer, int64_t n,
          int64_t inner, int64_t num_keys) {
  if (outer == 0 || n == 0 || inner == 0) return;
  // A piece that is worth a second thread.
  constexpr int64_t kGrain = 4096;
  if (inner == 1) {
    if (outer < pool.Threads() && n >= sort::kParallelMin) {
      return sort::SortRows(pool, operands, n, num_keys, 0, outer);
    }
    return ParallelFor(pool, outer, kGrain / n + 1, [&](int64_t begin, int64_t end) {
      sort::SortRows(sort::Alone{}, operands, n, num_keys, begin, end);
    });
  }
  const int64_t tiles = outer * ((inner + sort::kTile - 1) / sort::kTile);
  ParallelFor(pool, tiles, kGrain / (n * sort::kTile) + 1, [&](int64_t begin, int64_t end) {
    sort::SortTiles(operands, n, inner, num_keys, begin, end);
  });
}

}  // namespace rlx

#endif  // RLX_KERNELS_SORT_H_
