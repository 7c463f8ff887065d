// Sorting of 32- and 64-bit signed integers, in vector lanes and by several threads.
//
// Layout: the keys and as much working memory.
// Numerics: none; equal keys are alike.
// Algorithm: sort_tiles.h. Several threads first split the keys at pivots together: each counts
//   what its stretches have below a pivot, then moves them to where the counts say.
#ifndef RLX_KERNELS_SORT_VECTORS_H_
#define RLX_KERNELS_SORT_VECTORS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "parallel.h"
#include "scratch.h"
#include "sort_digits.h"
#include "sort_keys.h"
#include "wide.h"

#if defined(__AVX2__)
#include <immintrin.h>

namespace rlx {
namespace sort {

// For each set of lanes: those lanes of 32 bits, then the others. A key has kParts lanes.
template <int kKeys, int kParts>
struct FirstLanes {
  uint8_t lanes[1 << kKeys][8];

  constexpr FirstLanes() : lanes() {
    for (int set = 0; set < 1 << kKeys; ++set) {
      int at = 0;
      for (int in = 1; in >= 0; --in) {
        for (int key = 0; key < kKeys; ++key) {
          if ((set >> key & 1) != in) continue;
          for (int part = 0; part < kParts; ++part) {
            lanes[set][at++] = static_cast<uint8_t>(key * kParts + part);
          }
        }
      }
    }
  }
};

inline constexpr FirstLanes<8, 1> kFirstOfEight;
inline constexpr FirstLanes<4, 2> kFirstOfFour;

// Sorts by digits what lies in x or, where `away`, in spare, into x.
template <typename Key>
void SortSigned(Key* x, Key* spare, int64_t n, bool away) {
  using U = std::make_unsigned_t<Key>;
  constexpr U kSign = U{1} << (8 * sizeof(U) - 1);
  Scratch<uint32_t> counts(kCounts);
  U* from = reinterpret_cast<U*>(away ? spare : x);
  U* other = reinterpret_cast<U*>(away ? x : spare);
  for (int64_t i = 0; i < n; ++i) from[i] ^= kSign;
  const U* sorted = SortByDigits<8>(from, other, n, counts.get());
  U* to = reinterpret_cast<U*>(x);
  for (int64_t i = 0; i < n; ++i) to[i] = sorted[i] ^ kSign;
}

}  // namespace sort
}  // namespace rlx

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined vectors of its own intrinsics for ours.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define RLX_TILES "sort_tiles.h"
#include "each_width.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

namespace rlx {
namespace sort {

// What there is for this CPU's width.
template <typename Key>
struct Tiles {
  Key (*pivot)(const Key*, int64_t);
  void (*sort)(Key*, Key*, int64_t, bool, Key);
  int64_t (*count_below)(const Key*, int64_t, Key);
  void (*share)(const Key*, int64_t, Key, Key*, Key*);
};

template <typename Key>
Tiles<Key> TilesOfThisCpu() {
#if defined(RLX_HAS_WIDE512)
  if (HasWide512()) {
    return {wide512::Pivot<wide512::KeysOf<Key>>, wide512::Sort<Key>, wide512::CountBelow<Key>,
            wide512::Share<Key>};
  }
#endif
  return {wide256::Pivot<wide256::KeysOf<Key>>, wide256::Sort<Key>, wide256::CountBelow<Key>,
          wide256::Share<Key>};
}

// SortElements of this CPU's width.
template <typename T>
auto SortElementsOfThisCpu() {
#if defined(RLX_HAS_WIDE512)
  if (HasWide512()) return &wide512::SortElements<T>;
#endif
  return &wide256::SortElements<T>;
}

template <typename T>
auto EncodeOfThisCpu() {
#if defined(RLX_HAS_WIDE512)
  if (HasWide512()) return &wide512::Encode<T>;
#endif
  return &wide256::Encode<T>;
}

template <typename T>
auto DecodeOfThisCpu() {
#if defined(RLX_HAS_WIDE512)
  if (HasWide512()) return &wide512::Decode<T>;
#endif
  return &wide256::Decode<T>;
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
std::vector<Part<Key>> SplitParts(const Pool& pool, const Tiles<Key>& tiles,
                                  const std::vector<Part<Key>>& parts, const Key* from, Key* to) {
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
    const Key pivot = tiles.pivot(from + part.begin, part.n);
    for (int64_t at = 0; at < part.n; at += kStretch) {
      stretches.push_back(
          {part.begin + at, std::min(kStretch, part.n - at), pivot, 0, 0, 0});
    }
  }
  const int64_t count = static_cast<int64_t>(stretches.size());
  ParallelFor(pool, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Stretch& s = stretches[i];
      s.below = tiles.count_below(from + s.begin, s.n, s.pivot);
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
      tiles.share(from + s.begin, s.n, s.pivot, to + s.low, to + s.high);
    }
  });
  return halves;
}

// Sorts x[0..n) by `pool`; `spare` has as many places.
template <typename Key, typename Pool>
void SortKeys(const Pool& pool, Key* x, Key* spare, int64_t n) {
  constexpr Key kLeast = std::numeric_limits<Key>::min();
  constexpr int64_t kPartMin = 1 << 14;  // keys that are worth a split by several threads
  const Tiles<Key> tiles = TilesOfThisCpu<Key>();
  const int64_t threads = n >= kParallelMin ? pool.Threads() : 1;
  if (threads <= 1) return tiles.sort(x, spare, n, false, kLeast);
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
    parts = SplitParts(pool, tiles, parts, from, to);
    std::swap(from, to);
  }
  const bool away = from == spare;
  ParallelFor(pool, static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Part<Key>& part = parts[i];
      if (part.n == 0) continue;
      tiles.sort(x + part.begin, spare + part.begin, part.n, away, part.least);
    }
  });
}

}  // namespace sort
}  // namespace rlx

#endif  // __AVX2__

#endif  // RLX_KERNELS_SORT_VECTORS_H_
