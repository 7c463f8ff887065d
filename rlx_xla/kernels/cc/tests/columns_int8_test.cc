// columns_int8.h: every width of vectors, every kind of multiplication and every number of rows
// gives a row the same bits; against sums in double of numbers rounded as x is.
#include "columns_int8.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "testing.h"

namespace {

using rlx::testing::Exactly;
using rlx::testing::NextRandom;
template <bool kNibbles>
using Weights = rlx::blocks::ColumnsOfCodes<kNibbles>;

float Uniform() { return static_cast<float>(NextRandom() % 2001) / 1000.0f - 1.0f; }

// A matrix of random codes, scales and, perhaps, zeros.
template <bool kNibbles>
struct Matrix {
  Matrix(int64_t k, int64_t n, int64_t block, bool has_zero)
      : codes(Exactly<uint8_t>(kNibbles ? k * n / 2 : k * n)),
        scale(Exactly<float>((k + block - 1) / block * n)),
        zero(Exactly<float>((k + block - 1) / block * n)) {
    for (int64_t i = 0; i < (kNibbles ? k * n / 2 : k * n); ++i) {
      codes[i] = static_cast<uint8_t>(NextRandom());
    }
    for (int64_t i = 0; i < (k + block - 1) / block * n; ++i) {
      scale[i] = Uniform() / 64;
      zero[i] = static_cast<float>(NextRandom() % 64) / 4.0f;
    }
    weights = {codes.get(), scale.get(), has_zero ? zero.get() : nullptr, block, n};
  }
  float Number(int64_t row, int64_t column) const {
    const int64_t at = row * weights.cols + column;
    const int code = kNibbles ? codes[at / 2] >> (at % 2 * 4) & 15 : static_cast<int8_t>(codes[at]);
    const int64_t of = row / weights.block * weights.cols + column;
    return (static_cast<float>(code) - (weights.zero ? zero[of] : 0.0f)) * scale[of];
  }
  std::unique_ptr<uint8_t[]> codes;
  std::unique_ptr<float[]> scale;
  std::unique_ptr<float[]> zero;
  Weights<kNibbles> weights;
};

// The product by each of the ways that this CPU has.
template <bool kNibbles, typename Pool, typename T>
std::vector<T> Product(const Pool& pool, const Weights<kNibbles>& w, int64_t rows, int64_t k,
                       const T* x) {
  std::vector<T> made[4];
  for (int way = 0; way < 4; ++way) {
    rlx::matmul::allow_avx512 = way == 0;
    rlx::int8::allow_avx_vnni = way <= 1;
    rlx::columns::allow_vectors = way <= 2;
    auto y = Exactly<T>(rows * w.cols);
    rlx::columns::RoundedProduct(pool, w, rows, k, x, y.get());
    made[way].assign(y.get(), y.get() + rows * w.cols);
  }
  rlx::matmul::allow_avx512 = rlx::int8::allow_avx_vnni = rlx::columns::allow_vectors = true;
  for (const auto& each : made) {
    CHECK(std::memcmp(made[0].data(), each.data(), rows * w.cols * sizeof(T)) == 0);
  }
  return made[0];
}

template <bool kNibbles>
void Check(int64_t rows, int64_t k, int64_t n, int64_t block, bool has_zero) {
  const Matrix<kNibbles> matrix(k, n, block, has_zero);
  const auto& w = matrix.weights;
  auto x = Exactly<float>(rows * k);
  for (int64_t i = 0; i < rows * k; ++i) x[i] = Uniform();
  const auto y = Product(rlx::testing::FullPool{}, w, rows, k, x.get());
  auto again = Exactly<float>(rows * n);
  rlx::columns::RoundedProduct(rlx::testing::ThreadPool{}, w, rows, k, x.get(), again.get());
  CHECK(std::memcmp(y.data(), again.get(), rows * n * sizeof(float)) == 0);
  const int64_t last = rows - 1;
  auto one = Exactly<float>(n);
  rlx::columns::RoundedProduct(rlx::testing::InlinePool{}, w, 1, k, x.get() + last * k, one.get());
  CHECK(std::memcmp(y.data() + last * n, one.get(), n * sizeof(float)) == 0);
  const int64_t size = rlx::columns::BlockOfInputs(block);
  for (int64_t m = 0; m < rows; ++m) {
    std::vector<double> numbers(k);
    for (int64_t from = 0; from < k; from += size) {
      const int64_t to = std::min(from + size, k);
      float most = 0;
      for (int64_t i = from; i < to; ++i) most = std::fmax(most, std::fabs(x[m * k + i]));
      for (int64_t i = from; i < to; ++i) {
        const float code = std::nearbyintf(x[m * k + i] * (127.0f / most));
        numbers[i] = most == 0 ? 0 : double{code} * (most / 127.0f);
      }
    }
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0, all = 0;
      for (int64_t i = 0; i < k; ++i) {
        sum += numbers[i] * matrix.Number(i, j);
        all += std::fabs(numbers[i] * matrix.Number(i, j));
      }
      // A zero's share is taken from the codes' after both are summed.
      CHECK(std::fabs(y[m * n + j] - sum) <= 1e-5 * all + 1e-6);
    }
  }
}

