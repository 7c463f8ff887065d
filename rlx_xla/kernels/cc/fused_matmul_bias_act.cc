// Handler of finished_products.h with epilogue.h:
// rlx_fused_matmul_bias_act_f32_cpu(x, weight, bias) -> y; attribute `activation` (the order of
// rlx::Activation): s64.
#include "epilogue.h"
#include "finished_products.h"
#include "handler.h"

namespace {

void MatmulBiasActHandler(const rlx::Call& call) {
  call.Expect(/*args=*/3, /*results=*/1);
  constexpr XLA_FFI_DataType kType = XLA_FFI_DataType_F32;
  const rlx::Tensor x = call.Arg(0, kType);
  const rlx::Tensor w = call.Arg(1, kType);
  const rlx::Tensor bias = call.Arg(2, kType);
  const rlx::Tensor y = call.Result(0, kType);
  const int64_t kind = call.Attr<int64_t>("activation");
  if (kind < 0 || kind > static_cast<int64_t>(rlx::Activation::kSilu)) {
    rlx::InvalidArgument(call.name() + ": an activation from 0 to 4 is required; got " +
                         std::to_string(kind) + ".");
  }
  rlx::MatmulShape shape = {};
  shape.batch = 1;
  if (x.rank > 0 && w.rank == 2) {
    shape.rows = x.Count(0, x.rank - 1);
    shape.k = w.dim(0);
    shape.n = w.dim(1);
  }
  if (x.rank == 0 || w.rank != 2 || x.dim(x.rank - 1) != shape.k || bias.size() != shape.n ||
      y.size() != shape.rows * shape.n) {
    rlx::InvalidArgument(call.name() + ": x [..., k], weight [k, n] and bias [n] are required; "
                         "got " + x.ShapeText() + ", " + w.ShapeText() + " and " +
                         bias.ShapeText() + " -> " + y.ShapeText() + ".");
  }
  const rlx::Epilogue finish = {static_cast<rlx::Activation>(kind), bias.As<const float>()};
  rlx::FinishedProduct(call, shape, x.As<const float>(), w.As<const float>(), finish,
                       y.As<float>());
}

}  // namespace

RLX_HANDLER(rlx_fused_matmul_bias_act_f32_cpu, MatmulBiasActHandler)
