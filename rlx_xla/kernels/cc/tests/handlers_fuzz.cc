// A fuzzer of the handlers: calls as XLA makes them, some of them wrong. A call that fits succeeds;
// any other one either succeeds or is refused with INVALID_ARGUMENT and the handler's name, before
// anything beyond a buffer is read or written. Buffers have their exact sizes, so that a truncated
// weight, a wrong count of blocks or a wrong type would be seen.
//
// By itself it makes its own bytes: handlers_fuzz [inputs] [seed]; the seed is drawn, and printed.
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "fuzzing.h"
#include "xla/ffi/api/c_api.h"

#define RLX_EACH_HANDLER(X)                                                                   \
  X(rlx_argreduce_f32_cpu) X(rlx_argreduce_f64_cpu) X(rlx_argreduce_i32_cpu)                  \
  X(rlx_attention_f32_cpu) X(rlx_attention_bf16_cpu) X(rlx_attention_f16_cpu)                 \
  X(rlx_attention_backward_f32_cpu) X(rlx_attention_backward_bf16_cpu)                        \
  X(rlx_conv_f32_cpu) X(rlx_conv_bf16_cpu) X(rlx_conv_f16_cpu)                                \
  X(rlx_cumulative_f32_cpu) X(rlx_cumulative_f16_cpu) X(rlx_cumulative_i64_cpu)               \
  X(rlx_dequant_matmul_gguf_cpu) X(rlx_dequant_matmul_int8_rows_cpu)                          \
  X(rlx_dequant_matmul_int8_cpu) X(rlx_dequant_matmul_int4_cpu)                               \
  X(rlx_dequant_matmul_fp8e4m3_cpu) X(rlx_dequant_matmul_fp8e5m2_cpu)                         \
  X(rlx_dequant_matmul_nvfp4_cpu) X(rlx_dequant_matmul_mlx_cpu)                               \
  X(rlx_dequant_matmul_int8_codes8_cpu) X(rlx_dequant_matmul_int8_codes4_cpu)                 \
  X(rlx_dequant_matmul_mx4_cpu) X(rlx_dequant_matmul_mx8_cpu)                                 \
  X(rlx_matmul_f32_cpu) X(rlx_matmul_bf16_cpu) X(rlx_matmul_f16_cpu)                          \
  X(rlx_pool_max_f32_cpu) X(rlx_pool_sum_bf16_cpu) X(rlx_pool_backward_f32_cpu)               \
  X(rlx_recurrent_f32_cpu) X(rlx_recurrent_f16_cpu)                                           \
  X(rlx_selective_scan_f32_cpu) X(rlx_selective_scan_bf16_cpu)                                \
  X(rlx_gated_delta_net_f32_cpu) X(rlx_gated_delta_net_f16_cpu)                               \
  X(rlx_sort_cpu) X(rlx_top_k_f32_cpu) X(rlx_top_k_bf16_cpu) X(rlx_top_k_i32_cpu)

#define RLX_DECLARE(symbol) extern "C" XLA_FFI_Error* symbol(XLA_FFI_CallFrame*);
RLX_EACH_HANDLER(RLX_DECLARE)
#undef RLX_DECLARE

struct XLA_FFI_Error {
  XLA_FFI_Error_Code code;
  std::string text;
};

