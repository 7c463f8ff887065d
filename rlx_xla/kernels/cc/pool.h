// Reductions of two-dimensional windows, and what flows back through their maxima.
//
// Computes: y[o, p, q, i] = the maximum, minimum or sum of the window of x[o, h, w, i] that begins
//   at row p * stride - low; and dx[o, h, w, i] = the sum of dy over the windows whose selected
//   element is there.
// Layout: row-major; `inner` elements i lie together (channels last), or one does.
// Numerics: NaN wins a maximum and a minimum, and of zeros the positive one a maximum. An element
//   is selected while it compares >= (or <=) with every later one, so that a NaN is taken and lost
//   again. 16-bit floats are widened to f32, added up as such and rounded once.
// Algorithm: windows are cut to what lies inside. With many inner elements, vectors of these go
//   over small windows where they lie; large ones are reduced by their rows first, and then by
//   columns. With one, vectors lie along the row: rows of a window first, and then its columns, of
//   which every second is picked where the stride is two. Backward, a thread owns rows of dx and
//   looks at every window that touches them.
#ifndef RLX_KERNELS_POOL_H_
#define RLX_KERNELS_POOL_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "numbers.h"
#include "parallel.h"
#include "scratch.h"
#include "wide.h"

namespace rlx {

enum class Pooling { kMax, kMin, kSum };

struct PoolShape {
  int64_t outer;
  int64_t in[2];
  int64_t out[2];
  int64_t inner;
  int64_t window[2];
  int64_t stride[2];
  int64_t low[2];
};

namespace pool {

constexpr int64_t kGrain = 32 * 1024;  // elements of windows that are worth a second thread

// First and last + 1 place of a window that lie inside.
struct Reach {
  int64_t begin, end;
};

inline Reach Inside(const PoolShape& s, int axis, int64_t place) {
  const int64_t begin = place * s.stride[axis] - s.low[axis];
  return {std::max<int64_t>(begin, 0), std::min(begin + s.window[axis], s.in[axis])};
}

template <Pooling kKind>
constexpr float kStart = kKind == Pooling::kSum   ? 0.0f
                         : kKind == Pooling::kMax ? -std::numeric_limits<float>::infinity()
                                                  : std::numeric_limits<float>::infinity();

// Numbers from the first window's begin to the last one's end along a row.
inline int64_t PaddedRow(const PoolShape& s) { return (s.out[1] - 1) * s.stride[1] + s.window[1]; }

// Whether windows are read whole where they lie, because rows that are joined first, and then
// columns, would be read no less.
inline bool GainsWhole(const PoolShape& s) {
  constexpr int64_t kPass = 3;  // what the joined row costs: it is written, and read again
  return s.window[0] * s.window[1] <= s.window[0] * s.stride[1] + s.window[1] + kPass;
}

// dx rows [first, last) of one image, which are zero, from the windows that touch them. Padding is
// selected like any element, and what flows to it is lost.
template <bool kGreatest>
class Backward {
 public:
  Backward(const PoolShape& s, const float* x, const float* dy, float* dx, int32_t* chosen,
           float* best)
      : s_(s), x_(x), dy_(dy), dx_(dx), chosen_(chosen), best_(best) {}

  void Rows(int64_t first, int64_t last) const {
    for (int64_t p = 0; p < s_.out[0]; ++p) {
      const Reach rows = Inside(s_, 0, p);
      if (rows.end <= first || rows.begin >= last) continue;
      for (int64_t q = 0; q < s_.out[1]; ++q) {
        const float* from = dy_ + (p * s_.out[1] + q) * s_.inner;
        if (s_.inner == 1) {
          const int64_t at = SelectOne(p, q);
          if (at >= first * s_.in[1] && at < last * s_.in[1]) dx_[at] += *from;
        } else {
          Select(p, q);
          Add(from, p, q, first, last);
        }
      }
    }
  }

 private:
  static constexpr float kPadding = kGreatest ? -std::numeric_limits<float>::infinity()
                                              : std::numeric_limits<float>::infinity();

  static bool Keep(float best, float v) { return kGreatest ? best >= v : best <= v; }

  int64_t SelectOne(int64_t p, int64_t q) const {
    const int64_t top = p * s_.stride[0] - s_.low[0];
    const int64_t left = q * s_.stride[1] - s_.low[1];
    float best = std::numeric_limits<float>::quiet_NaN();  // anything is taken first
    int64_t at = -1;
    for (int64_t h = top; h < top + s_.window[0]; ++h) {
      for (int64_t w = left; w < left + s_.window[1]; ++w) {
        const bool inside = h >= 0 && h < s_.in[0] && w >= 0 && w < s_.in[1];
        const float v = inside ? x_[h * s_.in[1] + w] : kPadding;
        const bool keep = Keep(best, v);
        best = keep ? best : v;
        at = keep ? at : inside ? h * s_.in[1] + w : -1;
      }
    }
    return at;
  }

