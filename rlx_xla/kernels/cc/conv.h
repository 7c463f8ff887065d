// Convolutions of one or two spatial axes, with groups, strides, padding and distances in the kernel.
//
// Computes: y[b, o, p] = sum over i, k of x[b, i, p * stride + k * dilation - low] * w[o, i, k].
// Layout: row-major; channels last (x[b, h, w, i], w[kh, kw, i, o], y[b, h, w, o]) or channels first
//   (x[b, i, h, w], w[o, i, kh, kw], y[b, o, h, w]).
// Numerics: 16-bit floats are widened to f32; sums as in the file that takes a shape; rounded once.
// Algorithm: channels last with a kernel for each channel, depthwise.h; few channels a group,
//   conv_planes.h; one image of few places, channels first, conv_few.h; and else conv_rows.h.
#ifndef RLX_KERNELS_CONV_H_
#define RLX_KERNELS_CONV_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

#include "conv_few.h"
#include "conv_planes.h"
#include "conv_rows.h"
#include "depthwise.h"

namespace rlx {

struct ConvShape {
  int64_t batch;
  int64_t in_channels;   // of all groups
  int64_t out_channels;  // of all groups
  int64_t groups;
  int64_t in[2];  // height, width
  int64_t out[2];
  int64_t kernel[2];
  int64_t stride[2];
  int64_t low[2];  // padding before; may be negative
  int64_t dilation[2];
  bool channels_last;

  int64_t places() const { return out[0] * out[1]; }
  int64_t taps() const { return kernel[0] * kernel[1]; }
  int64_t features() const { return in_channels / groups; }  // of a group
  int64_t outputs() const { return out_channels / groups; }
};

namespace conv {

constexpr int64_t kMostChannels = 1 << 16;  // of a group, which bounds a row of zeros

inline int64_t Input(const ConvShape& s, int axis, int64_t place, int64_t tap) {
  return place * s.stride[axis] + tap * s.dilation[axis] - s.low[axis];
}

// The numbers as f32: where they lie, or in `wide`.
template <typename Pool, typename T>
const float* Wide(const Pool& pool, const T* x, int64_t count,
                  std::unique_ptr<Scratch<float>>* wide) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    *wide = std::make_unique<Scratch<float>>(count);
    float* to = (*wide)->get();
    ParallelFor(pool, count, 64 * 1024, [&](int64_t begin, int64_t end) {
      matmul::WidenRow(x + begin, end - begin, /*ahead=*/0, to + begin);
    });
    return to;
  }
}

}  // namespace conv

// y of x and w; T is f32, bf16 or f16. Channels of a group are at most conv::kMostChannels.
template <typename Pool, typename T>
void Conv(const Pool& pool, const ConvShape& s, const T* x, const T* w, T* y) {
  std::unique_ptr<Scratch<float>> wide_x, wide_w;
  const int64_t k = s.taps() * s.features();
  const float* kernel = conv::Wide(pool, w, k * s.out_channels, &wide_w);
  const bool depthwise = s.groups > 1 && s.features() == 1 && s.outputs() == 1;
  if (s.channels_last && depthwise && k > 0 && k <= kDepthwiseTaps) {
    Depthwise(pool, s, x, kernel, y);
    return;
  }
  if (FitsPlanes(s) && !GainsByPlaces(s)) {
    ConvPlanes(pool, s, x, kernel, y);
    return;
  }
  const float* from = conv::Wide(pool, x, s.batch * s.in_channels * s.in[0] * s.in[1], &wide_x);
  if (FitsFew(s)) {
    ConvFew(pool, s, from, kernel, y);
    return;
  }
  ConvRows(pool, s, from, kernel, y);
}

}  // namespace rlx

#endif  // RLX_KERNELS_CONV_H_
