// fixed_point.h and the products made with it: against sums in double, on heap blocks of exact
// sizes that need not be aligned; numbers that do not split.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "blocks.h"
#include "blocks_testing.h"
#include "fixed_mlx.h"
#include "fixed_product.h"
#include "minifloat.h"
#include "testing.h"

#if defined(__x86_64__)

namespace {

using rlx::testing::Exactly;
using rlx::testing::FullPool;
using rlx::testing::NextRandom;
using rlx::testing::RandomBlocks;
using rlx::testing::Uniform;

constexpr float kInf = std::numeric_limits<float>::infinity();

// Whether the product is taken.
template <typename Block, typename Pool>
bool Product(const Pool& pool, const float* x, int64_t rows, int64_t k, const uint8_t* w, int64_t n,
             float* y) {
  const rlx::MatmulShape shape = {1, rows, k, n, /*by_rows=*/true};
  return rlx::fixed::Take(pool, shape, x, rlx::blocks::RowsOfBlocks<Block>{w, k}, y);
}

// Checks y[n] of a row of x: a group's numbers are off by 2^-23 of its largest or less, its sums
// and those over groups by what f32 loses.
template <typename Block>
void CheckRow(const float* x, int64_t k, const uint8_t* w, int64_t n, const float* y) {
  auto numbers = Exactly<float>(k);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t b = 0; b < k / Block::kElements; ++b) {
      Block::Decode(w + (j * (k / Block::kElements) + b) * Block::kBytes,
                    numbers.get() + b * Block::kElements);
    }
    double sum = 0, split = 0, size = 0;
    for (int64_t g = 0; g < k; g += rlx::fixed::kGroup) {
      double most = 0, all = 0;
      for (int64_t i = g; i < g + rlx::fixed::kGroup; ++i) {
        sum += double{x[i]} * numbers[i];
        size += std::fabs(double{x[i]} * numbers[i]);
        most = std::fmax(most, std::fabs(x[i]));
        all += std::fabs(numbers[i]);
      }
      split += most * all;
    }
    CHECK(std::fabs(y[j] - sum) <= std::ldexp(split, -23) + std::ldexp(size, -20));
  }
}

template <typename Block>
void TestProduct() {
  for (int64_t rows : {1, 2, 3, 4, 7}) {
    for (int64_t blocks : {1, 3, Block::kElements == 32 ? 18 : 4}) {
      for (int64_t n : {1, 3, 4, 9, 22}) {
        const int64_t k = blocks * Block::kElements, skip = NextRandom() % 4;
        auto x = Exactly<float>(rows * k);
        for (int64_t i = 0; i < rows * k; ++i) x[i] = Uniform();
        const auto memory = RandomBlocks<Block>(n * blocks, skip);
        const uint8_t* w = memory.get() + skip;
        auto y = Exactly<float>(rows * n);
        CHECK(Product<Block>(FullPool{}, x.get(), rows, k, w, n, y.get()));
        for (int64_t m = 0; m < rows; ++m) CheckRow<Block>(&x[m * k], k, w, n, &y[m * n]);
      }
    }
  }
}

// Results depend neither on the threads nor on the other rows.
template <typename Block>
void TestAlone() {
  const int64_t rows = 7, n = 1021, k = 768;
  auto x = Exactly<float>(rows * k);
  for (int64_t i = 0; i < rows * k; ++i) x[i] = Uniform();
  const auto w = RandomBlocks<Block>(n * k / Block::kElements);
  std::vector<float> y(rows * n), alone(n);
  CHECK(Product<Block>(rlx::testing::ThreadPool{}, x.get(), rows, k, w.get(), n,
                                   y.data()));
  for (int64_t m = 0; m < rows; ++m) {
    CHECK(Product<Block>(FullPool{}, &x[m * k], 1, k, w.get(), n, alone.data()));
    CHECK(std::memcmp(alone.data(), &y[m * n], n * sizeof(float)) == 0);
  }
}

