// Kinds of rows of fixed_blocks.h whose scales lie apart from their codes: those of mlx.h with
// codes of four or eight bits, and those of mx_rows.h with nibbles and one plane.
#ifndef RLX_KERNELS_FIXED_MLX_H_
#define RLX_KERNELS_FIXED_MLX_H_

#include <cstdint>
#include <type_traits>

#include "fixed_product.h"
#include "mlx.h"
#include "mx_rows.h"

namespace rlx {

namespace fixed {

#if defined(__x86_64__)

// Numbers `stride` apart.
RLX_FIXED __m128 FourNumbers(const float* p, int64_t stride) {
  return _mm_setr_ps(p[0], p[stride], p[2 * stride], p[3 * stride]);
}

RLX_FIXED __m128 FourNumbers(const F16* p, int64_t stride) {
  return int8::FourHalves(reinterpret_cast<const uint8_t*>(p), 2 * stride);
}

RLX_FIXED __m128 FourNumbers(const Bf16* p, int64_t stride) {
  const __m128i bits = _mm_setr_epi32(p[0].bits, p[stride].bits, p[2 * stride].bits,
                                      p[3 * stride].bits);
  return _mm_castsi128_ps(_mm_slli_epi32(bits, 16));
}

// Rows of codes of kBits bits. Their scales lie `apart` from row to row, one for each 2^shift
// groups.
template <typename Scales, int kBits>
struct CodeRows : Scales {
  static constexpr bool kTurned = kBits == 4;  // the low nibble comes first
  static constexpr int kMostTwice = 4;
  static constexpr int64_t kBytes = 4 * kBits;
  RLX_FIXED Codes Get(int64_t i, int f) const {
    const uint8_t* p = data + 4 * f * stride + i * kBytes;
    const __m512i first = FourSixteens(p, stride);
    if constexpr (kBits == 8) return {first, FourSixteens(p + 16, stride)};
    return Scales::Number(NibblesOf(first));
  }
  RLX_FIXED __m512 Scale(int64_t i, int f) const {
    return ForRows(Scales::FourScales(4 * f * apart + (i >> shift), apart));
  }
  RLX_FIXED __m128 Least(int64_t i, int f) const {
    return Scales::FourLeasts(4 * f * apart + (i >> shift), apart);
  }
  template <int kFours>
  RLX_FIXED void FetchScales(int64_t i) const {
    Scales::Fetch(4 * kFours * apart + ((i * 4 * kFours) >> shift));
  }
  const uint8_t* Data() const { return data; }
  int64_t RowBytes() const { return stride; }
  CodeRows From(int64_t row) const {
    CodeRows made = *this;
    made.data += row * stride;
    made.Move(row * apart);
    return made;
  }
  CodeRows Repeated() const {
    CodeRows made = *this;
    made.stride = made.apart = 0;
    return made;
  }

  const uint8_t* data;
  int64_t stride;
  int64_t apart;
  int shift;
};

template <typename S>
struct AffineScales {
  static constexpr int kBias = 0;
  static constexpr bool kLeast = true, kFar = !std::is_same_v<S, F16>;
  static constexpr float kLarger = kFar ? 512.0f : 1.0f;
  // Infinite where numbers, of codes up to 255, may be.
  RLX_FIXED static __m128 Larger(__m128 four) {
    return kFar ? _mm_mul_ps(four, _mm_set1_ps(kLarger)) : four;
  }
  RLX_FIXED static Codes Number(Codes codes) { return codes; }
  RLX_FIXED __m128 FourScales(int64_t at, int64_t apart) const {
    return Larger(FourNumbers(scale + at, apart));
  }
  RLX_FIXED __m128 FourLeasts(int64_t at, int64_t apart) const {
    return Larger(FourNumbers(bias + at, apart));
  }
  RLX_FIXED void Fetch(int64_t at) const {
    __builtin_prefetch(scale + at);
    __builtin_prefetch(bias + at);
  }
  void Move(int64_t by) {
    scale += by;
    bias += by;
  }
  const S* scale;
  const S* bias;
};

struct PowerScales {
  static constexpr int kBias = 128;
  static constexpr bool kLeast = false, kFar = true;
  static constexpr float kLarger = 1.0f;
  RLX_FIXED static Codes Number(Codes codes) { return LookUp(codes, blocks::kE2m1Doubled); }
  RLX_FIXED __m128 FourScales(int64_t at, int64_t apart) const {
    return FourPowers(scale + at, apart);
  }
  RLX_FIXED void Fetch(int64_t at) const { __builtin_prefetch(scale + at); }
  void Move(int64_t by) { scale += by; }
  const uint8_t* scale;
};

// The logarithm of how many groups have one scale, of which there are some.
inline int ShiftOf(int64_t block) { return __builtin_ctzll(block / kGroup); }

#endif  // defined(__x86_64__)

template <typename Pool, typename S>
bool Take(const Pool& pool, const MatmulShape& shape, const float* x, const mlx::Rows<S>& w,
          float* y) {
#if defined(__x86_64__)
  if (Fits(shape) && (w.bits == 4 || w.bits == 8)) {
    const AffineScales<S> scales = {w.scale, w.bias};
    const int64_t stride = w.cols * w.bits / 8, apart = w.cols / w.block;
    const int shift = ShiftOf(w.block);
    if (w.bits == 4) {
      const CodeRows<AffineScales<S>, 4> rows = {scales, w.codes, stride, apart, shift};
      return Product<kGroup, false>(pool, shape, x, rows, w, y);
    }
    const CodeRows<AffineScales<S>, 8> rows = {scales, w.codes, stride, apart, shift};
    return Product<kGroup, false>(pool, shape, x, rows, w, y);
  }
#endif
  (void)pool, (void)shape, (void)x, (void)w, (void)y;
  return false;
}

template <typename Pool>
bool Take(const Pool& pool, const MatmulShape& shape, const float* x,
          const blocks::RowsOfMx<true>& w, float* y) {
#if defined(__x86_64__)
  const bool power = (w.block & (w.block - 1)) == 0;
  if (Fits(shape) && w.planes == 1 && power) {
    const CodeRows<PowerScales, 4> rows = {
        {w.scale}, w.codes, w.cols / 2, w.cols / w.block, ShiftOf(w.block)};
    return Product<kGroup, false>(pool, shape, x, rows, w, y);
  }
#endif
  (void)pool, (void)shape, (void)x, (void)w, (void)y;
  return false;
}

}  // namespace fixed

}  // namespace rlx

#endif  // RLX_KERNELS_FIXED_MLX_H_
