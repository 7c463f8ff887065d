// Convolutions of one or two spatial axes, with groups, strides, padding and distances in the kernel.
//
// Computes: y[b, o, p] = sum over i, k of x[b, i, p * stride + k * dilation - low] * w[o, i, k].
// Layout: row-major; channels last (x[b, h, w, i], w[kh, kw, i, o], y[b, h, w, o]) or channels first
//   (x[b, i, h, w], w[o, i, kh, kw], y[b, o, h, w]).
// Numerics: 16-bit floats are widened to f32; sums as in gemm.h; rounded once.
// Algorithm: gemm.h without a matrix of windows. Channels last: rows are places, read where they
//   lie (or copied, a block at a time, where a row of channels is short), and panels are of the
//   kernel. Channels first: rows are output channels, and panels are copied from the windows.
//   Channels last with a kernel for each channel: depthwise.h. Few channels a group:
//   conv_planes.h. Channels first, one tap and few places: rows are places here too.
#ifndef RLX_KERNELS_CONV_H_
#define RLX_KERNELS_CONV_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

#include "conv_planes.h"
#include "depthwise.h"
#include "gemm.h"

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

constexpr int64_t kShortRow = 64;           // channels; shorter rows are copied
constexpr int64_t kCopied = 32 * 1024;      // the most elements of a copied block
constexpr int64_t kMostRows = 504;          // output channels that share a panel of windows
constexpr int64_t kMostChannels = 1 << 16;  // of a group, which bounds a row of zeros

// A place of the result among all of a batch: one division for the first, and the others follow.
struct Place {
  Place(const ConvShape& s, int64_t at)
      : b(at / s.places()), h(at % s.places() / s.out[1]), w(at % s.out[1]) {}
  void Next(const ConvShape& s) {
    if (++w < s.out[1]) return;
    w = 0;
    if (++h < s.out[0]) return;
    h = 0;
    ++b;
  }
  int64_t b, h, w;
};

// A few numbers, without a call.
inline void Copy(const float* from, int64_t count, float* to) {
  using matmul::kWide;
  if (count < kWide) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
    return;
  }
  for (int64_t i = 0; i + kWide < count; i += kWide) Store<float>(Load(from + i), to + i);
  Store<float>(Load(from + count - kWide), to + count - kWide);
}

inline int64_t Input(const ConvShape& s, int axis, int64_t place, int64_t tap) {
  return place * s.stride[axis] + tap * s.dilation[axis] - s.low[axis];
}

template <typename Y>
struct ChannelsLast {
  ChannelsLast(const ConvShape& s, const float* x, const float* w, const float* zeros, Y* y,
               int64_t group, int64_t m, int64_t rows)
      : s(s), x(x + group * s.features()), w(w), zeros(zeros), y(y), group(group), first(m) {
    const int64_t f = s.features();
    copied = s.taps() > 1 && f < kShortRow;
    per_tap = (f + gemm::kDepth - 1) / gemm::kDepth;
    if (!copied) return;
    block = std::make_unique<Scratch<float>>(rows * K());
    CopyRows(m, rows);
  }

  // What the whole kernel meets at each place of a block.
  void CopyRows(int64_t m, int64_t rows) {
    const int64_t f = s.features();
    const int64_t width = s.kernel[1];
    const bool together = s.groups == 1 && s.dilation[1] == 1;  // a row of taps lies in one piece
    Place at(s, m);
    float* to = block->get();
    for (int64_t r = 0; r < rows; ++r, at.Next(s)) {
      const int64_t left = Input(s, 1, at.w, 0);
      for (int64_t kh = 0; kh < s.kernel[0]; ++kh, to += width * f) {
        const int64_t h = Input(s, 0, at.h, kh);
        if (h < 0 || h >= s.in[0]) {
          std::fill(to, to + width * f, 0.0f);
          continue;
        }
        const float* row = x + (at.b * s.in[0] + h) * s.in[1] * s.in_channels;
        if (together && left >= 0 && left + width <= s.in[1]) {
          Copy(row + left * f, width * f, to);
          continue;
        }
        for (int64_t kw = 0; kw < width; ++kw) {
          const int64_t v = left + kw * s.dilation[1];
          const bool inside = v >= 0 && v < s.in[1];
          Copy(inside ? row + v * s.in_channels : zeros, f, to + kw * f);
        }
      }
    }
  }

