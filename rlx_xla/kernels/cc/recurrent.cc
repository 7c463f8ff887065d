// Handlers of recurrent.h: rlx_recurrent_<dtype>_cpu(x, w_ih, w_hh, bias[, hidden bias of a GRU]
// [, h0[, c0 of an LSTM][, mask: pred]]) -> y[, h[, c]]; attributes `kind` (the order of rlx::RecurrentKind),
// `hidden_size`, `num_layers`: s64, `bidirectional`, `carry`: bool.
#include "recurrent.h"

#include "handler.h"

namespace {

template <typename T>
void RecurrentHandler(const rlx::Call& call) {
  constexpr XLA_FFI_DataType kType = rlx::DataTypeOf<T>::value;
  const int64_t kind = call.Attr<int64_t>("kind");
  const bool carry = call.Attr<bool>("carry");
  rlx::RecurrentShape s = {};
  s.hidden = call.Attr<int64_t>("hidden_size");
  s.layers = call.Attr<int64_t>("num_layers");
  s.directions = call.Attr<bool>("bidirectional") ? 2 : 1;
  constexpr int64_t kMost = 1 << 16;  // whose products do not overflow
  if (kind < 0 || kind > static_cast<int64_t>(rlx::RecurrentKind::kGruResetFirst) || s.hidden < 1 ||
      s.layers < 1 || s.hidden > kMost || s.layers > kMost) {
    rlx::InvalidArgument(call.name() + ": kind from 0 to 4, hidden_size and num_layers from 1 to "
                         "65536 are required; got " + std::to_string(kind) + ", " +
                         std::to_string(s.hidden) + " and " + std::to_string(s.layers) + ".");
  }
  s.kind = static_cast<rlx::RecurrentKind>(kind);
  const bool gru = rlx::IsGru(s.kind);
  const int64_t states = s.kind == rlx::RecurrentKind::kLstm ? 2 : 1;
  const int64_t plain = gru ? 5 : 4;
  const int64_t given = plain + (carry ? states : 0);  // before a mask
  const bool masked = carry && call.ArgCount() > given;
  call.Expect(given + (masked ? 1 : 0), 1 + (carry ? states : 0));
  const rlx::Tensor x = call.Arg(0, kType), w_ih = call.Arg(1, kType), w_hh = call.Arg(2, kType),
                    y = call.Result(0, kType);
  const auto refuse = [&] {
    rlx::InvalidArgument(call.name() + ": x [B, S, I], weights, biases and states of " +
                         std::to_string(s.layers) + " layers of " + std::to_string(s.hidden) +
                         " units in " + std::to_string(s.directions) + " directions are required; "
                         "got " + x.ShapeText() + ", " + w_ih.ShapeText() + ", " +
                         w_hh.ShapeText() + " -> " + y.ShapeText() + ".");
  };
  if (x.rank != 3) refuse();
  s.batch = x.dim(0);
  s.steps = x.dim(1);
  s.width = x.dim(2);
  const int64_t rows = rlx::GatesOf(s.kind) * s.hidden;
  const int64_t ways = s.layers * s.directions;
  const int64_t later = (s.layers - 1) * s.directions * s.hidden;
  if (w_ih.size() != s.directions * rows * (s.width + later) ||
      w_hh.size() != ways * rows * s.hidden ||
      y.size() != s.batch * s.steps * s.directions * s.hidden) {
    refuse();
  }
  for (int64_t i = 3; i < given; ++i) {
    const int64_t wanted = i < plain ? ways * rows : ways * s.batch * s.hidden;
    if (call.Arg(i, kType).size() != wanted) refuse();
  }
  for (int64_t i = 1; i < call.ResultCount(); ++i) {
    if (call.Result(i, kType).size() != ways * s.batch * s.hidden) refuse();
  }
  if (masked) {
    const rlx::Tensor mask = call.Arg(given, XLA_FFI_DataType_PRED);
    if (mask.rank != 2 || mask.dim(0) != s.batch || mask.dim(1) != s.steps) {
      rlx::InvalidArgument(call.name() + ": a mask [" + std::to_string(s.batch) + ", " +
                           std::to_string(s.steps) + "] is required; got " + mask.ShapeText() +
                           ".");
    }
  }
  rlx::RecurrentData<T> data = {};
  if (masked) data.mask = call.Arg(given).As<const uint8_t>();
  data.x = x.As<const T>();
  data.w_ih = w_ih.As<const T>();
  data.w_hh = w_hh.As<const T>();
  data.bias = call.Arg(3).As<const T>();
  data.y = y.As<T>();
  if (gru) data.hidden_bias = call.Arg(4).As<const T>();
  if (carry) {
    data.first_hidden = call.Arg(plain).As<const T>();
    data.last_hidden = call.Result(1).As<T>();
    if (states == 2) {
      data.first_cell = call.Arg(plain + 1).As<const T>();
      data.last_cell = call.Result(2).As<T>();
    }
  }
  rlx::Recurrent(call, s, data);
}

}  // namespace

RLX_HANDLER(rlx_recurrent_f32_cpu, RecurrentHandler<float>)
RLX_HANDLER(rlx_recurrent_bf16_cpu, RecurrentHandler<rlx::Bf16>)
RLX_HANDLER(rlx_recurrent_f16_cpu, RecurrentHandler<rlx::F16>)
