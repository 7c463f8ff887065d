// products.h, matmul.h, matmul_bf16.h, matmul_f32.h, blocks.h and minifloat.h against sums in
// double, on heap blocks of exact sizes.
#include "products.h"

#include <cmath>
#include <cstdio>
#include <type_traits>

#include "blocks.h"
#include "minifloat.h"
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
    rlx::Product(pool, shape, x.get(), of, y.get());
    CheckProduct(shape, x.get(), y.get(), [&](int64_t b, int64_t col, int64_t row) {
      return rlx::ToFloat(w[b * k * n + (by_rows ? col * k + row : row * n + col)]);
    });
  }
}

template <typename X, typename W>
void TestPlainTypes() {
  const rlx::testing::FullPool alone;
  for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 35}) {
    TestPlain<X, W>(alone, 1, rows, 65, 67);
    TestPlain<X, W>(alone, 2, rows, 8, 64);
  }
  for (int64_t k : {0, 1, 7, 8, 9, 511, 513}) TestPlain<X, W>(alone, 1, 2, k, 9);
  for (int64_t n : {1, 2, 3, 4, 63, 64, 511, 512, 513}) TestPlain<X, W>(alone, 1, 2, 33, n);
  for (int64_t k : {0, 1, 7, 8, 255, 256, 257}) TestPlain<X, W>(alone, 1, 12, k, 17);
  for (int64_t n : {1, 8, 9, 16, 31, 32, 33}) TestPlain<X, W>(alone, 1, 14, 20, n);
  rlx::testing::ThreadPool pool;
  TestPlain<X, W>(pool, 3, 4, 300, 700);
  TestPlain<X, W>(pool, 2, 520, 30, 40);
}

// Sizes at which bf16 is divided: into pieces of the sums, stretches and blocks of whole rows.
void TestPairs() {
  using rlx::Bf16;
  const rlx::testing::FullPool alone;
  for (int64_t k : {1, 2, 31, 33, 63, 64, 129, 160, 257}) TestPlain<Bf16, Bf16>(alone, 1, 1, k, 35);
  for (int64_t n : {1, 31, 32, 33, 1024, 1030, 2048, 2049, 2080, 4099}) {
    TestPlain<Bf16, Bf16>(alone, 1, 1, 19, n);
  }
  for (int64_t rows : {3, 4, 5, 9, 16, 17, 33}) TestPlain<Bf16, Bf16>(alone, 1, rows, 200, 530);
  TestPlain<Bf16, Bf16>(alone, 3, 2, 135, 1025);
  TestPlain<float, Bf16>(alone, 1, 2, 129, 65);
}

// Sizes at which few rows of f32 are divided: pieces of the sums, stretches, tiles and vectors.
void TestFewRows() {
  const rlx::testing::FullPool alone;
  for (int64_t rows : {2, 7, 8, 9, 16, 17, 64}) TestPlain<float, float>(alone, 1, rows, 33, 433);
  for (int64_t n : {1, 15, 16, 17, 47, 48, 49, 384, 385}) {
    TestPlain<float, float>(alone, 1, 5, 17, n);
    TestPlain<float, float>(alone, 1, 18, 33, n);
  }
  for (int64_t k : {0, 1, 15, 16, 17, 31, 32, 33, 383, 384, 385, 800}) TestPlain<float, float>(alone, 1, 9, k, 50);
  const rlx::testing::ThreadPool pool;
  TestPlain<float, float>(pool, 2, 3, 500, 390);
}

// One number of x or w is special: what it meets is what IEEE 754 says, and the rest is untouched.
template <typename T>
void TestSpecials() {
  const rlx::testing::FullPool alone;
  const float values[] = {NAN, INFINITY, -INFINITY, 1e-40f};
  for (int64_t rows : {1, 2, 5}) {
    for (bool by_rows : {false, true}) {
      for (float special : values) {
        const int64_t k = 37, n = 41, at_k = NextRandom() % k, at_n = NextRandom() % n;
        auto x = Exactly<T>(rows * k);
        auto w = Exactly<T>(k * n);
        auto y = Exactly<float>(rows * n);
        std::fill_n(x.get(), rows * k, rlx::FromFloat<T>(1.0f));
        std::fill_n(w.get(), k * n, rlx::FromFloat<T>(0.5f));
        w[by_rows ? at_n * k + at_k : at_k * n + at_n] = rlx::FromFloat<T>(special);
        x[(at_k + 1) % k] = rlx::FromFloat<T>(0.0f);
        const MatmulShape shape = {1, rows, k, n, by_rows};
        const rlx::matmul::PlainWeights<T> weights = {w.get(), by_rows ? k : n};
        rlx::Product(alone, shape, x.get(), [&](int64_t) { return weights; }, y.get());
        for (int64_t m = 0; m < rows; ++m) {
          const float rest = 0.5f * (m == 0 ? k - 1 : k);
          for (int64_t c = 0; c < n; ++c) {
            const float found = y[m * n + c];
            const float wanted = c != at_n ? rest : rest - 0.5f + special;
            CHECK(wanted != wanted ? found != found : found == wanted);
          }
        }
      }
    }
  }
}

