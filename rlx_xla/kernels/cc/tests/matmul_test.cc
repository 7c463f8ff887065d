// matmul.h and blocks.h against sums in double, on heap blocks of exact sizes.
#include "matmul.h"

#include <cmath>
#include <cstdio>
#include <type_traits>

#include "blocks.h"
#include "testing.h"

namespace {

using rlx::MatmulShape;
using rlx::testing::Exactly;
using rlx::testing::NextRandom;

double Uniform() { return NextRandom() % 2001 / 1000.0 - 1; }

// y against x and the f32 of the weights, element (n, k) of product b by `number`.
template <typename X, typename Y, typename NumberOf>
void CheckProduct(const MatmulShape& s, const X* x, const Y* y, const NumberOf& number) {
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t m = 0; m < s.rows; ++m) {
      for (int64_t n = 0; n < s.n; ++n) {
        double sum = 0;
        double size = 0;
        for (int64_t k = 0; k < s.k; ++k) {
          const double term = rlx::ToFloat(x[(b * s.rows + m) * s.k + k]) * double{number(b, n, k)};
          sum += term;
          size += std::fabs(term);
        }
        const double found = rlx::ToFloat(y[(b * s.rows + m) * s.n + n]);
        CHECK(std::fabs(found - sum) <= 1e-6 * size + (sizeof(Y) == 2 ? 0.01 : 0) * std::fabs(sum));
      }
    }
  }
}

template <typename X, typename W, typename Pool>
void TestPlain(const Pool& pool, int64_t batch, int64_t rows, int64_t k, int64_t n) {
  for (bool by_rows : {false, true}) {
    const MatmulShape shape = {batch, rows, k, n, by_rows};
    auto x = Exactly<X>(batch * rows * k);
    auto w = Exactly<W>(batch * k * n);
    auto y = Exactly<X>(batch * rows * n);
    for (int64_t i = 0; i < batch * rows * k; ++i) {
      x[i] = rlx::FromFloat<X>(static_cast<float>(Uniform()));
    }
    for (int64_t i = 0; i < batch * k * n; ++i) {
      w[i] = rlx::FromFloat<W>(static_cast<float>(Uniform()));
    }
    const auto of = [&](int64_t b) {
      return rlx::matmul::PlainWeights<W>{w.get() + b * k * n, by_rows ? k : n};
    };
    rlx::Matmul(pool, shape, x.get(), of, y.get());
    CheckProduct(shape, x.get(), y.get(), [&](int64_t b, int64_t col, int64_t row) {
      return rlx::ToFloat(w[b * k * n + (by_rows ? col * k + row : row * n + col)]);
    });
  }
}

template <typename X, typename W>
void TestPlainTypes() {
  const rlx::testing::FullPool alone;
  for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 13, 16}) {
    TestPlain<X, W>(alone, 1, rows, 65, 67);
    TestPlain<X, W>(alone, 2, rows, 8, 64);
  }
  for (int64_t k : {0, 1, 7, 8, 9, 511, 513}) TestPlain<X, W>(alone, 1, 2, k, 9);
  for (int64_t n : {1, 2, 3, 4, 63, 64, 511, 512, 513}) TestPlain<X, W>(alone, 1, 2, 33, n);
  rlx::testing::ThreadPool pool;
  TestPlain<X, W>(pool, 3, 4, 300, 700);
}

