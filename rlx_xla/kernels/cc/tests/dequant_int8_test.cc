// dequant_int8.h and the one-row products of blocks.h: vectors of 64 bytes give the bits of those
// of 32, on heap blocks of exact sizes; rounded inputs against sums in double.
#include "dequant_int8.h"

#include <cmath>
#include <cstdio>
#include <cstring>

#include "blocks.h"
#include "products.h"
#include "testing.h"

namespace {

using rlx::testing::Exactly;
using rlx::testing::NextRandom;

float Uniform() { return static_cast<float>(NextRandom() % 2001) / 1000.0f - 1.0f; }

// Random blocks of 32 codes, their halves between 1/128 and 1/64.
template <typename Block>
std::unique_ptr<uint8_t[]> RandomBlocks(int64_t count) {
  auto w = Exactly<uint8_t>(count * Block::kBytes);
  for (int64_t i = 0; i < count * Block::kBytes; ++i) w[i] = static_cast<uint8_t>(NextRandom());
  for (int64_t i = 0; i < count; ++i) {
    for (int at = 0; at < (Block::kBytes == 20 ? 4 : 2); at += 2) {
      const auto half = static_cast<uint16_t>(0x2000 | (NextRandom() & 0x3ff));
      std::memcpy(w.get() + i * Block::kBytes + at, &half, sizeof(half));
    }
  }
  return w;
}

template <typename Block>
void TestRounded() {
  const rlx::testing::FullPool alone;
  for (int64_t rows : {1, 2, 3, 4, 7}) {
    for (int64_t blocks : {1, 3, 18}) {
      for (int64_t n : {1, 3, 4, 9, 64}) {
        const int64_t k = blocks * 32;
        auto x = Exactly<float>(rows * k);
        for (int64_t i = 0; i < rows * k; ++i) x[i] = Uniform();
        const auto w = RandomBlocks<Block>(n * blocks);
        auto wide = Exactly<float>(rows * n);
        auto narrow = Exactly<float>(rows * n);
        rlx::matmul::allow_avx512 = true;
        rlx::int8::Matmul<Block>(alone, x.get(), rows, k, w.get(), n, wide.get());
        rlx::matmul::allow_avx512 = false;
        rlx::int8::Matmul<Block>(alone, x.get(), rows, k, w.get(), n, narrow.get());
        CHECK(std::memcmp(wide.get(), narrow.get(), rows * n * sizeof(float)) == 0);
        auto numbers = Exactly<float>(k);
        for (int64_t j = 0; j < n; ++j) {
          for (int64_t b = 0; b < blocks; ++b) {
            Block::Decode(w.get() + (j * blocks + b) * Block::kBytes, numbers.get() + b * 32);
          }
          for (int64_t m = 0; m < rows; ++m) {
            double sum = 0, size = 0;
            for (int64_t i = 0; i < k; ++i) {
              sum += double{x[m * k + i]} * numbers[i];
              size += std::fabs(numbers[i]);
            }
            CHECK(std::fabs(wide[m * n + j] - sum) <= size / 200);  // half a step of 1/127
          }
        }
      }
    }
  }
}

template <typename Block>
void TestExact() {
  const rlx::testing::FullPool alone;
  for (int64_t blocks : {1, 3, 16, 18, 40}) {
    for (int64_t n : {1, 3, 4, 9, 64}) {
      const int64_t k = blocks * 32;
      auto x = Exactly<float>(k);
      for (int64_t i = 0; i < k; ++i) x[i] = Uniform();
      const auto w = RandomBlocks<Block>(n * blocks);
      const rlx::blocks::RowsOfBlocks<Block> weights = {w.get(), k};
      const auto product = [&](int64_t rows, const float* from, float* to) {
        const rlx::MatmulShape shape = {1, rows, k, n, true};
        rlx::Product(alone, shape, from, [&](int64_t) { return weights; }, to);
      };
      auto one = Exactly<float>(n);
      rlx::matmul::allow_avx512 = true;
      product(1, x.get(), one.get());
      // Two rows unpack the blocks first.
      auto twice = Exactly<float>(2 * k);
      auto two = Exactly<float>(2 * n);
      std::memcpy(twice.get(), x.get(), k * sizeof(float));
      std::memcpy(twice.get() + k, x.get(), k * sizeof(float));
      product(2, twice.get(), two.get());
      CHECK(std::memcmp(one.get(), two.get(), n * sizeof(float)) == 0);
    }
  }
}

}  // namespace

int main() {
  TestRounded<rlx::int8::Q4_0>();
  TestRounded<rlx::int8::Q4_1>();
  TestRounded<rlx::int8::Q8_0>();
  TestExact<rlx::blocks::Q4_0>();
  TestExact<rlx::blocks::Q4_1>();
  TestExact<rlx::blocks::Q8_0>();
  std::puts("dequant_int8: ok");
  return 0;
}
