// Handlers of dequant_int8.h, y of x's dtype; attribute `scheme`: s64, the numbers of GGUF's tensor
// types:
//   rlx_dequant_matmul_int8_rows_cpu(x[..., k], weight[n, bytes]);
//   rlx_dequant_matmul_int8_pick_cpu(x[..., k], index, weights[n, bytes] …), which reads one;
// and of columns_int8.h, attribute `block`, a multiple of 32:
//   rlx_dequant_matmul_int8_codes<8|4>_cpu(x, codes, scale[blocks, n], zero, optional).
#include "dequant_int8.h"

#include "codes_call.h"
#include "columns_int8.h"
#include "handler.h"
#include "picked.h"

namespace {

using rlx::Tensor;

template <typename Block>
void Run(const rlx::Call& call, int64_t at) {
  const Tensor x = call.Arg(0);
  const Tensor weight = call.Arg(at, XLA_FFI_DataType_U8);
  const Tensor y = call.Result(0, x.dtype);
  const int64_t n = weight.rank == 2 ? weight.dim(0) : 0;
  const int64_t blocks = weight.rank == 2 ? weight.dim(1) / Block::kBytes : 0;
  const int64_t k = blocks * Block::kElements;
  const int64_t rows = x.rank > 0 ? x.Count(0, x.rank - 1) : 0;
  if (weight.rank != 2 || weight.dim(1) % Block::kBytes != 0 || x.rank < 1 ||
      x.dim(x.rank - 1) != k || y.size() != rows * n) {
    rlx::InvalidArgument(call.name() + ": x[..., k] and a weight [n, bytes] of whole blocks of " +
                         std::to_string(Block::kBytes) + " bytes are required; got " +
                         x.ShapeText() + ", " + weight.ShapeText() + " -> " + y.ShapeText() + ".");
  }
  const auto* bytes = weight.As<const uint8_t>();
  switch (x.dtype) {
    case XLA_FFI_DataType_F32:
      return rlx::int8::Matmul<Block>(call, x.As<const float>(), rows, k, bytes, n, y.As<float>());
    case XLA_FFI_DataType_BF16:
      return rlx::int8::Matmul<Block>(call, x.As<const rlx::Bf16>(), rows, k, bytes, n,
                                      y.As<rlx::Bf16>());
    case XLA_FFI_DataType_F16:
      return rlx::int8::Matmul<Block>(call, x.As<const rlx::F16>(), rows, k, bytes, n,
                                      y.As<rlx::F16>());
    default:
      rlx::InvalidArgument(call.name() + ": x must be f32, bf16 or f16; got element type " +
                           std::to_string(x.dtype) + " (numbers of xla::PrimitiveType).");
  }
}

// The product with operand `at`.
void Product(const rlx::Call& call, int64_t at) {
  const int64_t scheme = call.Attr<int64_t>("scheme");
  switch (scheme) {
    case 2: return Run<rlx::int8::Q4_0>(call, at);
    case 3: return Run<rlx::int8::Q4_1>(call, at);
    case 6: return Run<rlx::int8::Q5_0>(call, at);
    case 7: return Run<rlx::int8::Q5_1>(call, at);
    case 8: return Run<rlx::int8::Q8_0>(call, at);
    case 12: return Run<rlx::int8::Q4_K>(call, at);
    case 13: return Run<rlx::int8::Q5_K>(call, at);
    case 14: return Run<rlx::int8::Q6_K>(call, at);
    default:
      rlx::InvalidArgument(call.name() + ": a known tensor type of GGUF is required; got " +
                           std::to_string(scheme) + ".");
  }
}

void RowsHandler(const rlx::Call& call) {
  call.Expect(/*args=*/2, /*results=*/1);
  Product(call, 1);
}

void PickHandler(const rlx::Call& call) { Product(call, rlx::PickedArg(call)); }

template <bool kNibbles>
void CodesHandler(const rlx::Call& call) {
  const rlx::blocks::ColumnsOfCodes<kNibbles> weights = rlx::CodesOf<kNibbles>(call, /*unit=*/32);
  const Tensor x = call.Arg(0);
  const Tensor y = call.Result(0, x.dtype);
  const int64_t k = x.rank > 0 ? x.dim(x.rank - 1) : 0;
  const int64_t rows = x.rank > 0 ? x.Count(0, x.rank - 1) : 0;
  if (x.rank < 1 || y.size() != rows * weights.cols) {
    rlx::InvalidArgument(call.name() + ": x[..., k] and a result [..., " +
                         std::to_string(weights.cols) + "] are required; got " + x.ShapeText() +
                         " -> " + y.ShapeText() + ".");
  }
  switch (x.dtype) {
    case XLA_FFI_DataType_F32:
      return rlx::columns::RoundedProduct(call, weights, rows, k, x.As<const float>(),
                                          y.As<float>());
    case XLA_FFI_DataType_BF16:
      return rlx::columns::RoundedProduct(call, weights, rows, k, x.As<const rlx::Bf16>(),
                                          y.As<rlx::Bf16>());
    case XLA_FFI_DataType_F16:
      return rlx::columns::RoundedProduct(call, weights, rows, k, x.As<const rlx::F16>(),
                                          y.As<rlx::F16>());
    default:
      rlx::InvalidArgument(call.name() + ": x must be f32, bf16 or f16; got element type " +
                           std::to_string(x.dtype) + " (numbers of xla::PrimitiveType).");
  }
}

}  // namespace

RLX_HANDLER(rlx_dequant_matmul_int8_rows_cpu, RowsHandler)
RLX_HANDLER(rlx_dequant_matmul_int8_pick_cpu, PickHandler)
RLX_HANDLER(rlx_dequant_matmul_int8_codes8_cpu, CodesHandler<false>)
RLX_HANDLER(rlx_dequant_matmul_int8_codes4_cpu, CodesHandler<true>)
