// Sorting of 32- and 64-bit signed integers in vector lanes; included once for each width.
//
// Algorithm: blocks of up to kBlock keys are sorted in registers. A register is a row of a matrix
//   whose columns a network sorts first, each lane for itself; then neighbouring columns are
//   merged, two by two, by bitonic networks (Batcher 1968) of which one half is read backwards.
//   After the last merge rows hold the order. Longer arrays are split at a pivot, from one buffer
//   into another and back: what is less goes to the front, the rest to the back. Several threads
//   first split the keys at pivots together: each counts what its stretches have below a pivot,
//   then moves them to where the counts say.
// No include guard: see each_width.h.

#include "sort_registers.h"

namespace rlx {
namespace sort {
namespace RLX_WIDE {

template <typename Key>
using KeysOf = std::conditional_t<sizeof(Key) == 8, Keys64, Keys32>;

// Sorts each lane of v[kFrom], …, v[kFrom + kCount - 1]: Batcher's odd-even merges.
template <typename S, int kFrom, int kCount, int kStep>
RLX_SORT void MergeRows(typename S::V* v) {
  if constexpr (2 * kStep < kCount) {
    MergeRows<S, kFrom, kCount, 2 * kStep>(v);
    MergeRows<S, kFrom + kStep, kCount, 2 * kStep>(v);
#pragma GCC unroll 16
    for (int i = kFrom + kStep; i + kStep < kFrom + kCount; i += 2 * kStep) {
      S::Order(v + i, v + i + kStep);
    }
  } else {
    S::Order(v + kFrom, v + kFrom + kStep);
  }
}

template <typename S, int kFrom, int kCount>
RLX_SORT void SortRows(typename S::V* v) {
  if constexpr (kCount > 1) {
    SortRows<S, kFrom, kCount / 2>(v);
    SortRows<S, kFrom + kCount / 2, kCount / 2>(v);
    MergeRows<S, kFrom, kCount, 1>(v);
  }
}

// Halves a bitonic sequence that lies in groups of kGroup lanes of kCount rows, until each row has
// its own.
template <typename S, int kGroup, int kFrom, int kCount>
RLX_SORT void HalveRows(typename S::V* v) {
  if constexpr (kCount > 1) {
#pragma GCC unroll 8
    for (int i = 0; i < kCount / 2; ++i) {
      typename S::V* last = v + kFrom + kCount - 1 - i;
      *last = S::template Turn<kGroup>(*last);
      S::Order(v + kFrom + i, last);
    }
    HalveRows<S, kGroup, kFrom, kCount / 2>(v);
    HalveRows<S, kGroup, kFrom + kCount / 2, kCount / 2>(v);
  }
}

template <typename S, int kDistance>
RLX_SORT typename S::V HalveLanes(typename S::V v) {
  if constexpr (kDistance == 0) {
    return v;
  } else {
    v = S::template Exchange<kDistance>(v, S::template Cross<kDistance>(v));
    return HalveLanes<S, kDistance / 2>(v);
  }
}

// Merges columns until kLanes of them are one, from groups of kGroup / 2.
template <typename S, int kGroup, int kCount>
RLX_SORT void MergeColumns(typename S::V* v) {
  if constexpr (kGroup <= S::kLanes) {
    HalveRows<S, kGroup, 0, kCount>(v);
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) {
      v[i] = S::template Exchange<kGroup / 2>(v[i], S::template Turn<kGroup>(v[i]));
      v[i] = HalveLanes<S, kGroup / 4>(v[i]);
    }
    MergeColumns<S, 2 * kGroup, kCount>(v);
  }
}

// Sorts n keys, more than kCount / 2 registers of them and at most kCount.
template <typename S, int kCount>
__attribute__((noinline)) void SortRegisters(const typename S::Key* from, int64_t n,
                                             typename S::Key* to) {
  typename S::V v[kCount];
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) {
    if (i < kCount / 2) {
      v[i] = S::Load(from + i * S::kLanes);
    } else {
      v[i] = S::LoadFirst(from + i * S::kLanes, n - i * S::kLanes);
    }
  }
  SortRows<S, 0, kCount>(v);
  MergeColumns<S, 2, kCount>(v);
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) {
    if (i < kCount / 2) {
      S::Store(v[i], to + i * S::kLanes);
    } else {
      S::StoreFirst(v[i], to + i * S::kLanes, n - i * S::kLanes);
    }
  }
}

template <typename S>
constexpr int64_t kBlock = S::kLanes * S::kRows;

