// Convolutions as products of rows with panels of columns, in vectors of columns.
//
// Computes: what conv.h does.
// Layout: as in conv.h.
// Numerics: sums are f32 and fused, of at most kRowDepth terms at a time. Zeros outside of an image
//   are left out, and multiplied only where an element of the kernel is not finite.
// Algorithm: channels last, rows are places, and panels of the kernel are read where they lie: to
//   copy them costs more. For each tap the rows that lie inside come first, and no others are
//   multiplied. Where rows of channels are short, a row of taps is one (copied where it does not
//   lie in one piece), and several are multiplied together, zeros included. Channels first, images
//   are turned round and panels are transposed, a part that stays in the second-level cache; but
//   of one tap that meets each place once, rows are output channels and panels are of the image.
#ifndef RLX_KERNELS_CONV_ROWS_H_
#define RLX_KERNELS_CONV_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "numbers.h"
#include "parallel.h"
#include "scratch.h"
#include "wide.h"

namespace rlx {

constexpr int64_t kRowDepth = 256;           // terms of a sum that is taken in registers
constexpr int64_t kRowBlock = 256;           // rows that share a panel, at most
constexpr int64_t kRowTerms = 1536;          // of a panel that is transposed at once, about
constexpr int64_t kShortRow = 64;            // channels; shorter rows of taps are one
constexpr int64_t kShortTaps = 96;           // channels; shorter taps are multiplied together
constexpr int64_t kRowCopies = 32 * 1024;    // the most elements of a copied block
constexpr int64_t kRowGrain = 256 * 1024;    // products that are worth a second thread

// How problems fall into blocks of rows and panels of columns.
struct RowPieces {
  int64_t problems, rows, columns;  // of one problem
  int64_t block, blocks;
  int64_t panel, panels;  // columns of a panel, a multiple of a vector
  bool by_panel;          // blocks of one panel follow each other
};

struct RowPiece {
  RowPiece(const RowPieces& p, int64_t at) : problem(at / (p.blocks * p.panels)) {
    const int64_t rest = at % (p.blocks * p.panels);
    panel = p.by_panel ? rest / p.blocks : rest % p.panels;
    block = p.by_panel ? rest % p.blocks : rest / p.panels;
  }
  int64_t problem, panel, block;
};

// What each tap meets at the places of a block: first the rows that lie inside of the image, and
// then zeros, where `order` says which place a row is of. Where taps are multiplied together, all
// rows are in order.
struct RowTable {
  RowTable(int64_t taps, int64_t block, int64_t depth, int64_t together, int64_t copies)
      : block(block),
        together(together),
        x(taps * block),
        order(taps * block),
        inside(taps),
        zeros(depth),
        copied(copies * block) {
    std::fill(zeros.get(), zeros.get() + depth, 0.0f);
  }
  int64_t block;
  int64_t together;
  Scratch<const float*> x;
  Scratch<int32_t> order;
  Scratch<int64_t> inside;
  Scratch<float> zeros;
  Scratch<float> copied;
};

// A factor whose rows are panels of columns: element (k, c) is data[k * stride + c].
struct RowPanel {
  const float* data;
  int64_t stride;
};

}  // namespace rlx

#define RLX_TILES "conv_rows_tiles.h"
#include "each_width.h"

namespace rlx {

namespace conv {

// Rows of a matrix whose width is not that of whole vectors, with zeros after it.
inline void PadPanel(const float* w, int64_t stride, int64_t rows, int64_t columns, int64_t width,
                     float* to) {
  for (int64_t r = 0; r < rows; ++r, w += stride, to += width) {
    std::memcpy(to, w, columns * sizeof(float));
    std::fill(to + columns, to + width, 0.0f);
  }
}

}  // namespace conv

// Places of images whose channels lie last times the kernel.
template <typename Shape, typename Y>
struct PlacesTimesKernel {
  // `x` holds channels last; `s` says how w and y lie.
  PlacesTimesKernel(const Shape& s, const float* x, const float* w, Y* y)
      : s(s),
        x(x),
        w(w),
        y(y),
        merged(s.taps() > 1 && s.features() < kShortRow),
        lies(s.groups == 1 && s.dilation[1] == 1) {}