// The same bits whatever the pool does with its tasks.
template <typename T>
void TestPools() {
  for (bool by_rows : {false, true}) {
    for (int64_t rows : {1, 3}) {
      const int64_t k = 515, n = 1100;
      const MatmulShape shape = {1, rows, k, n, by_rows};
      auto x = Exactly<T>(rows * k);
      auto w = Exactly<T>(k * n);
      for (int64_t i = 0; i < rows * k; ++i) x[i] = rlx::FromFloat<T>(float(Uniform()));
      for (int64_t i = 0; i < k * n; ++i) w[i] = rlx::FromFloat<T>(float(Uniform()));
      const rlx::matmul::PlainWeights<T> weights = {w.get(), by_rows ? k : n};
      const auto of = [&](int64_t) { return weights; };
      auto one = Exactly<float>(rows * n);
      auto two = Exactly<float>(rows * n);
      rlx::Product(rlx::testing::FullPool{}, shape, x.get(), of, one.get());
      rlx::Product(rlx::testing::ThreadPool{}, shape, x.get(), of, two.get());
      CHECK(std::memcmp(one.get(), two.get(), rows * n * sizeof(float)) == 0);
    }
  }
}

// Blocks whose first bytes are exponents.
constexpr int64_t kExponents = -2;

// `scales` is where a block's f16 scales are; -1 for an f32 at its beginning.
template <typename Block>
void TestBlocks(int64_t scales) {
  const rlx::testing::FullPool alone;
  for (int64_t count : {1, 2, 3}) {
    for (int64_t n : {1, 4, 5, 33}) {
      const int64_t rows = n % 2 == 0 ? 3 : 13;
      const int64_t k = count * Block::kElements;
      const MatmulShape shape = {1, rows, k, n, true};
      auto x = Exactly<float>(rows * k);
      auto w = Exactly<uint8_t>(n * count * Block::kBytes);
      auto y = Exactly<float>(rows * n);
      auto numbers = Exactly<float>(n * k);
      for (int64_t i = 0; i < rows * k; ++i) x[i] = static_cast<float>(Uniform());
      for (int64_t i = 0; i < n * count * Block::kBytes; ++i) {
        w[i] = static_cast<uint8_t>(NextRandom());
      }
      for (int64_t i = 0; i < n * count; ++i) {  // scales near 1
        uint8_t* block = w.get() + i * Block::kBytes;
        const uint16_t half = 0x3c00;
        const float whole = 1;
        if (scales == kExponents) {
          for (int j = 0; j < 4; ++j) block[j] = Block::kBytes == 17 && j > 0 ? block[j] : 120;
          if (Block::kBytes == 36) std::memset(block, 0x38, 4);
        } else if (scales < 0) {
          std::memcpy(block, &whole, 4);
        } else {
          std::memcpy(block + scales, &half, 2);
          if (Block::kBytes != 110 && Block::kBytes != 210 && Block::kBytes != 66) {
            std::memcpy(block + scales + 2, &half, 2);
          }
        }
        Block::Decode(block, numbers.get() + i * Block::kElements);
      }
      const rlx::blocks::RowsOfBlocks<Block> weights = {w.get(), k};
      rlx::Product(alone, shape, x.get(), [&](int64_t) { return weights; }, y.get());
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
        const int64_t rows = k == 7 ? 260 : k % 2 == 0 ? 2 : 12;
        const MatmulShape shape = {1, rows, k, n, false};
        auto x = Exactly<float>(rows * k);
        auto codes = Exactly<uint8_t>(kNibbles ? k * n / 2 : k * n);
        auto scale = Exactly<float>(blocks * n);
        auto zero = Exactly<float>(blocks * n);
        auto y = Exactly<float>(rows * n);
        for (int64_t i = 0; i < rows * k; ++i) x[i] = static_cast<float>(Uniform());
        for (int64_t i = 0; i < (kNibbles ? k * n / 2 : k * n); ++i) {
          codes[i] = static_cast<uint8_t>(NextRandom());
        }
        for (int64_t i = 0; i < blocks * n; ++i) {
          scale[i] = static_cast<float>(Uniform());
          zero[i] = static_cast<float>(NextRandom() % 8);
        }
        const rlx::blocks::ColumnsOfCodes<kNibbles> weights = {
            codes.get(), scale.get(), has_zero ? zero.get() : nullptr, block, n};
        rlx::Product(alone, shape, x.get(), [&](int64_t) { return weights; }, y.get());
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

template <rlx::blocks::Byte kByte>
void TestBytes() {
  const rlx::testing::FullPool alone;
  for (bool has_scale : {false, true}) {
    for (int64_t k : {1, 7, 64, 260}) {
      for (int64_t n : {1, 8, 15, 64, 514}) {
        const int64_t rows = k == 7 ? 260 : k % 2 == 0 ? 2 : 13;
        const MatmulShape shape = {1, rows, k, n, false};
        auto x = Exactly<float>(rows * k);
        auto codes = Exactly<uint8_t>(k * n);
        auto scale = Exactly<float>(n);
        auto y = Exactly<float>(rows * n);
        for (int64_t i = 0; i < rows * k; ++i) x[i] = static_cast<float>(Uniform());
        for (int64_t i = 0; i < k * n; ++i) {  // finite codes of either format
          codes[i] = static_cast<uint8_t>((NextRandom() & 0x80) | (NextRandom() % 0x7c));
        }
        for (int64_t i = 0; i < n; ++i) scale[i] = static_cast<float>(Uniform());
        const rlx::blocks::ColumnsOfBytes<kByte> weights = {
            codes.get(), has_scale ? scale.get() : nullptr, n};
        rlx::Product(alone, shape, x.get(), [&](int64_t) { return weights; }, y.get());
        CheckProduct(shape, x.get(), y.get(), [&](int64_t, int64_t col, int64_t row) {
          const uint8_t code = codes[row * n + col];
          const bool first = kByte == rlx::blocks::Byte::kE4m3;
          const int mantissa = first ? 3 : 2;
          const int exponent = (code & 0x7f) >> mantissa;
          const double part = (code & ((1 << mantissa) - 1)) / std::ldexp(1.0, mantissa);
          const int bias = first ? 7 : 15;
          const double size = exponent == 0 ? std::ldexp(part, 1 - bias)
                                            : std::ldexp(1 + part, exponent - bias);
          const float value = static_cast<float>(code & 0x80 ? -size : size);
          return has_scale ? value * scale[col] : value;
        });
      }
    }
  }
}

void TestNvfp4() {
  const float values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const rlx::testing::FullPool alone;
  for (bool has_whole : {false, true}) {
    for (int64_t k : {1, 16, 33, 300}) {
      for (int64_t n : {2, 16, 30, 64, 514}) {
        const int64_t rows = k == 33 ? 260 : k % 2 == 0 ? 2 : 13;
        const int64_t groups = (k + 15) / 16;
        const MatmulShape shape = {1, rows, k, n, false};
        auto x = Exactly<float>(rows * k);
        auto codes = Exactly<uint8_t>(k * n / 2);
        auto scale = Exactly<uint8_t>(groups * n);
        auto y = Exactly<float>(rows * n);
        const float whole = 0.75f;
        for (int64_t i = 0; i < rows * k; ++i) x[i] = static_cast<float>(Uniform());
        for (int64_t i = 0; i < k * n / 2; ++i) codes[i] = static_cast<uint8_t>(NextRandom());
        for (int64_t i = 0; i < groups * n; ++i) {  // 1 to 1.875, and one that counts as 0
          scale[i] = static_cast<uint8_t>(i == 1 ? 0x7f : 0x38 + NextRandom() % 8);
        }
        const rlx::blocks::ColumnsOfNvfp4 weights = {codes.get(), scale.get(),
                                                     has_whole ? &whole : nullptr, n};
        rlx::Product(alone, shape, x.get(), [&](int64_t) { return weights; }, y.get());
        CheckProduct(shape, x.get(), y.get(), [&](int64_t, int64_t col, int64_t row) {
          const int64_t at = row * n + col;
          const int code = codes[at / 2] >> (at % 2 * 4) & 15;
          const uint8_t of = scale[row / 16 * n + col];
          const float size = of == 0x7f ? 0.0f : 1.0f + (of & 7) / 8.0f;
          return (code & 8 ? -values[code & 7] : values[code & 7]) * size *
                 (has_whole ? whole : 1.0f);
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
  TestPairs();
  TestFewRows();
  TestSpecials<rlx::Bf16>();
  TestSpecials<float>();
  TestPools<rlx::Bf16>();
  TestPools<float>();
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
  TestBlocks<rlx::blocks::Iq4Nl>(0);
  TestBlocks<rlx::blocks::Iq4Xs>(0);
  TestBlocks<rlx::blocks::Tq2_0>(64);
  TestBlocks<rlx::blocks::Mxfp4>(kExponents);
  TestBlocks<rlx::blocks::Nvfp4>(kExponents);
  TestBytes<rlx::blocks::Byte::kE4m3>();
  TestBytes<rlx::blocks::Byte::kE5m2>();
  TestNvfp4();
  TestCodes<false>();
  TestCodes<true>();
}

}  // namespace

int main() {
  TestAll();
#if defined(__x86_64__)
  rlx::bf16::allow = false;
  TestPlainTypes<rlx::Bf16, rlx::Bf16>();
  TestPairs();
  TestSpecials<rlx::Bf16>();
  rlx::matmul::allow_avx512 = false;
  TestAll();
#endif
  std::puts("matmul: ok");
  return 0;
}
