// The rows of pool.h. No include guard: see wide.h.

namespace rlx {
namespace RLX_WIDE {

// pool::Join of vectors. A comparison's second operand comes out of equal ones and of NaN: both
// orders differ there alone, where their bits make the zero that wins, or a NaN.
template <Pooling kKind>
inline V JoinV(V a, V b) {
  if constexpr (kKind == Pooling::kSum) return a + b;
#if RLX_WIDE_BYTES == 64
  if constexpr (kKind == Pooling::kMax) {
    const __m512i one = _mm512_castps_si512(_mm512_maskz_max_ps(0xffff, a, b));
    const __m512i other = _mm512_castps_si512(_mm512_maskz_max_ps(0xffff, b, a));
    const __m512i sign = _mm512_set1_epi32(std::numeric_limits<int32_t>::min());
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(one, other, sign, 0xd4));
  }
  const __m512 one = _mm512_maskz_min_ps(0xffff, a, b);
  const __m512 other = _mm512_maskz_min_ps(0xffff, b, a);
  return _mm512_castsi512_ps(
      _mm512_or_si512(_mm512_castps_si512(one), _mm512_castps_si512(other)));
#else
  const bool max = kKind == Pooling::kMax;
#if defined(__AVX2__)
  const I one = reinterpret_cast<I>(max ? _mm256_max_ps(a, b) : _mm256_min_ps(a, b));
  const I other = reinterpret_cast<I>(max ? _mm256_max_ps(b, a) : _mm256_min_ps(b, a));
#else
  const I one = reinterpret_cast<I>(max ? (a > b ? a : b) : (a < b ? a : b));
  const I other = reinterpret_cast<I>(max ? (b > a ? b : a) : (b < a ? b : a));
#endif
  if (!max) return reinterpret_cast<V>(one | other);
  const I size = (one | other) & std::numeric_limits<int32_t>::max();
  return reinterpret_cast<V>(size | (one & other));
#endif
}

// Numbers 0, 2, 4 … of two vectors, and 1, 3, 5 ….
struct Alternate {
  V even, odd;
};

inline Alternate Part(V a, V b) {
#if RLX_WIDE_BYTES == 64
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  return {_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b)};
#elif defined(__AVX2__)
  const __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
  const __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
  return {_mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8)),
          _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8))};
#else
  Alternate parts;
  for (int64_t i = 0; i < kW; ++i) {
    parts.even[i] = 2 * i < kW ? a[2 * i] : b[2 * i - kW];
    parts.odd[i] = 2 * i < kW ? a[2 * i + 1] : b[2 * i + 1 - kW];
  }
  return parts;
#endif
}

// The first `count` numbers as results.
template <typename T>
inline void StoreResults(V v, int64_t count, T* y) {
  if constexpr (std::is_same_v<T, float>) {
    StoreSome(v, count, y);
  } else {
    float some[kW];
    StoreV(v, some);
    matmul::NarrowRow(some, std::min(count, kW), y);
  }
}

// column[i] of numbers i of `rows` rows that are `step` apart; up to kW numbers after the n are
// written. Without rows, what an empty window gives.
template <Pooling kKind, typename T>
void JoinRows(const T* x, int64_t step, int64_t rows, int64_t n, float* column) {
  if (rows <= 0) return std::fill(column, column + n, pool::kStart<kKind>);
  for (int64_t i = 0; i < n; i += kW) {
    if (n >= kW) i = std::min(i, n - kW);  // the last goes over what is done
    V joined = LoadSome(x + i, n - i);
    for (int64_t h = 1; h < rows; ++h) {
      joined = JoinV<kKind>(joined, LoadSome(x + h * step + i, n - i));
    }
    StoreV(joined, column + i);
  }
}

// Windows along a padded row, of which 3 kW numbers more may be read; `dense` holds a row of
// results of stride one.
template <Pooling kKind, typename T>
void JoinAlong(const PoolShape& s, const float* padded, float* dense, T* y) {
  const int64_t window = s.window[1];
  const int64_t step = s.stride[1];
  if (step == 2) {
    for (int64_t q = 0; q < s.out[1]; q += kW) {
      const float* from = padded + 2 * q;
      Alternate parts = Part(LoadV(from), LoadV(from + kW));
      V joined = window > 1 ? JoinV<kKind>(parts.even, parts.odd) : parts.even;
      for (int64_t k = 2; k < window; k += 2) {
        parts = Part(LoadV(from + k), LoadV(from + k + kW));
        joined = JoinV<kKind>(joined, parts.even);
        if (k + 1 < window) joined = JoinV<kKind>(joined, parts.odd);
      }
      StoreResults(joined, s.out[1] - q, y + q);
    }
    return;
  }
  const int64_t count = (s.out[1] - 1) * step + 1;
  for (int64_t q = 0; q < count; q += kW) {
    V joined = LoadV(padded + q);
    for (int64_t k = 1; k < window; ++k) joined = JoinV<kKind>(joined, LoadV(padded + q + k));
    if (step == 1) {
      StoreResults(joined, count - q, y + q);
    } else {
      StoreV(joined, dense + q);
    }
  }
  if (step == 1) return;
  for (int64_t q = 0; q < s.out[1]; ++q) y[q] = FromFloat<T>(dense[q * step]);
}

