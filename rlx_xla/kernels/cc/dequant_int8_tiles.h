// The inner loop of dequant_int8.h in vectors of 32 bytes, for namespace RLX_INT8: with products of
// pairs of bytes, or, where RLX_INT8_VNNI is 1, of four. Both give the same bits. No include guard:
// it comes once for each.

namespace rlx {

namespace int8 {

namespace RLX_INT8 {

// Sums of four products each of w's codes, less kBias, with those of x.
template <int kBias>
inline Lanes<int32_t> Dot(Codes w, const int8_t* x, const int32_t* taken) {
#if RLX_INT8_VNNI || defined(__AVX2__)
  const __m256i codes = reinterpret_cast<__m256i>(w);
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
#endif
#if RLX_INT8_VNNI
  const __m256i start = kBias == 0 ? _mm256_setzero_si256()
                                   : _mm256_loadu_si256(reinterpret_cast<const __m256i*>(taken));
  return reinterpret_cast<Lanes<int32_t>>(_mm256_dpbusd_avx_epi32(start, codes, b));
#elif defined(__AVX2__)
  const __m256i ones = _mm256_set1_epi16(1);
  if constexpr (kBias == 128) {
    // Pairs of unsigned bytes would be too large: x takes w's sign.
    (void)taken;
    const __m256i a = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(b, a));
    return reinterpret_cast<Lanes<int32_t>>(_mm256_madd_epi16(pairs, ones));
  } else {
    const auto sums = reinterpret_cast<Lanes<int32_t>>(
        _mm256_madd_epi16(_mm256_maddubs_epi16(codes, b), ones));
    return kBias == 0 ? sums : sums + Load(taken);
  }
#else
  (void)taken;
  Lanes<int32_t> sums;
  for (int lane = 0; lane < 8; ++lane) {
    sums[lane] = 0;
    for (int i = lane * 4; i < lane * 4 + 4; ++i) sums[lane] += (w[i] - kBias) * x[i];
  }
  return sums;
#endif
}

// Makes scales what DotScaled reads: the low sixteen bits alone, or twice.
template <int kScales>
inline void PrepareScales(int32_t* scale) {
  for (int i = 0; i < kScales; ++i) {
#if RLX_INT8_VNNI || !defined(__AVX2__)
    scale[i] &= 0xffff;
#else
    scale[i] = (scale[i] & 0xffff) | static_cast<int32_t>(static_cast<uint32_t>(scale[i]) << 16);
#endif
  }
}

// The scales of group kG for each of its eight sums.
template <int kScales, int kG>
inline Lanes<int32_t> ScalesOf(const int32_t* scale) {
  if constexpr (kScales == 8) return Broadcast(scale[kG]);
  const int32_t a = scale[2 * kG], b = scale[2 * kG + 1];
#if defined(__AVX2__)
  return reinterpret_cast<Lanes<int32_t>>(
      _mm256_blend_epi32(_mm256_set1_epi32(a), _mm256_set1_epi32(b), 0xf0));
#else
  return Lanes<int32_t>{a, a, a, a, b, b, b, b};
#endif
}

// What Dot gives, times scales, added to `sums`.
template <int kBias>
inline Lanes<int32_t> DotScaled(Codes w, const int8_t* x, const int32_t* taken,
                                Lanes<int32_t> scales, Lanes<int32_t> sums) {
#if RLX_INT8_VNNI
  // The four products fit in sixteen bits; their sign's copies are multiplied by zero.
  const auto dots = reinterpret_cast<__m256i>(Dot<kBias>(w, x, taken));
  return reinterpret_cast<Lanes<int32_t>>(_mm256_dpwssd_avx_epi32(
      reinterpret_cast<__m256i>(sums), dots, reinterpret_cast<__m256i>(scales)));
#elif defined(__AVX2__)
  (void)taken;
  const __m256i codes = reinterpret_cast<__m256i>(w);
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  __m256i pairs;
  if constexpr (kBias == 0) {
    pairs = _mm256_maddubs_epi16(codes, b);
  } else {
    const __m256i a = _mm256_sub_epi8(codes, _mm256_set1_epi8(kBias));
    pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(b, a));
  }
  return sums + reinterpret_cast<Lanes<int32_t>>(
                    _mm256_madd_epi16(pairs, reinterpret_cast<__m256i>(scales)));
#else
  const Lanes<int32_t> dots = Dot<kBias>(w, x, taken);
  for (int lane = 0; lane < 8; ++lane) {
    sums[lane] += dots[lane] * static_cast<int16_t>(scales[lane]);
  }
  return sums;
#endif
}

inline Lanes<float> Floats(Lanes<int32_t> v) {
#if defined(__AVX2__)
  return _mm256_cvtepi32_ps(reinterpret_cast<__m256i>(v));
#else
  Lanes<float> made;
  for (int i = 0; i < 8; ++i) made[i] = static_cast<float>(v[i]);
  return made;
#endif
}

inline float Total(Lanes<float> v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

// The first two halves of a block of each of kW rows: scales, and leasts where they have them.
template <int kW>
inline Lanes<float> HalvesOfRows(const uint8_t* row, int64_t row_bytes) {
  int32_t both[4] = {};
  for (int j = 0; j < kW; ++j) std::memcpy(both + j, row + j * row_bytes, sizeof(both[j]));
#if defined(__F16C__)
  return _mm256_cvtph_ps(_mm_setr_epi32(both[0], both[1], both[2], both[3]));
#else
  const auto* halves = reinterpret_cast<const uint8_t*>(both);
  Lanes<float> made;
  for (int i = 0; i < 8; ++i) made[i] = Half(halves + 2 * i);
  return made;
#endif
}

// y[m * stride + j] for kX rows of x and kW of the weight.
template <typename Block, int kW, int kX>
void SmallTile(const uint8_t* row, int64_t row_bytes, int64_t k, const Rounded* x, float* y,
               int64_t stride) {
  Lanes<float> acc[kW][kX] = {};
  Lanes<float> rest[kX] = {};
  for (int64_t i = 0; i < k / kGroup; ++i, row += Block::kBytes) {
    const Lanes<float> halves = HalvesOfRows<kW>(row, row_bytes);
    float scale[kX][8];
#pragma GCC unroll 4
    for (int m = 0; m < kX; ++m) {
      Store<float>(halves * x[m].scale[i], scale[m]);
      if constexpr (Block::kLeast) rest[m] = rest[m] + halves * x[m].sum[i];
    }
#pragma GCC unroll 4
    for (int j = 0; j < kW; ++j) {
      const uint8_t* block = row + j * row_bytes;
      __builtin_prefetch(block + 1024);
      const Codes w = Block::Get(block);
#pragma GCC unroll 4
      for (int m = 0; m < kX; ++m) {
        const Lanes<int32_t> sums =
            Dot<Block::kBias>(w, x[m].codes + i * kGroup,
                              x[m].template TakenAt<Block::kBias>(i * 8));
        acc[j][m] = matmul::MulAdd(Floats(sums), Broadcast(scale[m][2 * j]), acc[j][m]);
      }
    }
  }
  for (int j = 0; j < kW; ++j) {
    for (int m = 0; m < kX; ++m) {
      y[m * stride + j] = Total(acc[j][m]) + (Block::kLeast ? rest[m][2 * j + 1] : 0.0f);
    }
  }
}

template <typename Block, int kG, int kX>
inline void AddGroup(const uint8_t* block, const int32_t* scale, const Rounded* x, int64_t at,
                     Lanes<int32_t>* sums) {
  const Codes w = Block::template Get<kG>(block);
  const Lanes<int32_t> scales = ScalesOf<Block::kScales, kG>(scale);
#pragma GCC unroll 4
  for (int m = 0; m < kX; ++m) {
    sums[m] = DotScaled<Block::kBias>(w, x[m].codes + at + kG * kGroup,
                                      x[m].template TakenAt<Block::kBias>(at / 4 + kG * 8),
                                      scales, sums[m]);
  }
}

// rest[l] -= factor * (the sum of least * total of groups 2 * l and 2 * l + 1), fused.
inline void TakeLeasts(const int16_t* least, const int16_t* total, float factor, float* rest) {
#if defined(__AVX2__)
  const __m128i sums = _mm_madd_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(least)),
                                      _mm_loadu_si128(reinterpret_cast<const __m128i*>(total)));
  _mm_storeu_ps(rest, _mm_fnmadd_ps(_mm_cvtepi32_ps(sums), _mm_set1_ps(factor),
                                    _mm_loadu_ps(rest)));
#else
  for (int l = 0; l < 4; ++l) {
    const int32_t sum = least[2 * l] * total[2 * l] + least[2 * l + 1] * total[2 * l + 1];
    rest[l] -= factor * static_cast<float>(sum);
  }
#endif
}

