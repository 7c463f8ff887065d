// Products of any number of rows with a matrix of any kind: few rows by matmul.h, or by
// matmul_f32.h and matmul_bf16.h on CPUs that can; many by gemm.h, where a panel of packed weights
// is unpacked once for all rows of a block.
#ifndef RLX_KERNELS_PRODUCTS_H_
#define RLX_KERNELS_PRODUCTS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "gemm.h"
#include "matmul.h"
#include "matmul_bf16.h"
#include "matmul_f32.h"

namespace rlx {

namespace columns {

// In columns_avx512.h, which weights that have kFew include.
template <typename Pool, typename Weights>
int64_t FewRows(const Pool& pool, const Weights& w, int64_t rows, int64_t k, const float* x,
                float* y);

}  // namespace columns

namespace products {

constexpr int64_t kFewRows = 4;      // of x, up to which packed columns stay in registers
constexpr int64_t kManyRows = 12;    // from which panels are worth their copying
constexpr int64_t kManyApart = 257;  // the same for packed columns, a panel of which lies scattered
constexpr int64_t kMostRows = 504;   // rows that share an unpacked panel
constexpr int64_t kPairRows = 128;   // up to which bf16 is multiplied in pairs
constexpr int64_t kPlainRows = 64;   // from 2 up to which f32 is multiplied where it lies

// Whether weights are what columns::FewRows takes, for up to kFewRows rows of x.
template <typename Weights, typename = void>
inline constexpr bool kHasFew = false;
template <typename Weights>
inline constexpr bool kHasFew<Weights, std::void_t<decltype(Weights::kFew)>> = Weights::kFew;

// Whether all of `count` numbers are finite.
inline bool Finite(const float* numbers, int64_t count) {
  uint32_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    most = std::max(most, BitCast<uint32_t>(numbers[i]) & 0x7f800000u);
  }
  return most < 0x7f800000u;
}

// y[rows, 0 .. made), which FewRows made of x and w, made again by Get where it is not finite: a
// scale that is not finite makes each number of its group so, code zero NaN, and comes too late in
// sums of codes; and sums of codes may be too large before they are scaled.
template <typename Pool, typename Weights>
void MakeAgain(const Pool& pool, const Weights& w, const MatmulShape& shape, int64_t made,
               const float* x, float* y) {
  constexpr int64_t kUnit = matmul::kColumnUnit;
  for (int64_t m = 0; m < shape.rows; ++m) {
    float* row = y + m * shape.n;
    if (Finite(row, made)) continue;
    ParallelFor(pool, (made + kUnit - 1) / kUnit, 1, [&](int64_t begin, int64_t end) {
      for (int64_t from = begin * kUnit; from < std::min(end * kUnit, made); from += kUnit) {
        const int64_t to = std::min(from + kUnit, made);
        if (Finite(row + from, to - from)) continue;
        matmul::ByColumns(w, from, to, shape.k, x + m * shape.k, shape.k, 1, row, shape.n);
      }
    });
  }
}

template <typename Weights, typename Y>
struct Many {
  int64_t Stretches() const { return (shape.k + gemm::kDepth - 1) / gemm::kDepth; }
  int64_t Depth(int64_t stretch) const {
    return std::min(gemm::kDepth, shape.k - stretch * gemm::kDepth);
  }
  void Panel(int64_t stretch, int64_t n, int64_t columns, float* panel) const {
    const int64_t at = stretch * gemm::kDepth;
    const int64_t depth = Depth(stretch);
    if constexpr (Weights::kPlain) {
      if (shape.by_rows) {
        const auto tile = weights.At(n, at);
        gemm::TurnPanel(tile.data, tile.stride, depth, columns, panel);
      } else {
        const auto tile = weights.At(at, n);
        gemm::CopyPanel(tile.data, tile.stride, depth, columns, panel);
      }
    } else if (shape.by_rows) {
      alignas(64) float rows[gemm::kPanel * gemm::kDepth];
      const auto tile = weights.Get(n, columns, at, depth, matmul::kWide, rows, gemm::kDepth,
                                    /*ahead=*/gemm::kDepth);
      gemm::TurnPanel(tile.data, tile.stride, depth, columns, panel);
    } else {
      weights.Get(at, depth, n, columns, gemm::kPanel, panel, gemm::kPanel, /*ahead=*/0);
    }
  }
  void Rows(int64_t stretch, int64_t m, int64_t rows, const float** to) const {
    for (int64_t r = 0; r < rows; ++r) to[r] = x + (m + r) * shape.k + stretch * gemm::kDepth;
  }
  float* Direct(int64_t m, int64_t n, int64_t* stride) const {
    if constexpr (std::is_same_v<Y, float>) {
      *stride = shape.n;
      return y + m * shape.n + n;
    }
    return nullptr;
  }
  void Store(int64_t m, int64_t rows, int64_t n, int64_t columns, const float* acc) const {
    for (int64_t r = 0; r < rows; ++r) {
      matmul::NarrowRow(acc + r * gemm::kPanel, columns, y + (m + r) * shape.n + n);
    }
  }

