// The inner loop of columns_int8.h for namespace RLX_INT8, in vectors of 64 bytes with products of
// four bytes where RLX_INT8_WAY is 2, and in vectors of 32 bytes with products of four (1) or of
// two (0). All give the same bits. No include guard: it comes once for each; every function carries
// RLX_INT8_TARGET.
//
// Four rows are joined byte by byte, so that a lane of four bytes has what one column adds up. The
// columns are then turned: vector v of a line has the columns that PlaceOf puts there.

namespace rlx {

namespace columns {

namespace RLX_INT8 {

#if RLX_INT8_WAY == 2
using Ints = __m512i;
using Floats = __m512;
constexpr int kLanes = 16;
RLX_INT8_TARGET inline Ints Load(const void* p) { return _mm512_loadu_si512(p); }
RLX_INT8_TARGET inline Floats LoadFloats(const float* p) { return _mm512_loadu_ps(p); }
RLX_INT8_TARGET inline void Store(Floats v, float* p) { _mm512_storeu_ps(p, v); }
RLX_INT8_TARGET inline Ints All(int32_t v) { return _mm512_set1_epi32(v); }
RLX_INT8_TARGET inline Floats AllFloats(float v) { return _mm512_set1_ps(v); }
RLX_INT8_TARGET inline Ints LowOf8(Ints a, Ints b) { return _mm512_unpacklo_epi8(a, b); }
RLX_INT8_TARGET inline Ints HighOf8(Ints a, Ints b) { return _mm512_unpackhi_epi8(a, b); }
RLX_INT8_TARGET inline Ints LowOf16(Ints a, Ints b) { return _mm512_unpacklo_epi16(a, b); }
RLX_INT8_TARGET inline Ints HighOf16(Ints a, Ints b) { return _mm512_unpackhi_epi16(a, b); }
RLX_INT8_TARGET inline Ints LowNibbles(Ints v) {
  return _mm512_and_si512(v, _mm512_set1_epi8(15));
}
RLX_INT8_TARGET inline Ints HighNibbles(Ints v) {
  return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15));
}
RLX_INT8_TARGET inline Floats ToFloats(Ints v) { return _mm512_cvtepi32_ps(v); }
RLX_INT8_TARGET inline Floats Times(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
RLX_INT8_TARGET inline Floats Plus(Floats a, Floats b, Floats c) {
  return _mm512_fmadd_ps(a, b, c);
}
RLX_INT8_TARGET inline Floats Less(Floats a, Floats b, Floats c) {
  return _mm512_fnmadd_ps(a, b, c);
}
#else
using Ints = __m256i;
using Floats = __m256;
constexpr int kLanes = 8;
RLX_INT8_TARGET inline Ints Load(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
RLX_INT8_TARGET inline Floats LoadFloats(const float* p) { return _mm256_loadu_ps(p); }
RLX_INT8_TARGET inline void Store(Floats v, float* p) { _mm256_storeu_ps(p, v); }
RLX_INT8_TARGET inline Ints All(int32_t v) { return _mm256_set1_epi32(v); }
RLX_INT8_TARGET inline Floats AllFloats(float v) { return _mm256_set1_ps(v); }
RLX_INT8_TARGET inline Ints LowOf8(Ints a, Ints b) { return _mm256_unpacklo_epi8(a, b); }
RLX_INT8_TARGET inline Ints HighOf8(Ints a, Ints b) { return _mm256_unpackhi_epi8(a, b); }
RLX_INT8_TARGET inline Ints LowOf16(Ints a, Ints b) { return _mm256_unpacklo_epi16(a, b); }
RLX_INT8_TARGET inline Ints HighOf16(Ints a, Ints b) { return _mm256_unpackhi_epi16(a, b); }
RLX_INT8_TARGET inline Ints LowNibbles(Ints v) {
  return _mm256_and_si256(v, _mm256_set1_epi8(15));
}
RLX_INT8_TARGET inline Ints HighNibbles(Ints v) {
  return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15));
}
RLX_INT8_TARGET inline Floats ToFloats(Ints v) { return _mm256_cvtepi32_ps(v); }
RLX_INT8_TARGET inline Floats Times(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
RLX_INT8_TARGET inline Floats Plus(Floats a, Floats b, Floats c) {
  return _mm256_fmadd_ps(a, b, c);
}
RLX_INT8_TARGET inline Floats Less(Floats a, Floats b, Floats c) {
  return _mm256_fnmadd_ps(a, b, c);
}
#endif

constexpr int64_t kLineBytes = 4 * kLanes;  // of a row

template <bool kNibbles>
constexpr int64_t kLineColumns = kNibbles ? 2 * kLineBytes : kLineBytes;

// What is added to signed codes, so that they have no sign.
template <bool kNibbles>
constexpr int32_t kBias = !kNibbles && RLX_INT8_WAY != 0 ? 128 : 0;

// Sums plus products of codes and x, four bytes each.
template <bool kNibbles>
RLX_INT8_TARGET inline Ints Dot(Ints sums, Ints codes, Ints x) {
#if RLX_INT8_WAY == 2
  return _mm512_dpbusd_epi32(sums, codes, x);
#elif RLX_INT8_WAY == 1
  return _mm256_dpbusd_avx_epi32(sums, codes, x);
#else
  // Pairs of unsigned bytes would be too large: x takes the codes' sign.
  const Ints pairs = kNibbles ? _mm256_maddubs_epi16(codes, x)
                              : _mm256_maddubs_epi16(_mm256_abs_epi8(codes),
                                                     _mm256_sign_epi8(x, codes));
  return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}

// Where a column of a line lies among the turned ones.
template <bool kNibbles>
constexpr int64_t PlaceOf(int64_t column) {
  const int64_t byte = kNibbles ? column / 2 : column;
  const int64_t vector = kNibbles ? byte % 16 / 4 * 2 + column % 2 : byte % 16 / 4;
  return vector * kLanes + byte / 16 * 4 + byte % 4;
}

// The numbers of a line's columns, turned.
template <bool kNibbles>
RLX_INT8_TARGET inline void Turn(const float* in, float* out) {
#if RLX_INT8_WAY == 2
  const __m512i apart = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  constexpr int kTurns = kNibbles ? 2 : 1;
#pragma GCC unroll 2
  for (int t = 0; t < kTurns; ++t) {
    Floats v[4];
#pragma GCC unroll 4
    for (int l = 0; l < 4; ++l) {
      v[l] = LoadFloats(in + 16 * (kTurns * l + t));
      if constexpr (kNibbles) v[l] = _mm512_permutexvar_ps(apart, v[l]);
    }
    // Four lanes of 16 bytes of four vectors change places.
    const Floats a = _mm512_shuffle_f32x4(v[0], v[1], 0x44);
    const Floats b = _mm512_shuffle_f32x4(v[0], v[1], 0xee);
    const Floats c = _mm512_shuffle_f32x4(v[2], v[3], 0x44);
    const Floats d = _mm512_shuffle_f32x4(v[2], v[3], 0xee);
    constexpr int kSecond = kNibbles ? 2 : 1, kThird = kNibbles ? 1 : 2;
    float* to = out + 64 * t;
    Store(_mm512_shuffle_f32x4(a, c, 0x88), to);
    Store(_mm512_shuffle_f32x4(a, c, 0xdd), to + 16 * kSecond);
    Store(_mm512_shuffle_f32x4(b, d, 0x88), to + 16 * kThird);
    Store(_mm512_shuffle_f32x4(b, d, 0xdd), to + 48);
  }
#else
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    if constexpr (kNibbles) {
      const Floats a = LoadFloats(in + 8 * j), b = LoadFloats(in + 8 * j + 32);
      const Floats low = _mm256_permute2f128_ps(a, b, 0x20);
      const Floats high = _mm256_permute2f128_ps(a, b, 0x31);
      Store(_mm256_shuffle_ps(low, high, 0x88), out + 16 * j);
      Store(_mm256_shuffle_ps(low, high, 0xdd), out + 16 * j + 8);
    } else {
      const float* from = in + 4 * j;
      Store(_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from)),
                                 _mm_loadu_ps(from + 16), 1),
            out + 8 * j);
    }
  }