  int64_t K() const { return s.taps() * s.features(); }
  int64_t Stretches() const {
    return copied ? (K() + gemm::kDepth - 1) / gemm::kDepth : s.taps() * per_tap;
  }
  int64_t Start(int64_t stretch) const {  // the first row of w
    return copied ? stretch * gemm::kDepth
                  : stretch / per_tap * s.features() + stretch % per_tap * gemm::kDepth;
  }
  int64_t Depth(int64_t stretch) const {
    if (copied) return std::min(gemm::kDepth, K() - Start(stretch));
    return std::min(gemm::kDepth, s.features() - stretch % per_tap * gemm::kDepth);
  }
  void Panel(int64_t stretch, int64_t n, int64_t columns, float* panel) const {
    gemm::CopyPanel(w + Start(stretch) * s.out_channels + group * s.outputs() + n, s.out_channels,
                    Depth(stretch), columns, panel);
  }
  void Rows(int64_t stretch, int64_t m, int64_t rows, const float** to) const {
    if (copied) {
      const float* from = block->get() + (m - first) * K() + Start(stretch);
      for (int64_t r = 0; r < rows; ++r) to[r] = from + r * K();
      return;
    }
    const int64_t tap = stretch / per_tap;
    const int64_t skip = stretch % per_tap * gemm::kDepth;
    const int64_t kh = tap / s.kernel[1];
    const int64_t kw = tap % s.kernel[1];
    Place at(s, m);
    for (int64_t r = 0; r < rows; ++r, at.Next(s)) {
      const int64_t h = Input(s, 0, at.h, kh);
      const int64_t v = Input(s, 1, at.w, kw);
      const bool inside = h >= 0 && h < s.in[0] && v >= 0 && v < s.in[1];
      to[r] = (inside ? x + ((at.b * s.in[0] + h) * s.in[1] + v) * s.in_channels : zeros) + skip;
    }
  }
  float* Direct(int64_t m, int64_t n, int64_t* stride) const {
    if constexpr (std::is_same_v<Y, float>) {
      *stride = s.out_channels;
      return y + m * s.out_channels + group * s.outputs() + n;
    }
    return nullptr;
  }
  void Store(int64_t m, int64_t rows, int64_t n, int64_t columns, const float* acc) const {
    for (int64_t r = 0; r < rows; ++r) {
      matmul::NarrowRow(acc + r * gemm::kPanel, columns,
                        y + (m + r) * s.out_channels + group * s.outputs() + n);
    }
  }

  const ConvShape& s;
  const float* x;
  const float* w;
  const float* zeros;
  Y* y;
  int64_t group;
  int64_t first;
  int64_t per_tap;
  bool copied;
  std::unique_ptr<Scratch<float>> block;
};

