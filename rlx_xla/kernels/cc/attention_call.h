// How the handlers of attention and of its gradients read their calls.
//
// Operands q, k, v, ..., mask; attributes `num_heads`, `head_dim`, `mask` (the order of
// rlx::AttentionMask), `window` and `empty_rows` (the order of rlx::EmptyRows): s64; `scale` and
// `softcap` (0 for none): f32; `heads_first`: bool, whether heads come before positions.
#ifndef RLX_KERNELS_ATTENTION_CALL_H_
#define RLX_KERNELS_ATTENTION_CALL_H_

#include <string>

#include "attention.h"
#include "element_types.h"
#include "handler.h"

namespace rlx {

// Sizes and strides of one operand: B, S, heads and elements of a head.
struct HeadSizes {
  int64_t batch;
  int64_t steps;
  int64_t heads;
  int64_t depth;
  HeadStrides strides;
};

// Reads the sizes of a tensor whose heads are `heads` in number where they are packed. False
// where it has none.
inline bool ReadHeads(const Tensor& x, bool heads_first, int64_t heads, HeadSizes* sizes) {
  if (x.rank == 4) {
    const int64_t step_axis = heads_first ? 2 : 1;
    const int64_t head_axis = heads_first ? 1 : 2;
    *sizes = {x.dim(0), x.dim(step_axis), x.dim(head_axis), x.dim(3), {}};
  } else if ((x.rank == 2 || x.rank == 3) && !heads_first) {
    const int64_t width = x.dim(x.rank - 1);
    if (heads <= 0 || width % heads != 0) return false;
    *sizes = {x.rank == 3 ? x.dim(0) : 1, x.dim(x.rank - 2), heads, width / heads, {}};
  } else {
    return false;
  }
  const int64_t whole = sizes->steps * sizes->heads * sizes->depth;
  sizes->strides = heads_first ? HeadStrides{whole, sizes->depth, sizes->steps * sizes->depth}
                               : HeadStrides{whole, sizes->heads * sizes->depth, sizes->depth};
  return true;
}

// The shape of a call; the mask is operand `mask_index`, where the kind of mask has one.
inline AttentionShape ReadAttention(const Call& call, int64_t mask_index) {
  AttentionShape s = {};
  const int64_t kind = call.Attr<int64_t>("mask");
  const int64_t rows = call.Attr<int64_t>("empty_rows");
  const int64_t heads = call.Attr<int64_t>("num_heads");
  const int64_t head_dim = call.Attr<int64_t>("head_dim");
  const bool heads_first = call.Attr<bool>("heads_first");
  s.scale = call.Attr<float>("scale");
  s.softcap = call.Attr<float>("softcap");
  s.window = call.Attr<int64_t>("window");
  const bool known = kind >= 0 && kind <= static_cast<int64_t>(AttentionMask::kCausalBias) &&
                     rows >= 0 && rows <= static_cast<int64_t>(EmptyRows::kUniform);
  if (!known || heads < 1 || head_dim < 1 || s.window < 0) {
    InvalidArgument(call.name() + ": a mask from 0 to 6, empty_rows from 0 to 2, num_heads and "
                    "head_dim >= 1 and window >= 0 are required; got " + std::to_string(kind) +
                    ", " + std::to_string(rows) + ", " + std::to_string(heads) + ", " +
                    std::to_string(head_dim) + " and " + std::to_string(s.window) + ".");
  }
  s.mask = static_cast<AttentionMask>(kind);
  s.empty_rows = static_cast<EmptyRows>(rows);
  const Tensor q = call.Arg(0), k = call.Arg(1), v = call.Arg(2);
  const auto refuse = [&] {
    InvalidArgument(call.name() + ": q, k and v of " + std::to_string(heads) + " heads of " +
                    std::to_string(head_dim) + " are required; got " + q.ShapeText() + ", " +
                    k.ShapeText() + " and " + v.ShapeText() + ".");
  };
  HeadSizes of_q, of_k, of_v;
  if (!ReadHeads(q, heads_first, heads, &of_q)) refuse();
  const int64_t packed = k.rank == 4 ? 1 : k.dim(k.rank - 1) / head_dim;
  if (!ReadHeads(k, heads_first, packed, &of_k)) refuse();
  if (!ReadHeads(v, heads_first, of_k.heads, &of_v)) refuse();
  if (of_q.heads != heads || of_q.depth != head_dim || of_k.depth != head_dim ||
      of_k.heads < 1 || heads % of_k.heads != 0 || of_v.heads != of_k.heads ||
      of_k.batch != of_q.batch || of_v.batch != of_q.batch || of_v.steps != of_k.steps ||
      of_k.steps > std::numeric_limits<int32_t>::max()) {
    refuse();
  }
  s.batch = of_q.batch;
  s.queries = of_q.steps;
  s.keys = of_k.steps;
  s.heads = heads;
  s.kv_heads = of_k.heads;
  s.depth = head_dim;
  s.v_depth = of_v.depth;
  s.q = of_q.strides;
  s.k = of_k.strides;
  s.v = of_v.strides;
  s.y = heads_first
            ? HeadStrides{heads * s.queries * s.v_depth, s.v_depth, s.queries * s.v_depth}
            : HeadStrides{heads * s.queries * s.v_depth, heads * s.v_depth, s.v_depth};
  if (s.mask != AttentionMask::kCustom && !attention::Biased(s) &&
      s.mask != AttentionMask::kLengths) {
    return s;
  }
  if (call.ArgCount() <= mask_index) {
    InvalidArgument(call.name() + ": a mask for custom, bias and lengths is required; got " +
                    std::to_string(call.ArgCount()) + " operands.");
  }
  const Tensor mask = call.Arg(mask_index);
  const auto refuse_mask = [&] {
    InvalidArgument(call.name() + ": a mask that broadcasts to [" + std::to_string(s.batch) +
                    ", " + std::to_string(heads) + ", " + std::to_string(s.queries) + ", " +
                    std::to_string(s.keys) + "], or numbers of keys [" + std::to_string(s.batch) +
                    "], is required; got " + mask.ShapeText() + " of element type " +
                    std::to_string(mask.dtype) + ".");
  };
  if (!ElementTypeOf(mask.dtype, &s.mask_type)) refuse_mask();
  const bool is_float = mask.dtype == XLA_FFI_DataType_BF16 ||
                        mask.dtype == XLA_FFI_DataType_F16 || mask.dtype == XLA_FFI_DataType_F32 ||
                        mask.dtype == XLA_FFI_DataType_F64;
  s.mask_data = mask.data;
  if (s.mask == AttentionMask::kLengths) {
    if (is_float || mask.rank != 1 || mask.dim(0) != s.batch) refuse_mask();
    return s;
  }
  if (attention::Biased(s) && !is_float) refuse_mask();
  const int64_t full[4] = {s.batch, heads, s.queries, s.keys};
  // [B, S_k] of kCustom stands for [B, 1, 1, S_k].
  const bool by_key = s.mask == AttentionMask::kCustom && mask.rank == 2;
  int64_t dims[4] = {1, 1, 1, 1};
  if (mask.rank > 4) refuse_mask();
  for (int64_t axis = 0; axis < mask.rank; ++axis) {
    const int64_t place = by_key ? 3 * axis : 4 - mask.rank + axis;
    dims[place] = mask.dim(axis);
    if (dims[place] != full[place] && (by_key || dims[place] != 1)) refuse_mask();
  }
  int64_t step = 1;
  for (int64_t axis = 3; axis >= 0; --axis) {
    s.mask_strides[axis] = dims[axis] == 1 ? 0 : step;
    step *= dims[axis];
  }
  return s;
}

}  // namespace rlx

#endif  // RLX_KERNELS_ATTENTION_CALL_H_