#endif
}

// sums[m] += x[m] . four rows, for vectors [kPart * kVectors, (kPart + 1) * kVectors) of a line.
template <bool kNibbles, int kX, int kVectors, int kPart>
RLX_INT8_TARGET inline void AddFour(const uint8_t* const* row, const Inputs8& x, int64_t at,
                                    Ints (*sums)[kVectors]) {
  Ints four[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    four[r] = Load(row[r]);
#if RLX_INT8_WAY == 2
    if constexpr (!kNibbles) four[r] = _mm512_xor_si512(four[r], _mm512_set1_epi8(-128));
#elif RLX_INT8_WAY == 1
    if constexpr (!kNibbles) four[r] = _mm256_xor_si256(four[r], _mm256_set1_epi8(-128));
#endif
  }
  Ints codes[kVectors];
  constexpr int kHalves = kNibbles && kVectors == 4 ? 1 : 2;  // of a line
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h) {
    const bool low = kHalves == 2 ? h == 0 : kPart == 0;
    const Ints first = low ? LowOf8(four[0], four[1]) : HighOf8(four[0], four[1]);
    const Ints second = low ? LowOf8(four[2], four[3]) : HighOf8(four[2], four[3]);
    const Ints a = LowOf16(first, second), b = HighOf16(first, second);
    if constexpr (kNibbles) {
      codes[4 * h] = LowNibbles(a);
      codes[4 * h + 1] = HighNibbles(a);
      codes[4 * h + 2] = LowNibbles(b);
      codes[4 * h + 3] = HighNibbles(b);
    } else {
      codes[2 * h] = a;
      codes[2 * h + 1] = b;
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kX; ++m) {
    int32_t bytes;
    std::memcpy(&bytes, x.codes[m] + at, sizeof(bytes));
    const Ints value = All(bytes);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[m][v] = Dot<kNibbles>(sums[m][v], codes[v], value);
  }
}

