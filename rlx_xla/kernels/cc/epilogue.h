// What follows a product in the cache: a bias and an activation; and norms of residual sums.
//
// Computes: y = activation(y + bias), in place, and y = layer_norm(x + residual + bias).
// Layout: row-major rows of f32.
// Numerics: see epilogue_tiles.h.
#ifndef RLX_KERNELS_EPILOGUE_H_
#define RLX_KERNELS_EPILOGUE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "parallel.h"
#include "wide.h"

namespace rlx {

enum class Activation { kNone, kRelu, kGelu, kGeluTanh, kSilu };

}  // namespace rlx

#define RLX_TILES "epilogue_tiles.h"
#include "each_width.h"

namespace rlx {

// Finishes sums of a product where they lie.
struct Epilogue {
  Activation activation;
  const float* bias;  // of every column of the result

  // Rows of y from `column` on.
  void operator()(float* y, int64_t stride, int64_t rows, int64_t column, int64_t columns) const {
#if defined(RLX_HAS_WIDE512)
    if (HasWide512()) {
      return wide512::FinishRows(activation, bias + column, rows, columns, y, stride);
    }
#endif
    wide256::FinishRows(activation, bias + column, rows, columns, y, stride);
  }
};

// Operands of the norm of a residual sum; a null bias stands for none.
struct ResidualLnOperands {
  const float* x;
  const float* residual;
  const float* gamma;
  const float* beta;
  const float* bias;
};

// y[rows, n] = layer_norm(x + residual + bias, gamma, beta).
template <typename Pool>
void ResidualLn(const Pool& pool, int64_t rows, int64_t n, float eps, const ResidualLnOperands& of,
                float* y) {
  constexpr int64_t kGrain = 32 * 1024;  // elements that are worth a second thread
  if (rows == 0 || n == 0) return;
  ParallelFor(pool, rows, kGrain / n + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = of.x + r * n;
      const float* residual = of.residual + r * n;
#if defined(RLX_HAS_WIDE512)
      if (HasWide512()) {
        wide512::ResidualLnRow(x, residual, of.bias, of.gamma, of.beta, eps, n, y + r * n);
        continue;
      }
#endif
      wide256::ResidualLnRow(x, residual, of.bias, of.gamma, of.beta, eps, n, y + r * n);
    }
  });
}

}  // namespace rlx

#endif  // RLX_KERNELS_EPILOGUE_H_
