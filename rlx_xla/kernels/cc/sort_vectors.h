// Sorting in vector lanes, of this CPU's width: of rows of operands (sort_lane_rows.h), and of
// integers (sort_tiles.h).
#ifndef RLX_KERNELS_SORT_VECTORS_H_
#define RLX_KERNELS_SORT_VECTORS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "parallel.h"
#include "scratch.h"
#include "sort_counts.h"
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

inline int BitWidth(uint64_t x) { return x == 0 ? 0 : 64 - __builtin_clzll(x); }

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

#define RLX_TILES "sort_lane_rows.h"
#include "each_width.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

namespace rlx {
namespace sort {

// Sorts x[0..n) by the calling thread; `spare` has as many places.
template <typename Key>
void SortKeys(Key* x, Key* spare, int64_t n) {
  constexpr Key kLeast = std::numeric_limits<Key>::min();
#if defined(RLX_HAS_WIDE512)
  if (HasWide512()) return wide512::Sort<Key>(x, spare, n, false, kLeast);
#endif
  wide256::Sort<Key>(x, spare, n, false, kLeast);
}

}  // namespace sort
}  // namespace rlx

#endif  // __AVX2__

#endif  // RLX_KERNELS_SORT_VECTORS_H_
