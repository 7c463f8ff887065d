// Handlers of conv.h: rlx_conv_<dtype>_cpu(x, w) -> y; attributes `channels_last`: bool, and for
// both spatial axes (a missing first one has size, stride and distance 1) `groups`, `stride_h`,
// `stride_w`, `low_h`, `low_w`, `dilation_h`, `dilation_w`: s64.
#include "conv.h"

#include "handler.h"

namespace {

using rlx::Tensor;

template <typename T>
void ConvHandler(const rlx::Call& call) {
  call.Expect(/*args=*/2, /*results=*/1);
  const Tensor x = call.Arg(0, rlx::DataTypeOf<T>::value);
  const Tensor w = call.Arg(1, rlx::DataTypeOf<T>::value);
  const Tensor y = call.Result(0, rlx::DataTypeOf<T>::value);
  const bool last = call.Attr<bool>("channels_last");
  const auto refuse = [&] {
    rlx::InvalidArgument(call.name() + ": x, w and y of one or two spatial axes, " +
                         (last ? "[b, h, w, i], [h, w, i, o] and [b, h, w, o]"
                               : "[b, i, h, w], [o, i, h, w] and [b, o, h, w]") +
                         ", whose sizes fit, are required; got " + x.ShapeText() + " and " +
                         w.ShapeText() + " -> " + y.ShapeText() + ".");
  };
  if (x.rank < 3 || x.rank > 4 || w.rank != x.rank || y.rank != x.rank) refuse();
  rlx::ConvShape s = {};
  s.channels_last = last;
  s.groups = call.Attr<int64_t>("groups");
  s.batch = x.dim(0);
  s.in_channels = x.dim(last ? x.rank - 1 : 1);
  s.out_channels = y.dim(last ? y.rank - 1 : 1);
  const char* names[2][3] = {{"stride_h", "low_h", "dilation_h"},
                             {"stride_w", "low_w", "dilation_w"}};
  for (int axis = 0; axis < 2; ++axis) {
    s.stride[axis] = call.Attr<int64_t>(names[axis][0]);
    s.low[axis] = call.Attr<int64_t>(names[axis][1]);
    s.dilation[axis] = call.Attr<int64_t>(names[axis][2]);
    const int64_t at = axis - (4 - x.rank);  // among the spatial axes
    s.in[axis] = at < 0 ? 1 : x.dim(at + (last ? 1 : 2));
    s.out[axis] = at < 0 ? 1 : y.dim(at + (last ? 1 : 2));
    s.kernel[axis] = at < 0 ? 1 : w.dim(at + (last ? 0 : 2));
    if (s.stride[axis] < 1 || s.dilation[axis] < 1) refuse();
  }
  const int64_t w_in = w.dim(last ? w.rank - 2 : 1);
  const int64_t w_out = w.dim(last ? w.rank - 1 : 0);
  if (s.groups < 1 || s.in_channels != w_in * s.groups || w_out != s.out_channels ||
      s.out_channels % s.groups != 0 || y.dim(0) != s.batch ||
      w_in > rlx::conv::kMostChannels) {
    refuse();
  }
  if (y.size() == 0) return;
  rlx::Conv(call, s, x.As<const T>(), w.As<const T>(), y.As<T>());
}

}  // namespace

RLX_HANDLER(rlx_conv_f32_cpu, ConvHandler<float>)
RLX_HANDLER(rlx_conv_bf16_cpu, ConvHandler<rlx::Bf16>)
RLX_HANDLER(rlx_conv_f16_cpu, ConvHandler<rlx::F16>)
