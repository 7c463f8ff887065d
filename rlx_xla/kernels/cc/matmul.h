// Products of few rows with a matrix of any element type.
//
// Computes: y[m, n] = sum over k of x[m, k] * w[n, k] (by rows), or of x[m, k] * w[k, n] (by
//   columns).
// Layout: row-major, elements aligned to their size.
// Numerics: weights are widened to f32 exactly; products are fused with their sums, which are f32
//   and are taken of stretches of k before they are added up.
// Algorithm: a tile of weights is widened into the first-level cache once, however many rows of x
//   there are, and read from there by blocks of sums that stay in registers; f32 weights are read
//   where they lie. Memory is read in order, and no more is held than a tile a thread. What is read
//   from the cache is multiplied in vectors of 64 bytes where the CPU has them.
#ifndef RLX_KERNELS_MATMUL_H_
#define RLX_KERNELS_MATMUL_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "lanes.h"
#include "matmul_avx512.h"
#include "numbers.h"
#include "parallel.h"
#include "scratch.h"

namespace rlx {

namespace matmul {

using F = Lanes<float>;
constexpr int64_t kWide = kLanes<float>;

inline F MulAdd(F a, F b, F c) {
#if defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

inline int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Eight elements as f32.
inline F LoadWide(const float* p) { return Load(p); }

inline F LoadWide(const Bf16* p) {
#if defined(__AVX2__)
  __m128i bits;
  std::memcpy(&bits, p, sizeof(bits));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
#else
  F v;
  for (int64_t i = 0; i < kWide; ++i) v[i] = ToFloat(p[i]);
  return v;
#endif
}

inline F LoadWide(const F16* p) {
#if defined(__F16C__)
  __m128i bits;
  std::memcpy(&bits, p, sizeof(bits));
  return _mm256_cvtph_ps(bits);
#else
  F v;
  for (int64_t i = 0; i < kWide; ++i) v[i] = ToFloat(p[i]);
  return v;
#endif
}

// `ahead` elements further lies what is widened next: it is fetched while this is multiplied.
template <typename T>
void WidenRow(const T* in, int64_t n, int64_t ahead, float* out) {
  int64_t i = 0;
  for (; i + kWide <= n; i += kWide) {
    __builtin_prefetch(in + i + ahead);
    Store<float>(LoadWide(in + i), out + i);
  }
  for (; i < n; ++i) out[i] = ToFloat(in[i]);
}

template <typename T>
void NarrowRow(const float* in, int64_t n, T* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = FromFloat<T>(in[i]);
}

// A block of a matrix: element (r, c) is data[r * stride + c].
template <typename T>
struct Tile {
  const T* data;
  int64_t stride;
};

// A matrix of plain elements. Every kind of weights has Get: the f32 of rows [row, row + rows)
// and columns [col, col + cols), with zeros up to a multiple of `unit` columns. The tile lies in
// `buffer`, with `stride`, or where the weights are; the next one is `ahead` elements away. At, where kPlain, is the tile as it lies.
template <typename T>
struct PlainWeights {
  const T* data;
  int64_t cols;

  static constexpr bool kPlain = true;

  Tile<T> At(int64_t row, int64_t col) const { return {data + row * cols + col, cols}; }

  Tile<float> Get(int64_t row, int64_t rows, int64_t col, int64_t count, int64_t unit, float* buffer,
           int64_t stride, int64_t ahead) const {
    const T* first = data + row * cols + col;
    if constexpr (std::is_same_v<T, float>) {
      if (count % unit == 0) return {first, cols};
    }
    for (int64_t r = 0; r < rows; ++r) {
      WidenRow(first + r * cols, count, ahead, buffer + r * stride);
      std::fill(buffer + r * stride + count, buffer + r * stride + RoundUp(count, unit), 0.0f);
    }
    return {buffer, stride};
  }
};

// Rows [begin, end) of x as f32, each padded with zeros to `stride`.
template <typename T>
void WidenRows(const T* x, int64_t begin, int64_t end, int64_t k, int64_t stride, float* out) {
  for (int64_t m = begin; m < end; ++m) {
    WidenRow(x + m * k, k, /*ahead=*/0, out + m * stride);
    std::fill(out + m * stride + k, out + (m + 1) * stride, 0.0f);
  }
}

// By rows.

constexpr int64_t kRowTile = 4;     // rows of weights that are taken at once
constexpr int64_t kRowDepth = 512;  // and as many of their columns
constexpr int64_t kDirectRows = 3;  // up to as many of x, weights are widened on the way

// sums[m * kRowTile + j] += lanes of x[m] * w[j].
template <int kX, int kW, typename T>
void DotTile(Tile<T> w, const float* x, int64_t x_stride, int64_t k, F* sums) {
  constexpr int kSets = kX * kW < 8 ? 2 : 1;  // enough sums in flight to hide their latency
  F acc[kSets][kX][kW] = {};
  int64_t i = 0;
  for (; i + kSets * kWide <= k; i += kSets * kWide) {
#pragma GCC unroll 2
    for (int s = 0; s < kSets; ++s) {
      F weight[kW];
#pragma GCC unroll 4
      for (int j = 0; j < kW; ++j) {
        weight[j] = LoadWide(w.data + j * w.stride + i + s * kWide);
      }
#pragma GCC unroll 4
      for (int m = 0; m < kX; ++m) {
        const F value = Load(x + m * x_stride + i + s * kWide);
#pragma GCC unroll 4
        for (int j = 0; j < kW; ++j) acc[s][m][j] = MulAdd(value, weight[j], acc[s][m][j]);
      }
    }
  }
  for (; i < k; i += kWide) {
    for (int m = 0; m < kX; ++m) {
      const F value = Load(x + m * x_stride + i);
      for (int j = 0; j < kW; ++j) {
        acc[0][m][j] = MulAdd(value, LoadWide(w.data + j * w.stride + i), acc[0][m][j]);
      }
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kX; ++m) {
#pragma GCC unroll 4
    for (int j = 0; j < kW; ++j) {
      F sum = acc[0][m][j];
      if constexpr (kSets == 2) sum += acc[1][m][j];
      sums[m * kRowTile + j] += sum;
    }
  }
}

template <int kW, typename T>
void DotColumns(Tile<T> w, const float* x, int64_t x_stride, int64_t rows, int64_t k, F* sums) {
  int64_t m = 0;
  for (; m + 3 <= rows; m += 3) {
    DotTile<3, kW>(w, x + m * x_stride, x_stride, k, sums + m * kRowTile);
  }
  if (rows - m == 2) DotTile<2, kW>(w, x + m * x_stride, x_stride, k, sums + m * kRowTile);
  if (rows - m == 1) DotTile<1, kW>(w, x + m * x_stride, x_stride, k, sums + m * kRowTile);
}

// The same for any number of rows of x and `width` rows of weights.
template <typename T>
void DotRows(Tile<T> w, int64_t width, const float* x, int64_t x_stride, int64_t rows, int64_t k,
             F* sums) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, float>) {
    if (width == kRowTile && HasAvx512()) {
      return DotRows512(w.data, w.stride, x, x_stride, rows, k, reinterpret_cast<float*>(sums));
    }
  }
#endif
  switch (width) {
    case 1: return DotColumns<1>(w, x, x_stride, rows, k, sums);
    case 2: return DotColumns<2>(w, x, x_stride, rows, k, sums);
    case 3: return DotColumns<3>(w, x, x_stride, rows, k, sums);
    default: return DotColumns<4>(w, x, x_stride, rows, k, sums);
  }
}

// The sums of the lanes of four vectors.
inline void SumsOfLanes(const F* v, float* out) {
#if defined(__AVX2__)
  const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
#else
  for (int64_t j = 0; j < kRowTile; ++j) {
    out[j] = 0;
    for (int64_t i = 0; i < kWide; ++i) out[j] += v[j][i];
  }
#endif
}

// Whether weights have Dot(row, rows, x, sums), for whole rows.
template <typename Weights, typename = void>
inline constexpr bool HasDot = false;
template <typename Weights>
inline constexpr bool HasDot<Weights, std::void_t<decltype(&Weights::Dot)>> = true;

// y[m * y_stride + n] for n in [begin, end), of x[rows, k] whose rows are padded to a multiple of
// 8 by zeros.
template <typename Weights, typename Out>
void ByRows(const Weights& w, int64_t begin, int64_t end, int64_t k, const float* x,
            int64_t x_stride, int64_t rows, Out* y, int64_t y_stride) {
  alignas(64) float buffer[kRowTile * kRowDepth];
  Scratch<F> sums(rows * kRowTile);
  for (int64_t n = begin; n < end; n += kRowTile) {
    const int64_t width = std::min(kRowTile, end - n);
    std::fill(sums.get(), sums.get() + rows * kRowTile, F{});
    int64_t at = 0;
    if constexpr (Weights::kPlain) {
      if (rows <= kDirectRows) {
        at = k / kWide * kWide;
        DotRows(w.At(n, 0), width, x, x_stride, rows, at, sums.get());
      }
    }
    if constexpr (HasDot<Weights>) {
      if (rows == 1 && w.Dot(n, width, x, sums.get())) at = k;
    }
    for (; at < k; at += kRowDepth) {
      const int64_t depth = std::min(kRowDepth, k - at);
      // For one row of x, blocks are fetched a tile of rows ahead, so that none is left out.
      const int64_t ahead = HasDot<Weights> && rows == 1 ? kRowTile * k : kRowDepth;
      const Tile<float> tile = w.Get(n, width, at, depth, kWide, buffer, kRowDepth, ahead);
      DotRows(tile, width, x + at, x_stride, rows, RoundUp(depth, kWide), sums.get());
    }
    for (int64_t m = 0; m < rows; ++m) {
      float total[kRowTile];
      SumsOfLanes(sums.get() + m * kRowTile, total);
      NarrowRow(total, width, y + m * y_stride + n);
    }
  }
}

// By columns.

constexpr int64_t kColumnUnit = 64;    // columns are padded to a multiple of it
constexpr int64_t kColumnWidth = 512;  // columns that are widened at once
constexpr int64_t kColumnDepth = 16;   // and as many of their rows

// acc[m * acc_stride + c] += x[m] . w[:, c] for kV vectors of columns.
template <int kX, int kV, typename T>
void OuterTile(Tile<T> w, int64_t k, const float* x, int64_t x_stride, float* acc,
               int64_t acc_stride) {
  F sums[kX][kV] = {};
  for (int64_t i = 0; i < k; ++i) {
    F weight[kV];
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) {
      weight[v] = LoadWide(w.data + i * w.stride + v * kWide);
    }
#pragma GCC unroll 8
    for (int m = 0; m < kX; ++m) {
      const F value = Broadcast(x[m * x_stride + i]);
#pragma GCC unroll 8
      for (int v = 0; v < kV; ++v) sums[m][v] = MulAdd(value, weight[v], sums[m][v]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kX; ++m) {
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) {
      float* to = acc + m * acc_stride + v * kWide;
      Store<float>(Load(to) + sums[m][v], to);
    }
  }
}

template <int kX, int kV, typename T>
void OuterColumns(Tile<T> w, int64_t width, int64_t k, const float* x, int64_t x_stride, float* acc,
                  int64_t acc_stride) {
  for (int64_t c = 0; c < width; c += kV * kWide) {
    OuterTile<kX, kV, T>({w.data + c, w.stride}, k, x, x_stride, acc + c, acc_stride);
  }
}

// acc[rows, width] += x[rows, k] w[k, width]; width is a multiple of kColumnUnit.
template <typename T>
void OuterRows(Tile<T> w, int64_t width, int64_t k, const float* x, int64_t x_stride,
                      int64_t rows, float* acc, int64_t acc_stride) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, float>) {
    if (HasAvx512()) {
      return OuterRows512(w.data, w.stride, width, k, x, x_stride, rows, acc, acc_stride);
    }
  }
#endif
  while (rows > 0) {
    int64_t taken = 6;
    if (rows >= 6) {
      OuterColumns<6, 2>(w, width, k, x, x_stride, acc, acc_stride);
    } else if (rows >= 4) {
      OuterColumns<4, 2>(w, width, k, x, x_stride, acc, acc_stride);
      taken = 4;
    } else if (rows >= 2) {
      OuterColumns<2, 4>(w, width, k, x, x_stride, acc, acc_stride);
      taken = 2;
    } else {
      OuterColumns<1, 8>(w, width, k, x, x_stride, acc, acc_stride);
      taken = 1;
    }
    rows -= taken;
    x += taken * x_stride;
    acc += taken * acc_stride;
  }
}