// Rows [begin, end) of the result where elements lie singly, counted through all images. Windows go
// along rows that were joined a while before: a vector that overlaps two of those that are being
// stored would wait for both.
template <Pooling kKind, typename T>
void PoolRowsOfOne(const PoolShape& s, const T* x, int64_t begin, int64_t end, T* y) {
  constexpr int64_t kRows = 8;
  const int64_t size = pool::PaddedRow(s);
  const int64_t stride = Padded(size + 3 * kW);
  // Columns [first, first + inside) of x lie inside, the first at `at`.
  const int64_t first = std::max<int64_t>(-s.low[1], 0);
  const int64_t inside = std::max<int64_t>(std::min(s.in[1], size - s.low[1]) - first, 0);
  const int64_t at = std::min(first + s.low[1], size);
  Scratch<float> padded(kRows * stride);
  Scratch<float> dense(s.stride[1] > 2 ? stride : 0);
  std::fill(padded.get(), padded.get() + kRows * stride, pool::kStart<kKind>);
  for (int64_t row = begin; row < end; row += kRows) {
    const int64_t count = std::min(kRows, end - row);
    for (int64_t r = 0; r < count && inside > 0; ++r) {
      const int64_t image = (row + r) / s.out[0];
      const pool::Reach rows = pool::Inside(s, 0, (row + r) % s.out[0]);
      float* to = padded.get() + r * stride + at;
      JoinRows<kKind>(x + (image * s.in[0] + rows.begin) * s.in[1] + first, s.in[1],
                      rows.end - rows.begin, inside, to);
      if (inside < kW) std::fill(to + inside, to + kW, pool::kStart<kKind>);
    }
    for (int64_t r = 0; r < count; ++r) {
      JoinAlong<kKind>(s, padded.get() + r * stride, dense.get(), y + (row + r) * s.out[1]);
    }
  }
}

// Element i and the next kN vectors of the windows of one place, where they lie in x.
template <Pooling kKind, int kN, typename T>
inline void JoinWindow(const PoolShape& s, const T* x, int64_t rows, int64_t columns, T* y) {
  V joined[kN];
#pragma GCC unroll 4
  for (int v = 0; v < kN; ++v) joined[v] = Set(pool::kStart<kKind>);
  for (int64_t h = 0; h < rows; ++h) {
    const T* from = x + h * s.in[1] * s.inner;
    for (int64_t w = 0; w < columns; ++w, from += s.inner) {
#pragma GCC unroll 4
      for (int v = 0; v < kN; ++v) joined[v] = JoinV<kKind>(joined[v], LoadV(from + v * kW));
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kN; ++v) StoreResults(joined[v], kW, y + v * kW);
}

// One row of the result; `column` holds in[1] * inner numbers and kW more.
template <Pooling kKind, typename T>
void PoolRow(const PoolShape& s, const T* x, int64_t place, float* column, T* y) {
  const int64_t n = s.inner;
  const int64_t width = s.in[1] * n;
  const pool::Reach rows = pool::Inside(s, 0, place);
  const int64_t height = std::max<int64_t>(rows.end - rows.begin, 0);
  const bool whole = n >= kW && pool::GainsWhole(s);
  if (!whole) JoinRows<kKind>(x + rows.begin * width, width, height, width, column);
  for (int64_t q = 0; q < s.out[1]; ++q, y += n) {
    const pool::Reach taken = pool::Inside(s, 1, q);
    const int64_t columns = std::max<int64_t>(taken.end - taken.begin, 0);
    const bool some = columns > 0 && height > 0;
    if (whole) {
      const T* from = x + (some ? rows.begin * width + taken.begin * n : 0);
      const int64_t high = some ? height : 0;
      int64_t i = 0;
      for (; i + 4 * kW <= n; i += 4 * kW) {
        JoinWindow<kKind, 4>(s, from + i, high, columns, y + i);
      }
      for (; i < n; i += kW) {
        i = std::min(i, n - kW);
        JoinWindow<kKind, 1>(s, from + i, high, columns, y + i);
      }
      continue;
    }
    for (int64_t i = 0; i < n; i += kW) {
      V joined = Set(pool::kStart<kKind>);
      for (int64_t w = 0; w < columns; ++w) {
        joined = JoinV<kKind>(joined, LoadV(column + (taken.begin + w) * n + i));
      }
      StoreResults(joined, n - i, y + i);
    }
  }
}

// Rows [begin, end) of the result, counted through all images.
template <Pooling kKind, typename T>
void PoolRows(const PoolShape& s, const T* x, int64_t begin, int64_t end, T* y) {
  if (s.inner == 1) return PoolRowsOfOne<kKind>(s, x, begin, end, y);
  const int64_t width = s.in[1] * s.inner;
  Scratch<float> column(width + kW);
  std::fill(column.get(), column.get() + width + kW, 0.0f);
  for (int64_t at = begin; at < end; ++at) {
    PoolRow<kKind>(s, x + at / s.out[0] * s.in[0] * width, at % s.out[0], column.get(),
                   y + at * s.out[1] * s.inner);
  }
}

}  // namespace RLX_WIDE
}  // namespace rlx