// Groups in which one number is larger than all others, or whose numbers are tiny, are multiplied
// as floats: nothing of what is small is lost, though a code of zero takes the large one away.
template <typename Block>
void TestSpikes() {
  const int64_t k = 10 * 256, n = 9;
  auto x = Exactly<float>(k);
  for (int64_t i = 0; i < k; ++i) x[i] = Uniform();
  for (int64_t i = 0; i < 32; ++i) x[32 + i] *= 0x1p-90f;
  x[70] = 3e6f;
  std::fill_n(&x[96], 32, 0.0f);
  x[100] = 1.5f;  // alone: exact
  const auto w = RandomBlocks<Block>(n * k / Block::kElements);
  std::vector<float> y(n);
  CHECK(Product<Block>(FullPool{}, x.get(), 1, k, w.get(), n, y.data()));
  CheckRow<Block>(x.get(), k, w.get(), n, y.data());
  float wide[Block::kElements];
  for (int64_t i = 0; i < k; ++i) x[i] = 0.0f;
  x[70] = 3e6f;
  x[71] = 1.0f;
  CHECK(Product<Block>(FullPool{}, x.get(), 1, k, w.get(), n, y.data()));
  for (int64_t j = 0; j < n; ++j) {
    const int64_t b = 70 / Block::kElements;
    Block::Decode(w.get() + (j * (k / Block::kElements) + b) * Block::kBytes, wide);
    const float large = wide[70 % Block::kElements], small = wide[71 % Block::kElements];
    CHECK(y[j] == 3e6f * large + small || large != 0.0f);
  }
}

// What is not finite, and many groups that do not split, are for the products of floats.
template <typename Block>
void TestNotTaken() {
  const int64_t k = 256, n = 5;
  const auto w = RandomBlocks<Block>(n * k / Block::kElements);
  std::vector<float> x(k), y(n);
  for (float bad : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
    for (float& v : x) v = Uniform();
    x[NextRandom() % k] = bad;
    CHECK(!Product<Block>(FullPool{}, x.data(), 1, k, w.get(), n, y.data()));
  }
  for (float& v : x) v = Uniform() * 0x1p-100f;
  CHECK(!Product<Block>(FullPool{}, x.data(), 1, k, w.get(), n, y.data()));
  std::fill(x.begin(), x.end(), 0.0f);
  CHECK(Product<Block>(FullPool{}, x.data(), 1, k, w.get(), n, y.data()));
  for (float v : y) CHECK(v == 0.0f);
}

// Products with rows whose scales lie apart, against the numbers that they unpack.
template <typename Weights>
void TestApart(const Weights& w, int64_t n, int64_t k) {
  for (int64_t rows : {1, 2, 5}) {
    auto x = Exactly<float>(rows * k);
    for (int64_t i = 0; i < rows * k; ++i) x[i] = Uniform();
    x[rows * k - 1] = 1e9f;  // one group that does not split
    std::vector<float> y(rows * n);
    const rlx::MatmulShape shape = {1, rows, k, n, /*by_rows=*/true};
    CHECK(rlx::fixed::Take(rlx::testing::ThreadPool{}, shape, x.get(), w, y.data()));
    for (int64_t j = 0; j < n; ++j) {
      std::vector<float> buffer(k);
      const float* numbers = w.Get(j, 1, 0, k, 8, buffer.data(), k, 0).data;
      for (int64_t m = 0; m < rows; ++m) {
        double sum = 0, size = 0;
        for (int64_t i = 0; i < k; ++i) {
          sum += double{x[m * k + i]} * numbers[i];
          // Codes and what is added may be larger than the numbers they give.
          size += std::fabs(x[m * k + i]) * (std::fabs(numbers[i]) + 1);
        }
        CHECK(std::fabs(y[m * n + j] - sum) <= std::ldexp(size, -20));
      }
    }
  }
}

template <typename S>
void TestMlx() {
  for (int bits : {4, 8}) {
    for (int64_t block : {32, 64, 128}) {
      const int64_t n = 13, k = 384;
      auto codes = Exactly<uint8_t>(n * k * bits / 8);
      for (int64_t i = 0; i < n * k * bits / 8; ++i) codes[i] = static_cast<uint8_t>(NextRandom());
      auto scale = Exactly<S>(n * k / block), bias = Exactly<S>(n * k / block);
      for (int64_t i = 0; i < n * k / block; ++i) {
        scale[i] = rlx::FromFloat<S>(Uniform() / 256);
        bias[i] = rlx::FromFloat<S>(Uniform() / 2);
      }
      const rlx::mlx::Rows<S> w = {codes.get(), scale.get(), bias.get(), k, block, bits};
      TestApart(w, n, k);
    }
  }
}

RLX_VNNI void Powers(const uint8_t* bytes, float* out) {
  _mm_storeu_ps(out, rlx::fixed::FourPowers(bytes, 1));
}

