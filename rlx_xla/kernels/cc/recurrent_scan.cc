// Handlers of recurrent_scan.h: rlx_selective_scan_<dtype>_cpu(x, delta, a, b, c) -> y, and
// rlx_gated_delta_net_<dtype>_cpu(q, k, v, g, beta[, state]) -> y[, state].
#include "recurrent_scan.h"

#include "handler.h"

namespace {

template <typename T>
void SelectiveScanHandler(const rlx::Call& call) {
  call.Expect(/*args=*/5, /*results=*/1);
  constexpr XLA_FFI_DataType kType = rlx::DataTypeOf<T>::value;
  const rlx::Tensor x = call.Arg(0, kType), delta = call.Arg(1, kType), a = call.Arg(2, kType),
                    b = call.Arg(3, kType), c = call.Arg(4, kType), y = call.Result(0, kType);
  const auto refuse = [&] {
    rlx::InvalidArgument(call.name() + ": x and delta [B, S, H], a [H, N], b and c [B, S, N] are "
                         "required; got " + x.ShapeText() + ", " + delta.ShapeText() + ", " +
                         a.ShapeText() + ", " + b.ShapeText() + ", " + c.ShapeText() + " -> " +
                         y.ShapeText() + ".");
  };
  if (x.rank != 3 || a.rank != 2 || b.rank != 3) refuse();
  const rlx::SelectiveScanShape s = {x.dim(0), x.dim(1), x.dim(2), a.dim(1)};
  if (delta.ShapeText() != x.ShapeText() || y.ShapeText() != x.ShapeText() ||
      a.dim(0) != s.width || b.dim(0) != s.batch || b.dim(1) != s.steps || b.dim(2) != s.states ||
      c.ShapeText() != b.ShapeText()) {
    refuse();
  }
  rlx::SelectiveScan(call, s,
                     rlx::SelectiveScanData<T>{x.As<const T>(), delta.As<const T>(),
                                               a.As<const T>(), b.As<const T>(),
                                               c.As<const T>(), y.As<T>()});
}

template <typename T>
void GatedDeltaHandler(const rlx::Call& call) {
  constexpr XLA_FFI_DataType kType = rlx::DataTypeOf<T>::value;
  const bool carried = call.ArgCount() == 6;
  call.Expect(/*args=*/carried ? 6 : 5, /*results=*/carried ? 2 : 1);
  const rlx::Tensor q = call.Arg(0, kType), k = call.Arg(1, kType), v = call.Arg(2, kType),
                    g = call.Arg(3, kType), beta = call.Arg(4, kType), y = call.Result(0, kType);
  const auto refuse = [&] {
    rlx::InvalidArgument(call.name() + ": q, k and v [B, S, H, N], g [B, S, H] or [B, S, H, N], "
                         "beta [B, S, H] and states [B, H, N, N] are required; got " +
                         q.ShapeText() + ", " + k.ShapeText() + ", " + v.ShapeText() + ", " +
                         g.ShapeText() + ", " + beta.ShapeText() + " -> " + y.ShapeText() + ".");
  };
  if (q.rank != 4 || g.rank < 3 || g.rank > 4) refuse();
  const rlx::DeltaShape s = {q.dim(0), q.dim(1), q.dim(2), q.dim(3), g.rank == 4};
  const int64_t tokens = s.batch * s.steps * s.heads;
  if (k.ShapeText() != q.ShapeText() || v.ShapeText() != q.ShapeText() ||
      y.ShapeText() != q.ShapeText() || beta.rank != 3 || beta.size() != tokens ||
      g.size() != tokens * (g.rank == 4 ? s.size : 1)) {
    refuse();
  }
  rlx::DeltaData<T> data = {q.As<const T>(), k.As<const T>(),    v.As<const T>(), g.As<const T>(),
                            beta.As<const T>(), nullptr, y.As<T>(), nullptr};
  if (carried) {
    const rlx::Tensor first = call.Arg(5, kType), last = call.Result(1, kType);
    const int64_t size = s.batch * s.heads * s.size * s.size;
    if (first.size() != size || last.size() != size) refuse();
    data.first = first.As<const T>();
    data.last = last.As<T>();
  }
  rlx::GatedDelta(call, s, data);
}

}  // namespace

RLX_HANDLER(rlx_selective_scan_f32_cpu, SelectiveScanHandler<float>)
RLX_HANDLER(rlx_selective_scan_bf16_cpu, SelectiveScanHandler<rlx::Bf16>)
RLX_HANDLER(rlx_selective_scan_f16_cpu, SelectiveScanHandler<rlx::F16>)
RLX_HANDLER(rlx_gated_delta_net_f32_cpu, GatedDeltaHandler<float>)
RLX_HANDLER(rlx_gated_delta_net_bf16_cpu, GatedDeltaHandler<rlx::Bf16>)
RLX_HANDLER(rlx_gated_delta_net_f16_cpu, GatedDeltaHandler<rlx::F16>)
