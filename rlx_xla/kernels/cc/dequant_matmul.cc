// Handlers of blocks.h, fixed_product.h, grids.h, minifloat.h, mlx.h, mx_rows.h and products.h; y
// has x's dtype:
//   rlx_dequant_matmul_gguf_cpu(x[..., k], weight[n, bytes]) for rows of blocks, attribute `scheme`:
//     s64, the numbers of GGUF's tensor types;
//   rlx_dequant_matmul_gguf_pick_cpu(x, index, weights …): the same, with one of several weights;
//   rlx_dequant_matmul_int<8|4>_cpu(x, codes, scale[blocks, n], zero, optional), attribute `block`;
//   rlx_dequant_matmul_fp8e<4m3|5m2>_cpu(x, codes[k, n], scale[n], optional);
//   rlx_dequant_matmul_nvfp4_cpu(x, codes, scale[k / 16, n], scale of all, optional);
//   rlx_dequant_matmul_mlx_cpu(x, codes: u32[n, k * bits / 32], scale and bias [n, k / block]),
//     attributes `bits` and `block`;
//   rlx_dequant_matmul_mx<4|8>_cpu(x, codes, scale: u8[n, k / block]), codes of n rows; or codes and
//     scale[2, n, k / block] of two planes; attribute `block`, a multiple of 32.
#include "blocks.h"
#include "codes_call.h"
#include "fixed_mlx.h"
#include "fixed_product.h"
#include "grids.h"
#include "handler.h"
#include "minifloat.h"
#include "mlx.h"
#include "mx_rows.h"
#include "picked.h"
#include "products.h"