namespace {

using rlx::testing::Bytes;
using rlx::testing::Exactly;
using Dims = std::vector<int64_t>;

constexpr XLA_FFI_DataType kF32 = XLA_FFI_DataType_F32, kU8 = XLA_FFI_DataType_U8,
                           kI32 = XLA_FFI_DataType_S32, kI8 = XLA_FFI_DataType_S8;

struct Operand {
  XLA_FFI_DataType dtype;
  Dims dims;
};

// A whole number of 64 bits, a float of 32 or a bool, by its dtype.
struct Attribute {
  std::string name;
  XLA_FFI_DataType dtype;
  int64_t number;
  float real;
};

Attribute Int(const char* name, int64_t number) { return {name, XLA_FFI_DataType_S64, number, 0}; }
Attribute Bool(const char* name, bool value) { return {name, XLA_FFI_DataType_PRED, value, 0}; }
Attribute Real(const char* name, float value) { return {name, kF32, 0, value}; }

struct Sketch {
  std::vector<Operand> args;
  std::vector<Operand> rets;
  std::vector<Attribute> attrs;
};

bool Has(const std::string& symbol, const char* part) {
  return symbol.find(part) != std::string::npos;
}

XLA_FFI_DataType TypeIn(const std::string& symbol) {
  if (Has(symbol, "_bf16_")) return XLA_FFI_DataType_BF16;
  if (Has(symbol, "_f16_")) return XLA_FFI_DataType_F16;
  if (Has(symbol, "_f64_")) return XLA_FFI_DataType_F64;
  if (Has(symbol, "_i64_")) return XLA_FFI_DataType_S64;
  if (Has(symbol, "_i32_")) return kI32;
  return kF32;
}

XLA_FFI_DataType SomeFloat(Bytes* in) {
  constexpr XLA_FFI_DataType kTypes[] = {kF32, XLA_FFI_DataType_BF16, XLA_FFI_DataType_F16};
  return kTypes[in->Below(3)];
}

Sketch Attention(Bytes* in, XLA_FFI_DataType type, bool backward) {
  const int64_t b = 1 + in->Below(2), kv = 1 + in->Below(2), heads = kv * (1 + in->Below(2));
  const int64_t queries = in->Below(9), keys = in->Below(9), depth = 1 + in->Below(20);
  const int64_t v_depth = 1 + in->Below(20), mask = in->Below(6);
  const bool first = in->Next() % 2;
  const auto tensor = [&](int64_t steps, int64_t count, int64_t width) {
    return Operand{type, first ? Dims{b, count, steps, width} : Dims{b, steps, count, width}};
  };
  Sketch s = {{tensor(queries, heads, depth), tensor(keys, kv, depth), tensor(keys, kv, v_depth)},
              {},
              {Int("mask", mask), Int("empty_rows", in->Below(3)), Int("num_heads", heads),
               Int("head_dim", depth), Bool("heads_first", first), Real("scale", 0.5f),
               Real("softcap", in->Next() % 2 ? 2.0f : 0.0f), Int("window", in->Below(5))}};
  const Operand y = tensor(queries, heads, v_depth);
  if (backward) {
    s.attrs.push_back(Int("wrt", 4));
    s.rets = s.args;
    s.args.push_back(y);
  } else {
    s.rets = {y};
  }
  if (mask == 3) s.args.push_back({kU8, {in->Next() % 2 ? b : 1, 1, queries, keys}});
  if (mask == 4) s.args.push_back({kF32, {1, heads, 1, keys}});
  if (mask == 5) s.args.push_back({kI32, {b}});
  return s;
}

Sketch Conv(Bytes* in, XLA_FFI_DataType type) {
  const bool last = in->Next() % 2;
  const int64_t groups = 1 + in->Below(3), features = 1 + in->Below(9);
  const int64_t out = groups * (1 + in->Below(9)), b = in->Below(3);
  const int64_t h = 1 + in->Below(8), w = 1 + in->Below(8), kh = 1 + in->Below(3);
  const int64_t kw = 1 + in->Below(3), oh = in->Below(8), ow = in->Below(8);
  Sketch s = {{}, {}, {Bool("channels_last", last), Int("groups", groups)}};
  for (const char* name : {"stride_h", "stride_w", "dilation_h", "dilation_w"}) {
    s.attrs.push_back(Int(name, 1 + in->Below(3)));
  }
  for (const char* name : {"low_h", "low_w"}) s.attrs.push_back(Int(name, in->Below(5) - 2));
  if (last) {
    s.args = {{type, {b, h, w, groups * features}}, {type, {kh, kw, features, out}}};
    s.rets = {{type, {b, oh, ow, out}}};
  } else {
    s.args = {{type, {b, groups * features, h, w}}, {type, {out, features, kh, kw}}};
    s.rets = {{type, {b, out, oh, ow}}};
  }
  return s;
}

Sketch Pool(Bytes* in, XLA_FFI_DataType type, bool backward) {
  const int64_t outer = in->Below(4), inner = 1 + in->Below(20);
  const Operand x = {type, {outer, in->Below(9), in->Below(9), inner}};
  const Operand y = {type, {outer, in->Below(9), in->Below(9), inner}};
  Sketch s = {{x}, {y}, {Int("axis", 1)}};
  for (const char* name : {"window_h", "window_w", "stride_h", "stride_w"}) {
    s.attrs.push_back(Int(name, 1 + in->Below(4)));
  }
  for (const char* name : {"low_h", "low_w"}) s.attrs.push_back(Int(name, in->Below(5) - 2));
  if (backward) {
    s.attrs.push_back(Bool("greatest", in->Next() % 2));
    s.args = {y, x};
    s.rets = {x};
  }
  return s;
}

// Rows of blocks: the schemes by GGUF's number, with the bytes and elements of a block.
Sketch Blocks(Bytes* in, bool rounded) {
  struct Scheme {
    int64_t number, bytes, elements;
  };
  constexpr Scheme kSchemes[] = {
      {2, 18, 32},    {3, 20, 32},    {6, 22, 32},    {7, 24, 32},    {8, 34, 32},   {12, 144, 256},
      {13, 176, 256}, {14, 210, 256}, {10, 84, 256},  {11, 110, 256}, {15, 292, 256}, {20, 18, 32},
      {23, 136, 256}, {35, 66, 256},  {39, 17, 32},   {40, 36, 64},   {16, 66, 256}, {17, 74, 256},
      {18, 98, 256},  {19, 50, 256},  {21, 110, 256}, {22, 82, 256},  {29, 56, 256}, {34, 54, 256}};
  const Scheme scheme = kSchemes[in->Below(rounded ? 8 : 24)];
  const int64_t rows = in->Below(12), n = in->Below(20), blocks = in->Below(4);
  const XLA_FFI_DataType type = SomeFloat(in);
  return {{{type, {rows, blocks * scheme.elements}}, {kU8, {n, blocks * scheme.bytes}}},
          {{type, {rows, n}}},
          {Int("scheme", scheme.number)}};
}

// Matrices of codes, by columns.
Sketch Codes(Bytes* in, const std::string& symbol) {
  const int64_t rows = in->Below(12), k = in->Below(40), n = 2 * in->Below(20);
  const bool rounded = Has(symbol, "codes");
  const int64_t block =
      Has(symbol, "nvfp4") ? 16 : rounded ? 32 * (1 + in->Below(9)) : 1 + in->Below(20);
  const int64_t blocks = (k + block - 1) / block;
  const XLA_FFI_DataType type = SomeFloat(in);
  const bool more = in->Next() % 2;
  Sketch s = {{{type, {rows, k}}}, {{type, {rows, n}}}, {}};
  if (Has(symbol, "fp8")) {
    s.args.push_back({kU8, {k, n}});
    if (more) s.args.push_back({kF32, {n}});
  } else if (Has(symbol, "nvfp4")) {
    s.args.insert(s.args.end(), {{kU8, {k * n / 2}}, {kU8, {blocks, n}}});
    if (more) s.args.push_back({kF32, {1}});
  } else {
    const bool nibbles = Has(symbol, "int4") || Has(symbol, "codes4");
    s.args.push_back({nibbles ? kU8 : kI8, nibbles ? Dims{k * n / 2} : Dims{k, n}});
    s.args.push_back({kF32, {blocks, n}});
    if (more) s.args.push_back({kF32, {blocks, n}});
    s.attrs = {Int("block", block)};
  }
  return s;
}

Sketch Mlx(Bytes* in) {
  constexpr int64_t kBits[] = {2, 3, 4, 5, 6, 8};
  const int64_t bits = kBits[in->Below(6)], block = int64_t{32} << in->Below(3);
  const int64_t rows = in->Below(12), n = in->Below(20), groups = in->Below(6), k = groups * block;
  const XLA_FFI_DataType type = SomeFloat(in);
  const Operand scale = {SomeFloat(in), {n, groups}};
  return {{{type, {rows, k}}, {XLA_FFI_DataType_U32, {n, k * bits / 32}}, scale, scale},
          {{type, {rows, n}}},
          {Int("bits", bits), Int("block", block)}};
}

// Rows with powers of two, of nibbles or else bytes, of one or two planes.
Sketch Mx(Bytes* in, bool nibbles) {
  const int64_t block = 32 * (1 + in->Below(3)), rows = in->Below(12), n = in->Below(20);
  const int64_t groups = in->Below(5), k = groups * block, bytes = nibbles ? k / 2 : k;
  const bool two = in->Next() % 2;
  const XLA_FFI_DataType type = SomeFloat(in);
  const Operand codes = two ? Operand{kU8, {2, n, bytes}}
                            : Operand{XLA_FFI_DataType_U32, {n, bytes / 4}};
  return {{{type, {rows, k}}, codes, {kU8, two ? Dims{2, n, groups} : Dims{n, groups}}},
          {{type, {rows, n}}},
          {Int("block", block)}};
}

Sketch Matmul(Bytes* in, XLA_FFI_DataType type) {
  const bool by_rows = in->Next() % 2, batched = in->Next() % 2;
  const int64_t b = 1 + in->Below(2), rows = in->Below(9), k = in->Below(70), n = in->Below(70);
  Operand x = {SomeFloat(in), {rows, k}}, w = {type, by_rows ? Dims{n, k} : Dims{k, n}};
  Operand y = {SomeFloat(in), {rows, n}};
  for (Operand* each : {&x, &w, &y}) {
    if (batched) each->dims.insert(each->dims.begin(), b);
  }
  return {{x, w}, {y}, {Int("batch", batched), Int("summed", 1), Int("weights", 1),
                        Bool("by_rows", by_rows)}};
}

Sketch MatmulBiasAct(Bytes* in, XLA_FFI_DataType type) {
  const int64_t rows = in->Below(20), k = in->Below(70), n = in->Below(110);
  return {{{type, {rows, k}}, {type, {k, n}}, {type, {n}}},
          {{type, {rows, n}}},
          {Int("activation", in->Below(6))}};
}

Sketch ResidualLn(Bytes* in, XLA_FFI_DataType type) {
  const int64_t rows = in->Below(5), n = in->Below(200);
  const Operand x = {type, {rows, n}}, vector = {type, {n}};
  Sketch s = {{x, x, vector, vector}, {x}, {Real("eps", 1e-5f)}};
  if (in->Next() % 2) s.args.push_back(vector);
  return s;
}

Sketch Recurrent(Bytes* in, XLA_FFI_DataType type) {
  const int64_t kind = in->Below(4), b = in->Below(10), steps = in->Below(6), width = in->Below(6);
  const int64_t hidden = 1 + in->Below(20), layers = 1 + in->Below(2);
  const bool both = in->Next() % 2, carry = in->Next() % 2;
  const int64_t ways = layers * (both ? 2 : 1), out = hidden * (both ? 2 : 1);
  const int64_t rows = hidden * (kind == 2 ? 4 : kind == 3 ? 3 : 1);
  const Operand state = {type, {ways, b, hidden}}, bias = {type, {ways, rows}};
  Sketch s = {{{type, {b, steps, width}},
               {type, {(both ? 2 : 1) * rows * (width + (layers - 1) * out)}},
               {type, {ways, rows, hidden}},
               bias},
              {{type, {b, steps, out}}},
              {Int("kind", kind), Int("hidden_size", hidden), Int("num_layers", layers),
               Bool("bidirectional", both), Bool("carry", carry)}};
  if (kind == 3) s.args.push_back(bias);
  for (int64_t i = 0; carry && i < (kind == 2 ? 2 : 1); ++i) {
    s.args.push_back(state);
    s.rets.push_back(state);
  }
  if (carry && in->Next() % 2) s.args.push_back({XLA_FFI_DataType_PRED, {b, steps}});
  return s;
}

Sketch SelectiveScan(Bytes* in, XLA_FFI_DataType type) {
  const int64_t b = in->Below(3), steps = in->Below(8), width = in->Below(70), n = in->Below(9);
  const Operand x = {type, {b, steps, width}}, along = {type, {b, steps, n}};
  return {{x, x, {type, {width, n}}, along, along}, {x}, {}};
}

Sketch GatedDelta(Bytes* in, XLA_FFI_DataType type) {
  const int64_t b = in->Below(3), steps = in->Below(8), heads = in->Below(3), n = in->Below(40);
  const Operand q = {type, {b, steps, heads, n}}, beta = {type, {b, steps, heads}};
  Sketch s = {{q, q, q, in->Next() % 2 ? beta : q, beta}, {q}, {}};
  if (in->Next() % 2) {
    s.args.push_back({type, {b, heads, n, n}});
    s.rets.push_back(s.args.back());
  }
  return s;
}

// A call that fits.
Sketch Fitting(Bytes* in, const std::string& symbol) {
  const XLA_FFI_DataType type = TypeIn(symbol);
  if (Has(symbol, "attention")) return Attention(in, type, Has(symbol, "backward"));
  if (Has(symbol, "rlx_conv")) return Conv(in, type);
  if (Has(symbol, "rlx_pool")) return Pool(in, type, Has(symbol, "backward"));
  if (Has(symbol, "gguf")) return Blocks(in, /*rounded=*/false);
  if (Has(symbol, "int8_rows")) return Blocks(in, /*rounded=*/true);
  if (Has(symbol, "mlx")) return Mlx(in);
  if (Has(symbol, "_mx")) return Mx(in, Has(symbol, "mx4"));
  if (Has(symbol, "dequant")) return Codes(in, symbol);
  if (Has(symbol, "rlx_matmul")) return Matmul(in, type);
  if (Has(symbol, "fused_matmul")) return MatmulBiasAct(in, type);
  if (Has(symbol, "residual_ln")) return ResidualLn(in, type);
  if (Has(symbol, "recurrent")) return Recurrent(in, type);
  if (Has(symbol, "selective")) return SelectiveScan(in, type);
  if (Has(symbol, "gated")) return GatedDelta(in, type);
  const int64_t outer = in->Below(4), n = 1 + in->Below(300);
  if (Has(symbol, "top_k")) {
    const int64_t k = 1 + in->Below(n);
    return {{{type, {outer, n}}},
            {{type, {outer, k}}, {kI32, {outer, k}}},
            {Bool("nan_is_lowest", in->Next() % 2)}};
  }
  const Operand x = {type, {outer, n, 1 + in->Below(9)}};
  if (Has(symbol, "argreduce")) {
    return {{x}, {{kI32, {x.dims[0], x.dims[2]}}}, {Int("axis", 1), Bool("minimum", in->Next() % 2)}};
  }
  if (Has(symbol, "cumulative")) {
    return {{x}, {x}, {Int("axis", in->Below(3)), Int("kind", in->Below(4)),
                       Bool("reverse", in->Next() % 2)}};
  }
  const Operand second = {XLA_FFI_DataType_C64, x.dims};
  return {{x, second}, {x, second}, {Int("axis", in->Below(3)), Int("num_keys", 1)}};
}

// Changes one thing about a call.
void Spoil(Bytes* in, Sketch* s) {
  constexpr int64_t kNumbers[] = {0, 1, -1, 2, 7, 64, 1 << 20, std::numeric_limits<int64_t>::max(),
                                  std::numeric_limits<int64_t>::min()};
  std::vector<Operand>& side = in->Next() % 4 == 0 ? s->rets : s->args;
  if (in->Next() % 3 == 0 && !s->attrs.empty()) {
    Attribute& attr = s->attrs[in->Below(s->attrs.size())];
    switch (in->Below(4)) {
      case 0: attr.dtype = kF32; return;
      case 1: attr.name += "_"; return;
      default:
        attr.number = kNumbers[in->Below(9)];
        if (attr.dtype == XLA_FFI_DataType_PRED) attr.number &= 1;
        return;
    }
  }
  if (side.empty()) return;
  const int64_t at = in->Below(side.size());
  Operand& x = side[at];
  switch (in->Below(6)) {
    case 0: x.dtype = static_cast<XLA_FFI_DataType>(1 + in->Below(18)); return;
    case 1: side.erase(side.begin() + at); return;
    case 2: side.push_back(side[at]); return;
    case 3:
      if (!x.dims.empty()) x.dims.erase(x.dims.begin() + in->Below(x.dims.size()));
      return;
    default:
      if (x.dims.empty()) return;
      int64_t& dim = x.dims[in->Below(x.dims.size())];
      const int64_t to[] = {0, 1, dim + 1, std::max<int64_t>(dim - 1, 0), 2 * dim, dim / 2};
      dim = to[in->Below(6)];
  }
}

int64_t BytesOf(const Operand& x) {
  int64_t count = 1;
  for (int64_t dim : x.dims) count *= dim;
  switch (x.dtype) {
    case XLA_FFI_DataType_PRED:
    case kI8:
    case kU8: return count;
    case XLA_FFI_DataType_BF16:
    case XLA_FFI_DataType_F16:
    case XLA_FFI_DataType_S16:
    case XLA_FFI_DataType_U16: return 2 * count;
    case kF32:
    case kI32:
    case XLA_FFI_DataType_U32: return 4 * count;
    case XLA_FFI_DataType_C128: return 16 * count;
    default: return 8 * count;
  }
}

XLA_FFI_Error* CreateError(XLA_FFI_Error_Create_Args* args) {
  return new XLA_FFI_Error{args->errc, args->message};
}
void DestroyError(XLA_FFI_Error_Destroy_Args* args) { delete args->error; }
XLA_FFI_Error* FourThreads(XLA_FFI_ThreadPool_NumThreads_Args* args) {
  *args->num_threads = 4;
  return nullptr;
}
XLA_FFI_Error* RunHere(XLA_FFI_ThreadPool_Schedule_Args* args) {
  args->task(args->data);
  return nullptr;
}

// Calls a handler as XLA does; returns its answer.
std::unique_ptr<XLA_FFI_Error> Run(Bytes* in, XLA_FFI_Handler* handler, Sketch* s) {
  XLA_FFI_Api api = {};
  api.struct_size = sizeof(api);
  api.XLA_FFI_Error_Create = CreateError;
  api.XLA_FFI_Error_Destroy = DestroyError;
  api.XLA_FFI_ThreadPool_NumThreads = FourThreads;
  api.XLA_FFI_ThreadPool_Schedule = RunHere;
  std::vector<std::unique_ptr<uint8_t[]>> memory;
  std::vector<XLA_FFI_Buffer> buffers;
  for (std::vector<Operand>* side : {&s->args, &s->rets}) {
    for (Operand& x : *side) {
      memory.push_back(in->Fill<uint8_t>(BytesOf(x)));
      XLA_FFI_Buffer buffer = {};
      buffer.dtype = x.dtype;
      buffer.data = memory.back().get();
      buffer.rank = static_cast<int64_t>(x.dims.size());
      buffer.dims = x.dims.data();
      buffers.push_back(buffer);
    }
  }
  std::vector<void*> pointers;
  for (XLA_FFI_Buffer& buffer : buffers) pointers.push_back(&buffer);
  std::vector<XLA_FFI_AttrType> types(s->attrs.size(), XLA_FFI_AttrType_SCALAR);
  std::vector<XLA_FFI_ByteSpan> spans;
  std::vector<XLA_FFI_Scalar> scalars;
  for (Attribute& attr : s->attrs) {
    spans.push_back({attr.name.data(), attr.name.size()});
    void* value = &attr.number;
    if (attr.dtype == kF32) value = &attr.real;
    scalars.push_back({attr.dtype, value});
  }
  std::vector<XLA_FFI_ByteSpan*> names;
  std::vector<void*> values;
  for (size_t i = 0; i < spans.size(); ++i) {
    names.push_back(&spans[i]);
    values.push_back(&scalars[i]);
  }
  XLA_FFI_CallFrame frame = {};
  frame.struct_size = sizeof(frame);
  frame.api = &api;
  frame.args.size = static_cast<int64_t>(s->args.size());
  frame.args.args = pointers.data();
  frame.rets.size = static_cast<int64_t>(s->rets.size());
  frame.rets.rets = pointers.data() + s->args.size();
  frame.attrs.size = static_cast<int64_t>(s->attrs.size());
  frame.attrs.types = types.data();
  frame.attrs.names = names.data();
  frame.attrs.attrs = values.data();
  return std::unique_ptr<XLA_FFI_Error>(handler(&frame));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  struct Entry {
    const char* symbol;
    XLA_FFI_Handler* handler;
  };
#define RLX_ENTRY(symbol) {#symbol, symbol},
  static const Entry kEntries[] = {RLX_EACH_HANDLER(RLX_ENTRY)};
#undef RLX_ENTRY
  Bytes in(data, size);
  const Entry& entry = kEntries[in.Below(sizeof(kEntries) / sizeof(Entry))];
  const int64_t wrong = in.Below(4) - 1;
  Sketch sketch = Fitting(&in, entry.symbol);
  for (int64_t i = 0; i < wrong; ++i) Spoil(&in, &sketch);
  const std::unique_ptr<XLA_FFI_Error> error = Run(&in, entry.handler, &sketch);
  if (error == nullptr) return 0;
  if (wrong <= 0) std::fprintf(stderr, "%s: %s\n", entry.symbol, error->text.c_str());
  CHECK(wrong > 0);
  CHECK(error->code == XLA_FFI_Error_Code_INVALID_ARGUMENT);
  CHECK(error->text.rfind(entry.symbol, 0) == 0);
  return 0;
}

RLX_FUZZER_MAIN("handlers_fuzz", 4000)
