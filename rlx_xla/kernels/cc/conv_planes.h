// Convolutions of few channels a group, in vectors of places.
//
// Computes: what conv.h does, for the shapes that FitsPlanes admits.
// Layout: as in conv.h.
// Numerics: 16-bit floats are widened to f32; each sum is taken in the order of the kernel's
//   elements, by fused products, and rounded once. Zeros outside of the image are multiplied too.
// Algorithm: a band of rows of one group is copied into planes, a plane for each channel and each
//   remainder of a place by the strides, with zeros around the image. What one tap meets at all
//   places of the band then lies in one piece, rows of the result being as far apart as those of
//   the planes. Tiles of eight output channels and three vectors of places stay in registers;
//   sums between two rows are thrown away. Channels last, groups that share a line of the cache
//   are turned round together.
#ifndef RLX_KERNELS_CONV_PLANES_H_
#define RLX_KERNELS_CONV_PLANES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "numbers.h"
#include "parallel.h"
#include "scratch.h"
#include "wide.h"

namespace rlx {

constexpr int64_t kPlaneTaps = 16;          // at most, of an axis
constexpr int64_t kPlaneTerms = 1024;       // at most, of a sum
constexpr int64_t kPlaneSlack = 16;         // numbers after a channel's planes that are read
constexpr int64_t kPlaneOutputs = 16;       // channels whose sums of a band are held
constexpr int64_t kPlaneBand = 12 * 1024;   // numbers of the planes of more than one row
constexpr int64_t kPlaneWork = 256 * 1024;  // products that are worth a thread

// How the taps of one axis read planes: tap k at place p reads the number p + shift[k] of the
// remainder[k]-th kind of plane, which starts `start` after the first place of the padded image.
struct PlaneAxis {
  template <typename Shape>
  PlaneAxis(const Shape& s, int axis) {
    for (int64_t tap = 0; tap < s.kernel[axis]; ++tap) {
      const int64_t distance = tap * s.dilation[axis];
      const int64_t first = distance % s.stride[axis];
      shift[tap] = distance / s.stride[axis];
      reach = std::max(reach, shift[tap]);
      const int64_t found = std::find(start, start + kinds, first) - start;
      if (found == kinds) start[kinds++] = first;
      remainder[tap] = found;
    }
  }
  int64_t kinds = 0;
  int64_t reach = 0;  // the greatest shift
  int64_t start[kPlaneTaps];
  int64_t remainder[kPlaneTaps];
  int64_t shift[kPlaneTaps];
};

// How a convolution falls into bands, of which there are at least as many as `pieces` of work, and
// where the planes of a band lie.
struct Planes {
  template <typename Shape>
  Planes(const Shape& s, int64_t pieces) : h(s, 0), w(s, 1), width(s.out[1] + w.reach) {
    if (s.channels_last) {  // neighbours share lines of the cache
      groups = kPlaneOutputs / std::max(s.features(), s.outputs());
      groups = std::clamp<int64_t>(groups, 1, s.groups);
    }
    sets = (s.groups + groups - 1) / groups;
    const int64_t row = groups * s.features() * h.kinds * w.kinds * width;
    rows = std::clamp<int64_t>(kPlaneBand / row - h.reach, 1, s.out[0]);
    bands = (s.out[0] + rows - 1) / rows;
    const int64_t images = std::max<int64_t>(1, s.batch * sets);
    bands = std::max(bands, std::min(s.out[0], (pieces + images - 1) / images));
    rows = (s.out[0] + bands - 1) / bands;
    bands = (s.out[0] + rows - 1) / rows;
    plane = (rows + h.reach) * width;
    channel = h.kinds * w.kinds * plane + kPlaneSlack;
    sums = (rows * width + kPlaneSlack + 15) / 16 * 16;
  }
  PlaneAxis h, w;
  int64_t width;       // of a plane
  int64_t groups = 1;  // that are done together: a set
  int64_t sets;
  int64_t rows;  // of a band
  int64_t bands;
  int64_t plane;    // numbers of a plane
  int64_t channel;  // from one channel to the next
  int64_t sums;     // from one output channel's sums to the next
};

// Columns [low, high) of a row of a plane lie inside of the image.
struct PlaneReach {
  PlaneReach(int64_t first, int64_t step, int64_t size, int64_t width) {
    low = first >= 0 ? 0 : (step - 1 - first) / step;
    high = first >= size ? 0 : (size - first + step - 1) / step;
    high = std::min(high, width);
    low = std::min(low, high);
  }
  int64_t low, high;
};

// One band of some groups: what is read, where it lies, and where the results go.
template <typename Shape, typename T>
struct PlaneBand {
  const Shape& s;
  const Planes& planes;
  const int64_t* offsets;  // of a kernel's elements in the planes
  const T* x;
  const float* w;
  T* y;
  int64_t batch;
  int64_t group, groups;  // the first, and how many
  int64_t row, rows;      // of the result
};

}  // namespace rlx