template <bool kNibbles, int kX, int kVectors, int kPart>
RLX_INT8_TARGET inline void AddPart(const Rows8& rows, int64_t line, const Scales& scales,
                                    const Inputs8& x) {
  Ints sums[kX][kVectors];
#pragma GCC unroll 4
  for (int m = 0; m < kX; ++m) {
    const Ints start = All(-kBias<kNibbles> * x.total[m]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[m][v] = start;
  }
  const uint8_t* p = rows.data + line * kLineBytes;
  // Past the end of these rows begin those that follow.
  const int64_t left = (rows.lines - line) * kLineBytes;
  const int64_t ahead =
      kNear < left ? kNear : kNear - rows.lines * kLineBytes + rows.rows * rows.stride;
  int64_t r = 0;
  for (; r + 4 <= rows.rows; r += 4, p += 4 * rows.stride) {
    const uint8_t* row[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      row[i] = p + i * rows.stride;
      if constexpr (kPart == 0) __builtin_prefetch(row[i] + ahead);
    }
    AddFour<kNibbles, kX, kVectors, kPart>(row, x, r, sums);
  }
  if (r < rows.rows) {  // x has zeros where there is no row: any will do
    const uint8_t* row[4];
    for (int i = 0; i < 4; ++i) row[i] = r + i < rows.rows ? p + i * rows.stride : p;
    AddFour<kNibbles, kX, kVectors, kPart>(row, x, r, sums);
  }
  const int64_t column = line * kLineColumns<kNibbles> + kPart * kVectors * kLanes;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = column + v * kLanes;
    const Floats scale = LoadFloats(scales.scale + at);
#pragma GCC unroll 4
    for (int m = 0; m < kX; ++m) {
      Floats sum = ToFloats(sums[m][v]);
      if (scales.zero != nullptr) {
        sum = Less(LoadFloats(scales.zero + at), AllFloats(static_cast<float>(x.total[m])), sum);
      }
      float* to = x.acc[m] + at;
      Store(Plus(sum, Times(scale, AllFloats(x.scale[m])), LoadFloats(to)), to);
    }
  }
}

// acc[m] += what kX rows of x and rows that share their scales add up to.
template <bool kNibbles, int kX>
RLX_INT8_TARGET void AddBlock(const Rows8& rows, const Scales& scales, const Inputs8& x) {
  for (int64_t line = 0; line < rows.lines; ++line) {
    if constexpr (!kNibbles) {
      AddPart<false, kX, 4, 0>(rows, line, scales, x);
    } else if constexpr (kX <= 2) {
      AddPart<true, kX, 8, 0>(rows, line, scales, x);
    } else {  // so many sums do not fit into registers
      AddPart<true, kX, 4, 0>(rows, line, scales, x);
      AddPart<true, kX, 4, 1>(rows, line, scales, x);
    }
  }
}

// What columns_int8.h takes.
template <bool kNibbles>
struct Way {
  static constexpr int64_t kBytes = kLineBytes;
  static constexpr int64_t kColumns = kLineColumns<kNibbles>;
  static constexpr int64_t Place(int64_t column) { return PlaceOf<kNibbles>(column); }
  static void TurnLine(const float* in, float* out) { Turn<kNibbles>(in, out); }
  static void Add(int64_t count, const Rows8& rows, const Scales& scales, const Inputs8& x) {
    switch (count) {
      case 1: return AddBlock<kNibbles, 1>(rows, scales, x);
      case 2: return AddBlock<kNibbles, 2>(rows, scales, x);
      case 3: return AddBlock<kNibbles, 3>(rows, scales, x);
      default: return AddBlock<kNibbles, 4>(rows, scales, x);
    }
  }
};

}  // namespace RLX_INT8

}  // namespace columns

}  // namespace rlx
