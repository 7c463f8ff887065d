// Handlers of attention_backward.h: rlx_attention_backward_<dtype>_cpu(q, k, v, dy[, mask]);
// attributes: see attention_call.h, and `wrt`: s64, by which operand the gradient is: 0 to 2 for q,
// k or v, 3 for all three one after the other in one result, 4 for three results.
#include "attention_backward.h"

#include "attention_call.h"
#include "handler.h"

namespace {

template <typename T>
void BackwardHandler(const rlx::Call& call) {
  constexpr XLA_FFI_DataType kType = rlx::DataTypeOf<T>::value;
  constexpr int64_t kAll = 3, kThree = 4;
  const bool masked = call.ArgCount() == 5;
  const int64_t wrt = call.Attr<int64_t>("wrt");
  call.Expect(/*args=*/masked ? 5 : 4, /*results=*/wrt == kThree ? 3 : 1);
  const rlx::Tensor operands[3] = {call.Arg(0, kType), call.Arg(1, kType), call.Arg(2, kType)};
  const rlx::Tensor dy = call.Arg(3, kType);
  const rlx::AttentionShape s = rlx::ReadAttention(call, /*mask_index=*/4);
  const int64_t y_size = s.batch * s.queries * s.heads * s.v_depth;
  T* gradients[3] = {nullptr, nullptr, nullptr};
  int64_t wanted = 0;
  for (int64_t i = 0; i < 3; ++i) {
    if (wrt == kThree) {
      const rlx::Tensor result = call.Result(i, kType);
      if (result.size() == operands[i].size()) gradients[i] = result.As<T>();
    } else if (wrt == i || wrt == kAll) {
      gradients[i] = call.Result(0, kType).As<T>() + wanted;
      wanted += operands[i].size();
    }
  }
  const bool fits = wrt == kThree ? gradients[0] != nullptr && gradients[1] != nullptr &&
                                        gradients[2] != nullptr
                                  : call.Result(0).size() == wanted && wrt >= 0 && wrt < kThree;
  if (!fits || dy.size() != y_size || masked != (s.mask >= rlx::AttentionMask::kCustom)) {
    rlx::InvalidArgument(call.name() + ": wrt from 0 to 4, results of the operands' sizes, dy of " +
                         std::to_string(y_size) + " elements, and a mask for custom, bias and "
                         "lengths are required; got wrt " + std::to_string(wrt) + ", " +
                         dy.ShapeText() + " -> " + call.Result(0).ShapeText() + " and " +
                         std::to_string(call.ArgCount()) + " operands.");
  }
  rlx::AttentionBackward(call, s, operands[0].As<const T>(), operands[1].As<const T>(),
                         operands[2].As<const T>(), dy.As<const T>(),
                         rlx::AttentionGradients<T>{gradients[0], gradients[1], gradients[2]});
}

}  // namespace

RLX_HANDLER(rlx_attention_backward_f32_cpu, BackwardHandler<float>)
RLX_HANDLER(rlx_attention_backward_bf16_cpu, BackwardHandler<rlx::Bf16>)
RLX_HANDLER(rlx_attention_backward_f16_cpu, BackwardHandler<rlx::F16>)
