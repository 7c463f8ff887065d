// Depthwise convolutions, channels last: each channel has one kernel of its own.
//
// Computes: y[b, p, c] = sum over k of x[b, p * stride + k * dilation - low, c] * w[k, c].
// Layout: row-major; x[b, h, w, c], w[kh, kw, c], y[b, h, w, c].
// Numerics: 16-bit floats are widened to f32; sums in the order of the taps, rounded once. Zeros
//   outside of the image are multiplied too, so that NaN and Inf of w come through.
// Algorithm: vectors of channels; a few places at a time share what they load of the kernel, and
//   where the kernel's width and its stride are usual ones, of x too. A band of rows is done for a few
//   channels, which stay in the first-level cache.
#ifndef RLX_KERNELS_DEPTHWISE_H_
#define RLX_KERNELS_DEPTHWISE_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "numbers.h"
#include "parallel.h"
#include "scratch.h"
#include "wide.h"

namespace rlx {

constexpr int64_t kDepthwiseTaps = 128;         // at most: the table of places is on the stack
constexpr int64_t kDepthwisePlaces = 4;         // that are computed together
constexpr int64_t kDepthwiseRows = 4;           // that share what they load of x
constexpr int64_t kDepthwiseColumns = 16;       // at most, that a block of places meets
constexpr int64_t kDepthwiseWork = 128 * 1024;  // products that are worth a thread

// What the taps meet at each place: a row of channels.
template <typename T>
struct DepthwiseRows {
  const T* at[kDepthwiseTaps][kDepthwisePlaces];
};

// Channels that are done together, where they fill a vector.
inline int64_t DepthwiseSet(int64_t channels) {
  if (!HasWide512()) return 8;
  return channels >= 32 ? 32 : 16;
}

// One row of the result: the rows of x that its taps meet, null outside of the image; and where
// columns lie in them, from the first that a tap meets at the first place on, -1 outside.
template <typename T>
struct DepthwiseBand {
  const T* rows[kDepthwiseTaps];
  int64_t taps;  // of a column
  const int64_t* columns;
  const int64_t* outside;  // nothing but -1
  const T* zeros;
  int64_t out;  // places
  int64_t channels;
};

}  // namespace rlx

#define RLX_TILES "depthwise_tiles.h"
#include "each_width.h"

namespace rlx {

// Whether neighbouring places share columns, and channels fill a vector.
template <typename Shape>
bool Slides(const Shape& s) {
  const int64_t across = s.kernel[1];
  if (across != 3 && across != 5 && across != 7) return false;
  if (s.stride[1] > 2 || s.dilation[1] > 1) return false;
  if (s.stride[1] == 2 && across == 3 && !HasWide512()) return false;  // they share too few
  return s.in_channels >= (HasWide512() ? 16 : 8);
}

// Depthwise where Slides says so.
template <typename Pool, typename Shape, typename T>
void SlideAll(const Pool& pool, const Shape& s, const T* x, const float* w, const T* zeros, T* y) {
  const int64_t channels = s.in_channels;
  const int64_t count = (s.out[1] + kDepthwiseColumns) * s.stride[1] + kDepthwiseColumns;
  Scratch<int64_t> columns(count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t v = i - s.low[1];
    columns[i] = v >= 0 && v < s.in[1] ? v * channels : -1;
  }
  int64_t outside[kDepthwiseColumns];
  std::fill(outside, outside + kDepthwiseColumns, -1);
  const int64_t set = DepthwiseSet(channels);
  const int64_t sets = (channels + set - 1) / set;
  const int64_t bands = (s.out[0] + kDepthwiseRows - 1) / kDepthwiseRows;
  const int64_t cost = kDepthwiseRows * s.out[1] * s.taps() * set;
  ParallelFor(pool, s.batch * bands * sets, kDepthwiseWork / (cost + 1) + 1,
              [&](int64_t begin, int64_t end) {
#if defined(RLX_HAS_WIDE512)
                if (HasWide512()) {
                  wide512::SlidePieces(s, columns.get(), outside, zeros, x, w, begin, end, y);
                  return;
                }
#endif
                wide256::SlidePieces(s, columns.get(), outside, zeros, x, w, begin, end, y);
              });
}

// `Shape` is ConvShape, with one input and one output channel in each group, and 1 to
// kDepthwiseTaps taps.
template <typename Pool, typename Shape, typename T>
void Depthwise(const Pool& pool, const Shape& s, const T* x, const float* w, T* y) {
  const int64_t channels = s.in_channels;
  Scratch<T> zeros(channels);
  std::fill(zeros.get(), zeros.get() + channels, T{});
  if (Slides(s)) {
    SlideAll(pool, s, x, w, zeros.get(), y);
    return;
  }
  const int64_t across = (s.out[1] + kDepthwisePlaces - 1) / kDepthwisePlaces;  // blocks of a row
  const int64_t grain = kDepthwiseWork / (kDepthwisePlaces * s.taps() * channels) + 1;
  ParallelFor(pool, s.batch * s.out[0] * across, grain, [&](int64_t begin, int64_t end) {
    DepthwiseRows<T> rows;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / across;  // of the results of all of the batch
      const int64_t first = i % across * kDepthwisePlaces;
      const int64_t count = std::min(kDepthwisePlaces, s.out[1] - first);
      const T* image = x + row / s.out[0] * s.in[0] * s.in[1] * channels;
      const int64_t top = row % s.out[0] * s.stride[0] - s.low[0];
      int64_t tap = 0;
      for (int64_t kh = 0; kh < s.kernel[0]; ++kh) {
        const int64_t h = top + kh * s.dilation[0];
        for (int64_t kw = 0; kw < s.kernel[1]; ++kw, ++tap) {
          for (int64_t p = 0; p < kDepthwisePlaces; ++p) {
            const int64_t v = (first + p) * s.stride[1] + kw * s.dilation[1] - s.low[1];
            const bool inside = p < count && h >= 0 && h < s.in[0] && v >= 0 && v < s.in[1];
            rows.at[tap][p] = inside ? image + (h * s.in[1] + v) * channels : zeros.get();
          }
        }
      }
      T* to = y + (row * s.out[1] + first) * channels;
#if defined(RLX_HAS_WIDE512)
      if (HasWide512()) {
        wide512::DepthwisePlaces(rows, w, tap, channels, count, to);
        continue;
      }
#endif
      wide256::DepthwisePlaces(rows, w, tap, channels, count, to);
    }
  });
}

}  // namespace rlx

#endif  // RLX_KERNELS_DEPTHWISE_H_
