// Handlers of cumulative.h: rlx_cumulative_<dtype>_cpu(x) -> y; attributes `kind` (the order of
// rlx::Running) and `axis`: s64, `reverse`: bool.
#include "cumulative.h"

#include "handler.h"

namespace {

template <typename T>
void CumulativeHandler(const rlx::Call& call) {
  call.Expect(/*args=*/1, /*results=*/1);
  const rlx::Tensor x = call.Arg(0, rlx::DataTypeOf<T>::value);
  const rlx::Tensor y = call.Result(0, rlx::DataTypeOf<T>::value);
  const int64_t kind = call.Attr<int64_t>("kind");
  const int64_t axis = call.Attr<int64_t>("axis");
  const bool reverse = call.Attr<bool>("reverse");
  if (axis < 0 || axis >= x.rank || x.ShapeText() != y.ShapeText()) {
    rlx::InvalidArgument(call.name() + ": axis must be one of the operand's, and the result of its "
                         "shape; got axis " + std::to_string(axis) + " of " + x.ShapeText() +
                         " -> " + y.ShapeText() + ".");
  }
  constexpr bool kHasLogSumExp = rlx::kIsFloat<T> && sizeof(T) <= 4;
  const int64_t last = static_cast<int64_t>(kHasLogSumExp ? rlx::Running::kLogSumExp
                                                          : rlx::Running::kMinimum);
  if (kind < 0 || kind > last) {
    rlx::InvalidArgument(call.name() + ": kind must be from 0 to " + std::to_string(last) +
                         "; got " + std::to_string(kind) + ".");
  }
  rlx::Cumulate(call, static_cast<rlx::Running>(kind), x.As<const T>(), x.Count(0, axis),
                x.dim(axis), x.Count(axis + 1, x.rank), reverse, y.As<T>());
}

}  // namespace

RLX_HANDLER(rlx_cumulative_f32_cpu, CumulativeHandler<float>)
RLX_HANDLER(rlx_cumulative_f64_cpu, CumulativeHandler<double>)
RLX_HANDLER(rlx_cumulative_bf16_cpu, CumulativeHandler<rlx::Bf16>)
RLX_HANDLER(rlx_cumulative_f16_cpu, CumulativeHandler<rlx::F16>)
RLX_HANDLER(rlx_cumulative_i32_cpu, CumulativeHandler<int32_t>)
RLX_HANDLER(rlx_cumulative_i64_cpu, CumulativeHandler<int64_t>)
RLX_HANDLER(rlx_cumulative_u32_cpu, CumulativeHandler<uint32_t>)
