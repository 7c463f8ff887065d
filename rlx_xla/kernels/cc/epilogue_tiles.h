// Biases and activations of rows of f32, and the norm of a residual sum. No include guard: see
// wide.h.
//
// Numerics: the exact gelu to about 6 ulp, in its tail too, silu to about 4, and the gelu's
//   approximation to 1e-5 where it is tiny; sums of a row are taken of stretches, which are added
//   up in f64.

namespace rlx {
namespace RLX_WIDE {

// x erfc(-x / sqrt 2) / 2. erfc(z) is exp(-z^2) times a polynomial of (z - 3) / (z + 3) for z >= 0;
// the rounding of x^2 is made up for, since exp would multiply it by up to 87.
inline V Gelu(V x) {
  const V size = x < 0.0f ? -x : x;
  const V z = size * 0x1.6a09e6p-1f;
  const V t = (z - 3.0f) / (z + 3.0f);
  V p = Set(0x1.d137c8p-15f);
  p = MulAdd(p, t, Set(0x1.d22bfep-16f));
  p = MulAdd(p, t, Set(-0x1.380302p-11f));
  p = MulAdd(p, t, Set(0x1.777c78p-11f));
  p = MulAdd(p, t, Set(0x1.17ca50p-8f));
  p = MulAdd(p, t, Set(-0x1.8fad00p-6f));
  p = MulAdd(p, t, Set(0x1.258b08p-4f));
  p = MulAdd(p, t, Set(-0x1.336fe8p-3f));
  p = MulAdd(p, t, Set(0x1.f6ff20p-3f));
  p = MulAdd(p, t, Set(-0x1.4e102cp-2f));
  p = MulAdd(p, t, Set(0x1.6e9828p-3f));
  const V square = x * x;
  const V rest = MulAdd(x, x, -square);
  const V factor = MulAdd(rest * -0.5f, p, p);
  // Where exp is zero so is the tail: what is infinite stays out of it, but for x = -Inf.
  const V weight = Exp(square * -0.5f);
  const V tail = weight == 0.0f ? V{} : (x * 0.5f) * factor * weight;
  const V lowest = Set(-std::numeric_limits<float>::infinity());
  const V none = x == lowest ? Set(std::numeric_limits<float>::quiet_NaN()) : tail;
  return x < 0.0f ? none : x - tail;
}

// x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), as x / (1 + exp(-2 u)).
inline V GeluTanh(V x) {
  const V cubic = MulAdd(x * x, x * 0x1.6e4e26p-5f, x);
  return x * Logistic(cubic * 0x1.988454p0f);
}

inline V Activated(Activation kind, V x) {
  switch (kind) {
    case Activation::kNone: return x;
    case Activation::kRelu: return x < 0.0f ? V{} : x;
    case Activation::kGelu: return Gelu(x);
    case Activation::kGeluTanh: return GeluTanh(x);
    case Activation::kSilu: return x * Logistic(x);
  }
  return x;
}

template <Activation kKind>
void FinishWith(const float* bias, int64_t rows, int64_t columns, float* y, int64_t stride) {
  for (int64_t c = 0; c < columns; c += kW) {
    const int64_t count = std::min(kW, columns - c);
    const V add = LoadSome(bias + c, count);
    for (int64_t r = 0; r < rows; ++r) {
      float* at = y + r * stride + c;
      StoreSome(Activated(kKind, LoadSome(at, count) + add), count, at);
    }
  }
}

// y[r, c] = activation(y[r, c] + bias[c]).
inline void FinishRows(Activation kind, const float* bias, int64_t rows, int64_t columns, float* y,
                       int64_t stride) {
  switch (kind) {
    case Activation::kNone:
      return FinishWith<Activation::kNone>(bias, rows, columns, y, stride);
    case Activation::kRelu:
      return FinishWith<Activation::kRelu>(bias, rows, columns, y, stride);
    case Activation::kGelu:
      return FinishWith<Activation::kGelu>(bias, rows, columns, y, stride);
    case Activation::kGeluTanh:
      return FinishWith<Activation::kGeluTanh>(bias, rows, columns, y, stride);
    case Activation::kSilu:
      return FinishWith<Activation::kSilu>(bias, rows, columns, y, stride);
  }
}

// The sum of value(i, count) over the vectors of a row of n numbers, of which the last one has
// `count` and zeros behind them.
template <typename Value>
inline double SumOfRow(int64_t n, const Value& value) {
  constexpr int64_t kStretch = 128 * kW;
  double total = 0;
  for (int64_t first = 0; first < n; first += kStretch) {
    const int64_t last = std::min(n, first + kStretch);
    V sums[4] = {};
    int64_t i = first;
    for (; i + 4 * kW <= last; i += 4 * kW) {
#pragma GCC unroll 4
      for (int64_t u = 0; u < 4; ++u) value.Add(i + u * kW, kW, &sums[u]);
    }
    for (; i < last; i += kW) value.Add(i, std::min(kW, last - i), &sums[0]);
    total += Sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
  return total;
}

// The residual sum of a row, which is kept in `y`.
struct ResidualOf {
  const float* x;
  const float* residual;
  const float* bias;  // null for none
  float* y;

  inline void Add(int64_t i, int64_t count, V* sum) const {
    V total = LoadSome(x + i, count) + LoadSome(residual + i, count);
    if (bias != nullptr) total = total + LoadSome(bias + i, count);
    StoreSome(total, count, y + i);
    *sum = *sum + total;
  }
};

struct SquareOf {
  const float* y;
  float mean;

  inline void Add(int64_t i, int64_t count, V* sum) const {
    V apart = LoadSome(y + i, count) - mean;
    if (count < kW) {  // what is padded is no element
      float some[kW] = {};
      StoreSome(apart, count, some);
      apart = LoadV(some);
    }
    *sum = MulAdd(apart, apart, *sum);
  }
};

// y = layer_norm(x + residual + bias, gamma, beta) for one row of n numbers.
inline void ResidualLnRow(const float* x, const float* residual, const float* bias,
                          const float* gamma, const float* beta, float eps, int64_t n, float* y) {
  const float mean = static_cast<float>(SumOfRow(n, ResidualOf{x, residual, bias, y}) / n);
  const double squares = SumOfRow(n, SquareOf{y, mean});
  const float scale = 1.0f / std::sqrt(static_cast<float>(squares / n) + eps);
  for (int64_t i = 0; i < n; i += kW) {
    const int64_t count = std::min(kW, n - i);
    const V normal = (LoadSome(y + i, count) - mean) * scale;
    const V gain = LoadSome(gamma + i, count);
    StoreSome(MulAdd(normal, gain, LoadSome(beta + i, count)), count, y + i);
  }
}

}  // namespace RLX_WIDE
}  // namespace rlx
