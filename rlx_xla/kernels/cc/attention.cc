// Handlers of attention.h: rlx_attention_<dtype>_cpu(q, k, v[, mask]) -> y; attributes: see
// attention_call.h.
#include "attention.h"

#include "attention_call.h"
#include "handler.h"

namespace {

template <typename T>
void AttentionHandler(const rlx::Call& call) {
  constexpr XLA_FFI_DataType kType = rlx::DataTypeOf<T>::value;
  const bool masked = call.ArgCount() == 4;
  call.Expect(/*args=*/masked ? 4 : 3, /*results=*/1);
  const T* q = call.Arg(0, kType).As<const T>();
  const T* k = call.Arg(1, kType).As<const T>();
  const T* v = call.Arg(2, kType).As<const T>();
  const rlx::Tensor y = call.Result(0, kType);
  const rlx::AttentionShape s = rlx::ReadAttention(call, /*mask_index=*/3);
  const bool wants_mask = s.mask >= rlx::AttentionMask::kCustom;
  if (masked != wants_mask || y.size() != s.batch * s.queries * s.heads * s.v_depth) {
    rlx::InvalidArgument(call.name() + ": a mask for custom, bias and lengths and only there, and "
                         "a result of " +
                         std::to_string(s.batch * s.queries * s.heads * s.v_depth) +
                         " elements are required; got " + std::to_string(call.ArgCount()) +
                         " operands and " + y.ShapeText() + ".");
  }
  rlx::Attention(call, s, q, k, v, y.As<T>());
}

}  // namespace

RLX_HANDLER(rlx_attention_f32_cpu, AttentionHandler<float>)
RLX_HANDLER(rlx_attention_bf16_cpu, AttentionHandler<rlx::Bf16>)
RLX_HANDLER(rlx_attention_f16_cpu, AttentionHandler<rlx::F16>)
