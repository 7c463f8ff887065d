// Sorting of integers, alone or with a position, without vector instructions.
//
// Algorithm: by digits of the bits, least significant first, with digits in which all agree left
//   out. One long row is shared out over threads, each of which counts and moves its own stretch.
//   Short rows count, for each element, how many come before it.
#ifndef RLX_KERNELS_SORT_DIGITS_H_
#define RLX_KERNELS_SORT_DIGITS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "numbers.h"
#include "parallel.h"
#include "scratch.h"
#include "sort_keys.h"

namespace rlx {
namespace sort {

constexpr int64_t kRankMax = 96;            // longest row sorted by counting ranks
constexpr int64_t kWideDigitMin = 1 << 14;  // shortest row with 11-bit digits
constexpr int64_t kParallelMin = 1 << 16;   // shortest row that several threads share

// Shares many elements out over threads.
template <typename Pool, typename Body>
void ShareOut(const Pool& pool, int64_t count, const Body& body) {
  if (count < kParallelMin) return body(int64_t{0}, count);
  ParallelFor(pool, count, kParallelMin / 2, body);
}

// out[i] = in[order[i]] for i below n.
template <typename T, typename Pool>
void Gather(const Pool& pool, const T* in, const uint32_t* order, int64_t n, T* out) {
  if constexpr (std::is_same_v<T, uint32_t>) {
    // The usual companion of a key is the position, from either end.
    uint32_t step;
    if (IsProgression(in, n, &step)) {
      const uint32_t first = in[0];
      for (int64_t i = 0; i < n; ++i) out[i] = first + order[i] * step;
      return;
    }
  }
  ShareOut(pool, n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = in[order[i]];
  });
}

// The same for elements of any type, of so many bytes.
template <typename Pool>
void GatherBytes(const Pool& pool, int64_t bytes, const void* in, const uint32_t* order, int64_t n,
                 void* out) {
  WithBytes(bytes, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    Gather(pool, static_cast<const T*>(in), order, n, static_cast<T*>(out));
  });
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

}  // namespace sort
}  // namespace rlx

#endif  // RLX_KERNELS_SORT_DIGITS_H_
