// conv.h against sums in double, on heap blocks of exact sizes.
#include "conv.h"

#include <cmath>
#include <cstdio>
#include <limits>

#include "testing.h"

namespace {

using rlx::ConvShape;
using rlx::testing::Exactly;
using rlx::testing::NextRandom;

int64_t Below(int64_t bound) { return NextRandom() % bound; }

template <typename T>
double At(const T* x, int64_t at) {
  return rlx::ToFloat(x[at]);
}

// One element of the result, and the sum of the sizes of its terms.
template <typename T>
double Sum(const ConvShape& s, const T* x, const T* w, int64_t b, int64_t o, int64_t p,
           double* size) {
  double sum = 0;
  const int64_t group = o / s.outputs();
  for (int64_t i = 0; i < s.features(); ++i) {
    const int64_t channel = group * s.features() + i;
    for (int64_t tap = 0; tap < s.taps(); ++tap) {
      const int64_t h = rlx::conv::Input(s, 0, p / s.out[1], tap / s.kernel[1]);
      const int64_t v = rlx::conv::Input(s, 1, p % s.out[1], tap % s.kernel[1]);
      if (h < 0 || h >= s.in[0] || v < 0 || v >= s.in[1]) continue;
      const int64_t place = h * s.in[1] + v;
      const int64_t area = s.in[0] * s.in[1];
      const double term =
          s.channels_last
              ? At(x, (b * area + place) * s.in_channels + channel) *
                    At(w, (tap * s.features() + i) * s.out_channels + o)
              : At(x, (b * s.in_channels + channel) * area + place) *
                    At(w, (o * s.features() + i) * s.taps() + tap);
      sum += term;
      *size += std::fabs(term);
    }
  }
  return sum;
}

template <typename T, typename Pool>
void Check(const Pool& pool, const ConvShape& s) {
  const int64_t x_size = s.batch * s.in_channels * s.in[0] * s.in[1];
  const int64_t w_size = s.out_channels * s.features() * s.taps();
  auto x = Exactly<T>(x_size);
  auto w = Exactly<T>(w_size);
  auto y = Exactly<T>(s.batch * s.out_channels * s.places());
  for (int64_t i = 0; i < x_size; ++i) x[i] = rlx::FromFloat<T>(Below(2001) / 1000.0f - 1);
  for (int64_t i = 0; i < w_size; ++i) w[i] = rlx::FromFloat<T>(Below(2001) / 1000.0f - 1);
  rlx::Conv(pool, s, x.get(), w.get(), y.get());
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t o = 0; o < s.out_channels; ++o) {
      for (int64_t p = 0; p < s.places(); ++p) {
        double size = 0;
        const double sum = Sum(s, x.get(), w.get(), b, o, p, &size);
        const int64_t at = s.channels_last ? (b * s.places() + p) * s.out_channels + o
                                           : (b * s.out_channels + o) * s.places() + p;
        CHECK(std::fabs(At(y.get(), at) - sum) <=
              1e-6 * size + (sizeof(T) == 2 ? 0.01 * std::fabs(sum) + 6e-8 : 0));
      }
    }
  }
}

ConvShape Drawn() {
  ConvShape s = {};
  s.channels_last = Below(2) == 0;
  s.groups = Below(3) == 0 ? 1 + Below(4) : 1;
  s.batch = Below(3);
  s.in_channels = s.groups * (Below(4) == 0 ? 60 + Below(20) : Below(12));
  s.out_channels = s.groups * (1 + Below(40));
  if (Below(3) == 0) {  // a kernel for each channel
    s.groups = s.in_channels = s.out_channels = 1 + Below(75);
  }
  for (int axis = 0; axis < 2; ++axis) {
    s.in[axis] = Below(12);
    s.kernel[axis] = 1 + Below(4);
    s.stride[axis] = 1 + Below(3);
    s.dilation[axis] = 1 + Below(3);
    s.low[axis] = Below(7) - 2;
    s.out[axis] = Below(9);  // whatever does not fit is padding after
  }
  return s;
}

// Few channels a group: about every second one fits planes.
ConvShape DrawnGroups() {
  ConvShape s = {};
  s.channels_last = Below(2) == 0;
  s.groups = 1 + Below(33);
  s.batch = 1 + Below(2);
  s.in_channels = s.groups * (1 + Below(Below(4) == 0 ? 33 : 9));
  s.out_channels = s.groups * (1 + Below(Below(4) == 0 ? 20 : 9));
  for (int axis = 0; axis < 2; ++axis) {
    s.kernel[axis] = 1 + Below(3);
    s.stride[axis] = 1 + Below(Below(2) == 0 ? 3 : 1);
    s.dilation[axis] = 1 + Below(Below(2) == 0 ? 3 : 1);
    s.low[axis] = Below(4) - 1;
    s.in[axis] = 1 + Below(16);
    s.out[axis] = 1 + Below(16 / s.stride[axis]);
  }
  return s;
}