template <typename S>
void SortBlock(const typename S::Key* from, int64_t n, typename S::Key* to) {
  if (n > 8 * S::kLanes) return SortRegisters<S, S::kRows>(from, n, to);
  if (n > 4 * S::kLanes) return SortRegisters<S, 8>(from, n, to);
  if (n > 2 * S::kLanes) return SortRegisters<S, 4>(from, n, to);
  if (n > S::kLanes) return SortRegisters<S, 2>(from, n, to);
  SortRegisters<S, 1>(from, n, to);
}

// Sorts each of kRows rows of a bitonic sequence that lies in one row after another.
template <typename S, int kFrom, int kCount>
RLX_SORT void OrderRows(typename S::V* v) {
  if constexpr (kCount > 1) {
#pragma GCC unroll 8
    for (int i = kFrom; i < kFrom + kCount / 2; ++i) S::Order(v + i, v + i + kCount / 2);
    OrderRows<S, kFrom, kCount / 2>(v);
    OrderRows<S, kFrom + kCount / 2, kCount / 2>(v);
  }
}

template <typename S>
__attribute__((noinline)) void SortBitonic(typename S::Key* x) {
  typename S::V v[S::kRows];
#pragma GCC unroll 16
  for (int i = 0; i < S::kRows; ++i) v[i] = S::Load(x + i * S::kLanes);
  OrderRows<S, 0, S::kRows>(v);
#pragma GCC unroll 16
  for (int i = 0; i < S::kRows; ++i) {
    S::Store(HalveLanes<S, S::kLanes / 2>(v[i]), x + i * S::kLanes);
  }
}

// Merges the sorted halves of x[0..n); n is twice kBlock, or that doubled.
template <typename S>
void MergeHalves(typename S::Key* x, int64_t n) {
  constexpr int64_t kStep = S::kLanes;
  for (int64_t i = 0; i < n / 2; i += kStep) {
    typename S::V low = S::Load(x + i);
    typename S::V high = S::template Turn<S::kLanes>(S::Load(x + n - kStep - i));
    S::Order(&low, &high);
    S::Store(low, x + i);
    S::Store(high, x + n - kStep - i);
  }
  for (int64_t part = n / 2; part > kBlock<S>; part /= 2) {
    for (int64_t begin = 0; begin < n; begin += part) {
      for (int64_t i = begin; i < begin + part / 2; i += kStep) {
        typename S::V low = S::Load(x + i);
        typename S::V high = S::Load(x + i + part / 2);
        S::Order(&low, &high);
        S::Store(low, x + i);
        S::Store(high, x + i + part / 2);
      }
    }
  }
  for (int64_t i = 0; i < n; i += kBlock<S>) SortBitonic<S>(x + i);
}

template <typename S>
constexpr int64_t kMergedMax = 8 * kBlock<S>;

// The size to which n keys are filled up where they are better merged from blocks than split, or 0.
template <typename S>
constexpr int64_t MergedSize(int64_t n) {
  for (int64_t size = 2 * kBlock<S>; size <= kMergedMax<S>; size *= 2) {
    if (n <= size) return n > size / 8 * 7 ? size : 0;
  }
  return 0;
}

// Sorts n keys in blocks, which together hold `size`, and merges them.
template <typename S>
void SortMerged(const typename S::Key* from, int64_t n, int64_t size, typename S::Key* to) {
  alignas(64) typename S::Key work[kMergedMax<S>];
  std::fill(work + n, work + size, std::numeric_limits<typename S::Key>::max());
  for (int64_t i = 0; i < n; i += kBlock<S>) {
    SortBlock<S>(from + i, std::min(kBlock<S>, n - i), work + i);
    for (int64_t part = 2 * kBlock<S>; ((i + kBlock<S>) & (part - 1)) == 0; part *= 2) {
      if (part > size) break;
      MergeHalves<S>(work + i + kBlock<S> - part, part);
    }
  }
  std::memcpy(to, work, sizeof(typename S::Key) * n);
}

// About the median of n > kBlock keys, and one of them.
template <typename S>
typename S::Key Pivot(const typename S::Key* x, int64_t n) {
  constexpr int64_t kManyMin = 1 << 13;
  typename S::Key some[kBlock<S>];
  if (n >= kManyMin) {
    const int64_t step = n / S::kRows;
    for (int i = 0; i < S::kRows; ++i) S::Store(S::Load(x + i * step), some + i * S::kLanes);
    SortRegisters<S, S::kRows>(some, kBlock<S>, some);
    return some[kBlock<S> / 2];
  }
  // The median of medians of five.
  typename S::V v[5];
  const int64_t step = (n - S::kLanes) / 4;
#pragma GCC unroll 5
  for (int i = 0; i < 5; ++i) v[i] = S::Load(x + i * step);
  S::Order(v + 0, v + 1);
  S::Order(v + 3, v + 4);
  S::Order(v + 0, v + 3);
  S::Order(v + 1, v + 4);
  S::Order(v + 1, v + 2);
  S::Order(v + 2, v + 3);
  S::Order(v + 1, v + 2);
  MergeColumns<S, 2, 1>(v + 2);
  S::Store(v[2], some);
  return some[S::kLanes / 2];
}