namespace {

using rlx::MatmulShape;
using rlx::Tensor;

template <typename Weights>
void FloatProduct(const rlx::Call& call, const MatmulShape& shape, const float* x,
                  const Weights& weights, float* y) {
  if (rlx::fixed::Take(call, shape, x, weights, y)) return;
  rlx::Product(call, shape, x, [&](int64_t) { return weights; }, y);
}

// y of x and weights. Sixteen-bit numbers are widened before and rounded after: one product for
// each kind of weights keeps the library small.
template <typename Weights>
void Run(const rlx::Call& call, const MatmulShape& shape, const Tensor& x, const Weights& weights,
         const Tensor& y) {
  const auto sixteen = [&](auto* type) {
    using X = std::remove_pointer_t<decltype(type)>;
    const rlx::Scratch<float> wide(x.size());
    const rlx::Scratch<float> made(y.size());
    rlx::matmul::WidenRow(x.As<const X>(), x.size(), /*ahead=*/0, wide.get());
    FloatProduct(call, shape, wide.get(), weights, made.get());
    rlx::matmul::NarrowRow(made.get(), y.size(), y.As<X>());
  };
  switch (x.dtype) {
    case XLA_FFI_DataType_F32:
      return FloatProduct(call, shape, x.As<const float>(), weights, y.As<float>());
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
    case 16: return RunBlocks<rlx::blocks::Iq2Xxs>(call, at);
    case 17: return RunBlocks<rlx::blocks::Iq2Xs>(call, at);
    case 18: return RunBlocks<rlx::blocks::Iq3Xxs>(call, at);
    case 19: return RunBlocks<rlx::blocks::Iq1S>(call, at);
    case 20: return RunBlocks<rlx::blocks::Iq4Nl>(call, at);
    case 21: return RunBlocks<rlx::blocks::Iq3S>(call, at);
    case 22: return RunBlocks<rlx::blocks::Iq2S>(call, at);
    case 23: return RunBlocks<rlx::blocks::Iq4Xs>(call, at);
    case 29: return RunBlocks<rlx::blocks::Iq1M>(call, at);
    case 34: return RunBlocks<rlx::blocks::Tq1_0>(call, at);
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
  const rlx::blocks::ColumnsOfCodes<kNibbles> weights = rlx::CodesOf<kNibbles>(call, /*unit=*/1);
  const Tensor x = call.Arg(0);
  const Tensor y = call.Result(0, x.dtype);
  const int64_t k = x.rank > 0 ? x.dim(x.rank - 1) : 0;
  const MatmulShape shape = ShapeOf(call, x, y, k, weights.cols, /*by_rows=*/false);
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

template <typename S>
void RunMlx(const rlx::Call& call, int64_t bits, int64_t block) {
  const Tensor x = call.Arg(0);
  const Tensor codes = call.Arg(1, XLA_FFI_DataType_U32);
  const Tensor scale = call.Arg(2);
  const Tensor bias = call.Arg(3, scale.dtype);
  const Tensor y = call.Result(0, x.dtype);
  const int64_t k = x.rank > 0 ? x.dim(x.rank - 1) : 0;
  const int64_t n = codes.rank == 2 ? codes.dim(0) : 0;
  if (codes.rank != 2 || k % block != 0 || codes.dim(1) != k * bits / 32 || scale.rank != 2 ||
      scale.dim(0) != n || scale.dim(1) != k / block || bias.ShapeText() != scale.ShapeText()) {
    rlx::InvalidArgument(call.name() + ": codes [n, k * " + std::to_string(bits) +
                         " / 32], and scale and bias [n, k / " + std::to_string(block) +
                         "] are required; got " + x.ShapeText() + " times " + codes.ShapeText() +
                         ", " + scale.ShapeText() + " and " + bias.ShapeText() + ".");
  }
  const MatmulShape shape = ShapeOf(call, x, y, k, n, /*by_rows=*/true);
  const rlx::mlx::Rows<S> weights = {codes.As<const uint8_t>(), scale.As<const S>(),
                                     bias.As<const S>(), k, block, static_cast<int>(bits)};
  Run(call, shape, x, weights, y);
}

void MlxHandler(const rlx::Call& call) {
  call.Expect(/*args=*/4, /*results=*/1);
  const int64_t bits = call.Attr<int64_t>("bits");
  const int64_t block = call.Attr<int64_t>("block");
  const bool known = (2 <= bits && bits <= 6) || bits == 8;
  if (!known || (block != 32 && block != 64 && block != 128)) {
    rlx::InvalidArgument(call.name() + ": bits of 2, 3, 4, 5, 6 or 8 and a block of 32, 64 or 128 "
                         "are required; got " + std::to_string(bits) + " and " +
                         std::to_string(block) + ".");
  }
  switch (call.Arg(2).dtype) {
    case XLA_FFI_DataType_F32: return RunMlx<float>(call, bits, block);
    case XLA_FFI_DataType_BF16: return RunMlx<rlx::Bf16>(call, bits, block);
    case XLA_FFI_DataType_F16: return RunMlx<rlx::F16>(call, bits, block);
    default:
      rlx::InvalidArgument(call.name() + ": scale must be f32, bf16 or f16; got element type " +
                           std::to_string(call.Arg(2).dtype) +
                           " (numbers of xla::PrimitiveType).");
  }
}

template <bool kNibbles>
void MxHandler(const rlx::Call& call) {
  call.Expect(/*args=*/3, /*results=*/1);
  const int64_t block = call.Attr<int64_t>("block");
  const Tensor x = call.Arg(0);
  const Tensor codes = call.Arg(1);
  const Tensor scale = call.Arg(2, XLA_FFI_DataType_U8);
  const Tensor y = call.Result(0, x.dtype);
  const int64_t k = x.rank > 0 ? x.dim(x.rank - 1) : 0;
  const int64_t planes = scale.rank == 3 ? 2 : 1;
  const int64_t n = scale.rank == 2 || scale.rank == 3 ? scale.dim(scale.rank - 2) : 0;
  const bool words = codes.dtype == XLA_FFI_DataType_U32;
  const int64_t bytes = codes.size() * (words ? 4 : 1);
  if (block < 32 || block % 32 != 0 || k % block != 0 || (scale.rank != 2 && scale.rank != 3) ||
      (scale.rank == 3 && scale.dim(0) != 2) || scale.dim(scale.rank - 1) != k / block ||
      (!words && codes.dtype != XLA_FFI_DataType_U8) ||
      bytes != planes * n * k / (kNibbles ? 2 : 1)) {
    rlx::InvalidArgument(call.name() + ": codes of [n, k] and scale [n, k / " +
                         std::to_string(block) + "], of one or two planes, and a block that is a "
                         "multiple of 32 are required; got " + x.ShapeText() + " times " +
                         codes.ShapeText() + " and " + scale.ShapeText() + ".");
  }
  const MatmulShape shape = ShapeOf(call, x, y, k, n, /*by_rows=*/true);
  const rlx::blocks::RowsOfMx<kNibbles> weights = {
      codes.As<const uint8_t>(), scale.As<const uint8_t>(), n, k, block, planes};
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
RLX_HANDLER(rlx_dequant_matmul_mlx_cpu, MlxHandler)
RLX_HANDLER(rlx_dequant_matmul_mx4_cpu, MxHandler<true>)
RLX_HANDLER(rlx_dequant_matmul_mx8_cpu, MxHandler<false>)
