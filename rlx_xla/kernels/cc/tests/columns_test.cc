// One row of x with packed columns: columns_avx512.h against what many rows unpack, and the edges
// of lines, runs, groups and pieces.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include "blocks.h"
#include "minifloat.h"
#include "products.h"
#include "testing.h"

namespace {

using rlx::MatmulShape;
using rlx::testing::Exactly;
using rlx::testing::NextRandom;

float Uniform() { return static_cast<float>(NextRandom() % 2001) / 1000.0f - 1.0f; }

template <typename T>
std::unique_ptr<T[]> Filled(int64_t n, float (*number)()) {
  auto made = Exactly<T>(n);
  for (int64_t i = 0; i < n; ++i) made[i] = static_cast<T>(number());
  return made;
}

// Every pool gives one row the same bits, and they are close to those of the row among two, whose
// weights are unpacked first.
template <typename Weights>
void CheckOne(const Weights& weights, int64_t k, int64_t n) {
  const auto of = [&](int64_t) { return weights; };
  const auto x = Filled<float>(2 * k, Uniform);
  auto one = Exactly<float>(n), again = Exactly<float>(n), two = Exactly<float>(2 * n);
  const MatmulShape alone = {1, 1, k, n, false}, among = {1, 2, k, n, false};
  rlx::Product(rlx::testing::FullPool{}, alone, x.get(), of, one.get());
  rlx::Product(rlx::testing::ThreadPool{}, alone, x.get(), of, again.get());
  CHECK(std::memcmp(one.get(), again.get(), n * sizeof(float)) == 0);
  rlx::Product(rlx::testing::FullPool{}, among, x.get(), of, two.get());
  float most = 0;
  for (int64_t c = 0; c < n; ++c) most = std::fmax(most, std::fabs(two[c]));
  for (int64_t c = 0; c < n; ++c) {
    CHECK(std::isnan(one[c]) == std::isnan(two[c]));
    CHECK(std::isnan(two[c]) || std::fabs(one[c] - two[c]) <= 1e-5f * most);
  }
}

float Byte() { return static_cast<float>(NextRandom() % 256); }
float Scale() { return static_cast<float>(1 + NextRandom() % 100) / 64.0f; }
float Zero() { return static_cast<float>(NextRandom() % 64) / 4.0f; }
float Finite() { return static_cast<float>((NextRandom() & 0x80) | (NextRandom() % 0x7b)); }

const float* const kNone = nullptr;

void TestSizes(int64_t k, int64_t n, int64_t block) {
  using rlx::blocks::Byte;
  const int64_t groups = (k + block - 1) / block;
  const auto bytes = Filled<uint8_t>(k * n, ::Byte);
  const auto finite = Filled<uint8_t>(k * n, Finite);
  const auto scale = Filled<float>(groups * n, Scale);
  const auto zero = Filled<float>(groups * n, Zero);
  for (const float* less : {kNone, static_cast<const float*>(zero.get())}) {
    CheckOne(rlx::blocks::ColumnsOfCodes<false>{bytes.get(), scale.get(), less, block, n}, k, n);
    if (n % 2 != 0) continue;
    CheckOne(rlx::blocks::ColumnsOfCodes<true>{bytes.get(), scale.get(), less, block, n}, k, n);
  }
  for (const float* of : {kNone, static_cast<const float*>(scale.get())}) {
    CheckOne(rlx::blocks::ColumnsOfBytes<Byte::kE4m3>{finite.get(), of, n}, k, n);
    CheckOne(rlx::blocks::ColumnsOfBytes<Byte::kE5m2>{finite.get(), of, n}, k, n);
  }
  if (n % 2 != 0) return;
  const auto small = Filled<uint8_t>((k + 15) / 16 * n, ::Byte);  // NaN among them
  for (const float* whole : {kNone, static_cast<const float*>(scale.get())}) {
    CheckOne(rlx::blocks::ColumnsOfNvfp4{bytes.get(), small.get(), whole, n}, k, n);
  }
}

// A code that is NaN makes its column NaN, and none else, whatever x has there.
void TestNan() {
  using rlx::blocks::Byte;
  const int64_t k = 45, n = 150;
  for (int64_t at : {0, 63, 64, 127, 149, 30 * 150 + 17, 44 * 150 + 149}) {
    for (uint8_t code : {0x7f, 0xff}) {
      auto codes = Filled<uint8_t>(k * n, Finite);
      codes[at] = code;
      const auto x = Exactly<float>(k);
      std::fill_n(x.get(), k, 0.0f);
      auto y = Exactly<float>(n);
      const MatmulShape shape = {1, 1, k, n, false};
      const rlx::blocks::ColumnsOfBytes<Byte::kE4m3> weights = {codes.get(), nullptr, n};
      rlx::Product(rlx::testing::FullPool{}, shape, x.get(), [&](int64_t) { return weights; },
                   y.get());
      for (int64_t c = 0; c < n; ++c) CHECK(c == at % n ? std::isnan(y[c]) : y[c] == 0.0f);
    }
  }
}

void TestAll() {
  for (int64_t n : {2, 63, 64, 66, 128, 191, 258}) {
    for (int64_t k : {1, 7, 8, 31, 40, 67}) TestSizes(k, n, 1 + NextRandom() % 40);
  }
  TestSizes(1000, 260, 32);   // some stretches of rows
  TestSizes(1000, 260, 1000);
  TestSizes(70, 4500, 32);  // and of columns
  TestNan();
}

}  // namespace

int main() {
  TestAll();
#if defined(__x86_64__)
  rlx::matmul::allow_avx512 = false;
  TestAll();
#endif
  std::puts("columns: ok");
  return 0;
}