// Puts the keys below `cut` to the front of `to`, the others to its back; returns how many are
// below.
template <typename S>
int64_t Split(const typename S::Key* __restrict__ from, int64_t n, typename S::Key cut,
              typename S::Key* __restrict__ to) {
  const typename S::V cuts = S::All(cut);
  typename S::Key* low = to;
  typename S::Key* high = to + n;
  int64_t i = 0;
  // Free places are as many as keys that are not read yet.
  for (; i + 5 * S::kLanes <= n; i += 4 * S::kLanes) {
    typename S::V v[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) v[j] = S::Load(from + i + j * S::kLanes);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const int count = S::Split(v[j], cuts, low, high);
      low += count;
      high -= S::kLanes - count;
    }
  }
  for (; i + 2 * S::kLanes <= n; i += S::kLanes) {
    const int count = S::Split(S::Load(from + i), cuts, low, high);
    low += count;
    high -= S::kLanes - count;
  }
  if constexpr (S::kMasks) {
    for (; i < n; i += S::kLanes) {
      const int64_t some = std::min<int64_t>(n - i, S::kLanes);
      const int count = S::SplitFirst(from + i, some, cuts, low, high);
      low += count;
      high -= some - count;
    }
    return low - to;
  }
  for (; i < n; ++i) {
    const typename S::Key x = from[i];
    const bool below = x < cut;
    *(below ? low : high - 1) = x;
    low += below;
    high -= !below;
  }
  return low - to;
}

// Sorts n keys, which lie in `x` or, where `away`, in `spare`, into `x`; none is below `least`.
template <typename Key>
void Sort(Key* x, Key* spare, int64_t n, bool away, Key least) {
  using S = KeysOf<Key>;
  struct Stretch {
    int64_t begin;
    int64_t n;
    Key least;
    int budget;  // splits that are left before digits take over
    bool away;
  };
  // The longer part waits, so no more than log2(n) do.
  Stretch waiting[64];
  int count = 0;
  Stretch now = {0, n, least, 2 * (64 - __builtin_clzll(static_cast<uint64_t>(n) | 1)), away};
  for (;;) {
    Key* from = (now.away ? spare : x) + now.begin;
    if (now.n <= kBlock<S>) {
      SortBlock<S>(from, now.n, x + now.begin);
    } else if (const int64_t size = MergedSize<S>(now.n); size > 0) {
      SortMerged<S>(from, now.n, size, x + now.begin);
    } else if (now.budget == 0) {
      SortSigned(x + now.begin, spare + now.begin, now.n, now.away);
    } else {
      Key* to = (now.away ? x : spare) + now.begin;
      const Key pivot = Pivot<S>(from, now.n);
      const bool lowest = pivot == now.least;
      // All that are the least are in order; the rest is above.
      int64_t below = now.n;
      if (!lowest) {
        below = Split<S>(from, now.n, pivot, to);
      } else if (pivot < std::numeric_limits<Key>::max()) {
        below = Split<S>(from, now.n, static_cast<Key>(pivot + 1), to);
      }
      Stretch rest = {now.begin + below, now.n - below, pivot, now.budget - 1, !now.away};
      if (lowest) {
        std::fill(x + now.begin, x + now.begin + below, pivot);
        now = rest;
        if (now.n > 0) continue;
      } else {
        now = {now.begin, below, now.least, now.budget - 1, !now.away};
        if (now.n < rest.n) std::swap(now, rest);
        if (rest.n > 0) {
          waiting[count++] = now;
          now = rest;
        }
        continue;
      }
    }
    if (count == 0) return;
    now = waiting[--count];
  }
}

// Writes the keys of n elements; returns whether any is -0 or a NaN.
template <typename T>
bool Encode(const T* x, int64_t n, SignedOf<T>* keys) {
  int lost = 0;
  for (int64_t i = 0; i < n; ++i) {
    keys[i] = SignedKey(x[i]);
    lost |= LosesBits(x[i]);
  }
  return lost != 0;
}

// `x` may lie where the keys do.
template <typename T>
void Decode(const SignedOf<T>* keys, int64_t n, T* x) {
  for (int64_t i = 0; i < n; ++i) x[i] = FromSignedKey<T>(keys[i]);
}