  // A row of taps is one where a row of channels is short.
  int64_t Taps() const { return merged ? s.kernel[0] : s.taps(); }
  int64_t Depth() const { return merged ? s.features() * s.kernel[1] : s.features(); }
  // Channels of a panel that are transposed at once.
  int64_t Together() const {
    if (s.channels_last || merged) return Depth();
    return std::max<int64_t>(kRowTerms / s.taps() / 16 * 16, 16);
  }
  // Taps that are multiplied together: short ones, if few of their rows lie outside.
  int64_t Joined() const {
    const int64_t depth = Depth();
    if (depth == 0 || Together() < depth) return 1;
    const int64_t fitting = std::max<int64_t>(1, kRowDepth / depth);
    if (merged) return std::min(Taps(), fitting);
    if (depth >= kShortTaps) return 1;
    int64_t inside = 1, all = 1;
    for (int axis = 0; axis < 2; ++axis) {
      int64_t met = 0;
      for (int64_t tap = 0; tap < s.kernel[axis]; ++tap) {
        const int64_t first = tap * s.dilation[axis] - s.low[axis];
        for (int64_t p = 0; p < s.out[axis]; ++p) {
          const int64_t at = first + p * s.stride[axis];
          met += at >= 0 && at < s.in[axis];
        }
      }
      inside *= met;
      all *= s.kernel[axis] * s.out[axis];
    }
    return 16 * inside >= 15 * all ? fitting : 1;
  }
  // Numbers of a place that may have to be copied.
  int64_t Copies() const { return merged ? s.features() * s.taps() : 0; }
  int64_t Prepared(int64_t together, int64_t width) const {
    if (s.channels_last) return s.outputs() % 16 == 0 ? 0 : Depth() * Taps() * width;
    return together * Taps() * width;
  }

  void Fill(int64_t group, int64_t m, int64_t rows, RowTable* table) const {
    const float* channels = x + group * s.features();
    const int64_t across = merged ? 1 : s.kernel[1];  // taps of a row
    for (int64_t tap = 0; tap < Taps(); ++tap) {
      const float** to = table->x.get() + tap * table->block;
      int32_t* order = table->order.get() + tap * table->block;
      float* copied = table->copied.get() + tap * Depth() * table->block;
      const int64_t down = tap / across * s.dilation[0] - s.low[0];
      const int64_t right = tap % across * s.dilation[1] - s.low[1];
      int64_t inside = 0, outside = rows;
      int64_t place = m % s.places();
      int64_t image = m / s.places();
      for (int64_t r = 0; r < rows;) {
        const int64_t first = place % s.out[1];
        const int64_t count = std::min(s.out[1] - first, rows - r);
        const int64_t h = place / s.out[1] * s.stride[0] + down;
        const bool within = h >= 0 && h < s.in[0];
        const float* row =
            channels + (image * s.in[0] + (within ? h : 0)) * s.in[1] * s.in_channels;
        for (int64_t i = 0; i < count; ++i, ++r) {
          const int64_t v = (first + i) * s.stride[1] + right;
          if (merged || table->together > 1) {
            order[r] = static_cast<int32_t>(r);
            to[r] = !within  ? table->zeros.get()
                    : merged ? RowOfTaps(row, v, copied + r * Depth())
                    : v >= 0 && v < s.in[1] ? row + v * s.in_channels
                                            : table->zeros.get();
            continue;
          }
          const bool in = within && v >= 0 && v < s.in[1];
          const int64_t at = in ? inside++ : --outside;
          to[at] = in ? row + v * s.in_channels : table->zeros.get();
          order[at] = static_cast<int32_t>(r);
        }
        place += count;
        if (place == s.places()) place = 0, ++image;
      }
      table->inside[tap] = merged ? rows : inside;
    }
  }

  // What a row of taps meets from place v of a row of the image on: where it lies, or a copy.
  const float* RowOfTaps(const float* row, int64_t v, float* copied) const {
    const int64_t f = s.features();
    if (lies && v >= 0 && v + s.kernel[1] <= s.in[1]) return row + v * f;
    for (int64_t kw = 0; kw < s.kernel[1]; ++kw) {
      const int64_t at = v + kw * s.dilation[1];
      const bool in = at >= 0 && at < s.in[1];
      for (int64_t i = 0; i < f; ++i) copied[kw * f + i] = in ? row[at * s.in_channels + i] : 0.0f;
    }
    return copied;
  }

  // Numbers [early, late) of every tap of a panel, where it is not read where it lies.
  void Prepare(int64_t group, int64_t column, int64_t columns, int64_t width, int64_t early,
               int64_t late, float* to) const {
    const int64_t out = group * s.outputs() + column;
    const int64_t terms = s.taps() * s.features();
    if (s.channels_last) {
      if (columns < width) conv::PadPanel(w + out, s.out_channels, terms, columns, width, to);
      return;
    }
    const int64_t channels = merged ? s.features() : late - early;
    const float* from = w + out * terms + (merged ? 0 : early * s.taps());
#if defined(RLX_HAS_WIDE512)
    if (HasWide512()) {
      return wide512::TurnWeights(from, terms, columns, channels, s.taps(), width, to);
    }
#endif
    wide256::TurnWeights(from, terms, columns, channels, s.taps(), width, to);
  }

