// cumulative.h against the plain definition in long double.
#include "cumulative.h"

#include <cmath>
#include <cstdio>
#include <limits>
#include <type_traits>

#include "testing.h"

namespace {

using rlx::Running;
using rlx::testing::Exactly;
using rlx::testing::NextRandom;
using rlx::testing::ThreadPool;

template <typename T>
long double Number(T x) {
  if constexpr (rlx::kIsFloat<T>) {
    return rlx::ToFloat(x);
  } else {
    return x;
  }
}

template <typename T>
T Element(double x) {
  if constexpr (std::is_same_v<T, double>) {
    return x;
  } else if constexpr (rlx::kIsFloat<T>) {
    return rlx::FromFloat<T>(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

long double Step(Running kind, long double sum, long double x) {
  switch (kind) {
    case Running::kSum: return sum + x;
    case Running::kProduct: return sum * x;
    case Running::kMaximum: return std::fmax(sum, x);
    case Running::kMinimum: return std::fmin(sum, x);
    case Running::kLogSumExp: {
      const long double top = std::fmax(sum, x);
      return top + std::log(std::exp(sum - top) + std::exp(x - top));
    }
  }
  return 0;
}

// Whether a float is near enough; integers are equal modulo their range, which the test keeps to.
template <typename T>
bool Near(T found, long double wanted) {
  if constexpr (!rlx::kIsFloat<T>) return Number(found) == wanted;
  const long double unit = sizeof(T) == 2 ? 0.01L : sizeof(T) == 4 ? 1e-6L : 1e-14L;
  return std::fabs(Number(found) - wanted) <= unit * (1 + std::fabs(wanted));
}

template <typename T, typename Pool>
void CheckShape(const Pool& pool, Running kind, int64_t outer, int64_t n, int64_t inner) {
  const int64_t size = outer * n * inner;
  for (bool reverse : {false, true}) {
    auto x = Exactly<T>(size);
    auto y = Exactly<T>(size);
    for (int64_t i = 0; i < size; ++i) {
      double value = NextRandom() % 1000 / 500.0 - 1;
      if (kind == Running::kProduct) value = 1 + value / 100;
      if (!rlx::kIsFloat<T>) value = kind == Running::kProduct ? 1 : NextRandom() % 9;
      x[i] = Element<T>(value);
    }
    rlx::Cumulate(pool, kind, x.get(), outer, n, inner, reverse, y.get());
    for (int64_t line = 0; line < outer * inner; ++line) {
      const int64_t base = line / inner * n * inner + line % inner;
      long double sum = 0;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = base + (reverse ? n - 1 - i : i) * inner;
        sum = i == 0 ? Number(x[at]) : Step(kind, sum, Number(x[at]));
        CHECK(Near(y[at], sum));
      }
    }
  }
}

template <typename T>
void TestType() {
  const Running kinds[] = {Running::kSum, Running::kProduct, Running::kMaximum, Running::kMinimum,
                           Running::kLogSumExp};
  for (Running kind : kinds) {
    if (kind == Running::kLogSumExp && !(rlx::kIsFloat<T> && sizeof(T) <= 4)) continue;
    const rlx::testing::FullPool alone;
    for (int64_t n : {0, 1, 2, 7, 8, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1030}) {
      CheckShape<T>(alone, kind, 2, n, 1);
      CheckShape<T>(alone, kind, 2, n, 5);
    }
    for (int64_t inner : {63, 64, 65, 600}) CheckShape<T>(alone, kind, 2, 9, inner);
    ThreadPool pool;
    CheckShape<T>(pool, kind, 200, 300, 1);
    CheckShape<T>(pool, kind, 1, 300, 200);
  }
}

// NaN wins from where it stands; infinities and their absence in log-sum-exp.
void TestSpecialValues() {
  const float inf = std::numeric_limits<float>::infinity();
  const rlx::testing::FullPool pool;
  for (int kind = 0; kind < 5; ++kind) {
    for (int64_t place : {0, 63, 64, 99}) {
      auto x = Exactly<float>(100);
      auto y = Exactly<float>(100);
      std::fill(x.get(), x.get() + 100, 1.0f);
      x[place] = std::nanf("");
      rlx::Cumulate(pool, static_cast<Running>(kind), x.get(), 1, 100, 1, false, y.get());
      for (int64_t i = 0; i < 100; ++i) CHECK((y[i] != y[i]) == (i >= place));
      x[place] = inf;
      rlx::Cumulate(pool, static_cast<Running>(kind), x.get(), 1, 100, 1, false, y.get());
      if (kind != 3) {
        for (int64_t i = 0; i < 100; ++i) CHECK((y[i] == inf) == (i >= place));
      }
    }
  }
  auto x = Exactly<float>(200);
  auto y = Exactly<float>(200);
  for (int64_t i = 0; i < 200; ++i) x[i] = i < 70 ? -inf : i % 64 == 63 ? 2000.0f : -2000.0f;
  rlx::Cumulate(pool, Running::kLogSumExp, x.get(), 1, 200, 1, false, y.get());
  for (int64_t i = 0; i < 200; ++i) {
    if (i < 70) CHECK(y[i] == -inf);
    if (i >= 127 && i < 191) CHECK(y[i] == 2000.0f);
    if (i == 70) CHECK(y[i] == -2000.0f);
  }
}

}  // namespace

int main() {
  TestType<float>();
  TestType<double>();
  TestType<rlx::Bf16>();
  TestType<rlx::F16>();
  TestType<int32_t>();
  TestType<int64_t>();
  TestType<uint32_t>();
  TestSpecialValues();
  std::puts("cumulative: ok");
  return 0;
}
