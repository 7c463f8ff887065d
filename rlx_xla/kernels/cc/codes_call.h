// Operands of handlers of products with integer codes by columns: x[..., k], codes, s8[k, n] or two
// a byte, scale[blocks, n] and, optional, zero like it; attribute `block`.
#ifndef RLX_KERNELS_CODES_CALL_H_
#define RLX_KERNELS_CODES_CALL_H_

#include <cstdint>
#include <string>

#include "blocks.h"
#include "handler.h"

namespace rlx {

// The weights, checked against x: a block is a multiple of `unit` rows.
template <bool kNibbles>
blocks::ColumnsOfCodes<kNibbles> CodesOf(const Call& call, int64_t unit) {
  const bool has_zero = call.ArgCount() == 4;
  call.Expect(has_zero ? 4 : 3, /*results=*/1);
  const int64_t block = call.Attr<int64_t>("block");
  const Tensor x = call.Arg(0);
  const Tensor codes = call.Arg(1, kNibbles ? XLA_FFI_DataType_U8 : XLA_FFI_DataType_S8);
  const Tensor scale = call.Arg(2, XLA_FFI_DataType_F32);
  const int64_t k = x.rank > 0 ? x.dim(x.rank - 1) : 0;
  const int64_t n = scale.rank == 2 ? scale.dim(1) : 0;
  const bool odd = kNibbles && n % 2 != 0;
  if (block < 1 || block > INT32_MAX || scale.rank != 2 ||
      scale.dim(0) != (k + block - 1) / block || odd ||
      codes.size() != (kNibbles ? k * n / 2 : k * n)) {
    InvalidArgument(call.name() + ": codes [k, n]" + (kNibbles ? ", two a byte, n even," : "") +
                    " and scale [k / " + std::to_string(block) + ", n] are required; got " +
                    x.ShapeText() + " times " + codes.ShapeText() + " and " + scale.ShapeText() +
                    ".");
  }
  if (block % unit != 0) {
    InvalidArgument(call.name() + ": a block that is a multiple of " + std::to_string(unit) +
                    " is required; got " + std::to_string(block) + ".");
  }
  const float* zero = nullptr;
  if (has_zero) {
    const Tensor given = call.Arg(3, XLA_FFI_DataType_F32);
    if (given.ShapeText() != scale.ShapeText()) {
      InvalidArgument(call.name() + ": zero must have the shape of scale, " + scale.ShapeText() +
                      "; got " + given.ShapeText() + ".");
    }
    zero = given.As<const float>();
  }
  return {codes.As<const uint8_t>(), scale.As<const float>(), zero, block, n};
}

}  // namespace rlx

#endif  // RLX_KERNELS_CODES_CALL_H_