  RowPanel Source(int64_t group, int64_t column, int64_t columns, int64_t width, int64_t tap,
                   int64_t skip, int64_t early, int64_t late, const float* prepared) const {
    if (!s.channels_last) return {prepared + (tap * (late - early) + skip - early) * width, width};
    const int64_t row = tap * Depth() + skip;
    if (columns < width) return {prepared + row * width, width};
    return {w + row * s.out_channels + group * s.outputs() + column, s.out_channels};
  }

  float* Direct(int64_t group, int64_t m, int64_t column, int64_t* step) const {
    if constexpr (std::is_same_v<Y, float>) {
      if (s.channels_last) {
        *step = s.out_channels;
        return y + m * s.out_channels + group * s.outputs() + column;
      }
    }
    return nullptr;
  }

  void Store(const float* sums, int64_t width, int64_t group, int64_t m, int64_t rows,
             int64_t column, int64_t columns) const {
    const int64_t out = group * s.outputs() + column;
    if (s.channels_last) {
      for (int64_t r = 0; r < rows; ++r) {
        matmul::NarrowRow(sums + r * width, columns, y + (m + r) * s.out_channels + out);
      }
      return;
    }
    for (int64_t done = 0; done < rows;) {
      const int64_t image = (m + done) / s.places();
      const int64_t place = (m + done) % s.places();
      const int64_t count = std::min(rows - done, s.places() - place);
      Y* to = y + (image * s.out_channels + out) * s.places() + place;
      const float* from = sums + done * width;
      done += count;
#if defined(RLX_HAS_WIDE512)
      if (HasWide512()) {
        wide512::StoreTurned(from, width, count, columns, s.places(), to);
        continue;
      }
#endif
      wide256::StoreTurned(from, width, count, columns, s.places(), to);
    }
  }

  const Shape& s;
  const float* x;
  const float* w;
  Y* y;
  bool merged;
  bool lies;  // a row of taps, in one piece
};

// The kernel times places of an image, channels first, where one tap meets each place once.
template <typename Shape, typename Y>
struct KernelTimesPlaces {
  int64_t Taps() const { return 1; }
  int64_t Joined() const { return 1; }
  int64_t Copies() const { return 0; }
  int64_t Depth() const { return s.features(); }
  int64_t Together() const { return Depth(); }
  int64_t Prepared(int64_t together, int64_t width) const {
    return s.places() % 16 == 0 ? 0 : together * width;
  }
  const float* Image(int64_t problem, int64_t column) const {
    return x + problem * s.features() * s.places() + column;
  }
  void Fill(int64_t problem, int64_t m, int64_t rows, RowTable* table) const {
    const float* row = w + (problem % s.groups * s.outputs() + m) * s.features();
    for (int64_t r = 0; r < rows; ++r, row += s.features()) {
      table->x[r] = row;
      table->order[r] = static_cast<int32_t>(r);
    }
    table->inside[0] = rows;
  }
  void Prepare(int64_t problem, int64_t column, int64_t columns, int64_t width, int64_t, int64_t,
               float* to) const {
    if (columns == width) return;
    conv::PadPanel(Image(problem, column), s.places(), s.features(), columns, width, to);
  }
  RowPanel Source(int64_t problem, int64_t column, int64_t columns, int64_t width, int64_t,
                   int64_t skip, int64_t, int64_t, const float* prepared) const {
    if (columns < width) return {prepared + skip * width, width};
    return {Image(problem, column) + skip * s.places(), s.places()};
  }
  Y* Result(int64_t problem, int64_t m, int64_t column) const {
    return y + (problem * s.outputs() + m) * s.places() + column;
  }
  float* Direct(int64_t problem, int64_t m, int64_t column, int64_t* step) const {
    if constexpr (std::is_same_v<Y, float>) {
      *step = s.places();
      return Result(problem, m, column);
    }
    return nullptr;
  }
  void Store(const float* sums, int64_t width, int64_t problem, int64_t m, int64_t rows,
             int64_t column, int64_t columns) const {
    for (int64_t r = 0; r < rows; ++r) {
      matmul::NarrowRow(sums + r * width, columns, Result(problem, m + r, column));
    }
  }