// y[m * stride] for kX rows of x and one of the weight.
template <typename Block, int kX>
void LargeTile(const uint8_t* row, int64_t k, const Rounded* x, float* y, int64_t stride) {
  Lanes<float> acc[kX] = {};
  alignas(16) float rest[kX][4] = {};
  for (int64_t i = 0; i < k / kSuper; ++i, row += Block::kBytes) {
    for (int64_t line = 0; line < Block::kBytes; line += 64) __builtin_prefetch(row + 1024 + line);
    int32_t scale[Block::kScales];
    int16_t least[8];
    Block::Scales(row, scale, least);
    PrepareScales<Block::kScales>(scale);
    Lanes<int32_t> sums[kX] = {};
    AddGroup<Block, 0, kX>(row, scale, x, i * kSuper, sums);
    AddGroup<Block, 1, kX>(row, scale, x, i * kSuper, sums);
    AddGroup<Block, 2, kX>(row, scale, x, i * kSuper, sums);
    AddGroup<Block, 3, kX>(row, scale, x, i * kSuper, sums);
    AddGroup<Block, 4, kX>(row, scale, x, i * kSuper, sums);
    AddGroup<Block, 5, kX>(row, scale, x, i * kSuper, sums);
    AddGroup<Block, 6, kX>(row, scale, x, i * kSuper, sums);
    AddGroup<Block, 7, kX>(row, scale, x, i * kSuper, sums);
    const float factor = Half(row + Block::kScaleAt);
#pragma GCC unroll 4
    for (int m = 0; m < kX; ++m) {
      acc[m] = matmul::MulAdd(Floats(sums[m]), Broadcast(factor * x[m].scale[i]), acc[m]);
      if constexpr (Block::kLeast) {
        TakeLeasts(least, x[m].total + i * 8, Half(row + 2) * x[m].scale[i], rest[m]);
      }
    }
  }
  for (int m = 0; m < kX; ++m) {
    const float taken = (rest[m][0] + rest[m][2]) + (rest[m][1] + rest[m][3]);
    y[m * stride] = Total(acc[m]) + taken;
  }
}

// y[m * stride + j] for kX rows of x and `count` of the weight.
template <typename Block, int kX>
void Tiles(const uint8_t* weight, int64_t row_bytes, int64_t count, int64_t k, const Rounded* x,
           float* y, int64_t stride) {
  int64_t j = 0;
  if constexpr (kIsLarge<Block>) {
    for (; j < count; ++j) LargeTile<Block, kX>(weight + j * row_bytes, k, x, y + j, stride);
  } else {
    // So many that a sum does not wait for the one before it.
    constexpr int kW = kX == 1 ? 4 : kX == 2 ? 2 : 1;
    for (; j + kW <= count; j += kW) {
      SmallTile<Block, kW, kX>(weight + j * row_bytes, row_bytes, k, x, y + j, stride);
    }
    for (; j < count; ++j) {
      SmallTile<Block, 1, kX>(weight + j * row_bytes, row_bytes, k, x, y + j, stride);
    }
  }
}

}  // namespace RLX_INT8

}  // namespace int8

}  // namespace rlx