template <typename Y>
struct ChannelsFirst {
  int64_t K() const { return s.taps() * s.features(); }
  int64_t Stretches() const { return (K() + gemm::kDepth - 1) / gemm::kDepth; }
  int64_t Depth(int64_t stretch) const {
    return std::min(gemm::kDepth, K() - stretch * gemm::kDepth);
  }
  void Rows(int64_t stretch, int64_t m, int64_t rows, const float** to) const {
    for (int64_t r = 0; r < rows; ++r) to[r] = w + (m + r) * K() + stretch * gemm::kDepth;
  }
  void Panel(int64_t stretch, int64_t n, int64_t columns, float* panel) const {
    const int64_t start = stretch * gemm::kDepth;
    int64_t feature = start / s.taps();
    int64_t kh = start % s.taps() / s.kernel[1];
    int64_t kw = start % s.kernel[1];
    const Place first(s, n);
    for (int64_t i = 0; i < Depth(stretch); ++i, panel += gemm::kPanel) {
      Windows(feature, kh, kw, first, columns, panel);
      if (++kw < s.kernel[1]) continue;
      kw = 0;
      if (++kh < s.kernel[0]) continue;
      kh = 0;
      ++feature;
    }
  }
  // What a tap of the kernel meets of one channel at places from `at` on, and zeros after those.
  void Windows(int64_t feature, int64_t kh, int64_t kw, Place at, int64_t columns,
               float* to) const {
    const int64_t step = s.stride[1];
    std::fill(to + columns, to + gemm::kPanel, 0.0f);
    while (columns > 0) {
      const int64_t count = std::min(columns, s.out[1] - at.w);
      const int64_t h = Input(s, 0, at.h, kh);
      const int64_t v = Input(s, 1, at.w, kw);
      // Places [low, high) of these are inside.
      int64_t low = v >= 0 ? 0 : (step - 1 - v) / step;
      int64_t high = v >= s.in[1] ? 0 : (s.in[1] - v + step - 1) / step;
      if (h < 0 || h >= s.in[0]) high = 0;
      high = std::min(high, count);
      low = std::min(low, high);
      for (int64_t i = 0; i < low; ++i) to[i] = 0.0f;
      if (low < high) {
        const int64_t channel = (at.b * s.groups + group) * s.features() + feature;
        const float* row = x + (channel * s.in[0] + h) * s.in[1] + v;
        if (step == 1) {
          Copy(row + low, high - low, to + low);
        } else {
          for (int64_t i = low; i < high; ++i) to[i] = row[i * step];
        }
      }
      for (int64_t i = high; i < count; ++i) to[i] = 0.0f;
      to += count;
      columns -= count;
      at.w += count - 1;
      at.Next(s);
    }
  }
  float* Direct(int64_t m, int64_t n, int64_t* stride) const {
    if constexpr (std::is_same_v<Y, float>) {
      if (s.batch == 1) {
        *stride = s.places();
        return y + (group * s.outputs() + m) * s.places() + n;
      }
    }
    return nullptr;
  }
  void Store(int64_t m, int64_t rows, int64_t n, int64_t columns, const float* acc) const {
    for (int64_t done = 0; done < columns;) {
      const int64_t b = (n + done) / s.places();
      const int64_t p = (n + done) % s.places();
      const int64_t count = std::min(columns - done, s.places() - p);
      Y* to = y + ((b * s.groups + group) * s.outputs() + m) * s.places() + p;
      for (int64_t r = 0; r < rows; ++r) {
        matmul::NarrowRow(acc + r * gemm::kPanel + done, count, to + r * s.places());
      }
      done += count;
    }
  }

  const ConvShape& s;
  const float* x;
  const float* w;  // of one group
  Y* y;
  int64_t group;
};

// One tap that meets each place once, channels first: rows are places, of an image that was turned
// round, and panels are of the kernel. So the kernel is read once, and no vector is half empty.
template <typename Y>
struct FewPlaces {
  int64_t Stretches() const { return (s.features() + gemm::kDepth - 1) / gemm::kDepth; }
  int64_t Depth(int64_t stretch) const {
    return std::min(gemm::kDepth, s.features() - stretch * gemm::kDepth);
  }
  void Rows(int64_t stretch, int64_t m, int64_t rows, const float** to) const {
    for (int64_t r = 0; r < rows; ++r) {
      to[r] = turned + (m + r) * s.in_channels + group * s.features() + stretch * gemm::kDepth;
    }
  }
  void Panel(int64_t stretch, int64_t n, int64_t columns, float* panel) const {
    gemm::TurnPanel(w + (group * s.outputs() + n) * s.features() + stretch * gemm::kDepth,
                    s.features(), Depth(stretch), columns, panel);
  }
  float* Direct(int64_t, int64_t, int64_t*) const { return nullptr; }
  void Store(int64_t m, int64_t rows, int64_t n, int64_t columns, const float* acc) const {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t b = (m + r) / s.places();
      const int64_t channel = b * s.out_channels + group * s.outputs() + n;
      Y* to = y + channel * s.places() + (m + r) % s.places();
      for (int64_t c = 0; c < columns; ++c) {
        to[c * s.places()] = FromFloat<Y>(acc[r * gemm::kPanel + c]);
      }
    }
  }

  const ConvShape& s;
  const float* turned;  // [places, channels]
  const float* w;
  Y* y;
  int64_t group;
};

