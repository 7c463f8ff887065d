// A vector of f32, the functions that XLA has for it, and products of tiles. No include guard: see
// wide.h.
//
// Numerics: exp, tanh and the logistic function to about 2 ulp; results below the smallest normal
//   number are zero, as XLA has them; NaN stays NaN.

namespace rlx {
namespace RLX_WIDE {

constexpr int64_t kW = RLX_WIDE_BYTES / 4;
typedef float V __attribute__((vector_size(RLX_WIDE_BYTES)));
typedef int32_t I __attribute__((vector_size(RLX_WIDE_BYTES)));
typedef uint32_t U __attribute__((vector_size(RLX_WIDE_BYTES)));

inline int64_t Padded(int64_t n) { return (n + kW - 1) / kW * kW; }

inline V Set(float x) { return x - V{}; }  // x - 0 is x, the sign of zero included

inline V LoadV(const float* p) {
  V v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

inline V LoadV(const Bf16* p) {
#if RLX_WIDE_BYTES == 64
  __m256i bits;
  std::memcpy(&bits, p, sizeof(bits));
  // The forms with a mask: GCC 12 warns about its own header in the others.
  const __m512i wide = _mm512_maskz_cvtepu16_epi32(0xffff, bits);
  return reinterpret_cast<V>(_mm512_maskz_slli_epi32(0xffff, wide, 16));
#else
  return matmul::LoadWide(p);
#endif
}

inline V LoadV(const F16* p) {
#if RLX_WIDE_BYTES == 64
  __m256i bits;
  std::memcpy(&bits, p, sizeof(bits));
  return _mm512_maskz_cvtph_ps(0xffff, bits);
#else
  return matmul::LoadWide(p);
#endif
}

// The first n elements, and zeros.
template <typename T>
V LoadSome(const T* p, int64_t n) {
  if (n >= kW) return LoadV(p);
#if RLX_WIDE_BYTES == 64
  const uint32_t some_of = (1u << (n > 0 ? n : 0)) - 1;
  if constexpr (sizeof(T) == 4) return _mm512_maskz_loadu_ps(some_of, p);
  if constexpr (sizeof(T) == 2) {
    const __m256i bits = _mm256_maskz_loadu_epi16(some_of, p);
    if constexpr (std::is_same_v<T, F16>) return _mm512_maskz_cvtph_ps(0xffff, bits);
    return reinterpret_cast<V>(
        _mm512_maskz_slli_epi32(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, bits), 16));
  }
#endif
  T some[kW] = {};
  std::memcpy(some, p, n * sizeof(T));
  return LoadV(some);
}

inline void StoreV(V v, float* p) { std::memcpy(p, &v, sizeof(v)); }

// The first n numbers.
inline void StoreSome(V v, int64_t n, float* p) {
  if (n >= kW) return StoreV(v, p);
#if RLX_WIDE_BYTES == 64
  _mm512_mask_storeu_ps(p, (1u << n) - 1, v);
#else
  for (int64_t i = 0; i < n; ++i) p[i] = v[i];
#endif
}

inline V MulAdd(V a, V b, V c) {
#if RLX_WIDE_BYTES == 64
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

inline V Choose(I mask, V yes, V no) { return mask ? yes : no; }

// The larger, and b where a is NaN.
inline V Larger(V a, V b) { return a > b ? a : b; }

#if RLX_WIDE_BYTES == 64
struct Halves {
  Lanes<float> low;
  Lanes<float> high;
};

// Not by BitCast, which is compiled without AVX-512 and takes such a vector another way.
inline Halves Split(V v) {
  Halves halves;
  std::memcpy(&halves, &v, sizeof(v));
  return halves;
}
#endif

inline float Sum(V v) {
#if RLX_WIDE_BYTES == 64
  const Halves halves = Split(v);
  return wide256::Sum(halves.low + halves.high);
#elif defined(__AVX2__)
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
  float sum = 0;
  for (int64_t i = 0; i < kW; ++i) sum += v[i];
  return sum;
#endif
}

inline float Most(V v) {
#if RLX_WIDE_BYTES == 64
  const Halves halves = Split(v);
  return wide256::Most(wide256::Larger(halves.low, halves.high));
#elif defined(__AVX2__)
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#else
  float most = v[0];
  for (int64_t i = 1; i < kW; ++i) most = most > v[i] ? most : v[i];
  return most;
#endif
}

// exp(x) as a factor near 1 and a power of two, for x whose power is one of f32's or nearly.
struct ExpParts {
  V factor;
  U power;
};

inline ExpParts PartsOfExp(V x) {
  const V kShift = Set(0x1.8p23f);  // adding it rounds to an integer, in the low bits
  const V t = MulAdd(x, Set(0x1.715476p0f), kShift);
  const V n = t - kShift;
  V r = MulAdd(n, Set(-0x1.62e400p-1f), x);
  r = MulAdd(n, Set(-0x1.7f7d1cp-20f), r);
  V p = Set(0x1.6dbc68p-10f);
  p = MulAdd(p, r, Set(0x1.124148p-7f));
  p = MulAdd(p, r, Set(0x1.555454p-5f));
  p = MulAdd(p, r, Set(0x1.555486p-3f));
  p = MulAdd(p, r, Set(0.5f));
  p = MulAdd(p, r * r, r) + 1.0f;
  return {p, reinterpret_cast<U>(t) - reinterpret_cast<U>(kShift)};
}

inline V Exp(V x) {
  const ExpParts parts = PartsOfExp(x);
  // 2^n in two factors: n is 128 just below the largest result.
  const U half = reinterpret_cast<U>(reinterpret_cast<I>(parts.power) >> 1);
  const V first = reinterpret_cast<V>((half + 127) << 23);
  const V second = reinterpret_cast<V>((parts.power - half + 127) << 23);
  V y = parts.factor * first * second;
  y = x < -87.33654f ? V{} : y;
  return x > 88.72284f ? Set(std::numeric_limits<float>::infinity()) : y;
}

inline I SignOf(V x) {
  return reinterpret_cast<I>(x) & std::numeric_limits<int32_t>::min();
}

inline V SizeOf(V x) { return reinterpret_cast<V>(reinterpret_cast<I>(x) ^ SignOf(x)); }

// tanh(x), where `large` is that of x's size, which counts where this is not small.
inline V TanhOf(V x, V large) {
  const V z = x * x;
  V p = Set(-0x1.72fc48p-8f);
  p = MulAdd(p, z, Set(0x1.518b16p-6f));
  p = MulAdd(p, z, Set(-0x1.b8265cp-5f));
  p = MulAdd(p, z, Set(0x1.11068ep-3f));
  p = MulAdd(p, z, Set(-0x1.55553p-2f));
  const V small = MulAdd(p * z, x, x);
  const V signed_large = reinterpret_cast<V>(reinterpret_cast<I>(large) | SignOf(x));
  return SizeOf(x) < 0.625f ? small : signed_large;
}

inline V Tanh(V x) {
  const V size = SizeOf(x);
  return TanhOf(x, 1.0f - 2.0f / (Exp(size + size) + 1.0f));
}

inline V Logistic(V x) { return 1.0f / (1.0f + Exp(-x)); }

// Rows of any float as f32, each padded with zeros to `out_stride` elements.
template <typename T>
void Widen(const T* in, int64_t in_stride, int64_t rows, int64_t n, float* out,
           int64_t out_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* from = in + r * in_stride;
    float* to = out + r * out_stride;
    for (int64_t i = 0; i < out_stride; i += kW) {
      StoreV(i < n ? LoadSome(from + i, n - i) : V{}, to + i);
    }
  }
}

template <typename T>
void Narrow(const float* in, int64_t n, T* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = FromFloat<T>(in[i]);
}

template <>
inline void Narrow<float>(const float* in, int64_t n, float* out) {
  std::memcpy(out, in, n * sizeof(float));
}

// Turns a block of kW rows and kW columns.
inline void TurnV(const V* rows, V* columns) {
#if RLX_WIDE_BYTES == 64
  __m512 a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_maskz_unpacklo_ps(0xffff, rows[i], rows[i + 1]);
    a[i + 1] = _mm512_maskz_unpackhi_ps(0xffff, rows[i], rows[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // b[i + j]: column 4 l + j of rows i to i + 3, in part l
    b[i] = _mm512_maskz_shuffle_ps(0xffff, a[i], a[i + 2], 0x44);
    b[i + 1] = _mm512_maskz_shuffle_ps(0xffff, a[i], a[i + 2], 0xee);
    b[i + 2] = _mm512_maskz_shuffle_ps(0xffff, a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm512_maskz_shuffle_ps(0xffff, a[i + 1], a[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512 low = _mm512_maskz_shuffle_f32x4(0xffff, b[j], b[4 + j], 0x88);
    const __m512 high = _mm512_maskz_shuffle_f32x4(0xffff, b[j], b[4 + j], 0xdd);
    const __m512 other_low = _mm512_maskz_shuffle_f32x4(0xffff, b[8 + j], b[12 + j], 0x88);
    const __m512 other_high = _mm512_maskz_shuffle_f32x4(0xffff, b[8 + j], b[12 + j], 0xdd);
    columns[j] = _mm512_maskz_shuffle_f32x4(0xffff, low, other_low, 0x88);
    columns[4 + j] = _mm512_maskz_shuffle_f32x4(0xffff, high, other_high, 0x88);
    columns[8 + j] = _mm512_maskz_shuffle_f32x4(0xffff, low, other_low, 0xdd);
    columns[12 + j] = _mm512_maskz_shuffle_f32x4(0xffff, high, other_high, 0xdd);
  }
#else
  Turn8(rows, columns);
#endif
}

// out[d * out_stride + r] = in[r * in_stride + d], and zeros from `rows` to `filled`, a multiple
// of 8.
template <typename T>
void WidenTurned(const T* in, int64_t in_stride, int64_t rows, int64_t n, float* out,
                 int64_t out_stride, int64_t filled) {
  for (int64_t r = 0; r < filled; r += 8) {
    for (int64_t d = 0; d < n; d += 8) {
      Lanes<float> block[8];
      Lanes<float> turned[8];
      for (int64_t i = 0; i < 8; ++i) {
        const T* from = in + (r + i) * in_stride + d;
        if (r + i >= rows) {
          block[i] = Lanes<float>{};
        } else if (d + 8 <= n) {
          block[i] = matmul::LoadWide(from);
        } else {
          T some[8] = {};
          std::memcpy(some, from, (n - d) * sizeof(T));
          block[i] = matmul::LoadWide(some);
        }
      }
      Turn8(block, turned);
      for (int64_t i = 0; i < std::min<int64_t>(8, n - d); ++i) {
        std::memcpy(out + (d + i) * out_stride + r, &turned[i], sizeof(turned[i]));
      }
    }
  }
}

// A matrix of which element (m, k) is data[m * row + k * column].
struct Factor {
  const float* data;
  int64_t row;
  int64_t column;
};

// c[kM rows, kN vectors] = or += a b.
template <int kM, int kN, bool kAdd>
inline void ProductTile(Factor a, int64_t depth, const float* b, int64_t b_stride, float* c,
                        int64_t c_stride) {
  V sums[kM][kN];
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kN; ++n) sums[m][n] = V{};
  }
  for (int64_t k = 0; k < depth; ++k) {
    V factor[kN];
#pragma GCC unroll 4
    for (int n = 0; n < kN; ++n) factor[n] = LoadV(b + k * b_stride + n * kW);
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) {
      const V value = Set(a.data[m * a.row + k * a.column]);
#pragma GCC unroll 4
      for (int n = 0; n < kN; ++n) sums[m][n] = MulAdd(value, factor[n], sums[m][n]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kN; ++n) {
      float* to = c + m * c_stride + n * kW;
      StoreV(kAdd ? LoadV(to) + sums[m][n] : sums[m][n], to);
    }
  }
}

template <int kN, bool kAdd>
inline void ProductColumns(Factor a, int64_t rows, int64_t depth, const float* b, int64_t b_stride,
                           float* c, int64_t c_stride) {
  while (rows > 0) {
    int64_t taken = 6;
    if (rows >= 6) {
      ProductTile<6, kN, kAdd>(a, depth, b, b_stride, c, c_stride);
    } else if (rows >= 4) {
      ProductTile<4, kN, kAdd>(a, depth, b, b_stride, c, c_stride);
      taken = 4;
    } else if (rows >= 2) {
      ProductTile<2, kN, kAdd>(a, depth, b, b_stride, c, c_stride);
      taken = 2;
    } else {
      ProductTile<1, kN, kAdd>(a, depth, b, b_stride, c, c_stride);
      taken = 1;
    }
    rows -= taken;
    a.data += taken * a.row;
    c += taken * c_stride;
  }
}

template <bool kAdd>
void ProductOfStretch(Factor a, int64_t rows, int64_t depth, const float* b, int64_t b_stride,
                      int64_t width, float* c, int64_t c_stride) {
  constexpr int kMost = RLX_WIDE_BYTES == 64 ? 4 : 2;
  int64_t n = 0;
  for (; n + kMost * kW <= width; n += kMost * kW) {
    ProductColumns<kMost, kAdd>(a, rows, depth, b + n, b_stride, c + n, c_stride);
  }
  if (kMost == 4 && n + 2 * kW <= width) {
    ProductColumns<2, kAdd>(a, rows, depth, b + n, b_stride, c + n, c_stride);
    n += 2 * kW;
  }
  if (n < width) ProductColumns<1, kAdd>(a, rows, depth, b + n, b_stride, c + n, c_stride);
}

// c[rows, width] = or += a[rows, depth] b[depth, width]; width is a multiple of kW. Sums are taken
// of stretches of the depth before they are added up, for the sake of their last bits.
template <bool kAdd>
void Product(Factor a, int64_t rows, int64_t depth, const float* b, int64_t b_stride, int64_t width,
             float* c, int64_t c_stride) {
  constexpr int64_t kStretch = 16;
  ProductOfStretch<kAdd>(a, rows, std::min(kStretch, depth), b, b_stride, width, c, c_stride);
  for (int64_t k = kStretch; k < depth; k += kStretch) {
    const Factor rest = {a.data + k * a.column, a.row, a.column};
    ProductOfStretch<true>(rest, rows, std::min(kStretch, depth - k), b + k * b_stride, b_stride,
                           width, c, c_stride);
  }
}

}  // namespace RLX_WIDE
}  // namespace rlx
