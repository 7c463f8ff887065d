// Products of f32 whose parts are finished while they are in the cache.
#ifndef RLX_KERNELS_FINISHED_PRODUCTS_H_
#define RLX_KERNELS_FINISHED_PRODUCTS_H_

#include <cstdint>

#include "matmul_f32.h"
#include "products.h"

namespace rlx {

// y[rows, n] = x[rows, k] w[k, n] in f32, of which finish(y, stride, rows, column, columns) is
// called once for every part, as soon as that is summed up.
template <typename Pool, typename Finish>
void FinishedProduct(const Pool& pool, const MatmulShape& shape, const float* x, const float* w,
                     const Finish& finish, float* y) {
  constexpr int64_t kGrain = 16 * 1024;  // results whose finish is worth a second thread
  if (shape.rows == 0 || shape.n == 0) return;
#if defined(__x86_64__)
  if (matmul::HasAvx512() && 1 < shape.rows && shape.rows <= products::kPlainRows) {
    return f32::Product(pool, shape, x, w, y, finish);
  }
#endif
  const auto of = [&](int64_t) { return matmul::PlainWeights<float>{w, shape.n}; };
  Product(pool, shape, x, of, y);
  ParallelFor(pool, shape.rows, kGrain / shape.n + 1, [&](int64_t begin, int64_t end) {
    finish(y + begin * shape.n, shape.n, end - begin, 0, shape.n);
  });
}

}  // namespace rlx

#endif  // RLX_KERNELS_FINISHED_PRODUCTS_H_
