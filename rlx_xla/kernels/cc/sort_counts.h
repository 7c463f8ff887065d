// Sorting of elements of two bytes by counting each value.
//
// Algorithm: a count for each of the 65,536 keys, by each thread of its own stretch; then each
//   thread writes a stretch of the result, every value so many times. Bits that keys do not hold
//   (sign of zero, NaN's payload) are put back from the input.
#ifndef RLX_KERNELS_SORT_COUNTS_H_
#define RLX_KERNELS_SORT_COUNTS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "numbers.h"
#include "parallel.h"
#include "scratch.h"
#include "sort_digits.h"
#include "sort_keys.h"

namespace rlx {
namespace sort {

constexpr int64_t kShortValues = int64_t{1} << 16;

// Adds the keys of x[0..n) to the counts.
template <typename T>
void CountShorts(const T* x, int64_t n, uint32_t* counts) {
  for (int64_t i = 0; i < n; ++i) ++counts[Encode(x[i])];
}

// Writes `count` elements, and others behind them as far as `room`.
inline void Repeat(uint16_t bits, int64_t count, int64_t room, uint16_t* out) {
  constexpr int64_t kStep = 16;
  uint16_t block[kStep];
  for (int64_t i = 0; i < kStep; ++i) block[i] = bits;
  int64_t i = 0;
  for (; i < count && i + kStep <= room; i += kStep) std::memcpy(out + i, block, sizeof(block));
  for (; i < count; ++i) out[i] = bits;
}

// Writes the sorted elements out[begin..end), given how many there are of each key; `first` is the
// first key that has some, of which `skipped` come before.
template <typename T>
void WriteShorts(const uint32_t* counts, int64_t first, int64_t skipped, int64_t begin, int64_t end,
                 uint16_t* out) {
  int64_t at = begin;
  for (int64_t key = first; at < end; ++key) {
    const int64_t count = std::min<int64_t>(counts[key] - skipped, end - at);
    skipped = 0;
    const auto bits = BitCast<uint16_t>(Decode<T>(static_cast<BitsOf<T>>(key)));
    Repeat(bits, count, end - at, out + at);
    at += count;
  }
}

// Sorts in[0..n) to `out`; n < 2^31.
template <typename T, typename Pool>
void SortShorts(const Pool& pool, const T* in, int64_t n, T* out) {
  static_assert(sizeof(T) == 2);
  const int64_t parts = n < kParallelMin ? 1 : pool.Threads();
  const int64_t part = (n + parts - 1) / parts;
  Scratch<uint32_t> counts(parts * kShortValues);
  ParallelFor(pool, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      uint32_t* mine = counts.get() + p * kShortValues;
      std::memset(mine, 0, sizeof(uint32_t) * kShortValues);
      CountShorts(in + p * part, std::clamp<int64_t>(n - p * part, 0, part), mine);
    }
  });
  uint32_t* sums = counts.get();
  for (int64_t p = 1; p < parts; ++p) {
    const uint32_t* more = sums + p * kShortValues;
    for (int64_t key = 0; key < kShortValues; ++key) sums[key] += more[key];
  }
  struct Place {
    int64_t first;    // key
    int64_t skipped;  // of it
  };
  std::vector<Place> places(parts);
  int64_t before = 0;
  int64_t next = 0;
  for (int64_t key = 0; next < parts && key < kShortValues; ++key) {
    for (; next < parts && next * part < before + sums[key]; ++next) {
      places[next] = {key, next * part - before};
    }
    before += sums[key];
  }
  ParallelFor(pool, next, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      WriteShorts<T>(sums, places[p].first, places[p].skipped, p * part,
                     std::min(n, (p + 1) * part), reinterpret_cast<uint16_t*>(out));
    }
  });
  if constexpr (kIsFloat<T>) {
    if (sums[Encode(T{})] != 0 || sums[kShortValues - 1] != 0) RestoreBits(in, out, n);
  }
}

}  // namespace sort
}  // namespace rlx

#endif  // RLX_KERNELS_SORT_COUNTS_H_
