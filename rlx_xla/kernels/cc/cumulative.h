// Running sum, product, maximum, minimum and log-sum-exp along an axis.
//
// Computes: for x of shape [outer, n, inner], y_i = x_0 . x_1 . … . x_i along n, or from the end.
// Layout: row-major, elements aligned to their size.
// Numerics: jax.lax.cumsum and its kin. Sums and products of floats up to 32 bits are taken in f64
//   and rounded once, so that what overflows f32 on the way may come back; sums of f64 carry their
//   rounding error along. Integers wrap around. Maximum and minimum: NaN wins from where it stands,
//   and -0 is less than 0. Log-sum-exp is taken in f64 for floats up to 32 bits.
// Algorithm: along the last axis, blocks that stay in the first-level cache are widened, scanned
//   in vector lanes (a lane takes what lies 1, 2, 4 lanes below it, then the carry), and narrowed.
//   Along another axis, a stretch of columns goes down the rows together; in vectors of 64 bytes,
//   as many as registers hold the carries of. Maximum and minimum are taken of integers that are
//   ordered as the floats are. Log-sum-exp scans exp(x - m), m being
//   the maximum so far with the block's; a block whose m would make the sum vanish, or that holds
//   an infinity or NaN, goes element by element.
#ifndef RLX_KERNELS_CUMULATIVE_H_
#define RLX_KERNELS_CUMULATIVE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "lanes.h"
#include "numbers.h"
#include "parallel.h"
#include "scratch.h"
#include "wide.h"

namespace rlx {

namespace cumulative {

constexpr int64_t kBlock = 512;       // elements that are widened at once
constexpr int64_t kExactBlock = 64;   // the same where the rounding error is carried along
constexpr int64_t kColumns = 512;     // columns that go down together
constexpr int64_t kTile = 16;         // columns that are turned into rows at once

struct Add {
  template <typename V>
  static V Of(V a, V b) {
    return a + b;
  }
};

struct Multiply {
  template <typename V>
  static V Of(V a, V b) {
    return a * b;
  }
};

struct Greater {
  template <typename V>
  static V Of(V a, V b) {
    return a > b ? a : b;
  }
};

struct Less {
  template <typename V>
  static V Of(V a, V b) {
    return a < b ? a : b;
  }
};

// Sums and products: T is widened to Wide and back.
template <typename T>
struct Arithmetic {
  static constexpr bool kFloat = kIsFloat<T>;
  using Wide = std::conditional_t<kFloat, double,
                                  std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>>;
  static Wide In(T x) {
    if constexpr (kFloat) {
      return ToFloat(x);
    } else {
      return static_cast<Wide>(x);
    }
  }
  static T Out(Wide x) {
    if constexpr (std::is_same_v<T, double>) {
      return x;
    } else if constexpr (kFloat) {
      return FromFloat<T>(static_cast<float>(x));
    } else {
      return static_cast<T>(x);
    }
  }
};

// Maximum and minimum: T becomes a signed integer that is ordered as the elements are, with NaN
// at the winning end.
template <typename T, bool kMaximum>
struct Ordered {
  using Wide = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
  using Bits = BitsOf<T>;
  using Signed = std::make_signed_t<Bits>;
  static constexpr Wide kLowest = std::numeric_limits<Wide>::min();
  static constexpr Wide kHighest = std::numeric_limits<Wide>::max();
  static constexpr Bits kMagnitude = static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1);