#define RLX_TILES "conv_planes_tiles.h"
#include "each_width.h"

namespace rlx {

// Whether a shape gains against conv_rows.h, which fills its vectors with more than 12 channels and
// reads images of many channels where they lie; channels first, it turns images round.
template <typename Shape>
bool GainsByPlanes(const Shape& s) {
  const int64_t features = s.features(), outputs = s.outputs();
  if (!s.channels_last) {
    if (s.taps() == 1) return s.groups > 1 && outputs <= 32;
    if (outputs <= 16) return features <= 32;
    return features <= 8 ? outputs <= 64 : s.groups > 1 && features * outputs <= 1024;
  }
  if (s.groups == 1 && s.taps() > 1 && features <= 4) return outputs <= 32;
  if (s.stride[0] > 1 || s.stride[1] > 1) return outputs <= 8 && features * outputs <= 128;
  return outputs <= 12;
}

// Whether ConvPlanes takes a shape, and gains.
template <typename Shape>
bool FitsPlanes(const Shape& s) {
  const int64_t terms = s.features() * s.taps();
  if (terms < 1 || terms > kPlaneTerms || s.places() < 1 || s.outputs() < 1) return false;
  if (s.kernel[0] > kPlaneTaps || s.kernel[1] > kPlaneTaps || !GainsByPlanes(s)) return false;
  const PlaneAxis h(s, 0), w(s, 1);
  const int64_t width = s.out[1] + w.reach;
  if (h.reach > kPlaneBand || width > kPlaneBand) return false;
  // One row of the result, with all that it reads, has to fit, and most sums have to be wanted.
  if (s.features() * h.kinds * w.kinds * (h.reach + 1) * width > 2 * kPlaneBand) return false;
  const int64_t sums = (s.out[0] * width - w.reach + 15) / 16 * 16;
  if (s.channels_last && s.outputs() > 8) return 10 * s.places() >= 7 * sums;
  return 2 * s.places() >= sums;
}

// y of x and w, which is f32; `Shape` is ConvShape, one that FitsPlanes admits.
template <typename Pool, typename Shape, typename T>
void ConvPlanes(const Pool& pool, const Shape& s, const T* x, const float* w, T* y) {
  const int64_t terms = s.features() * s.taps();
  const int64_t work = s.batch * s.places() * s.out_channels * terms / kPlaneWork;
  const Planes planes(s, std::min(2 * pool.Threads(), work));
  Scratch<int64_t> offsets(terms);
  for (int64_t i = 0; i < s.features(); ++i) {
    for (int64_t tap = 0; tap < s.taps(); ++tap) {
      const int64_t kh = tap / s.kernel[1], kw = tap % s.kernel[1];
      const int64_t kind = planes.h.remainder[kh] * planes.w.kinds + planes.w.remainder[kw];
      offsets[s.channels_last ? tap * s.features() + i : i * s.taps() + tap] =
          i * planes.channel + kind * planes.plane + planes.h.shift[kh] * planes.width +
          planes.w.shift[kw];
    }
  }
  const int64_t outputs = planes.groups * s.outputs();
  const int64_t cost = planes.rows * s.out[1] * terms * outputs;
  ParallelFor(pool, s.batch * planes.sets * planes.bands, kPlaneWork / cost + 1,
              [&](int64_t begin, int64_t end) {
                Scratch<float> copied(planes.groups * s.features() * planes.channel);
                Scratch<float> sums(std::min(kPlaneOutputs, outputs) * planes.sums);
                Scratch<float> packed(8 * terms);
                for (int64_t at = begin; at < end; ++at) {
                  const int64_t row = at % planes.bands * planes.rows;
                  const int64_t set = at / planes.bands;
                  const int64_t group = set % planes.sets * planes.groups;
                  const PlaneBand<Shape, T> band = {
                      s, planes, offsets.get(), x, w, y, set / planes.sets,
                      group, std::min(planes.groups, s.groups - group),
                      row, std::min(planes.rows, s.out[0] - row)};
#if defined(RLX_HAS_WIDE512)
                  if (HasWide512()) {
                    wide512::ConvolveBand(band, copied.get(), sums.get(), packed.get());
                    continue;
                  }
#endif
                  wide256::ConvolveBand(band, copied.get(), sums.get(), packed.get());
                }
              });
}

}  // namespace rlx

#endif  // RLX_KERNELS_CONV_PLANES_H_
