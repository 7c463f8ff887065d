// Handler of sort.h: rlx_sort_cpu(operands...) -> the operands, sorted; attributes `axis` and
// `num_keys`: s64.
#include "sort.h"

#include <limits>
#include <vector>

#include "element_types.h"
#include "handler.h"

namespace {

// The size alone is asked of what follows the keys.
int64_t BytesOf(XLA_FFI_DataType dtype) {
  switch (dtype) {
    case XLA_FFI_DataType_PRED:
    case XLA_FFI_DataType_U8:
    case XLA_FFI_DataType_S8: return 1;
    case XLA_FFI_DataType_U16:
    case XLA_FFI_DataType_S16:
    case XLA_FFI_DataType_BF16:
    case XLA_FFI_DataType_F16: return 2;
    case XLA_FFI_DataType_U32:
    case XLA_FFI_DataType_S32:
    case XLA_FFI_DataType_F32: return 4;
    case XLA_FFI_DataType_U64:
    case XLA_FFI_DataType_S64:
    case XLA_FFI_DataType_F64:
    case XLA_FFI_DataType_C64: return 8;
    case XLA_FFI_DataType_C128: return 16;
    default: return 0;
  }
}

void SortHandler(const rlx::Call& call) {
  const int64_t count = call.ArgCount();
  call.Expect(count, count);
  const int64_t axis = call.Attr<int64_t>("axis");
  const int64_t num_keys = call.Attr<int64_t>("num_keys");
  if (num_keys < 1 || num_keys > count) {
    rlx::InvalidArgument(call.name() + ": num_keys must be from 1 to the number of operands; got " +
                         std::to_string(num_keys) + " for " + std::to_string(count) + ".");
  }
  const rlx::Tensor first = call.Arg(0);
  if (axis < 0 || axis >= first.rank) {
    rlx::InvalidArgument(call.name() + ": axis must be one of " + first.ShapeText() + "; got " +
                         std::to_string(axis) + ".");
  }
  std::vector<rlx::SortOperand> operands;
  for (int64_t i = 0; i < count; ++i) {
    const rlx::Tensor in = call.Arg(i);
    const rlx::Tensor out = call.Result(i, in.dtype);
    if (in.ShapeText() != first.ShapeText() || out.ShapeText() != first.ShapeText()) {
      rlx::InvalidArgument(call.name() + ": operands and results must have one shape; got " +
                           first.ShapeText() + ", " + in.ShapeText() + " and " + out.ShapeText() +
                           ".");
    }
    rlx::SortOperand operand = {in.data, out.data, BytesOf(in.dtype), rlx::ElementType::kU8};
    if (operand.bytes == 0 || (i < num_keys && !rlx::ElementTypeOf(in.dtype, &operand.type))) {
      rlx::InvalidArgument(call.name() + ": operand " + std::to_string(i) +
                           " has an element type that is not sorted: " +
                           std::to_string(in.dtype) + " (numbers of xla::PrimitiveType).");
    }
    operands.push_back(operand);
  }
  const int64_t n = first.dim(axis);
  if (n > std::numeric_limits<int32_t>::max()) {
    rlx::InvalidArgument(call.name() + ": an axis of at most 2^31 - 1 elements is sorted; got " +
                         first.ShapeText() + ".");
  }
  rlx::Sort(call, operands, first.Count(0, axis), n, first.Count(axis + 1, first.rank), num_keys);
}

}  // namespace

RLX_HANDLER(rlx_sort_cpu, SortHandler)
