// Types of elements as XLA names them and as cores do.
#ifndef RLX_KERNELS_ELEMENT_TYPES_H_
#define RLX_KERNELS_ELEMENT_TYPES_H_

#include "handler.h"
#include "numbers.h"

namespace rlx {

// False for a type that cores do not read.
inline bool ElementTypeOf(XLA_FFI_DataType dtype, ElementType* type) {
  switch (dtype) {
    case XLA_FFI_DataType_PRED: *type = ElementType::kU8; return true;
    case XLA_FFI_DataType_U8: *type = ElementType::kU8; return true;
    case XLA_FFI_DataType_S8: *type = ElementType::kI8; return true;
    case XLA_FFI_DataType_U16: *type = ElementType::kU16; return true;
    case XLA_FFI_DataType_S16: *type = ElementType::kI16; return true;
    case XLA_FFI_DataType_U32: *type = ElementType::kU32; return true;
    case XLA_FFI_DataType_S32: *type = ElementType::kI32; return true;
    case XLA_FFI_DataType_U64: *type = ElementType::kU64; return true;
    case XLA_FFI_DataType_S64: *type = ElementType::kI64; return true;
    case XLA_FFI_DataType_BF16: *type = ElementType::kBf16; return true;
    case XLA_FFI_DataType_F16: *type = ElementType::kF16; return true;
    case XLA_FFI_DataType_F32: *type = ElementType::kF32; return true;
    case XLA_FFI_DataType_F64: *type = ElementType::kF64; return true;
    default: return false;
  }
}

}  // namespace rlx

#endif  // RLX_KERNELS_ELEMENT_TYPES_H_