// y[m * y_stride + n] for n in [begin, end), of x[rows, k].
template <typename Weights, typename Out>
void ByColumns(const Weights& w, int64_t begin, int64_t end, int64_t k, const float* x,
               int64_t x_stride, int64_t rows, Out* y, int64_t y_stride) {
  alignas(64) float buffer[kColumnDepth * kColumnWidth];
  Scratch<float> acc(rows * kColumnWidth);
  for (int64_t n = begin; n < end; n += kColumnWidth) {
    const int64_t count = std::min(kColumnWidth, end - n);
    const int64_t width = RoundUp(count, kColumnUnit);
    std::fill(acc.get(), acc.get() + rows * kColumnWidth, 0.0f);
    for (int64_t at = 0; at < k; at += kColumnDepth) {
      const int64_t depth = std::min(kColumnDepth, k - at);
      const Tile<float> tile = w.Get(at, depth, n, count, kColumnUnit, buffer, kColumnWidth,
                                     kColumnDepth * w.cols);
      OuterRows(tile, width, depth, x + at, x_stride, rows, acc.get(), kColumnWidth);
    }
    for (int64_t m = 0; m < rows; ++m) {
      NarrowRow(acc.get() + m * kColumnWidth, count, y + m * y_stride + n);
    }
  }
}

}  // namespace matmul