  static Wide In(T x) {
    const Bits bits = BitCast<Bits>(x);
    if constexpr (kIsFloat<T>) {
      const Signed key = static_cast<Signed>(BitCast<Signed>(bits) < 0 ? bits ^ kMagnitude : bits);
      const bool nan = static_cast<Bits>(bits & kMagnitude) > kInfinityBits<T>;
      return nan ? (kMaximum ? kHighest : kLowest) : static_cast<Wide>(key);
    } else if constexpr (std::is_signed_v<T>) {
      return x;
    } else if constexpr (sizeof(T) >= 4) {
      return BitCast<Wide>(static_cast<Bits>(bits ^ (kMagnitude + 1)));
    } else {
      return bits;
    }
  }
  static T Out(Wide key) {
    if constexpr (kIsFloat<T>) {
      // Both ends become a NaN, also where the key is wider than T.
      const Bits bits = static_cast<Bits>(key);
      const Bits plain = static_cast<Bits>(key < 0 ? bits ^ kMagnitude : bits);
      const Bits nan = kMagnitude;
      return BitCast<T>((kMaximum ? key == kHighest : key == kLowest) ? nan : plain);
    } else if constexpr (std::is_signed_v<T> || sizeof(T) < 4) {
      return static_cast<T>(key);
    } else {
      return BitCast<T>(static_cast<Bits>(static_cast<Bits>(key) ^ (kMagnitude + 1)));
    }
  }
};

template <typename Combine, typename W>
Lanes<W> ScanLanes(Lanes<W> v, Lanes<W> identity) {
  v = Combine::Of(v, ShiftUp<1, W>(v, identity));
  v = Combine::Of(v, ShiftUp<2, W>(v, identity));
  if constexpr (kLanes<W> == 8) v = Combine::Of(v, ShiftUp<4, W>(v, identity));
  return v;
}

// Scans x[0..n) in place, beginning from `carry`; returns the last element.
template <typename Combine, typename W>
W Scan(W* x, int64_t n, W carry, W identity_value) {
  constexpr int64_t kStep = 2 * kLanes<W>;
  constexpr int64_t kLast = kLanes<W> - 1;
  const Lanes<W> identity = Broadcast(identity_value);
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    const Lanes<W> low = ScanLanes<Combine, W>(Load(x + i), identity);
    const Lanes<W> high = ScanLanes<Combine, W>(Load(x + i + kLanes<W>), identity);
    const Lanes<W> both = Combine::Of(Broadcast(static_cast<W>(low[kLast])), high);
    const Lanes<W> before = Broadcast(carry);
    Store<W>(Combine::Of(before, low), x + i);
    Store<W>(Combine::Of(before, both), x + i + kLanes<W>);
    carry = Combine::Of(carry, static_cast<W>(both[kLast]));
  }
  for (; i < n; ++i) {
    carry = Combine::Of(carry, x[i]);
    x[i] = carry;
  }
  return carry;
}

// A sum with the rounding error of its additions.
struct ExactSum {
  double high = 0;
  double low = 0;

  void Add(double x) {
    const double sum = high + x;
    const double part = sum - high;
    const double error = (high - (sum - part)) + (x - part);
    high = sum;
    low = std::isfinite(sum) ? low + error : 0;
  }
};

// A stretch of a row in the order of the scan: element i is x[reverse ? n - 1 - i : i].
template <typename Form, typename T, typename W>
void Widen(const T* x, int64_t n, bool reverse, W* wide) {
  if (reverse) {
    for (int64_t i = 0; i < n; ++i) wide[i] = Form::In(x[n - 1 - i]);
  } else {
    for (int64_t i = 0; i < n; ++i) wide[i] = Form::In(x[i]);
  }
}

template <typename Form, typename T, typename W>
void Narrow(const W* wide, int64_t n, bool reverse, T* y) {
  if (reverse) {
    for (int64_t i = 0; i < n; ++i) y[n - 1 - i] = Form::Out(wide[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = Form::Out(wide[i]);
  }
}

// Calls body(offset, size) for blocks of a row in the order of the scan.
template <typename Body>
void InBlocks(int64_t n, int64_t block, bool reverse, const Body& body) {
  for (int64_t begin = 0; begin < n; begin += block) {
    const int64_t size = std::min(block, n - begin);
    body(reverse ? n - begin - size : begin, size);
  }
}

#if defined(RLX_HAS_WIDE512)
// The columns of x[n, inner] from the first of `columns` on whose carries fill sixteen registers,
// and again so many; returns how many that were. Ask HasWide512() first.
template <typename Form, typename Combine, typename T, typename W>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) int64_t Columns512(
    const T* x, int64_t n, int64_t inner, int64_t columns, bool reverse, W identity, T* y) {
  constexpr int64_t kWidth = 16 * 64 / static_cast<int64_t>(sizeof(W));
  int64_t begin = 0;
  for (; begin + kWidth <= columns; begin += kWidth) {
    W carry[kWidth];
    for (int64_t c = 0; c < kWidth; ++c) carry[c] = identity;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = (reverse ? n - 1 - i : i) * inner + begin;
      const T* from = x + at;
      T* to = y + at;
      for (int64_t c = 0; c < kWidth; ++c) carry[c] = Combine::Of(carry[c], Form::In(from[c]));
      for (int64_t c = 0; c < kWidth; ++c) to[c] = Form::Out(carry[c]);
    }
  }
  return begin;
}
#endif

template <typename T, typename Form, typename Combine>
class Scanner {
 public:
  using W = typename Form::Wide;
  static constexpr bool kExact =
      std::is_same_v<T, double> && std::is_same_v<Combine, cumulative::Add>;

  explicit Scanner(W identity) : identity_(identity) {}