  // chosen[i] is the tap that inner element i selects, or -1 for padding.
  void Select(int64_t p, int64_t q) const {
    const int64_t n = s_.inner;
    const int64_t top = p * s_.stride[0] - s_.low[0];
    const int64_t left = q * s_.stride[1] - s_.low[1];
    std::fill(best_, best_ + n, std::numeric_limits<float>::quiet_NaN());
    std::fill(chosen_, chosen_ + n, -1);
    int32_t tap = 0;
    for (int64_t h = top; h < top + s_.window[0]; ++h) {
      for (int64_t w = left; w < left + s_.window[1]; ++w, ++tap) {
        float* best = best_;
        int32_t* chosen = chosen_;
        if (h >= 0 && h < s_.in[0] && w >= 0 && w < s_.in[1]) {
          const float* v = x_ + (h * s_.in[1] + w) * n;
          for (int64_t i = 0; i < n; ++i) {
            const bool keep = Keep(best[i], v[i]);
            best[i] = keep ? best[i] : v[i];
            chosen[i] = keep ? chosen[i] : tap;
          }
        } else {
          for (int64_t i = 0; i < n; ++i) {
            const bool keep = Keep(best[i], kPadding);
            best[i] = keep ? best[i] : kPadding;
            chosen[i] = keep ? chosen[i] : -1;
          }
        }
      }
    }
  }

  void Add(const float* from, int64_t p, int64_t q, int64_t first, int64_t last) const {
    const int64_t n = s_.inner;
    const int64_t top = p * s_.stride[0] - s_.low[0];
    const int64_t left = q * s_.stride[1] - s_.low[1];
    const Reach rows = Inside(s_, 0, p);
    const Reach columns = Inside(s_, 1, q);
    const int32_t* chosen = chosen_;
    for (int64_t h = std::max(rows.begin, first); h < std::min(rows.end, last); ++h) {
      for (int64_t w = columns.begin; w < columns.end; ++w) {
        const auto tap = static_cast<int32_t>((h - top) * s_.window[1] + w - left);
        float* to = dx_ + (h * s_.in[1] + w) * n;
        for (int64_t i = 0; i < n; ++i) to[i] = chosen[i] == tap ? to[i] + from[i] : to[i];
      }
    }
  }

  const PoolShape& s_;
  const float* x_;
  const float* dy_;
  float* dx_;
  int32_t* chosen_;
  float* best_;
};

}  // namespace pool

}  // namespace rlx

#define RLX_TILES "pool_tiles.h"
#include "each_width.h"

namespace rlx {

// y of x; T is f32, bf16 or f16.
template <Pooling kKind, typename Pool, typename T>
void PoolWindows(const Pool& pool, const PoolShape& s, const T* x, T* y) {
  if (s.out[1] == 0 || s.inner == 0) return;
  const int64_t width = s.in[1] * s.inner;
  const int64_t cost = std::max<int64_t>(1, s.window[0] * width + s.window[1] * s.out[1] * s.inner);
  ParallelFor(pool, s.outer * s.out[0], pool::kGrain / cost + 1, [&](int64_t begin, int64_t end) {
#if defined(RLX_HAS_WIDE512)
    if (HasWide512()) return wide512::PoolRows<kKind>(s, x, begin, end, y);
#endif
    wide256::PoolRows<kKind>(s, x, begin, end, y);
  });
}

// dx of dy and x; `greatest` says which element of a window is selected.
template <typename Pool>
void PoolBackward(const Pool& pool, const PoolShape& s, bool greatest, const float* dy,
                  const float* x, float* dx) {
  const int64_t width = s.in[1] * s.inner;
  // Bands that are a few windows high, so that few windows are looked at twice.
  const int64_t least = 4 * std::max(s.window[0], s.stride[0]);
  const int64_t wanted = std::max<int64_t>(1, 4 * pool.Threads() / std::max<int64_t>(1, s.outer));
  const int64_t band = std::max(least, (s.in[0] + wanted - 1) / wanted);
  const int64_t bands = (s.in[0] + band - 1) / band;
  const int64_t cost = std::max<int64_t>(1, band * width * 4);
  ParallelFor(pool, s.outer * bands, pool::kGrain / cost + 1, [&](int64_t begin, int64_t end) {
    Scratch<int32_t> chosen(s.inner);
    Scratch<float> best(s.inner);
    for (int64_t at = begin; at < end; ++at) {
      const int64_t image = at / bands;
      const int64_t first = at % bands * band;
      const int64_t last = std::min(s.in[0], first + band);
      float* to = dx + image * s.in[0] * width;
      std::fill(to + first * width, to + last * width, 0.0f);
      const float* from = dy + image * s.out[0] * s.out[1] * s.inner;
      const float* under = x + image * s.in[0] * width;
      if (greatest) {
        pool::Backward<true>(s, under, from, to, chosen.get(), best.get()).Rows(first, last);
      } else {
        pool::Backward<false>(s, under, from, to, chosen.get(), best.get()).Rows(first, last);
      }
    }
  });
}

}  // namespace rlx

#endif  // RLX_KERNELS_POOL_H_
