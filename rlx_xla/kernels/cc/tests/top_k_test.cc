// top_k.h against a stable sort by total order.
#include "top_k.h"

#include <cstdio>
#include <numeric>
#include <vector>

#include "testing.h"

namespace {

using rlx::testing::Exactly;
using rlx::testing::NextRandom;

template <typename T>
T RandomElement(int kind, int64_t i) {
  using U = rlx::BitsOf<T>;
  const uint32_t bits = NextRandom() << 12 ^ NextRandom();
  switch (kind) {
    case 0: return rlx::BitCast<T>(static_cast<U>(bits));  // anything, NaNs included
    case 1: return rlx::BitCast<T>(static_cast<U>(bits % 3));
    default: return rlx::BitCast<T>(static_cast<U>(i));  // each one above all before
  }
}

template <typename T, bool kNanIsLowest>
void CheckRow(int64_t n, int64_t k, int kind) {
  auto x = Exactly<T>(2 * n);
  auto values = Exactly<T>(2 * k);
  auto indices = Exactly<int32_t>(2 * k);
  for (int64_t i = 0; i < 2 * n; ++i) x[i] = RandomElement<T>(kind, i);
  rlx::TopK<T, kNanIsLowest>(x.get(), 2, n, k, values.get(), indices.get());
  const auto key = [&](int64_t i) { return rlx::top_k::KeyOf<T, kNanIsLowest>(x[i]); };
  std::vector<int64_t> order(n);
  for (int64_t row = 0; row < 2; ++row) {
    std::iota(order.begin(), order.end(), row * n);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return key(a) > key(b); });
    for (int64_t i = 0; i < k; ++i) {
      const int64_t at = row * k + i;
      CHECK(indices[at] == order[i] - row * n);
      CHECK((rlx::top_k::KeyOf<T, kNanIsLowest>(values[at])) == key(order[i]));
    }
  }
}

template <typename T>
void TestType() {
  for (int64_t n : {1, 7, 31, 32, 33, 64, 200, 5000}) {
    for (int64_t k : {1, 2, 5, 31, 127, 128, 129, 1000, 1024, 5000}) {
      if (k > n) continue;
      for (int kind = 0; kind < 3; ++kind) {
        CheckRow<T, false>(n, k, kind);
        CheckRow<T, true>(n, k, kind);
      }
    }
  }
}

}  // namespace

int main() {
  TestType<float>();
  TestType<rlx::Bf16>();
  TestType<rlx::F16>();
  TestType<int32_t>();
  TestType<uint32_t>();
  std::puts("top_k: ok");
  return 0;
}