// Whether a convolution is one of FewPlaces, and vectors of places would be a tenth empty.
inline bool GainsByFewPlaces(const ConvShape& s) {
  for (int axis = 0; axis < 2; ++axis) {
    if (s.kernel[axis] != 1 || s.stride[axis] != 1 || s.low[axis] != 0) return false;
    if (s.in[axis] != s.out[axis]) return false;
  }
  const int64_t places = s.batch * s.places();
  if (places < gemm::kPanel || places > gemm::kBlock) return false;
  if (s.features() < kShortRow || s.outputs() < gemm::kPanel) return false;
  return 9 * matmul::RoundUp(places, gemm::kPanel / 2) >= 10 * places;
}

// to[b, p, i] = x[b, i, p].
template <typename Pool>
void TurnImages(const Pool& pool, const ConvShape& s, const float* x, float* to) {
  const int64_t places = s.places();
  const int64_t sets = (s.in_channels + 7) / 8;
  ParallelFor(pool, s.batch * sets, 64 * 1024 / (8 * places) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t b = at / sets;
      const int64_t first = at % sets * 8;
      const int64_t count = std::min<int64_t>(8, s.in_channels - first);
      const float* channel = x + (b * s.in_channels + first) * places;
      float* out = to + b * places * s.in_channels + first;
      int64_t p = 0;
      for (; count == 8 && p + 8 <= places; p += 8) {
        wide256::TurnBlock(channel + p, places, 8, out + p * s.in_channels, s.in_channels);
      }
      for (; p < places; ++p) {
        for (int64_t i = 0; i < count; ++i) out[p * s.in_channels + i] = channel[i * places + p];
      }
    }
  });
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
  if (FitsPlanes(s)) {
    ConvPlanes(pool, s, x, kernel, y);
    return;
  }
  const float* from = conv::Wide(pool, x, s.batch * s.in_channels * s.in[0] * s.in[1], &wide_x);
  if (s.channels_last) {
    Scratch<float> zeros(s.features());
    std::fill(zeros.get(), zeros.get() + s.features(), 0.0f);
    const bool copied = s.taps() > 1 && s.features() < conv::kShortRow;
    const int64_t most = copied ? std::max<int64_t>(conv::kCopied / (k + 1), 1) : gemm::kBlock;
    gemm::Run(pool, s.groups, s.batch * s.places(), s.outputs(), k, most,
              [&](int64_t group, int64_t m, int64_t rows) {
                return conv::ChannelsLast<T>(s, from, kernel, zeros.get(), y, group, m, rows);
              });
    return;
  }
  if (conv::GainsByFewPlaces(s)) {
    Scratch<float> turned(s.batch * s.places() * s.in_channels);
    conv::TurnImages(pool, s, from, turned.get());
    gemm::Run(pool, s.groups, s.batch * s.places(), s.outputs(), k, gemm::kBlock,
              [&](int64_t group, int64_t, int64_t) {
                return conv::FewPlaces<T>{s, turned.get(), kernel, y, group};
              });
    return;
  }
  // A panel of windows costs more to copy than one of the kernel: more rows share it.
  gemm::Run(pool, s.groups, s.outputs(), s.batch * s.places(), k, conv::kMostRows,
            [&](int64_t group, int64_t, int64_t) {
              return conv::ChannelsFirst<T>{s, from, kernel + group * s.outputs() * k, y, group};
            });
}

}  // namespace rlx

#endif  // RLX_KERNELS_CONV_H_