// How many of n keys are below `cut`.
template <typename Key>
int64_t CountBelow(const Key* x, int64_t n, Key cut) {
  using S = KeysOf<Key>;
  const typename S::V cuts = S::All(cut);
  int64_t count = 0;
  int64_t i = 0;
  for (; i + S::kLanes <= n; i += S::kLanes) count += S::Below(S::Load(x + i), cuts);
  for (; i < n; ++i) count += x[i] < cut;
  return count;
}

// Moves n keys on to `low` and `high`, those below `cut` to `low`; writes nowhere else.
template <typename Key>
void Share(const Key* from, int64_t n, Key cut, Key* low, Key* high) {
  using S = KeysOf<Key>;
  constexpr int64_t kPiece = 4 * kBlock<S>;
  Key parts[kPiece];
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    const int64_t size = std::min(kPiece, n - begin);
    const int64_t below = Split<S>(from + begin, size, cut, parts);
    std::memcpy(low, parts, sizeof(Key) * below);
    std::memcpy(high, parts + below, sizeof(Key) * (size - below));
    low += below;
    high += size - below;
  }
}

// What several threads sort in parts.
template <typename Key>
struct Part {
  int64_t begin;
  int64_t n;
  Key least;
};

// Splits each part at a pivot, from `from` to `to`, by all threads.
template <typename Key, typename Pool>
std::vector<Part<Key>> SplitParts(const Pool& pool, const std::vector<Part<Key>>& parts,
                                  const Key* from, Key* to) {
  constexpr int64_t kStretch = 1 << 15;  // keys that a thread takes at once
  struct Stretch {
    int64_t begin;
    int64_t n;
    Key pivot;
    int64_t below;
    int64_t low;   // where its keys below the pivot go
    int64_t high;  // where the others go
  };
  std::vector<Stretch> stretches;
  for (const Part<Key>& part : parts) {
    const Key pivot = Pivot<KeysOf<Key>>(from + part.begin, part.n);
    for (int64_t at = 0; at < part.n; at += kStretch) {
      stretches.push_back(
          {part.begin + at, std::min(kStretch, part.n - at), pivot, 0, 0, 0});
    }
  }
  const int64_t count = static_cast<int64_t>(stretches.size());
  ParallelFor(pool, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Stretch& s = stretches[i];
      s.below = CountBelow<Key>(from + s.begin, s.n, s.pivot);
    }
  });
  std::vector<Part<Key>> halves;
  size_t next = 0;
  for (const Part<Key>& part : parts) {
    const size_t first = next;
    int64_t at = part.begin;
    for (; next < stretches.size() && stretches[next].begin < part.begin + part.n; ++next) {
      stretches[next].low = at;
      at += stretches[next].below;
    }
    const int64_t below = at - part.begin;
    for (size_t i = first; i < next; ++i) {
      stretches[i].high = at;
      at += stretches[i].n - stretches[i].below;
    }
    halves.push_back({part.begin, below, part.least});
    halves.push_back({part.begin + below, part.n - below, stretches[first].pivot});
  }
  ParallelFor(pool, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Stretch& s = stretches[i];
      Share<Key>(from + s.begin, s.n, s.pivot, to + s.low, to + s.high);
    }
  });
  return halves;
}

// Sorts x[0..n) by `pool`; `spare` has as many places.
template <typename Key, typename Pool>
void SortKeys(const Pool& pool, Key* x, Key* spare, int64_t n) {
  constexpr Key kLeast = std::numeric_limits<Key>::min();
  constexpr int64_t kPartMin = 1 << 14;  // keys that are worth a split by several threads
  const int64_t threads = n >= kParallelMin ? pool.Threads() : 1;
  if (threads <= 1) return Sort<Key>(x, spare, n, false, kLeast);
  std::vector<Part<Key>> parts = {{0, n, kLeast}};
  Key* from = x;
  Key* to = spare;
  while (static_cast<int64_t>(parts.size()) < 4 * threads) {
    std::vector<Part<Key>> large;
    for (const Part<Key>& part : parts) {
      if (part.n >= 2 * kPartMin) large.push_back(part);
    }
    // A part that stays as it is would lie in the wrong buffer.
    if (large.size() < parts.size()) break;
    parts = SplitParts(pool, parts, from, to);
    std::swap(from, to);
  }
  const bool away = from == spare;
  ParallelFor(pool, static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Part<Key>& part = parts[i];
      if (part.n == 0) continue;
      Sort<Key>(x + part.begin, spare + part.begin, part.n, away, part.least);
    }
  });
}

}  // namespace RLX_WIDE
}  // namespace sort
}  // namespace rlx

#undef RLX_SORT