void TestGroups() {
  int planes = 0;
  for (int i = 0; i < 120; ++i) {
    const ConvShape s = DrawnGroups();
    planes += rlx::FitsPlanes(s);
    switch (i % 3) {
      case 0: Check<rlx::Bf16>(rlx::testing::ThreadPool{}, s); break;
      case 1: Check<rlx::F16>(rlx::testing::FullPool{}, s); break;
      default: Check<float>(rlx::testing::ThreadPool{}, s); break;
    }
  }
  CHECK(planes > 30);
  for (bool last : {false, true}) {
    // Several bands, the last one shorter; groups that are not whole sets.
    const ConvShape bands = {1, 24, 15, 3, {41, 43}, {41, 43}, {3, 3},
                             {1, 1}, {1, 1}, {1, 1}, last};
    // Planes for each remainder by the strides, and one of a kernel that is smaller than those.
    const ConvShape kinds = {2, 10, 15, 5, {35, 36}, {11, 18}, {4, 3},
                             {3, 2}, {1, 2}, {1, 1}, last};
    const ConvShape few = {1, 6, 4, 2, {31, 30}, {11, 8}, {1, 2}, {3, 4}, {0, 0}, {2, 2}, last};
    for (const ConvShape& s : {bands, kinds, few}) {
      CHECK(rlx::FitsPlanes(s));
      Check<float>(rlx::testing::ThreadPool{}, s);
      Check<rlx::Bf16>(rlx::testing::LatePool{}, s);
    }
  }
}

// Few places, channels first: blocks that are not whole in any axis, with and without a margin.
void TestFewPlaces() {
  for (int i = 0; i < 6; ++i) {
    const int64_t side = 1 + 2 * (i % 3);
    ConvShape s = {1, 0, 0, 2, {4 + Below(4), 7}, {7, 7}, {side, side}, {1, 1}, {}, {1, 1}, false};
    s.low[0] = s.low[1] = side / 2;
    s.batch += i / 5;
    s.in_channels = 2 * (32 + Below(130));
    s.out_channels = 2 * (32 + Below(40));
    CHECK(rlx::FitsFew(s) == (s.batch == 1));
    Check<float>(rlx::testing::ThreadPool{}, s);
    Check<rlx::F16>(rlx::testing::FullPool{}, s);
  }
  const ConvShape apart = {1, 35, 70, 1, {6, 6}, {6, 6}, {3, 2}, {1, 1}, {2, 1}, {2, 3}, false};
  CHECK(rlx::FitsFew(apart));
  Check<rlx::Bf16>(rlx::testing::ThreadPool{}, apart);
  Check<float>(rlx::testing::ThreadPool{}, apart);
}

// Zeros outside of the image meet what is not finite in the kernel too.
void TestNotFinite(bool last, int64_t channels, int64_t side) {
  const ConvShape s = {1, channels, 33, 1, {side, side}, {side, side}, {3, 3},
                       {1, 1}, {1, 1}, {1, 1}, last};
  const int64_t x_size = s.in_channels * s.in[0] * s.in[1];
  const int64_t w_size = s.out_channels * s.features() * s.taps();
  auto x = Exactly<float>(x_size);
  auto w = Exactly<float>(w_size);
  auto y = Exactly<float>(s.out_channels * s.places());
  for (int64_t i = 0; i < x_size; ++i) x[i] = 1 + Below(9);
  for (int64_t i = 0; i < w_size; ++i) w[i] = 1 + Below(9);
  const int64_t tap = Below(9), channel = Below(channels), output = Below(33);
  w[last ? (tap * channels + channel) * 33 + output : (output * channels + channel) * 9 + tap] =
      std::numeric_limits<float>::infinity();
  rlx::Conv(rlx::testing::ThreadPool{}, s, x.get(), w.get(), y.get());
  for (int64_t o = 0; o < s.out_channels; ++o) {
    for (int64_t p = 0; p < s.places(); ++p) {
      const int64_t h = rlx::conv::Input(s, 0, p / side, tap / 3);
      const int64_t v = rlx::conv::Input(s, 1, p % side, tap % 3);
      const bool inside = h >= 0 && h < side && v >= 0 && v < side;
      const float found = y[last ? p * 33 + o : o * s.places() + p];
      CHECK(o != output ? std::isfinite(found) : inside ? std::isinf(found) : std::isnan(found));
    }
  }
}

void TestAll() {
  TestFewPlaces();
  TestGroups();
  for (bool last : {false, true}) {
    for (int64_t channels : {5, 70, 100}) {
      for (int64_t side : {7, 11}) TestNotFinite(last, channels, side);
    }
  }
  for (int i = 0; i < 300; ++i) {
    const ConvShape s = Drawn();
    switch (i % 4) {
      case 0: Check<rlx::Bf16>(rlx::testing::FullPool{}, s); break;
      case 1: Check<rlx::F16>(rlx::testing::ThreadPool{}, s); break;
      case 2: Check<float>(rlx::testing::ThreadPool{}, s); break;
      default: Check<float>(rlx::testing::LatePool{}, s); break;
    }
  }
  // More rows than a block, more taps than a panel is deep, whole columns.
  for (bool last : {false, true}) {
    Check<float>(rlx::testing::ThreadPool{},
                 {2, 3, 32, 1, {20, 21}, {20, 21}, {7, 7}, {1, 1}, {3, 3}, {1, 1}, last});
    Check<float>(rlx::testing::FullPool{},
                 {1, 70, 530, 1, {3, 3}, {3, 3}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, last});
    Check<float>(rlx::testing::FullPool{},
                 {1, 300, 16, 1, {8, 8}, {8, 8}, {1, 1}, {1, 1}, {0, 0}, {1, 1}, last});
    // Panels that are transposed in parts.
    Check<rlx::Bf16>(rlx::testing::ThreadPool{},
                     {2, 200, 20, 1, {5, 5}, {5, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, last});
  }
}

}  // namespace

int main() {
  TestAll();
#if defined(__x86_64__)
  rlx::matmul::allow_avx512 = false;
  TestAll();
#endif
  std::puts("conv: ok");
  return 0;
}
