// Handlers of pool.h: rlx_pool_<max|min|sum>_<dtype>_cpu(x) -> y and
// rlx_pool_backward_f32_cpu(dy, x) -> dx with `greatest`: bool; attributes `axis` (the first of the
// two axes that windows lie on; every axis before it is outer, every one after the second inner),
// and `window_h`, `window_w`, `stride_h`, `stride_w`, `low_h`, `low_w`: s64.
#include "pool.h"

#include "handler.h"

namespace {

using rlx::Pooling;
using rlx::PoolShape;
using rlx::Tensor;

PoolShape ShapeOf(const rlx::Call& call, const Tensor& x, const Tensor& y) {
  const int64_t axis = call.Attr<int64_t>("axis");
  const char* names[2][3] = {{"window_h", "stride_h", "low_h"}, {"window_w", "stride_w", "low_w"}};
  PoolShape s = {};
  bool good = axis >= 0 && x.rank == y.rank && axis + 2 <= x.rank;
  if (good) {
    s.outer = x.Count(0, axis);
    s.inner = x.Count(axis + 2, x.rank);
    good = y.Count(0, axis) == s.outer && y.Count(axis + 2, y.rank) == s.inner;
  }
  for (int i = 0; good && i < 2; ++i) {
    s.in[i] = x.dim(axis + i);
    s.out[i] = y.dim(axis + i);
    s.window[i] = call.Attr<int64_t>(names[i][0]);
    s.stride[i] = call.Attr<int64_t>(names[i][1]);
    s.low[i] = call.Attr<int64_t>(names[i][2]);
    good = s.window[i] >= 1 && s.stride[i] >= 1;
  }
  if (!good) {
    rlx::InvalidArgument(call.name() + ": arrays that differ in two axes from `axis` on, with "
                         "positive windows and strides, are required; got " + x.ShapeText() +
                         " and " + y.ShapeText() + ", axis " + std::to_string(axis) + ".");
  }
  return s;
}

template <Pooling kKind, typename T>
void PoolHandler(const rlx::Call& call) {
  call.Expect(/*args=*/1, /*results=*/1);
  const Tensor x = call.Arg(0, rlx::DataTypeOf<T>::value);
  const Tensor y = call.Result(0, rlx::DataTypeOf<T>::value);
  const PoolShape s = ShapeOf(call, x, y);
  if (y.size() == 0) return;
  rlx::PoolWindows<kKind>(call, s, x.As<const T>(), y.As<T>());
}

void BackwardHandler(const rlx::Call& call) {
  call.Expect(/*args=*/2, /*results=*/1);
  const Tensor dy = call.Arg(0, XLA_FFI_DataType_F32);
  const Tensor x = call.Arg(1, XLA_FFI_DataType_F32);
  const Tensor dx = call.Result(0, XLA_FFI_DataType_F32);
  const PoolShape s = ShapeOf(call, x, dy);
  if (dx.ShapeText() != x.ShapeText() || s.window[0] > (int64_t{1} << 30) / s.window[1]) {
    rlx::InvalidArgument(call.name() + ": a result of the operand's shape and windows of less "
                         "than 2^30 elements are required; got " + x.ShapeText() + " -> " +
                         dx.ShapeText() + ".");
  }
  if (dx.size() == 0) return;
  rlx::PoolBackward(call, s, call.Attr<bool>("greatest"), dy.As<const float>(),
                    x.As<const float>(), dx.As<float>());
}

}  // namespace

RLX_HANDLER(rlx_pool_max_f32_cpu, (PoolHandler<Pooling::kMax, float>))
RLX_HANDLER(rlx_pool_max_bf16_cpu, (PoolHandler<Pooling::kMax, rlx::Bf16>))
RLX_HANDLER(rlx_pool_max_f16_cpu, (PoolHandler<Pooling::kMax, rlx::F16>))
RLX_HANDLER(rlx_pool_min_f32_cpu, (PoolHandler<Pooling::kMin, float>))
RLX_HANDLER(rlx_pool_min_bf16_cpu, (PoolHandler<Pooling::kMin, rlx::Bf16>))
RLX_HANDLER(rlx_pool_min_f16_cpu, (PoolHandler<Pooling::kMin, rlx::F16>))
RLX_HANDLER(rlx_pool_sum_f32_cpu, (PoolHandler<Pooling::kSum, float>))
RLX_HANDLER(rlx_pool_sum_bf16_cpu, (PoolHandler<Pooling::kSum, rlx::Bf16>))
RLX_HANDLER(rlx_pool_sum_f16_cpu, (PoolHandler<Pooling::kSum, rlx::F16>))
RLX_HANDLER(rlx_pool_backward_f32_cpu, BackwardHandler)