void TestMx() {
  for (int64_t block : {32, 64}) {
    const int64_t n = 13, k = 384;
    auto codes = Exactly<uint8_t>(n * k / 2), scale = Exactly<uint8_t>(n * k / block);
    for (int64_t i = 0; i < n * k / 2; ++i) codes[i] = static_cast<uint8_t>(NextRandom());
    for (int64_t i = 0; i < n * k / block; ++i) {
      scale[i] = static_cast<uint8_t>(110 + NextRandom() % 15);
    }
    TestApart(rlx::blocks::RowsOfMx<true>{codes.get(), scale.get(), n, k, block, 1}, n, k);
  }
  // As the table of powers, tiny ones too; NaN where twelve times a power is not finite.
  for (int e = 0; e < 256; ++e) {
    const uint8_t bytes[4] = {static_cast<uint8_t>(e), 255, 0, 1};
    float powers[4];
    Powers(bytes, powers);
    const float wanted = rlx::blocks::PowerOfTwo<1>(e);
    if (std::isfinite(12 * wanted)) {
      CHECK(std::memcmp(powers, &wanted, sizeof(wanted)) == 0);
    } else {
      CHECK(std::isnan(powers[0]));
    }
    CHECK(std::isnan(powers[1]));
  }
}

void TestSplit() {
  int8_t digits[rlx::fixed::kDigits];
  float unit, sum;
  for (int round = 0; round < 2000; ++round) {
    float x[32];
    const float scale = std::ldexp(1.0f, static_cast<int>(NextRandom() % 180) - 70);
    for (float& v : x) v = Uniform() * scale;
    if (!rlx::fixed::SplitGroup<0, false, false>(x, digits, &unit, nullptr, &sum)) continue;
    float most = 0;
    double all = 0;
    for (float v : x) most = std::fmax(most, std::fabs(v));
    for (int i = 0; i < 32; ++i) {
      const int32_t whole = digits[i] * 65536 + digits[32 + i] * 256 + digits[64 + i];
      CHECK(std::fabs(double{unit} * whole - x[i]) <= unit / 2);
      all += double{unit} * whole;
    }
    CHECK(unit <= std::ldexp(1.005f * most, -22));
    CHECK(std::fabs(sum - all) <= std::ldexp(most, -19));
  }
}

// Beside a large number, one that is too small for a quotient of f32 is not lost.
void TestFarApart() {
  for (int small : {-100, -70, -20, 60, 100}) {
    int8_t digits[rlx::fixed::kDigits];
    float unit, sum, x[32] = {};
    x[3] = 0x1.8p126f;
    CHECK((rlx::fixed::SplitGroup<0, false, false>(x, digits, &unit, nullptr, &sum)));
    x[20] = std::ldexp(1.0f, small);
    CHECK(!(rlx::fixed::SplitGroup<0, false, false>(x, digits, &unit, nullptr, &sum)));
  }
}

// One code that is not zero: what the others' bias adds is taken away exactly.
void TestBias() {
  const int64_t n = 8;
  for (int round = 0; round < 200; ++round) {
    auto x = Exactly<float>(32);
    for (int64_t i = 0; i < 32; ++i) x[i] = static_cast<float>(1 << 22) + 32600 + NextRandom() % 99;
    std::vector<uint8_t> w(n * rlx::blocks::Q8_0::kBytes);
    const int64_t at = NextRandom() % 32;
    for (int64_t j = 0; j < n; ++j) {
      w[j * 34 + 1] = 0x3c;  // a scale of one
      w[j * 34 + 2 + at] = static_cast<uint8_t>(j + 1);
    }
    std::vector<float> y(n);
    CHECK(Product<rlx::blocks::Q8_0>(FullPool{}, x.get(), 1, 32, w.data(), n, y.data()));
    for (int64_t j = 0; j < n; ++j) CHECK(y[j] == x[at] * static_cast<float>(j + 1));
  }
}

// Rounding does not add up over all of many groups that are alike.
template <typename Block>
void TestMany() {
  const int64_t k = 16384, n = 4, count = k / Block::kElements;
  for (int round = 0; round < 10; ++round) {
    const auto block = RandomBlocks<Block>(1);
    std::vector<uint8_t> w(n * count * Block::kBytes);
    for (int64_t b = 0; b < n * count; ++b) {
      std::memcpy(&w[b * Block::kBytes], block.get(), Block::kBytes);
    }
    std::vector<float> x(k, 1.0f + static_cast<float>(NextRandom() % 1000) / 1000), y(n);
    float numbers[Block::kElements];
    Block::Decode(block.get(), numbers);
    double sum = 0, size = 0;
    for (float number : numbers) {
      sum += double{number} * x[0] * count;
      size += std::fabs(double{number}) * x[0] * count;
    }
    CHECK(Product<Block>(FullPool{}, x.data(), 1, k, w.data(), n, y.data()));
    for (float v : y) CHECK(std::fabs(v - sum) <= 2.5e-6 * size);
  }
}

