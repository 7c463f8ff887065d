// The products of fixed_blocks.h and fixed_super.h for whole matrices, and which ones they take.
#ifndef RLX_KERNELS_FIXED_PRODUCT_H_
#define RLX_KERNELS_FIXED_PRODUCT_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "fixed_blocks.h"
#include "fixed_super.h"
#include "parallel.h"
#include "scratch.h"

namespace rlx {

namespace fixed {

constexpr int64_t kTakenRows = 4;        // of x, which are multiplied at once
constexpr int64_t kMostRows = 16;        // of x
constexpr int64_t kUnitRows = 8;         // of weights, whose sums are made at once
constexpr int64_t kGrain = 1 << 17;      // products that are worth a piece of their own
constexpr int64_t kStretch = 1 << 18;    // codes that stay cached while x goes by
// One group of so many may be multiplied as floats, whose numbers, or those of whose block of 256,
// are unpacked for each row of weights: more take longer than products of floats alone.
constexpr int64_t kPlain = 12;
constexpr int64_t kPlainOfSuper = 32;

// Rows of weights from which splitting x is worth its time; tests take fewer.
inline int64_t least_columns = 32;

// Whether products of this shape may be taken.
inline bool Fits(const MatmulShape& shape) {
  return Has() && shape.rows <= kMostRows && shape.n >= least_columns;
}

#if defined(__x86_64__)

// Rows of x, split.
template <int kBias, bool kApart, bool kTurned>
class Split {
 public:
  Split(int64_t rows, int64_t k)
      : k_(k),
        groups_(k / kGroup),
        digits_(rows * groups_ * kDigits),
        unit_(rows * groups_),
        start_(rows * groups_ * kStarts),
        sum_(rows * groups_) {}

  void Make(int64_t m, const float* x) {
    for (int64_t g = 0; g < groups_; ++g) {
      const int64_t at = m * groups_ + g;
      const bool split = SplitGroup<kBias, kApart, kTurned>(
          x + g * kGroup, digits_.get() + at * kDigits, unit_.get() + at,
          start_.get() + at * kStarts, sum_.get() + at);
      if (!split) plain_.push_back(at);
    }
  }

  Row At(int64_t m) const {
    const int64_t at = m * groups_;
    return {digits_.get() + at * kDigits, unit_.get() + at, start_.get() + at * kStarts,
            sum_.get() + at};
  }

  // Groups that are to be multiplied as floats, counted through all rows.
  const std::vector<int64_t>& plain() const { return plain_; }

