// Few rows of x with packed columns: columns_avx512.h against what more rows unpack, and the edges
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

// Every pool and every number of rows gives a row the same bits, and they are close to those of
// the row among five, whose weights are unpacked first.
template <typename Weights>
void CheckFew(const Weights& weights, int64_t k, int64_t n) {
  constexpr int64_t kRows = 5;
  const auto of = [&](int64_t) { return weights; };
  const auto x = Filled<float>(kRows * k, Uniform);
  auto wanted = Exactly<float>(kRows * n), first = Exactly<float>(n);
  rlx::Product(rlx::testing::FullPool{}, {1, kRows, k, n, false}, x.get(), of, wanted.get());
  for (int64_t rows = 1; rows < kRows; ++rows) {
    auto found = Exactly<float>(rows * n), again = Exactly<float>(rows * n);
    const MatmulShape shape = {1, rows, k, n, false};
    rlx::Product(rlx::testing::FullPool{}, shape, x.get(), of, found.get());
    rlx::Product(rlx::testing::ThreadPool{}, shape, x.get(), of, again.get());
    CHECK(std::memcmp(found.get(), again.get(), rows * n * sizeof(float)) == 0);
    if (rows == 1) std::copy_n(found.get(), n, first.get());
    CHECK(std::memcmp(found.get(), first.get(), n * sizeof(float)) == 0);
    float most = 0;
    for (int64_t c = 0; c < rows * n; ++c) most = std::fmax(most, std::fabs(wanted[c]));
    for (int64_t c = 0; c < rows * n; ++c) {
      CHECK(std::isnan(found[c]) == std::isnan(wanted[c]));
      CHECK(std::isnan(found[c]) || std::fabs(found[c] - wanted[c]) <= 1e-5f * most);
    }
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
    CheckFew(rlx::blocks::ColumnsOfCodes<false>{bytes.get(), scale.get(), less, block, n}, k, n);
    if (n % 2 != 0) continue;
    CheckFew(rlx::blocks::ColumnsOfCodes<true>{bytes.get(), scale.get(), less, block, n}, k, n);
  }
  for (const float* of : {kNone, static_cast<const float*>(scale.get())}) {
    CheckFew(rlx::blocks::ColumnsOfBytes<Byte::kE4m3>{finite.get(), of, n}, k, n);
    CheckFew(rlx::blocks::ColumnsOfBytes<Byte::kE5m2>{finite.get(), of, n}, k, n);
  }
  if (n % 2 != 0) return;
  const auto small = Filled<uint8_t>((k + 15) / 16 * n, ::Byte);  // NaN among them
  for (const float* whole : {kNone, static_cast<const float*>(scale.get())}) {
    CheckFew(rlx::blocks::ColumnsOfNvfp4{bytes.get(), small.get(), whole, n}, k, n);
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

// A scale that is not finite gives what each number of the group gives by itself: NaN for a code
// that is zero, or equal to the zero point, and infinity of one sign or the other for the rest.
template <bool kNibbles>
void TestInfiniteScale() {
  const int64_t k = 70, n = 260, block = 32;
  auto codes = Exactly<uint8_t>(k * n);
  std::fill_n(codes.get(), k * n, uint8_t{0x33});
  const auto set = [&](int64_t row, int64_t column, uint8_t code) {
    const int64_t at = row * n + column;
    codes[kNibbles ? at / 2 : at] = code;
  };
  set(40, 6, 0);                      // zero, or below the zero point
  set(50, 128, kNibbles ? 0x11 : 1);  // the zero point
  const auto scale = Filled<float>(3 * n, Scale);
  const auto zero = Exactly<float>(3 * n);
  std::fill_n(zero.get(), 3 * n, 1.0f);
  for (int64_t column : {6, 17, 128, 258}) scale[n + column] = INFINITY;
  auto x = Exactly<float>(2 * k), y = Exactly<float>(2 * n);
  std::fill_n(x.get(), 2 * k, 1.0f);
  for (const float* less : {kNone, static_cast<const float*>(zero.get())}) {
    const rlx::blocks::ColumnsOfCodes<kNibbles> weights = {codes.get(), scale.get(), less, block, n};
    for (int64_t rows : {1, 2}) {
      const MatmulShape shape = {1, rows, k, n, false};
      rlx::Product(rlx::testing::ThreadPool{}, shape, x.get(), [&](int64_t) { return weights; },
                   y.get());
      for (int64_t i = 0; i < rows * n; ++i) {
        const int64_t c = i % n;
        const bool infinite = c == 6 || c == 17 || c == 128 || c == 258;
        const bool nan = c == 6 || (c == 128 && less != nullptr);
        CHECK(nan ? std::isnan(y[i]) : infinite == std::isinf(y[i]) && !std::isnan(y[i]));
      }
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
  TestInfiniteScale<false>();
  TestInfiniteScale<true>();
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
