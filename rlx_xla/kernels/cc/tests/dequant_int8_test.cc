// dequant_int8.h and the one-row products of blocks.h: every width of vectors and every kind of
// multiplication gives the same bits, on heap blocks of exact sizes that need not be aligned;
// rounded inputs against sums in double.
#include "dequant_int8.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "blocks.h"
#include "blocks_testing.h"
#include "grids.h"
#include "minifloat.h"
#include "mlx.h"
#include "products.h"
#include "testing.h"

namespace {

using rlx::testing::Exactly;
using rlx::testing::NextRandom;
using rlx::testing::RandomBlocks;
using rlx::testing::Uniform;

// The product in vectors of 64 bytes, in those of 32 with products of four, and of two.
template <typename Block, typename Pool, typename T>
std::vector<T> Product(const Pool& pool, const T* x, int64_t rows, int64_t k, const uint8_t* w,
                       int64_t n) {
  std::vector<T> made[3];
  for (int way = 0; way < 3; ++way) {
    rlx::matmul::allow_avx512 = way == 0;
    rlx::int8::allow_avx_vnni = way == 1;
    made[way].resize(rows * n);
    rlx::int8::Matmul<Block>(pool, x, rows, k, w, n, made[way].data());
    CHECK(std::memcmp(made[0].data(), made[way].data(), rows * n * sizeof(T)) == 0);
  }
  rlx::matmul::allow_avx512 = rlx::int8::allow_avx_vnni = true;
  return made[0];
}

template <typename Block>
void TestRounded() {
  const rlx::testing::FullPool alone;
  for (int64_t rows : {1, 2, 3, 4, 7}) {
    for (int64_t blocks : {1, 3, Block::kElements == 32 ? 18 : 4}) {
      for (int64_t n : {1, 3, 4, 9, 22}) {
        const int64_t k = blocks * Block::kElements;
        const int64_t skip = NextRandom() % 4;
        auto x = Exactly<float>(rows * k);
        for (int64_t i = 0; i < rows * k; ++i) x[i] = Uniform();
        const auto memory = RandomBlocks<Block>(n * blocks, skip);
        const uint8_t* w = memory.get() + skip;
        const auto y = Product<Block>(alone, x.get(), rows, k, w, n);
        auto numbers = Exactly<float>(k);
        for (int64_t j = 0; j < n; ++j) {
          for (int64_t b = 0; b < blocks; ++b) {
            Block::Decode(w + (j * blocks + b) * Block::kBytes,
                          numbers.get() + b * Block::kElements);
          }
          for (int64_t m = 0; m < rows; ++m) {
            double sum = 0, size = 0;
            for (int64_t i = 0; i < k; ++i) {
              sum += double{x[m * k + i]} * numbers[i];
              size += std::fabs(numbers[i]);
            }
            CHECK(std::fabs(y[m * n + j] - sum) <= size / 200);  // half a step of 1/127
          }
        }
      }
    }
  }
}

// Threads share columns and rows; sixteen-bit inputs are those numbers as f32.
template <typename Block, typename T>
void TestThreads() {
  const int64_t rows = 37, n = 1021, k = 2 * 256;
  auto x = Exactly<T>(rows * k);
  auto wide = Exactly<float>(rows * k);
  for (int64_t i = 0; i < rows * k; ++i) {
    x[i] = rlx::FromFloat<T>(Uniform());
    wide[i] = rlx::ToFloat(x[i]);
  }
  const auto w = RandomBlocks<Block>(n * k / Block::kElements);
  std::vector<float> alone(rows * n);
  rlx::int8::Matmul<Block>(rlx::testing::FullPool{}, wide.get(), rows, k, w.get(), n, alone.data());
  std::vector<T> together(rows * n);
  rlx::int8::Matmul<Block>(rlx::testing::ThreadPool{}, x.get(), rows, k, w.get(), n,
                           together.data());
  for (int64_t i = 0; i < rows * n; ++i) {
    CHECK(rlx::ToFloat(together[i]) == rlx::ToFloat(rlx::FromFloat<T>(alone[i])));
  }
}

// Long rows are taken few at a time for all rows of x: the same as for each alone.
template <typename Block>
void TestStretches() {
  const int64_t rows = 5, n = 23, k = 16384;
  auto x = Exactly<float>(rows * k);
  for (int64_t i = 0; i < rows * k; ++i) x[i] = Uniform();
  const auto w = RandomBlocks<Block>(n * k / Block::kElements);
  std::vector<float> together(rows * n);
  rlx::int8::Matmul<Block>(rlx::testing::FullPool{}, x.get(), rows, k, w.get(), n,
                           together.data());
  std::vector<float> alone(n);
  for (int64_t m = 0; m < rows; ++m) {
    rlx::int8::Matmul<Block>(rlx::testing::FullPool{}, x.get() + m * k, 1, k, w.get(), n,
                             alone.data());
    CHECK(std::memcmp(alone.data(), together.data() + m * n, n * sizeof(float)) == 0);
  }
}

// A block with what is not finite gives NaN in its row alone; what is too small gives zero.
template <typename Block>
void TestExtremes() {
  const int64_t k = 512, n = 6, rows = 4;
  const auto w = RandomBlocks<Block>(n * k / Block::kElements);
  for (const float odd : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(), 1e-40f}) {
    std::vector<float> x(rows * k, 0.0f);
    x[2 * k + 300] = odd;
    const auto y = Product<Block>(rlx::testing::FullPool{}, x.data(), rows, k, w.get(), n);
    for (int64_t i = 0; i < rows * n; ++i) {
      CHECK(i / n == 2 && odd != 1e-40f ? std::isnan(y[i]) : y[i] == 0.0f);
    }
  }
}