  void Row(const T* x, int64_t n, bool reverse, T* y) const {
    alignas(kVectorBytes) W wide[kBlock];
    if constexpr (kExact) {
      ExactSum sum;
      InBlocks(n, kExactBlock, reverse, [&](int64_t at, int64_t size) {
        Widen<Form>(x + at, size, reverse, wide);
        const double total = Scan<Combine>(wide, size, W{0}, W{0});
        for (int64_t i = 0; i < size; ++i) wide[i] = sum.high + (sum.low + wide[i]);
        sum.Add(total);
        Narrow<Form>(wide, size, reverse, y + at);
      });
    } else {
      W carry = identity_;
      InBlocks(n, kBlock, reverse, [&](int64_t at, int64_t size) {
        Widen<Form>(x + at, size, reverse, wide);
        carry = Scan<Combine>(wide, size, carry, identity_);
        Narrow<Form>(wide, size, reverse, y + at);
      });
    }
  }

  // Columns [0, columns) of x[n, inner]; columns <= kColumns.
  void Columns(const T* x, int64_t n, int64_t inner, int64_t columns, bool reverse, T* y) const {
    if constexpr (kExact) {
      ExactSum sum[kColumns];
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = (reverse ? n - 1 - i : i) * inner;
        for (int64_t c = 0; c < columns; ++c) {
          sum[c].Add(x[at + c]);
          y[at + c] = sum[c].high + sum[c].low;
        }
      }
    } else {
#if defined(RLX_HAS_WIDE512)
      // Narrow floats are not widened by vectors here.
      if (sizeof(T) >= 4 && HasWide512()) {
        const int64_t done =
            Columns512<Form, Combine>(x, n, inner, columns, reverse, identity_, y);
        x += done;
        y += done;
        columns -= done;
        if (columns == 0) return;
      }
#endif
      alignas(kVectorBytes) W carry[kColumns];
      std::fill(carry, carry + columns, identity_);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = (reverse ? n - 1 - i : i) * inner;
        for (int64_t c = 0; c < columns; ++c) {
          const W sum = Combine::Of(carry[c], Form::In(x[at + c]));
          carry[c] = sum;
          y[at + c] = Form::Out(sum);
        }
      }
    }
  }

 private:
  const W identity_;
};

template <typename T, typename Form, typename Combine, typename Pool>
void Run(const Pool& pool, const T* x, int64_t outer, int64_t n, int64_t inner, bool reverse,
         typename Form::Wide identity, T* y) {
  const Scanner<T, Form, Combine> scanner(identity);
  constexpr int64_t kGrain = 32 * 1024;  // elements that are worth a second thread
  if (inner == 1) {
    return ParallelFor(pool, outer, kGrain / n + 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        scanner.Row(x + row * n, n, reverse, y + row * n);
      }
    });
  }
  // Columns are shared out in stretches that fill cache lines, and that every thread gets some of.
  const int64_t threads = std::max<int64_t>(pool.Threads(), 1);
  const int64_t share = (inner * outer / threads + 63) / 64 * 64;
  const int64_t width = std::max<int64_t>(64, std::min(kColumns, share));
  const int64_t stretches = (inner + width - 1) / width;
  ParallelFor(pool, outer * stretches, kGrain / (n * std::min(width, inner)) + 1,
              [&](int64_t begin, int64_t end) {
                for (int64_t at = begin; at < end; ++at) {
                  const int64_t column = at % stretches * width;
                  const int64_t offset = at / stretches * n * inner + column;
                  scanner.Columns(x + offset, n, inner, std::min(width, inner - column), reverse,
                                  y + offset);
                }
              });
}

// exp(x) for x <= 0 to about 1e-11 of itself; 0 below -700.
inline double ExpOfNegative(double x) {
  constexpr double kShift = 0x1.8p52;  // adding it rounds to an integer, in the low bits
  const double clamped = x < -700 ? -700.0 : x;
  const double shifted = clamped * 1.4426950408889634 + kShift;
  const double whole = shifted - kShift;
  const double r = (clamped - whole * 0x1.62e42fefa3800p-1) - whole * 0x1.ef35793c76730p-45;
  double p = 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1;
  p = p * r + 1;
  const uint64_t power = (BitCast<uint64_t>(shifted) + 1023) << 52;
  return x < -700 ? 0.0 : p * BitCast<double>(power);
}