// Scales far below and above those of halves, of rows that give 3 * scale for each of k numbers:
// none is lost, and where numbers of weights are infinite nothing is taken.
template <typename Weights>
void CheckFar(const Weights& w, double scale, int64_t k, bool finite) {
  for (int exponent : {-30, -3, 20}) {
    const std::vector<float> x(k, std::ldexp(1.0f, exponent));
    const double wanted = 3 * scale * k * x[0];
    std::vector<float> y(4);
    const rlx::MatmulShape shape = {1, 1, k, 4, /*by_rows=*/true};
    const bool taken = rlx::fixed::Take(FullPool{}, shape, x.data(), w, y.data());
    CHECK(!taken || finite);
    const bool normal = 0x1p-126 <= wanted && wanted < 0x1p100;
    CHECK(taken || !finite || !normal);
    for (float v : y) CHECK(!taken || !normal || std::fabs(v - wanted) <= 1e-6 * wanted);
  }
}

void TestFarScales() {
  constexpr int64_t k = 64;
  for (int exponent : {-126, -120, -100, 0, 100, 118, 121, 124, 126, 127}) {
    const float scale = std::ldexp(1.0f, exponent);
    const bool finite = exponent <= 118;
    std::vector<uint8_t> codes(4 * k, 0x03);
    std::vector<float> scales(4 * 2, scale), biases(4 * 2, 0.0f);
    const rlx::mlx::Rows<float> floats = {codes.data(), scales.data(), biases.data(), k, 32, 8};
    CheckFar(floats, scale, k, finite);
    std::vector<rlx::Bf16> halves(4 * 2, rlx::FromFloat<rlx::Bf16>(scale)), none(4 * 2);
    std::fill(none.begin(), none.end(), rlx::Bf16{0});
    CheckFar(rlx::mlx::Rows<rlx::Bf16>{codes.data(), halves.data(), none.data(), k, 32, 8}, scale,
             k, finite);
  }
  for (int e : {2, 3, 12, 128, 250, 252, 253, 254, 255}) {
    const double scale = std::ldexp(1.0, e - 128);  // of twice the numbers, of which code 3 is one
    std::vector<uint8_t> codes(4 * k / 2, 0x33), scales(4 * 2, static_cast<uint8_t>(e));
    CheckFar(rlx::blocks::RowsOfMx<true>{codes.data(), scales.data(), 4, k, 32, 1}, scale, k,
             e < 253);
    std::vector<uint8_t> rows(4 * 2 * 17, 0x33);
    for (size_t at = 0; at < rows.size(); at += 17) rows[at] = static_cast<uint8_t>(e);
    CheckFar(rlx::blocks::RowsOfBlocks<rlx::blocks::Mxfp4>{rows.data(), k}, scale, k, e < 253);
  }
}

// Few rows of weights are not worth the splitting of x.
void TestFewColumns() {
  const std::vector<float> x(64, 1.0f);
  const auto w = RandomBlocks<rlx::blocks::Q4_0>(32 * 2);
  std::vector<float> y(32);
  CHECK(!Product<rlx::blocks::Q4_0>(FullPool{}, x.data(), 1, 64, w.get(), 31, y.data()));
  CHECK(Product<rlx::blocks::Q4_0>(FullPool{}, x.data(), 1, 64, w.get(), 32, y.data()));
}

template <typename Block>
void TestBlock() {
  TestProduct<Block>();
  TestAlone<Block>();
  TestSpikes<Block>();
  TestNotTaken<Block>();
}

}  // namespace

int main() {
  if (!rlx::fixed::Has()) {
    std::puts("fixed_test: this CPU has no VNNI");
    return 0;
  }
  TestFewColumns();
  rlx::fixed::least_columns = 0;
  TestSplit();
  TestMlx<float>();
  TestMlx<rlx::Bf16>();
  TestMlx<rlx::F16>();
  TestMx();
  TestFarApart();
  TestBias();
  TestFarScales();
  TestMany<rlx::blocks::Q4_1>();
  TestMany<rlx::blocks::Q8_0>();
  TestMany<rlx::blocks::Q4_K>();
  TestMany<rlx::blocks::Q6_K>();
  TestBlock<rlx::blocks::Q4_0>();
  TestBlock<rlx::blocks::Q4_1>();
  TestBlock<rlx::blocks::Q5_0>();
  TestBlock<rlx::blocks::Q5_1>();
  TestBlock<rlx::blocks::Q8_0>();
  TestBlock<rlx::blocks::Iq4Nl>();
  TestBlock<rlx::blocks::Mxfp4>();
  TestBlock<rlx::blocks::Q4_K>();
  TestBlock<rlx::blocks::Q5_K>();
  TestBlock<rlx::blocks::Q6_K>();
  std::puts("fixed_test: passed");
  return 0;
}

#else

int main() { return 0; }

#endif  // defined(__x86_64__)
