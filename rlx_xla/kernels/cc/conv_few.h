// Convolutions of one image of few places, channels first, in vectors of places.
//
// Computes: what conv.h does, for the shapes that FitsFew admits.
// Layout: as in conv.h, channels first.
// Numerics: sums are f32 and fused, of at most kFewDepth terms at a time. Zeros outside of an image
//   are multiplied too.
// Algorithm: the kernel is larger than all else, and is read once, where it lies: its rows are the
//   rows of conv_rows.h, each in one piece for many terms. A tap meets all places at one distance,
//   so that a panel of windows is loads of the image under a mask. Places that do not fill a
//   vector are left out of the panel: their sums are taken along the terms, in vectors of these.
#ifndef RLX_KERNELS_CONV_FEW_H_
#define RLX_KERNELS_CONV_FEW_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "conv_rows.h"
#include "numbers.h"
#include "parallel.h"
#include "scratch.h"
#include "wide.h"

namespace rlx {

constexpr int64_t kFewPlaces = 64;   // the most that are few
constexpr int64_t kFewLeft = 4;      // places that may be left of whole vectors
constexpr int64_t kFewTerms = 1024;  // of a panel, which stays in the second-level cache
constexpr int64_t kFewDepth = 256;   // terms of a sum that is taken in registers

}  // namespace rlx

#define RLX_TILES "conv_few_tiles.h"
#include "each_width.h"

namespace rlx {

// Whether ConvFew takes a shape, and gains.
template <typename Shape>
bool FitsFew(const Shape& s) {
  if (s.channels_last || s.batch != 1 || s.places() > kFewPlaces) return false;
  const int64_t vector = HasWide512() ? 16 : 8;
  if (s.places() < vector || s.places() % vector > kFewLeft) return false;
  for (int axis = 0; axis < 2; ++axis) {
    if (s.stride[axis] != 1 || s.low[axis] < 0 || s.low[axis] > s.in[axis]) return false;
    if (s.kernel[axis] * s.dilation[axis] > 2 * s.in[axis] + 2) return false;
  }
  return s.in[1] == s.out[1] && s.in[0] >= 1 && s.outputs() >= 32 && s.features() >= 32;
}

// y of x and w, which are f32.
template <typename Pool, typename Shape, typename Y>
void ConvFew(const Pool& pool, const Shape& s, const float* x, const float* w, Y* y) {
  const int64_t wanted = (pool.Threads() + s.groups - 1) / s.groups;
  const int64_t block = std::max<int64_t>((s.outputs() + wanted - 1) / wanted, 24) / 24 * 24;
  const int64_t blocks = (s.outputs() + block - 1) / block;
  const int64_t cost = block * s.places() * s.features() * s.taps();
  ParallelFor(pool, s.groups * blocks, kRowGrain / cost + 1, [&](int64_t begin, int64_t end) {
#if defined(RLX_HAS_WIDE512)
    if (HasWide512()) return wide512::FewPieces(s, block, x, w, begin, end, y);
#endif
    wide256::FewPieces(s, block, x, w, begin, end, y);
  });
}

}  // namespace rlx

#endif  // RLX_KERNELS_CONV_FEW_H_
