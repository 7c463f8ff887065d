// pool.h against loops over whole windows, on heap blocks of exact sizes.
#include "pool.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "testing.h"

namespace {

using rlx::Pooling;
using rlx::PoolShape;
using rlx::testing::Exactly;
using rlx::testing::NextRandom;

int64_t Below(int64_t bound) { return NextRandom() % bound; }

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float Drawn(bool extremes) {
  const float some[] = {kInfinity, -kInfinity, 0.0f, -0.0f,
                        std::numeric_limits<float>::quiet_NaN()};
  if (extremes && Below(3) == 0) return some[Below(5)];
  return static_cast<float>(Below(9)) - 4.0f;
}

PoolShape DrawnShape() {
  PoolShape s = {};
  s.outer = Below(4);
  s.inner = Below(3) == 0 ? 1 : Below(80);
  for (int axis = 0; axis < 2; ++axis) {
    s.in[axis] = Below(14);
    s.window[axis] = 1 + Below(5);
    s.stride[axis] = 1 + Below(4);
    s.low[axis] = Below(8) - 2;
    s.out[axis] = Below(10);
  }
  if (s.inner == 1 && Below(2) == 0) {  // several vectors of a row, the last one cut
    s.in[1] = Below(90);
    s.out[1] = Below(90 / s.stride[1]);
  }
  return s;
}

// Calls visit(x's position or -1) for the window of an element of the result.
template <typename Visit>
void Window(const PoolShape& s, int64_t outer, int64_t p, int64_t q, int64_t i,
            const Visit& visit) {
  for (int64_t a = 0; a < s.window[0]; ++a) {
    for (int64_t b = 0; b < s.window[1]; ++b) {
      const int64_t h = p * s.stride[0] - s.low[0] + a;
      const int64_t w = q * s.stride[1] - s.low[1] + b;
      const bool inside = h >= 0 && h < s.in[0] && w >= 0 && w < s.in[1];
      visit(inside ? ((outer * s.in[0] + h) * s.in[1] + w) * s.inner + i : -1);
    }
  }
}

template <typename Visit>
void Results(const PoolShape& s, const Visit& visit) {
  int64_t at = 0;
  for (int64_t outer = 0; outer < s.outer; ++outer) {
    for (int64_t p = 0; p < s.out[0]; ++p) {
      for (int64_t q = 0; q < s.out[1]; ++q) {
        for (int64_t i = 0; i < s.inner; ++i) visit(at++, outer, p, q, i);
      }
    }
  }
}

template <Pooling kKind, typename T, typename Pool>
void TestForward(const Pool& pool) {
  const PoolShape s = DrawnShape();
  const int64_t size = s.outer * s.in[0] * s.in[1] * s.inner;
  auto x = Exactly<T>(size);
  auto y = Exactly<T>(s.outer * s.out[0] * s.out[1] * s.inner);
  for (int64_t i = 0; i < size; ++i) x[i] = rlx::FromFloat<T>(Drawn(kKind != Pooling::kSum));
  rlx::PoolWindows<kKind>(pool, s, x.get(), y.get());
  Results(s, [&](int64_t at, int64_t outer, int64_t p, int64_t q, int64_t i) {
    float best = rlx::pool::kStart<kKind>;
    Window(s, outer, p, q, i, [&](int64_t from) {
      const float v = from < 0 ? rlx::pool::kStart<kKind> : rlx::ToFloat(x[from]);
      if constexpr (kKind == Pooling::kSum) {
        best += v;
      } else if (best == best) {
        const bool wins = kKind == Pooling::kMax
                              ? v > best || (v == best && std::signbit(best))
                              : v < best || (v == best && std::signbit(v));
        if (v != v || wins) best = v;
      }
    });
    const float found = rlx::ToFloat(y[at]);
    CHECK(best != best ? found != found
                       : found == best && (kKind == Pooling::kSum ||
                                           std::signbit(found) == std::signbit(best)));
  });
}

template <typename Pool>
void TestBackward(const Pool& pool, bool greatest) {
  const PoolShape s = DrawnShape();
  const int64_t size = s.outer * s.in[0] * s.in[1] * s.inner;
  const int64_t results = s.outer * s.out[0] * s.out[1] * s.inner;
  auto x = Exactly<float>(size);
  auto dy = Exactly<float>(results);
  auto dx = Exactly<float>(size);
  auto wanted = Exactly<float>(size);
  for (int64_t i = 0; i < size; ++i) x[i] = Drawn(true);
  for (int64_t i = 0; i < results; ++i) dy[i] = static_cast<float>(Below(9));
  std::fill(wanted.get(), wanted.get() + size, 0.0f);
  Results(s, [&](int64_t at, int64_t outer, int64_t p, int64_t q, int64_t i) {
    bool first = true;
    float best = 0;
    int64_t place = -1;
    Window(s, outer, p, q, i, [&](int64_t from) {
      const float v = from < 0 ? (greatest ? -kInfinity : kInfinity) : x[from];
      if (!first && (greatest ? best >= v : best <= v)) return;
      first = false;
      best = v;
      place = from;
    });
    if (place >= 0) wanted[place] += dy[at];
  });
  rlx::PoolBackward(pool, s, greatest, dy.get(), x.get(), dx.get());
  for (int64_t i = 0; i < size; ++i) CHECK(dx[i] == wanted[i]);
}

void TestAll() {
  const rlx::testing::FullPool alone;
  for (int i = 0; i < 120; ++i) {
    const rlx::testing::ThreadPool pool;
    TestForward<Pooling::kMax, float>(pool);
    TestForward<Pooling::kMin, float>(alone);
    TestForward<Pooling::kSum, float>(pool);
    TestForward<Pooling::kMax, rlx::Bf16>(alone);
    TestForward<Pooling::kMin, rlx::F16>(pool);
    TestForward<Pooling::kSum, rlx::Bf16>(alone);
    TestBackward(pool, true);
    TestBackward(alone, false);
  }
}

}  // namespace

int main() {
  TestAll();
#if defined(__x86_64__)
  rlx::matmul::allow_avx512 = false;
  TestAll();
#endif
  std::puts("pool: ok");
  return 0;
}
