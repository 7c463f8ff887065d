// Sorting of rows of any operands by digits of the keys' bits; see sort_digits.h.
//
// The bits that integers do not hold (sign of zero, NaN's payload) are put back from the input.
#ifndef RLX_KERNELS_SORT_DIGIT_ROWS_H_
#define RLX_KERNELS_SORT_DIGIT_ROWS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "parallel.h"
#include "scratch.h"
#include "sort_digits.h"
#include "sort_keys.h"

namespace rlx {
namespace sort {

// Sorts rows of one shape; each thread has its own. Lone keys are sorted as bare integers.
class DigitSorter {
 public:
  DigitSorter(const AnyPool& pool, const std::vector<SortOperand>& operands, int64_t n,
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
        GatherBytes(pool_, operands_[i].bytes, in[i], order_.get(), n_, out[i]);
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

  template <typename T>
  void SortBare(T*, const void* from, void* to) {
    using U = BitsOf<T>;
    const T* in = static_cast<const T*>(from);
    T* out = static_cast<T*>(to);
    U* items = reinterpret_cast<U*>(work_.get());
    std::atomic<bool> lost{false};
    ShareOut(pool_, n_, [&](int64_t begin, int64_t end) {
      bool any = false;
      for (int64_t i = begin; i < end; ++i) {
        items[i] = Encode(in[i]);
        any |= LosesBits(in[i]);
      }
      if (any) lost.store(true, std::memory_order_relaxed);
    });
    const U* sorted = SortItems(pool_, items, items + n_, n_, counts_.get());
    ShareOut(pool_, n_, [&](int64_t begin, int64_t end) {
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
    ShareOut(pool_, n_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const uint32_t index = first ? static_cast<uint32_t>(i) : order[i];
        items[i] = {Encode(in[index]), index};
      }
    });
    const Item* sorted = SortItems(pool_, items, items + n_, n_, counts_.get());
    ShareOut(pool_, n_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) order[i] = sorted[i].index;
    });
  }

  const AnyPool& pool_;
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

}  // namespace sort
}  // namespace rlx

#endif  // RLX_KERNELS_SORT_DIGIT_ROWS_H_
