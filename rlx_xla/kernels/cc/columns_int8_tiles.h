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
RLX_INT8_TARGET inline void Put(Ints v, void* p) { _mm512_store_si512(p, v); }
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
RLX_INT8_TARGET inline void Put(Ints v, void* p) {
  _mm256_store_si256(static_cast<__m256i*>(p), v);
}
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
constexpr int kLineVectors = kNibbles ? 8 : 4;  // of its columns

template <bool kNibbles>
constexpr int64_t kLineColumns = kLineVectors<kNibbles> * kLanes;

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

// The codes of four rows, a lane for each column, of the half line kPart or of a whole one.
template <bool kNibbles, int kVectors, int kPart>
RLX_INT8_TARGET inline void JoinFour(const uint8_t* const* row, Ints* codes) {
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
  constexpr int kHalves = kNibbles && kVectors == 4 ? 1 : 2;
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
}

// Where codes come from: four rows after four of a line, where they lie.
template <bool kNibbles, int kVectors, int kPart>
struct FromRows {
  static constexpr bool kWhole = false;  // whether the number of rows is a multiple of four
  RLX_INT8_TARGET FromRows(const Rows8& rows, int64_t line)
      : rows(rows), p(rows.data + line * kLineBytes) {
    // Past the end of these rows begin those that follow.
    const int64_t left = (rows.lines - line) * kLineBytes;
    ahead = kNear < left ? kNear : kNear - rows.lines * kLineBytes + rows.rows * rows.stride;
  }
  RLX_INT8_TARGET void Get(int64_t, Ints* codes) {
    const uint8_t* row[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      row[i] = p + i * rows.stride;
      if constexpr (kPart == 0) __builtin_prefetch(row[i] + ahead);
    }
    JoinFour<kNibbles, kVectors, kPart>(row, codes);
    p += 4 * rows.stride;
  }
  // Fewer than four rows; x has zeros where there is none: any will do.
  RLX_INT8_TARGET void GetLast(int64_t at, Ints* codes) const {
    const uint8_t* row[4];
    for (int i = 0; i < 4; ++i) row[i] = at + i < rows.rows ? p + i * rows.stride : p;
    JoinFour<kNibbles, kVectors, kPart>(row, codes);
  }
  const Rows8 rows;
  const uint8_t* p;
  int64_t ahead;
};

// Or what they were joined to, for more rows of x.
template <bool kNibbles, int kVectors, int kPart>
struct FromJoined {
  static constexpr bool kWhole = true;
  RLX_INT8_TARGET void Get(int64_t at, Ints* codes) const {
    const uint8_t* from = joined + (at / 4 * kLineVectors<kNibbles> + kPart * kVectors) * kLineBytes;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) codes[v] = Load(from + v * kLineBytes);
  }
  const uint8_t* joined;
};

// sums[m] += x[m] . codes of four rows.
template <bool kNibbles, int kX, int kVectors>
RLX_INT8_TARGET inline void AddFour(const Ints* codes, const Inputs8& x, int64_t at,
                                    Ints (*sums)[kVectors]) {
#pragma GCC unroll 4
  for (int m = 0; m < kX; ++m) {
    int32_t bytes;
    std::memcpy(&bytes, x.codes[m] + at, sizeof(bytes));
    const Ints value = All(bytes);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[m][v] = Dot<kNibbles>(sums[m][v], codes[v], value);
  }
}