// One row of x gives the bits of two, which unpack the weights first.
template <typename Weights>
void CheckOneRow(const Weights& weights, int64_t k, int64_t n) {
  auto x = Exactly<float>(k);
  for (int64_t i = 0; i < k; ++i) x[i] = Uniform();
  const auto product = [&](int64_t rows, const float* from, float* to) {
    const rlx::MatmulShape shape = {1, rows, k, n, true};
    rlx::Product(rlx::testing::FullPool{}, shape, from, [&](int64_t) { return weights; }, to);
  };
  auto one = Exactly<float>(n);
  rlx::matmul::allow_avx512 = true;
  product(1, x.get(), one.get());
  auto twice = Exactly<float>(2 * k);
  auto two = Exactly<float>(2 * n);
  std::memcpy(twice.get(), x.get(), k * sizeof(float));
  std::memcpy(twice.get() + k, x.get(), k * sizeof(float));
  product(2, twice.get(), two.get());
  CHECK(std::memcmp(one.get(), two.get(), n * sizeof(float)) == 0);
}

template <typename Block>
void TestExact() {
  for (int64_t blocks : {1, 3, 5, 16, 18}) {
    for (int64_t n : {1, 3, 4, 9, 64}) {
      const auto w = RandomBlocks<Block>(n * blocks);
      const int64_t k = blocks * Block::kElements;
      CheckOneRow(rlx::blocks::RowsOfBlocks<Block>{w.get(), k}, k, n);
    }
  }
}

// Codes of MLX's affine form against their bits, read one by one.
template <typename S>
void TestMlx() {
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    for (int64_t block : {32, 64, 128}) {
      for (int64_t n : {1, 4, 9}) {
        const int64_t k = block * (1 + NextRandom() % 9), groups = k / block;
        auto w = Exactly<uint8_t>(n * k * bits / 8);
        for (int64_t i = 0; i < n * k * bits / 8; ++i) w[i] = static_cast<uint8_t>(NextRandom());
        auto scale = Exactly<S>(n * groups), bias = Exactly<S>(n * groups);
        for (int64_t i = 0; i < n * groups; ++i) {
          scale[i] = rlx::FromFloat<S>(Uniform());
          bias[i] = rlx::FromFloat<S>(Uniform());
        }
        const rlx::mlx::Rows<S> weights = {w.get(), scale.get(), bias.get(), k, block, bits};
        CheckOneRow(weights, k, n);
        auto row = Exactly<float>(k);
        for (int64_t j = 0; j < n; ++j) {
          weights.Get(j, 1, 0, k, 8, row.get(), k, 0);
          for (int64_t i = 0; i < k; ++i) {
            int code = 0;
            for (int b = 0; b < bits; ++b) {
              const int64_t at = (j * k + i) * bits + b;
              code |= (w[at / 8] >> (at % 8) & 1) << b;
            }
            const int64_t g = j * groups + i / block;
            const double wanted = double{rlx::ToFloat(scale[g])} * code + rlx::ToFloat(bias[g]);
            CHECK(std::fabs(row[i] - wanted) <= 1e-6 * (code + 1));
          }
        }
      }
    }
  }
}

template <typename Block>
void TestAll() {
  TestRounded<Block>();
  TestThreads<Block, float>();
  TestStretches<Block>();
  TestExtremes<Block>();
}

}  // namespace

int main() {
  TestAll<rlx::int8::Q4_0>();
  TestAll<rlx::int8::Q4_1>();
  TestAll<rlx::int8::Q5_0>();
  TestAll<rlx::int8::Q5_1>();
  TestAll<rlx::int8::Q8_0>();
  TestAll<rlx::int8::Q4_K>();
  TestAll<rlx::int8::Q5_K>();
  TestAll<rlx::int8::Q6_K>();
  TestThreads<rlx::int8::Q5_0, rlx::Bf16>();
  TestThreads<rlx::int8::Q6_K, rlx::F16>();
  TestExact<rlx::blocks::Q4_0>();
  TestExact<rlx::blocks::Q4_1>();
  TestExact<rlx::blocks::Q5_0>();
  TestExact<rlx::blocks::Q5_1>();
  TestExact<rlx::blocks::Q8_0>();
  TestExact<rlx::blocks::Q4_K>();
  TestExact<rlx::blocks::Q5_K>();
  TestExact<rlx::blocks::Q6_K>();
  TestExact<rlx::blocks::Mxfp4>();
  TestExact<rlx::blocks::Nvfp4>();
  TestExact<rlx::blocks::Iq4Nl>();
  TestExact<rlx::blocks::Iq4Xs>();
  TestExact<rlx::blocks::Iq1S>();
  TestExact<rlx::blocks::Iq1M>();
  TestExact<rlx::blocks::Iq2Xxs>();
  TestExact<rlx::blocks::Iq2Xs>();
  TestExact<rlx::blocks::Iq2S>();
  TestExact<rlx::blocks::Iq3Xxs>();
  TestExact<rlx::blocks::Iq3S>();
  TestExact<rlx::blocks::Tq1_0>();
  TestMlx<float>();
  TestMlx<rlx::Bf16>();
  TestMlx<rlx::F16>();
  std::puts("dequant_int8: ok");
  return 0;
}