  const MatmulShape& shape;
  Weights weights;
  const float* x;
  Y* y;
};

}  // namespace products

// y[batch, rows, n] = x[batch, rows, k] w, where weights(b) are those of product b; plain ones
// follow each other.
template <typename Pool, typename X, typename Y, typename WeightsOf>
void Product(const Pool& pool, const MatmulShape& shape, const X* x, const WeightsOf& weights,
             Y* y) {
  using Weights = std::decay_t<decltype(weights(0))>;
#if defined(__x86_64__)
  if constexpr (std::is_same_v<X, Bf16> && std::is_same_v<Weights, matmul::PlainWeights<Bf16>>) {
    if (bf16::Has() && shape.rows <= products::kPairRows) {
      return bf16::Product(pool, shape, x, weights(0).data, y);
    }
  }
  if constexpr (std::is_same_v<X, float> && std::is_same_v<Weights, matmul::PlainWeights<float>>) {
    const bool few = 1 < shape.rows && shape.rows <= products::kPlainRows;
    if (matmul::HasAvx512() && few && !shape.by_rows) {
      return f32::Product(pool, shape, x, weights(0).data, y);
    }
  }
#endif
  if constexpr (products::kHasFew<Weights>) {
    if (shape.rows <= products::kFewRows && shape.batch == 1) {
      const Weights w = weights(0);
      const int64_t made = columns::FewRows(pool, w, shape.rows, shape.k, x, y);
      if (made != 0) {
        products::MakeAgain(pool, w, shape, made, x, y);
        return matmul::ByColumns(w, made, shape.n, shape.k, x, shape.k, shape.rows, y, shape.n);
      }
    }
  }
  const bool columns = !Weights::kPlain && !shape.by_rows;
  if (shape.rows < (columns ? products::kManyApart : products::kManyRows)) {
    return Matmul(pool, shape, x, weights, y);
  }
  const float* wide = nullptr;
  constexpr bool kInPlace = std::is_same_v<X, float>;
  const Scratch<float> widened(kInPlace ? 0 : shape.batch * shape.rows * shape.k);
  if constexpr (kInPlace) {
    wide = x;
  } else {
    wide = widened.get();
    ParallelFor(pool, shape.batch * shape.rows * shape.k, 64 * 1024,
                [&](int64_t begin, int64_t end) {
                  matmul::WidenRow(x + begin, end - begin, /*ahead=*/0, widened.get() + begin);
                });
  }
  gemm::Run(pool, shape.batch, shape.rows, shape.n, shape.k, products::kMostRows,
            [&](int64_t b, int64_t, int64_t) {
              return products::Many<Weights, Y>{shape, weights(b),
                                                wide + b * shape.rows * shape.k,
                                                y + b * shape.rows * shape.n};
            });
}

}  // namespace rlx

#endif  // RLX_KERNELS_PRODUCTS_H_
