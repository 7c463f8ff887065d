// epilogue.h and finished_products.h against double, on heap blocks of exact sizes, in vectors of
// either width.
#include "epilogue.h"

#include <cmath>
#include <cstdio>
#include <cstring>

#include "finished_products.h"
#include "testing.h"

namespace {

using rlx::Activation;
using rlx::testing::Exactly;
using rlx::testing::NextRandom;

constexpr Activation kActivations[] = {Activation::kNone, Activation::kRelu, Activation::kGelu,
                                       Activation::kGeluTanh, Activation::kSilu};

double Uniform() { return NextRandom() % 2001 / 1000.0 - 1; }

double Wanted(Activation kind, double x) {
  switch (kind) {
    case Activation::kNone: return x;
    case Activation::kRelu: return x < 0 ? 0 : x;
    case Activation::kGelu: return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::kGeluTanh: {
      const double inner = 1.5957691216057308 * (x + 0.044715 * x * x * x);
      return x / (1 + std::exp(-inner));
    }
    case Activation::kSilu: return x / (1 + std::exp(-x));
  }
  return x;
}

// y = activation(y + bias) of every kind, with the sum exact: the error is the activation's alone.
void TestActivations(bool infinite) {
  const int64_t columns = 5003;
  for (Activation kind : kActivations) {
    auto y = Exactly<float>(columns);
    auto bias = Exactly<float>(columns);
    for (int64_t c = 0; c < columns; ++c) {
      y[c] = infinite ? (c % 3 == 0 ? INFINITY : c % 3 == 1 ? -INFINITY : NAN)
                      : static_cast<float>((c - 2500) / 192.0);
      bias[c] = 0;
    }
    auto x = Exactly<float>(columns);
    std::memcpy(x.get(), y.get(), columns * sizeof(float));
    const rlx::Epilogue finish = {kind, bias.get()};
    finish(y.get(), columns, 1, 0, columns);
    for (int64_t c = 0; c < columns; ++c) {
      const double wanted = Wanted(kind, x[c]);
      // Of -Inf the activations of the op are -Inf times zero.
      if (infinite && (wanted != wanted || (x[c] < 0 && kind >= Activation::kGelu))) {
        CHECK(y[c] != y[c]);
      } else if (infinite) {
        CHECK(y[c] == wanted);
      } else {
        // exp multiplies the rounding of its operand, which only the exact gelu makes up for.
        const double bound = kind == Activation::kGeluTanh ? 1e-5 : 1e-6;
        CHECK(std::fabs(y[c] - wanted) <= bound * std::fabs(wanted) + 1.2e-37);
      }
    }
  }
}

// Sums, biases and activations of every way in which a product is divided.
template <typename Pool>
void TestProduct(const Pool& pool, int64_t rows, int64_t k, int64_t n) {
  const rlx::MatmulShape shape = {1, rows, k, n, false};
  for (Activation kind : kActivations) {
    auto x = Exactly<float>(rows * k);
    auto w = Exactly<float>(k * n);
    auto bias = Exactly<float>(n);
    auto y = Exactly<float>(rows * n);
    for (int64_t i = 0; i < rows * k; ++i) x[i] = static_cast<float>(Uniform());
    for (int64_t i = 0; i < k * n; ++i) w[i] = static_cast<float>(Uniform());
    for (int64_t i = 0; i < n; ++i) bias[i] = static_cast<float>(Uniform());
    rlx::FinishedProduct(pool, shape, x.get(), w.get(), rlx::Epilogue{kind, bias.get()}, y.get());
    for (int64_t m = 0; m < rows; ++m) {
      for (int64_t c = 0; c < n; ++c) {
        double sum = bias[c];
        for (int64_t i = 0; i < k; ++i) sum += double{x[m * k + i]} * w[i * n + c];
        CHECK(std::fabs(y[m * n + c] - Wanted(kind, sum)) <= 2e-6 * (k + 1));
      }
    }
  }
}

template <typename Pool>
void TestResidualLn(const Pool& pool, int64_t rows, int64_t n, bool biased) {
  auto x = Exactly<float>(rows * n);
  auto residual = Exactly<float>(rows * n);
  auto gamma = Exactly<float>(n);
  auto beta = Exactly<float>(n);
  auto bias = Exactly<float>(n);
  auto y = Exactly<float>(rows * n);
  for (int64_t i = 0; i < rows * n; ++i) {
    x[i] = static_cast<float>(Uniform() + 30);
    residual[i] = static_cast<float>(Uniform());
  }
  for (int64_t i = 0; i < n; ++i) {
    gamma[i] = static_cast<float>(Uniform());
    beta[i] = static_cast<float>(Uniform());
    bias[i] = static_cast<float>(Uniform());
  }
  const rlx::ResidualLnOperands of = {x.get(), residual.get(), gamma.get(), beta.get(),
                                      biased ? bias.get() : nullptr};
  rlx::ResidualLn(pool, rows, n, 1e-5f, of, y.get());
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0, squares = 0;
    const auto total = [&](int64_t i) {
      return double{x[r * n + i]} + residual[r * n + i] + (biased ? bias[i] : 0.0f);
    };
    for (int64_t i = 0; i < n; ++i) sum += total(i);
    for (int64_t i = 0; i < n; ++i) squares += (total(i) - sum / n) * (total(i) - sum / n);
    const double scale = 1 / std::sqrt(squares / n + 1e-5);
    for (int64_t i = 0; i < n; ++i) {
      const double wanted = (total(i) - sum / n) * scale * gamma[i] + beta[i];
      CHECK(std::fabs(y[r * n + i] - wanted) <= 1e-5 * (scale + 1));
    }
  }
}

void TestAll() {
  const rlx::testing::FullPool alone;
  const rlx::testing::ThreadPool pool;
  TestActivations(/*infinite=*/false);
  TestActivations(/*infinite=*/true);
  for (int64_t n : {1, 17, 48, 384, 385, 800}) TestProduct(alone, 5, 33, n);
  for (int64_t rows : {0, 1, 2, 8, 9, 17, 64, 65}) TestProduct(alone, rows, 40, 50);
  for (int64_t k : {0, 1, 31, 32, 33, 400, 800}) TestProduct(alone, 9, k, 50);
  TestProduct(pool, 12, 400, 390);
  for (int64_t n : {1, 7, 8, 15, 16, 17, 63, 64, 65, 384, 3000}) {
    TestResidualLn(alone, 2, n, n % 2 == 0);
  }
  TestResidualLn(pool, 300, 384, false);
}

}  // namespace

int main() {
  TestAll();
  rlx::matmul::allow_avx512 = false;
  TestAll();
  std::puts("epilogue_test: ok");
}