// acc[m] += x[m] . rows, for vectors [kPart * kVectors, (kPart + 1) * kVectors) of a line.
template <bool kNibbles, int kX, int kVectors, int kPart, typename From>
RLX_INT8_TARGET __attribute__((always_inline)) inline void AddPart(From from, int64_t rows, int64_t line, const Scales& scales,
                                    const Inputs8& x) {
  Ints sums[kX][kVectors];
#pragma GCC unroll 4
  for (int m = 0; m < kX; ++m) {
    const Ints start = All(-kBias<kNibbles> * x.total[m]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[m][v] = start;
  }
  Ints codes[kVectors];
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    from.Get(r, codes);
    AddFour<kNibbles, kX, kVectors>(codes, x, r, sums);
  }
  if constexpr (!From::kWhole) {
    if (r < rows) {
      from.GetLast(r, codes);
      AddFour<kNibbles, kX, kVectors>(codes, x, r, sums);
    }
  }
  const int64_t column = (line * kLineVectors<kNibbles> + kPart * kVectors) * kLanes;
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
    if constexpr (!kNibbles || kX <= 2) {
      constexpr int kAll = kLineVectors<kNibbles>;
      AddPart<kNibbles, kX, kAll, 0>(FromRows<kNibbles, kAll, 0>(rows, line), rows.rows, line,
                                     scales, x);
    } else {  // so many sums do not fit into registers
      AddPart<kNibbles, kX, 4, 0>(FromRows<true, 4, 0>(rows, line), rows.rows, line, scales, x);
      AddPart<kNibbles, kX, 4, 1>(FromRows<true, 4, 1>(rows, line), rows.rows, line, scales, x);
    }
  }
}

// The same for one line of rows that are joined.
template <bool kNibbles, int kX>
RLX_INT8_TARGET void AddJoined(const uint8_t* joined, int64_t rows, int64_t line,
                               const Scales& scales, const Inputs8& x) {
  AddPart<kNibbles, kX, 4, 0>(FromJoined<kNibbles, 4, 0>{joined}, rows, line, scales, x);
  if constexpr (kNibbles) {
    AddPart<kNibbles, kX, 4, 1>(FromJoined<kNibbles, 4, 1>{joined}, rows, line, scales, x);
  }
}

// The same for any number of rows of x, kMostX in each of `x` but perhaps the last.
template <bool kNibbles>
RLX_INT8_TARGET void AddMany(int64_t count, const Rows8& rows, const Scales& scales,
                             const Inputs8* x) {
  constexpr int kAll = kLineVectors<kNibbles>;
  alignas(64) uint8_t joined[kMostBlock / 4 * kAll * kLineBytes];
  for (int64_t line = 0; line < rows.lines; ++line) {
    FromRows<kNibbles, kAll, 0> from(rows, line);
    for (int64_t r = 0; r < rows.rows; r += 4) {
      Ints codes[kAll];
      if (r + 4 <= rows.rows) {
        from.Get(r, codes);
      } else {
        from.GetLast(r, codes);
      }
#pragma GCC unroll 8
      for (int v = 0; v < kAll; ++v) Put(codes[v], joined + (r / 4 * kAll + v) * kLineBytes);
    }
    for (int64_t m = 0; m < count; m += kMostX) {
      const Inputs8& some = x[m / kMostX];
      const int64_t whole = (rows.rows + 3) / 4 * 4;
      switch (count - m) {
        case 1: AddJoined<kNibbles, 1>(joined, whole, line, scales, some); break;
        case 2: AddJoined<kNibbles, 2>(joined, whole, line, scales, some); break;
        case 3: AddJoined<kNibbles, 3>(joined, whole, line, scales, some); break;
        default: AddJoined<kNibbles, 4>(joined, whole, line, scales, some);
      }
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
  static void Add(int64_t count, const Rows8& rows, const Scales& scales, const Inputs8* x) {
    switch (count) {
      case 1: return AddBlock<kNibbles, 1>(rows, scales, *x);
      case 2: return AddBlock<kNibbles, 2>(rows, scales, *x);
      case 3: return AddBlock<kNibbles, 3>(rows, scales, *x);
      case 4: return AddBlock<kNibbles, 4>(rows, scales, *x);
      default: return AddMany<kNibbles>(count, rows, scales, x);
    }
  }
};

}  // namespace RLX_INT8

}  // namespace columns

}  // namespace rlx
