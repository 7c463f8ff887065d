// Handlers of blocks.h, minifloat.h and products.h; y has x's dtype:
//   rlx_dequant_matmul_gguf_cpu(x[..., k], weight[n, bytes]) for rows of blocks, attribute `scheme`:
//     s64, the numbers of GGUF's tensor types;
//   rlx_dequant_matmul_gguf_pick_cpu(x, index, weights …): the same, with one of several weights;
//   rlx_dequant_matmul_int<8|4>_cpu(x, codes, scale[blocks, n], zero, optional), attribute `block`;
//   rlx_dequant_matmul_fp8e<4m3|5m2>_cpu(x, codes[k, n], scale[n], optional);
//   rlx_dequant_matmul_nvfp4_cpu(x, codes, scale[k / 16, n], scale of all, optional).
#include "blocks.h"
#include "handler.h"
#include "minifloat.h"
#include "picked.h"
#include "products.h"

namespace {

using rlx::MatmulShape;
using rlx::Tensor;

// y of x and weights. Sixteen-bit numbers are widened before and rounded after: one product for
// each kind of weights keeps the library small.
template <typename Weights>
void Run(const rlx::Call& call, const MatmulShape& shape, const Tensor& x, const Weights& weights,
         const Tensor& y) {
  const auto of = [&](int64_t) { return weights; };
  const auto sixteen = [&](auto* type) {
    using X = std::remove_pointer_t<decltype(type)>;
    const rlx::Scratch<float> wide(x.size());
    const rlx::Scratch<float> made(y.size());
    rlx::matmul::WidenRow(x.As<const X>(), x.size(), /*ahead=*/0, wide.get());
    rlx::Product(call, shape, static_cast<const float*>(wide.get()), of, made.get());
    rlx::matmul::NarrowRow(made.get(), y.size(), y.As<X>());
  };
  switch (x.dtype) {
    case XLA_FFI_DataType_F32:
      return rlx::Product(call, shape, x.As<const float>(), of, y.As<float>());
    case XLA_FFI_DataType_BF16: return sixteen(static_cast<rlx::Bf16*>(nullptr));
    case XLA_FFI_DataType_F16: return sixteen(static_cast<rlx::F16*>(nullptr));
    default:
      rlx::InvalidArgument(call.name() + ": x must be f32, bf16 or f16; got element type " +
                           std::to_string(x.dtype) + " (numbers of xla::PrimitiveType).");
  }
}

// The shape of x[..., k] times a matrix of k and n; x and y are checked.
MatmulShape ShapeOf(const rlx::Call& call, const Tensor& x, const Tensor& y, int64_t k, int64_t n,
                    bool by_rows) {
  const MatmulShape shape = {1, x.rank > 0 ? x.Count(0, x.rank - 1) : 0, k, n, by_rows};
  if (x.rank < 1 || x.dim(x.rank - 1) != k || y.size() != shape.rows * n) {
    rlx::InvalidArgument(call.name() + ": x[..., " + std::to_string(k) + "] and a result [..., " +
                         std::to_string(n) + "] are required; got " + x.ShapeText() + " -> " +
                         y.ShapeText() + ".");
  }
  return shape;
}

template <typename Block>
void RunBlocks(const rlx::Call& call, int64_t at) {
  const Tensor x = call.Arg(0);
  const Tensor weight = call.Arg(at, XLA_FFI_DataType_U8);
  const Tensor y = call.Result(0, x.dtype);
  if (weight.rank != 2 || weight.dim(1) % Block::kBytes != 0) {
    rlx::InvalidArgument(call.name() + ": a weight [n, bytes] of whole blocks of " +
                         std::to_string(Block::kBytes) + " bytes is required; got " +
                         weight.ShapeText() + ".");
  }
  const int64_t k = weight.dim(1) / Block::kBytes * Block::kElements;
  const MatmulShape shape = ShapeOf(call, x, y, k, weight.dim(0), /*by_rows=*/true);
  const rlx::blocks::RowsOfBlocks<Block> weights = {weight.As<const uint8_t>(), k};
  Run(call, shape, x, weights, y);
}

// The product with operand `at`.
void BlocksProduct(const rlx::Call& call, int64_t at) {
  const int64_t scheme = call.Attr<int64_t>("scheme");
  switch (scheme) {
    case 2: return RunBlocks<rlx::blocks::Q4_0>(call, at);
    case 3: return RunBlocks<rlx::blocks::Q4_1>(call, at);
    case 6: return RunBlocks<rlx::blocks::Q5_0>(call, at);
    case 7: return RunBlocks<rlx::blocks::Q5_1>(call, at);
    case 8: return RunBlocks<rlx::blocks::Q8_0>(call, at);
    case 10: return RunBlocks<rlx::blocks::Q2_K>(call, at);
    case 11: return RunBlocks<rlx::blocks::Q3_K>(call, at);
    case 12: return RunBlocks<rlx::blocks::Q4_K>(call, at);
    case 13: return RunBlocks<rlx::blocks::Q5_K>(call, at);
    case 14: return RunBlocks<rlx::blocks::Q6_K>(call, at);
    case 15: return RunBlocks<rlx::blocks::Q8_K>(call, at);
    case 20: return RunBlocks<rlx::blocks::Iq4Nl>(call, at);
    case 23: return RunBlocks<rlx::blocks::Iq4Xs>(call, at);
    case 35: return RunBlocks<rlx::blocks::Tq2_0>(call, at);
    case 39: return RunBlocks<rlx::blocks::Mxfp4>(call, at);
    case 40: return RunBlocks<rlx::blocks::Nvfp4>(call, at);
    default:
      rlx::InvalidArgument(call.name() + ": a known tensor type of GGUF is required; got " +
                           std::to_string(scheme) + ".");
  }
}

void BlocksHandler(const rlx::Call& call) {
  call.Expect(/*args=*/2, /*results=*/1);
  BlocksProduct(call, 1);
}

void BlocksPickHandler(const rlx::Call& call) { BlocksProduct(call, rlx::PickedArg(call)); }

template <bool kNibbles>
void CodesHandler(const rlx::Call& call) {
  const bool has_zero = call.ArgCount() == 4;
  call.Expect(has_zero ? 4 : 3, /*results=*/1);
  const int64_t block = call.Attr<int64_t>("block");
  const Tensor x = call.Arg(0);
  const Tensor codes = call.Arg(1, kNibbles ? XLA_FFI_DataType_U8 : XLA_FFI_DataType_S8);
  const Tensor scale = call.Arg(2, XLA_FFI_DataType_F32);
  const Tensor y = call.Result(0, x.dtype);
  const int64_t k = x.rank > 0 ? x.dim(x.rank - 1) : 0;
  const int64_t n = scale.rank == 2 ? scale.dim(1) : 0;
  const bool odd = kNibbles && n % 2 != 0;
  if (block < 1 || scale.rank != 2 || scale.dim(0) != (k + block - 1) / block || odd ||
      codes.size() != (kNibbles ? k * n / 2 : k * n)) {
    rlx::InvalidArgument(call.name() + ": codes [k, n]" + (kNibbles ? ", two a byte, n even," : "") +
                         " and scale [k / " + std::to_string(block) + ", n] are required; got " +
                         x.ShapeText() + " times " + codes.ShapeText() + " and " +
                         scale.ShapeText() + ".");
  }
  const float* zero = nullptr;
  if (has_zero) {
    const Tensor given = call.Arg(3, XLA_FFI_DataType_F32);
    if (given.ShapeText() != scale.ShapeText()) {
      rlx::InvalidArgument(call.name() + ": zero must have the shape of scale, " +
                           scale.ShapeText() + "; got " + given.ShapeText() + ".");
    }
    zero = given.As<const float>();
  }
  const MatmulShape shape = ShapeOf(call, x, y, k, n, /*by_rows=*/false);
  const rlx::blocks::ColumnsOfCodes<kNibbles> weights = {
      codes.As<const uint8_t>(), scale.As<const float>(), zero, block, n};
  Run(call, shape, x, weights, y);
}

template <rlx::blocks::Byte kByte>
void BytesHandler(const rlx::Call& call) {
  const bool has_scale = call.ArgCount() == 3;
  call.Expect(has_scale ? 3 : 2, /*results=*/1);
  const Tensor x = call.Arg(0);
  const Tensor codes = call.Arg(1, XLA_FFI_DataType_U8);
  const Tensor y = call.Result(0, x.dtype);
  if (codes.rank != 2) {
    rlx::InvalidArgument(call.name() + ": codes [k, n] are required; got " + codes.ShapeText() +
                         ".");
  }
  const int64_t k = codes.dim(0);
  const int64_t n = codes.dim(1);
  const float* scale = nullptr;
  if (has_scale) {
    const Tensor given = call.Arg(2, XLA_FFI_DataType_F32);
    if (given.size() != n) {
      rlx::InvalidArgument(call.name() + ": a scale for each column of " + codes.ShapeText() +
                           " is required; got " + given.ShapeText() + ".");
    }
    scale = given.As<const float>();
  }
  const MatmulShape shape = ShapeOf(call, x, y, k, n, /*by_rows=*/false);
  const rlx::blocks::ColumnsOfBytes<kByte> weights = {codes.As<const uint8_t>(), scale, n};
  Run(call, shape, x, weights, y);
}

void Nvfp4Handler(const rlx::Call& call) {
  const bool has_whole = call.ArgCount() == 4;
  call.Expect(has_whole ? 4 : 3, /*results=*/1);
  const Tensor x = call.Arg(0);
  const Tensor codes = call.Arg(1, XLA_FFI_DataType_U8);
  const Tensor scale = call.Arg(2, XLA_FFI_DataType_U8);
  const Tensor y = call.Result(0, x.dtype);
  constexpr int64_t kGroup = rlx::blocks::ColumnsOfNvfp4::kGroup;
  const int64_t k = x.rank > 0 ? x.dim(x.rank - 1) : 0;
  const int64_t n = scale.rank == 2 ? scale.dim(1) : 0;
  if (scale.rank != 2 || scale.dim(0) != (k + kGroup - 1) / kGroup || n % 2 != 0 ||
      codes.size() != k * n / 2) {
    rlx::InvalidArgument(call.name() + ": codes [k, n], two a byte, n even, and scale [k / 16, n] "
                         "are required; got " + x.ShapeText() + " times " + codes.ShapeText() +
                         " and " + scale.ShapeText() + ".");
  }
  const float* whole = nullptr;
  if (has_whole) {
    const Tensor given = call.Arg(3, XLA_FFI_DataType_F32);
    if (given.size() != 1) {
      rlx::InvalidArgument(call.name() + ": one scale for all is required; got " +
                           given.ShapeText() + ".");
    }
    whole = given.As<const float>();
  }
  const MatmulShape shape = ShapeOf(call, x, y, k, n, /*by_rows=*/false);
  const rlx::blocks::ColumnsOfNvfp4 weights = {codes.As<const uint8_t>(),
                                               scale.As<const uint8_t>(), whole, n};
  Run(call, shape, x, weights, y);
}

}  // namespace

RLX_HANDLER(rlx_dequant_matmul_gguf_cpu, BlocksHandler)
RLX_HANDLER(rlx_dequant_matmul_gguf_pick_cpu, BlocksPickHandler)
RLX_HANDLER(rlx_dequant_matmul_int8_cpu, CodesHandler<false>)
RLX_HANDLER(rlx_dequant_matmul_int4_cpu, CodesHandler<true>)
RLX_HANDLER(rlx_dequant_matmul_fp8e4m3_cpu, BytesHandler<rlx::blocks::Byte::kE4m3>)
RLX_HANDLER(rlx_dequant_matmul_fp8e5m2_cpu, BytesHandler<rlx::blocks::Byte::kE5m2>)
RLX_HANDLER(rlx_dequant_matmul_nvfp4_cpu, Nvfp4Handler)
