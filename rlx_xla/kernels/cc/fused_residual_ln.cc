// Handler of epilogue.h: rlx_fused_residual_ln_f32_cpu(x, residual, gamma, beta[, bias]) -> y;
// attribute `eps`: f32.
#include "epilogue.h"
#include "handler.h"

namespace {

void ResidualLnHandler(const rlx::Call& call) {
  const bool biased = call.ArgCount() == 5;
  call.Expect(/*args=*/biased ? 5 : 4, /*results=*/1);
  constexpr XLA_FFI_DataType kType = XLA_FFI_DataType_F32;
  const rlx::Tensor x = call.Arg(0, kType);
  const rlx::Tensor residual = call.Arg(1, kType);
  const rlx::Tensor y = call.Result(0, kType);
  const float eps = call.Attr<float>("eps");
  const int64_t n = x.rank == 0 ? 0 : x.dim(x.rank - 1);
  bool fits = x.rank > 0 && residual.size() == x.size() && y.size() == x.size();
  for (int64_t i = 2; i < call.ArgCount(); ++i) fits = fits && call.Arg(i, kType).size() == n;
  if (!fits) {
    rlx::InvalidArgument(call.name() + ": x and residual of one shape and vectors of x's last "
                         "axis are required; got " + x.ShapeText() + ", " + residual.ShapeText() +
                         " and " + call.Arg(2).ShapeText() + " -> " + y.ShapeText() + ".");
  }
  if (n == 0) return;
  rlx::ResidualLnOperands of;
  of.x = x.As<const float>();
  of.residual = residual.As<const float>();
  of.gamma = call.Arg(2).As<const float>();
  of.beta = call.Arg(3).As<const float>();
  of.bias = biased ? call.Arg(4).As<const float>() : nullptr;
  rlx::ResidualLn(call, x.size() / n, n, eps, of, y.As<float>());
}

}  // namespace

RLX_HANDLER(rlx_fused_residual_ln_f32_cpu, ResidualLnHandler)