template <typename Block>
void TestBlocks(int64_t scales) {
  const rlx::testing::FullPool alone;
  for (int64_t count : {1, 2, 3}) {
    for (int64_t n : {1, 4, 5}) {
      const int64_t k = count * Block::kElements;
      const MatmulShape shape = {1, 3, k, n, true};
      auto x = Exactly<float>(3 * k);
      auto w = Exactly<uint8_t>(n * count * Block::kBytes);
      auto y = Exactly<float>(3 * n);
      auto numbers = Exactly<float>(n * k);
      for (int64_t i = 0; i < 3 * k; ++i) x[i] = static_cast<float>(Uniform());
      for (int64_t i = 0; i < n * count * Block::kBytes; ++i) {
        w[i] = static_cast<uint8_t>(NextRandom());
      }
      for (int64_t i = 0; i < n * count; ++i) {  // scales near 1
        uint8_t* block = w.get() + i * Block::kBytes;
        const uint16_t half = 0x3c00;
        const float whole = 1;
        if (scales < 0) {
          std::memcpy(block, &whole, 4);
        } else {
          std::memcpy(block + scales, &half, 2);
          if (Block::kBytes != 110 && Block::kBytes != 210) {
            std::memcpy(block + scales + 2, &half, 2);
          }
        }
        Block::Decode(block, numbers.get() + i * Block::kElements);
      }
      const rlx::blocks::RowsOfBlocks<Block> weights = {w.get(), k};
      rlx::Matmul(alone, shape, x.get(), [&](int64_t) { return weights; }, y.get());
      CheckProduct(shape, x.get(), y.get(),
                   [&](int64_t, int64_t col, int64_t row) { return numbers[col * k + row]; });
    }
  }
}

template <bool kNibbles>
void TestCodes() {
  const rlx::testing::FullPool alone;
  for (bool has_zero : {false, true}) {
    for (int64_t k : {1, 7, 64, 65}) {
      for (int64_t n : {2, 16, 62, 64, 66, 514}) {
        const int64_t block = 5;
        const int64_t blocks = (k + block - 1) / block;
        const MatmulShape shape = {1, 2, k, n, false};
        auto x = Exactly<float>(2 * k);
        auto codes = Exactly<uint8_t>(kNibbles ? k * n / 2 : k * n);
        auto scale = Exactly<float>(blocks * n);
        auto zero = Exactly<float>(blocks * n);
        auto y = Exactly<float>(2 * n);
        for (int64_t i = 0; i < 2 * k; ++i) x[i] = static_cast<float>(Uniform());
        for (int64_t i = 0; i < (kNibbles ? k * n / 2 : k * n); ++i) {
          codes[i] = static_cast<uint8_t>(NextRandom());
        }
        for (int64_t i = 0; i < blocks * n; ++i) {
          scale[i] = static_cast<float>(Uniform());
          zero[i] = static_cast<float>(NextRandom() % 8);
        }
        const rlx::blocks::ColumnsOfCodes<kNibbles> weights = {
            codes.get(), scale.get(), has_zero ? zero.get() : nullptr, block, n};
        rlx::Matmul(alone, shape, x.get(), [&](int64_t) { return weights; }, y.get());
        CheckProduct(shape, x.get(), y.get(), [&](int64_t, int64_t col, int64_t row) {
          const int64_t at = row * n + col;
          const int code = kNibbles ? codes[at / 2] >> (at % 2 * 4) & 15
                                    : static_cast<int8_t>(codes[kNibbles ? 0 : at]);
          const int64_t of = row / block * n + col;
          return (static_cast<float>(code) - (has_zero ? zero[of] : 0)) * scale[of];
        });
      }
    }
  }
}

void TestAll() {
  TestPlainTypes<float, float>();
  TestPlainTypes<float, rlx::Bf16>();
  TestPlainTypes<rlx::Bf16, rlx::Bf16>();
  TestPlainTypes<rlx::F16, rlx::F16>();
  TestPlainTypes<rlx::F16, float>();
  TestBlocks<rlx::blocks::Q8_0>(0);
  TestBlocks<rlx::blocks::Q4_0>(0);
  TestBlocks<rlx::blocks::Q4_1>(0);
  TestBlocks<rlx::blocks::Q5_0>(0);
  TestBlocks<rlx::blocks::Q5_1>(0);
  TestBlocks<rlx::blocks::Q2_K>(80);
  TestBlocks<rlx::blocks::Q3_K>(108);
  TestBlocks<rlx::blocks::Q4_K>(0);
  TestBlocks<rlx::blocks::Q5_K>(0);
  TestBlocks<rlx::blocks::Q6_K>(208);
  TestBlocks<rlx::blocks::Q8_K>(-1);
  TestCodes<false>();
  TestCodes<true>();
}

}  // namespace

int main() {
  TestAll();
#if defined(__x86_64__)
  rlx::matmul::allow_avx512 = false;
  TestAll();
#endif
  std::puts("matmul: ok");
  return 0;
}