 private:
  static constexpr int64_t kStarts = kBias == 0 ? 0 : kApart ? 16 : 8;
  int64_t k_;
  int64_t groups_;
  Scratch<int8_t> digits_;
  Scratch<float> unit_;
  Scratch<int32_t> start_;
  Scratch<float> sum_;
  std::vector<int64_t> plain_;
};

// y[m * stride + r] for kX rows of x and 4 * kFours of `rows`.
template <int kX, int kFours, typename Rows>
void Tile(const Rows& rows, int64_t groups, const Row* x, float* y, int64_t stride) {
  SmallTile<kX, kFours>(rows, groups, x, y, stride);
}

template <int kX, int kFours, typename Block>
void Tile(const LargeRows<Block>& rows, int64_t groups, const Row* x, float* y, int64_t stride) {
  LargeTile<Block, kX, kFours>(rows, groups, x, y, stride);
}

// The same for `count` of them.
template <int kX, typename Rows>
void TileRows(Rows rows, int64_t count, int64_t groups, const Row* x, float* y, int64_t stride) {
  if constexpr (kX <= Rows::kMostTwice) {
    for (; count >= 8; count -= 8, rows = rows.From(8), y += 8) {
      Tile<kX, 2>(rows, groups, x, y, stride);
    }
  }
  for (; count >= 4; count -= 4, rows = rows.From(4), y += 4) {
    Tile<kX, 1>(rows, groups, x, y, stride);
  }
  for (; count > 0; --count, rows = rows.From(1), ++y) {
    float made[kX * 4];  // one row, four times
    Tile<kX, 1>(rows.Repeated(), groups, x, made, 4);
    for (int m = 0; m < kX; ++m) y[m * stride] = made[m * 4];
  }
}

inline float DotGroup(const float* a, const float* b) {
  matmul::F sums = {};
  for (int64_t i = 0; i < kGroup; i += matmul::kWide) {
    sums = matmul::MulAdd(Load(a + i), Load(b + i), sums);
  }
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

// y[rows, n] of x[rows, k] and w, which `weights` unpacks, kDecoded numbers of a row at once; false
// where the products of floats are to be taken.
template <int64_t kDecoded, bool kApart, typename Rows, typename Weights, typename Pool>
bool Product(const Pool& pool, const MatmulShape& shape, const float* x, const Rows& w,
             const Weights& weights, float* y) {
  const int64_t rows = shape.rows, k = shape.k, n = shape.n, groups = k / kGroup;
  Split<Rows::kBias, kApart, Rows::kTurned> split(rows, k);
  for (int64_t m = 0; m < rows; ++m) split.Make(m, x + m * k);
  const std::vector<int64_t>& plain = split.plain();
  constexpr int64_t kOneOf = kDecoded == kGroup ? kPlain : kPlainOfSuper;
  if (static_cast<int64_t>(plain.size()) * kOneOf > rows * groups) return false;
  const int64_t stretch = std::max(kUnitRows, kStretch / (k + 1) / kUnitRows * kUnitRows);
  const int64_t units = (n + kUnitRows - 1) / kUnitRows;
  const int64_t grain = kGrain / (rows * k * kUnitRows + 1) + 1;
  ParallelFor(pool, units, grain, [&](int64_t first, int64_t last) {
    const int64_t end = std::min(n, last * kUnitRows);
    for (int64_t from = first * kUnitRows; from < end; from += stretch) {
      const int64_t count = std::min(stretch, end - from);
      const Rows taken = w.From(from);
      for (int64_t m = 0; m < rows; m += kTakenRows) {
        Row some[kTakenRows] = {};
        const int64_t left = std::min(kTakenRows, rows - m);
        for (int64_t i = 0; i < left; ++i) some[i] = split.At(m + i);
        float* to = y + m * n + from;
        switch (left) {
          case 1: TileRows<1>(taken, count, groups, some, to, n); break;
          case 2: TileRows<2>(taken, count, groups, some, to, n); break;
          case 3: TileRows<3>(taken, count, groups, some, to, n); break;
          default: TileRows<4>(taken, count, groups, some, to, n); break;
        }
      }
      for (const int64_t group : plain) {
        const int64_t m = group / groups, at = group % groups * kGroup;
        for (int64_t r = from; r < from + count; ++r) {
          float buffer[kDecoded];
          const float* wide = weights.Get(r, 1, at / kDecoded * kDecoded, kDecoded, matmul::kWide,
                                          buffer, kDecoded, /*ahead=*/0).data + at % kDecoded;
          y[m * n + r] += DotGroup(x + m * k + at, wide);
        }
      }
    }
  });
  return products::Finite(y, rows * n);
}

#endif  // defined(__x86_64__)

// y[rows, n] of x[rows, k] and w; false where the products of floats are to be taken.
template <typename Pool, typename Weights>
bool Take(const Pool&, const MatmulShape&, const float*, const Weights&, float*) {
  return false;
}

template <typename Pool, typename Block>
bool Take(const Pool& pool, const MatmulShape& shape, const float* x,
          const blocks::RowsOfBlocks<Block>& w, float* y) {
#if defined(__x86_64__)
  if (Fits(shape)) {
    const int64_t row_bytes = shape.k / Block::kElements * Block::kBytes;
    if constexpr (Four<Block>::kHas) {
      return Product<kGroup, false>(pool, shape, x, BlockRows<Block>{w.data, row_bytes}, w, y);
    } else if constexpr (FourOf<Block>::kHas) {
      return Product<Block::kElements, FourOf<Block>::kApart>(
          pool, shape, x, LargeRows<Block>{w.data, row_bytes}, w, y);
    }
  }
#endif
  (void)pool, (void)shape, (void)x, (void)w, (void)y;
  return false;
}

}  // namespace fixed

}  // namespace rlx

#endif  // RLX_KERNELS_FIXED_PRODUCT_H_
