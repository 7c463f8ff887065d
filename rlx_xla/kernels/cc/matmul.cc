// Handlers of products.h: rlx_matmul_<dtype of the weights>_cpu(lhs, rhs) -> y; attributes
// `batch` (how many leading axes both operands share), `summed` (how many axes, the last ones of
// the rows) and `weights` (the operand that is the matrix): s64, `by_rows` (the matrix's last axes
// are summed, or else its first ones after the batch): bool.
#include "handler.h"
#include "products.h"

namespace {

// Calls f with a null pointer of a float type of at most 32 bits; false for other types.
template <typename F>
bool WithFloat(XLA_FFI_DataType dtype, const F& f) {
  switch (dtype) {
    case XLA_FFI_DataType_F32: f(static_cast<float*>(nullptr)); return true;
    case XLA_FFI_DataType_BF16: f(static_cast<rlx::Bf16*>(nullptr)); return true;
    case XLA_FFI_DataType_F16: f(static_cast<rlx::F16*>(nullptr)); return true;
    default: return false;
  }
}

template <typename W>
void MatmulHandler(const rlx::Call& call) {
  call.Expect(/*args=*/2, /*results=*/1);
  const int64_t batch = call.Attr<int64_t>("batch");
  const int64_t summed = call.Attr<int64_t>("summed");
  const int64_t which = call.Attr<int64_t>("weights");
  const bool by_rows = call.Attr<bool>("by_rows");
  if (which < 0 || which > 1) {
    rlx::InvalidArgument(call.name() + ": weights must be operand 0 or 1; got " +
                         std::to_string(which) + ".");
  }
  const rlx::Tensor w = call.Arg(which, rlx::DataTypeOf<W>::value);
  const rlx::Tensor x = call.Arg(1 - which);
  const rlx::Tensor y = call.Result(0);
  const auto refuse = [&] {
    rlx::InvalidArgument(call.name() + ": x[batch..., rows..., k...] and weights[batch..., " +
                         (by_rows ? "n..., k..." : "k..., n...") + "] with " +
                         std::to_string(batch) + " batch and " + std::to_string(summed) +
                         " summed axes are required; got " + x.ShapeText() + " and " +
                         w.ShapeText() + " -> " + y.ShapeText() + ".");
  };
  if (batch < 0 || summed < 0 || w.rank < batch + summed || x.rank < batch + summed) refuse();
  const int64_t x_split = x.rank - summed;
  const int64_t w_split = by_rows ? w.rank - summed : batch + summed;
  rlx::MatmulShape shape;
  shape.batch = w.Count(0, batch);
  shape.rows = x.Count(batch, x_split);
  shape.k = x.Count(x_split, x.rank);
  shape.n = by_rows ? w.Count(batch, w_split) : w.Count(w_split, w.rank);
  shape.by_rows = by_rows;
  const int64_t w_k = by_rows ? w.Count(w_split, w.rank) : w.Count(batch, w_split);
  if (w_k != shape.k || x.Count(0, batch) != shape.batch ||
      y.size() != shape.batch * shape.rows * shape.n || (which == 0 && shape.rows != 1)) {
    refuse();
  }
  if (y.size() == 0) return;
  const W* weights = w.As<const W>();
  const int64_t size = shape.k * shape.n;
  const int64_t cols = by_rows ? shape.k : shape.n;
  const auto of = [=](int64_t product) {
    return rlx::matmul::PlainWeights<W>{weights + product * size, cols};
  };
  const bool known = WithFloat(x.dtype, [&](auto* from) {
    using X = std::remove_pointer_t<decltype(from)>;
    const bool result_known = WithFloat(y.dtype, [&](auto* to) {
      using Y = std::remove_pointer_t<decltype(to)>;
      rlx::Product(call, shape, x.As<const X>(), of, y.As<Y>());
    });
    if (!result_known) refuse();
  });
  if (!known) refuse();
}

}  // namespace

RLX_HANDLER(rlx_matmul_f32_cpu, MatmulHandler<float>)
RLX_HANDLER(rlx_matmul_bf16_cpu, MatmulHandler<rlx::Bf16>)
RLX_HANDLER(rlx_matmul_f16_cpu, MatmulHandler<rlx::F16>)