  const Shape& s;
  const float* x;
  const float* w;
  Y* y;
};

// Whether channels lie first, each place is met by one tap, once, and vectors of places are full to
// nine parts in ten.
template <typename Shape>
bool GainsByPlaces(const Shape& s) {
  for (int axis = 0; axis < 2; ++axis) {
    if (s.kernel[axis] != 1 || s.stride[axis] != 1 || s.low[axis] != 0) return false;
    if (s.in[axis] != s.out[axis]) return false;
  }
  const int64_t vector = HasWide512() ? 16 : 8;
  const int64_t places = (s.places() + vector - 1) / vector * vector;
  return !s.channels_last && 9 * places < 10 * s.places();
}

// to[b, p, i] = x[b, i, p].
template <typename Pool, typename Shape>
void TurnImages(const Pool& pool, const Shape& s, const float* x, float* to) {
  const int64_t places = s.in[0] * s.in[1];
  const int64_t sets = (s.in_channels + 15) / 16;
  ParallelFor(pool, s.batch * sets, 64 * 1024 / (16 * places + 1) + 1,
              [&](int64_t begin, int64_t end) {
                for (int64_t at = begin; at < end; ++at) {
                  const int64_t b = at / sets;
                  const int64_t first = at % sets * 16;
                  const int64_t count = std::min<int64_t>(16, s.in_channels - first);
                  const float* from = x + (b * s.in_channels + first) * places;
                  float* out = to + b * places * s.in_channels + first;
#if defined(RLX_HAS_WIDE512)
                  if (HasWide512()) {
                    wide512::TurnMatrix(from, places, count, places, out, s.in_channels);
                    continue;
                  }
#endif
                  wide256::TurnMatrix(from, places, count, places, out, s.in_channels);
                }
              });
}

// Every piece of problems of so many rows and columns, with sums of `terms`.
template <typename Pool, typename Problem>
void RunRows(const Pool& pool, const Problem& problem, int64_t problems, int64_t rows,
             int64_t columns, int64_t terms, int64_t most, bool by_panel) {
  if (problems == 0 || rows == 0 || columns == 0) return;
  const int64_t vector = HasWide512() ? 16 : 8;
  const int64_t vectors = HasWide512() ? 4 : 2;
  RowPieces p = {problems, rows, columns, 0, 0, 0, 0, by_panel};
  // Panels of one width, and enough pieces that every thread has some.
  const int64_t whole = (columns + vector - 1) / vector;
  p.panels = (whole + vectors - 1) / vectors;
  p.panel = (whole + p.panels - 1) / p.panels * vector;
  p.panels = (columns + p.panel - 1) / p.panel;
  p.blocks = (rows + most - 1) / most;
  const int64_t wanted = (2 * pool.Threads() + problems * p.panels - 1) / (problems * p.panels);
  p.blocks = std::max(p.blocks, std::min(wanted, (rows + 11) / 12));
  p.block = (rows + p.blocks - 1) / p.blocks;
  p.blocks = (rows + p.block - 1) / p.block;
  const int64_t cost = std::max<int64_t>(1, p.block * p.panel * (terms + 1));
  ParallelFor(pool, problems * p.panels * p.blocks, kRowGrain / cost + 1,
              [&](int64_t begin, int64_t end) {
#if defined(RLX_HAS_WIDE512)
                if (HasWide512()) return wide512::ConvolveRows(problem, p, begin, end);
#endif
                wide256::ConvolveRows(problem, p, begin, end);
              });
}

// y of x and w, which are f32.
template <typename Pool, typename Shape, typename Y>
void ConvRows(const Pool& pool, const Shape& s, const float* x, const float* w, Y* y) {
  const int64_t terms = s.taps() * s.features();
  const int64_t rows = s.batch * s.places();
  if (GainsByPlaces(s)) {
    const KernelTimesPlaces<Shape, Y> problem = {s, x, w, y};
    RunRows(pool, problem, s.batch * s.groups, s.outputs(), s.places(), terms, kRowBlock, true);
    return;
  }
  Scratch<float> turned(s.channels_last ? 0 : s.batch * s.in[0] * s.in[1] * s.in_channels);
  if (!s.channels_last) TurnImages(pool, s, x, turned.get());
  const PlacesTimesKernel<Shape, Y> problem(s, s.channels_last ? x : turned.get(), w, y);
  int64_t most = kRowBlock;
  if (problem.Taps() > 16) most = kRowBlock / 2;
  if (problem.merged) most = std::clamp<int64_t>(kRowCopies / (terms + 1), 1, most);
  RunRows(pool, problem, s.groups, rows, s.outputs(), terms, most, !s.channels_last);
}

}  // namespace rlx

#endif  // RLX_KERNELS_CONV_ROWS_H_