template <bool kNibbles>
void TestSizes() {
  for (int64_t n : {2, 30, 64, 66, 128, 190, 258}) {
    for (int64_t k : {1, 31, 32, 67, 130}) {
      Check<kNibbles>(1 + NextRandom() % 5, k, n, 32 * (1 + NextRandom() % 3), NextRandom() % 2);
    }
  }
  if (!kNibbles) Check<kNibbles>(2, 70, 33, 32, true);
  Check<kNibbles>(2, 0, 130, 32, true);  // a sum of nothing
  for (int64_t rows : {5, 6, 7, 8, 18}) Check<kNibbles>(rows, 67, 130, 32, true);
  Check<kNibbles>(9, 1100, 130, 32, true);     // some stretches
  Check<kNibbles>(3, 1100, 66, 1024, false);   // blocks of x are smaller than those of weights
  Check<kNibbles>(2, 640, 34, 320, true);
  Check<kNibbles>(2, 40, 4300, 32, false);  // pieces of columns
}

// What is not finite gives NaN in its row or column alone.
template <bool kNibbles>
void TestExtremes() {
  const int64_t rows = 3, k = 70, n = 130;
  Matrix<kNibbles> matrix(k, n, 32, false);
  auto x = Exactly<float>(rows * k);
  std::fill_n(x.get(), rows * k, 0.5f);
  x[k + 40] = std::numeric_limits<float>::infinity();
  const auto y = Product(rlx::testing::FullPool{}, matrix.weights, rows, k, x.get());
  for (int64_t i = 0; i < rows * n; ++i) CHECK(std::isnan(y[i]) == (i / n == 1));
  x[k + 40] = 0.5f;
  matrix.scale[n + 7] = std::numeric_limits<float>::infinity();
  matrix.scale[2 * n + 129] = std::numeric_limits<float>::infinity();
  for (int64_t r = 0; r < k; ++r) {  // code 0 times infinity is NaN, and the others are not
    const int64_t zero = r * n + 7, some = r * n + 129;
    matrix.codes[kNibbles ? zero / 2 : zero] = r == 50 ? 0 : 0x11;
    matrix.codes[kNibbles ? some / 2 : some] = 0x11;
  }
  const auto z = Product(rlx::testing::FullPool{}, matrix.weights, rows, k, x.get());
  for (int64_t i = 0; i < rows * n; ++i) {
    if (i % n == 7) CHECK(std::isnan(z[i]));
    if (i % n == 129) CHECK(std::isinf(z[i]));
    if (i % n != 7 && i % n != 129) CHECK(std::isfinite(z[i]));
  }
}

template <typename T>
void TestSixteenBits() {
  const int64_t rows = 3, k = 96, n = 66;
  const Matrix<true> matrix(k, n, 32, true);
  auto x = Exactly<T>(rows * k);
  auto wide = Exactly<float>(rows * k);
  for (int64_t i = 0; i < rows * k; ++i) {
    x[i] = rlx::FromFloat<T>(Uniform());
    wide[i] = rlx::ToFloat(x[i]);
  }
  const auto y = Product(rlx::testing::FullPool{}, matrix.weights, rows, k, x.get());
  const auto z = Product(rlx::testing::FullPool{}, matrix.weights, rows, k, wide.get());
  for (int64_t i = 0; i < rows * n; ++i) {
    CHECK(rlx::ToFloat(y[i]) == rlx::ToFloat(rlx::FromFloat<T>(z[i])));
  }
}

}  // namespace

int main() {
  TestSizes<false>();
  TestSizes<true>();
  TestExtremes<false>();
  TestExtremes<true>();
  TestSixteenBits<rlx::Bf16>();
  TestSixteenBits<rlx::F16>();
  std::puts("columns_int8: ok");
  return 0;
}