// log(x) for normal x > 0 to about 1e-11.
inline double LogOfPositive(double x) {
  // The mantissa is taken from sqrt(1/2) to sqrt(2).
  const uint64_t bits = BitCast<uint64_t>(x) + (0x3ff0000000000000 - 0x3fe6a09e667f3bcd);
  const double exponent =
      BitCast<double>((bits >> 52) | 0x4330000000000000) - (0x1p52 + 1023);
  const double m = BitCast<double>((bits & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd);
  const double s = (m - 1) / (m + 1);
  const double z = s * s;
  double p = 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  p = p * z + 1;
  return exponent * 0.6931471805599453 + 2 * s * p;
}

// log(sum exp) so far is top + log(sum); sum is 0 before the first element above -inf.
class LogSumExp {
 public:
  void Block(double* x, int64_t n) {
    double top = top_;
    bool plain = sum_ > 0 && top_ < std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < n; ++i) {
      top = x[i] > top ? x[i] : top;
      plain &= x[i] < std::numeric_limits<double>::infinity();  // neither inf nor NaN
    }
    // Beyond this, what came before would vanish beside the block's maximum, and the block's
    // first results with it.
    if (!plain || top - top_ > 600) {
      for (int64_t i = 0; i < n; ++i) x[i] = Next(x[i]);
      return;
    }
    const double before = sum_ * ExpOfNegative(top_ - top);
    for (int64_t i = 0; i < n; ++i) x[i] = ExpOfNegative(x[i] - top);
    sum_ = Scan<Add>(x, n, before, 0.0);
    top_ = top;
    for (int64_t i = 0; i < n; ++i) x[i] = top + LogOfPositive(x[i]);
  }

 private:
  double Next(double x) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (x != x || top_ != top_) {
      top_ = std::numeric_limits<double>::quiet_NaN();
      return top_;
    }
    if (x == kInfinity || top_ == kInfinity) {
      top_ = kInfinity;
      return top_;
    }
    if (x > top_) {
      sum_ = sum_ > 0 ? sum_ * std::exp(top_ - x) + 1 : 1;
      top_ = x;
    } else if (sum_ > 0) {
      sum_ += std::exp(x - top_);
    }
    return sum_ > 0 ? top_ + std::log(sum_) : top_;
  }

  double top_ = -std::numeric_limits<double>::infinity();
  double sum_ = 0;
};

template <typename T>
void LogSumExpRow(const T* x, int64_t n, bool reverse, T* y) {
  using Form = Arithmetic<T>;
  alignas(kVectorBytes) double wide[kExactBlock];
  LogSumExp state;
  InBlocks(n, kExactBlock, reverse, [&](int64_t at, int64_t size) {
    Widen<Form>(x + at, size, reverse, wide);
    state.Block(wide, size);
    Narrow<Form>(wide, size, reverse, y + at);
  });
}

template <typename T, typename Pool>
void RunLogSumExp(const Pool& pool, const T* x, int64_t outer, int64_t n, int64_t inner,
                  bool reverse, T* y) {
  constexpr int64_t kGrain = 4096;
  if (inner == 1) {
    return ParallelFor(pool, outer, kGrain / n + 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        LogSumExpRow(x + row * n, n, reverse, y + row * n);
      }
    });
  }
  const int64_t tiles = (inner + kTile - 1) / kTile;
  ParallelFor(pool, outer * tiles, kGrain / (n * kTile) + 1, [&](int64_t begin, int64_t end) {
    Scratch<T> rows(n * kTile);
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t column = tile % tiles * kTile;
      const int64_t offset = tile / tiles * n * inner + column;
      const int64_t lanes = std::min(kTile, inner - column);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t c = 0; c < lanes; ++c) rows[c * n + i] = x[offset + i * inner + c];
      }
      for (int64_t c = 0; c < lanes; ++c) {
        LogSumExpRow(rows.get() + c * n, n, reverse, rows.get() + c * n);
      }
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t c = 0; c < lanes; ++c) y[offset + i * inner + c] = rows[c * n + i];
      }
    }
  });
}

}  // namespace cumulative

enum class Running { kSum, kProduct, kMaximum, kMinimum, kLogSumExp };

// y[outer, n, inner] from x along n. kLogSumExp is for floats of at most 32 bits.
template <typename T, typename Pool>
void Cumulate(const Pool& pool, Running kind, const T* x, int64_t outer, int64_t n, int64_t inner,
              bool reverse, T* y) {
  using namespace cumulative;  // NOLINT: its names are this function's
  if (outer == 0 || n == 0 || inner == 0) return;
  using Wide = typename Arithmetic<T>::Wide;
  switch (kind) {
    case Running::kSum:
      return Run<T, Arithmetic<T>, Add>(pool, x, outer, n, inner, reverse, Wide{0}, y);
    case Running::kProduct:
      return Run<T, Arithmetic<T>, Multiply>(pool, x, outer, n, inner, reverse, Wide{1}, y);
    case Running::kMaximum: {
      using Form = Ordered<T, true>;
      return Run<T, Form, Greater>(pool, x, outer, n, inner, reverse, Form::kLowest, y);
    }
    case Running::kMinimum: {
      using Form = Ordered<T, false>;
      return Run<T, Form, Less>(pool, x, outer, n, inner, reverse, Form::kHighest, y);
    }
    case Running::kLogSumExp:
      if constexpr (kIsFloat<T> && sizeof(T) <= 4) {
        return RunLogSumExp(pool, x, outer, n, inner, reverse, y);
      }
  }
}

}  // namespace rlx

#endif  // RLX_KERNELS_CUMULATIVE_H_