// How the weights of a product lie.
struct MatmulShape {
  int64_t batch;  // products, each with its own x and w
  int64_t rows;   // of x and y
  int64_t k;
  int64_t n;
  bool by_rows;  // w is [n, k], or else [k, n]
};

// y[batch, rows, n] = x[batch, rows, k] w, where weights(b) are those of product b.
template <typename Pool, typename X, typename Y, typename WeightsOf>
void Matmul(const Pool& pool, const MatmulShape& shape, const X* x, const WeightsOf& weights,
            Y* y) {
  using matmul::RoundUp;
  constexpr int64_t kGrain = 64 * 1024;  // products and sums that are worth a second thread
  const int64_t stride = RoundUp(shape.k, matmul::kWide);
  // A piece of work is a stretch of one product's columns.
  int64_t unit = shape.by_rows ? matmul::kRowTile : matmul::kColumnWidth;
  if constexpr (!std::decay_t<decltype(weights(0))>::kPlain) {
    // Unpacking is worth sharing: every thread has some columns.
    const int64_t even = RoundUp(shape.n / (4 * pool.Threads()) + 1, 2 * matmul::kColumnUnit);
    if (!shape.by_rows) unit = std::min(unit, even);
  }
  const int64_t stretches = (shape.n + unit - 1) / unit;
  const int64_t cost = std::max<int64_t>(1, shape.rows * shape.k * std::min(unit, shape.n));
  // f32 is taken where it lies, unless rows have to be padded.
  bool in_place = false;
  if constexpr (std::is_same_v<X, float>) in_place = !shape.by_rows || stride == shape.k;
  const int64_t x_stride = in_place ? shape.k : stride;
  Scratch<float> widened(in_place ? 0 : shape.batch * shape.rows * stride);
  const float* wide = widened.get();
  if constexpr (std::is_same_v<X, float>) {
    if (in_place) wide = x;
  }
  if (!in_place) {
    ParallelFor(pool, shape.batch * shape.rows, kGrain / (shape.k + 1) + 1,
                [&](int64_t begin, int64_t end) {
                  matmul::WidenRows(x, begin, end, shape.k, stride, widened.get());
                });
  }
  ParallelFor(pool, shape.batch * stretches, kGrain / cost + 1, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end;) {
      const int64_t product = at / stretches;
      const int64_t last = std::min(end, (product + 1) * stretches);
      const int64_t from = at % stretches * unit;
      const int64_t to = std::min(shape.n, from + (last - at) * unit);
      const float* rows = wide + product * shape.rows * x_stride;
      Y* out = y + product * shape.rows * shape.n;
      if (shape.by_rows) {
        matmul::ByRows(weights(product), from, to, shape.k, rows, x_stride, shape.rows, out,
                       shape.n);
      } else {
        matmul::ByColumns(weights(product), from, to, shape.k, rows, x_stride, shape.rows, out,
                          shape.n);
      }
      at = last;
    }
  });
}

}  // namespace rlx

#endif  // RLX_KERNELS_MATMUL_H_
