// Which of several weights a product reads, for handlers whose operands are x, index and weights.
#ifndef RLX_KERNELS_PICKED_H_
#define RLX_KERNELS_PICKED_H_

#include <algorithm>
#include <cstdint>

#include "handler.h"

namespace rlx {

// The operand that operand 1, s32[], names among those from 2 on: the number is clamped.
inline int64_t PickedArg(const Call& call) {
  const int64_t weights = call.ArgCount() - 2;
  if (weights < 1) call.Expect(/*args=*/3, /*results=*/1);
  const Tensor index = call.Arg(1, XLA_FFI_DataType_S32);
  if (index.size() != 1) {
    InvalidArgument(call.name() + ": an index of one number is required; got " +
                    index.ShapeText() + ".");
  }
  return 2 + std::clamp<int64_t>(*index.As<const int32_t>(), 0, weights - 1);
}

}  // namespace rlx

#endif  // RLX_KERNELS_PICKED_H_
