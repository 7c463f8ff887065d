// Few rows of x times packed matrices by columns, in vectors of 64 bytes: numbers of weights never
// leave the registers.
//
// Computes: y[m, n] = sum over k of x[m, k] * w[k, n], for the kinds of columns of blocks.h and
//   minifloat.h.
// Numerics: products are fused with their sums, which are f32. Up to eight rows of one group are
//   summed before the group's scale multiplies them, stretches of rows are added up afterwards. The
//   order of sums depends on the sizes of w alone: not on the number of threads or rows of x.
// Algorithm: eight rows at a time are read from end to end, as memory likes it, 64 bytes of each;
//   those that follow are fetched meanwhile. Nibbles stay in the order in which a vector of words
//   yields them, and so do their scales and sums; one pass at the end puts sums in order.
// Every function carries its target; ask HasAvx512() before calling one.
#ifndef RLX_KERNELS_COLUMNS_AVX512_H_
#define RLX_KERNELS_COLUMNS_AVX512_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "blocks_avx512.h"
#include "matmul_avx512.h"
#include "parallel.h"
#include "scratch.h"

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined vectors of its own intrinsics for ours.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace rlx {

namespace columns {

using blocks::Bytes16;

constexpr int64_t kLine = 64;        // bytes of a row that are taken at once
constexpr int64_t kRun = 8;          // rows that are summed before they are scaled
constexpr int64_t kWidth = 4096;     // the most columns of a piece: sums and scales stay cached
constexpr int64_t kAhead = 1024;     // bytes of each row that are fetched before they are taken
constexpr int64_t kPieces = 16;      // stretches of rows that a matrix is cut into, if it is large
constexpr int64_t kPiece = 1 << 16;  // products that are worth a stretch of their own

// What a kind of weights gives, sixteen numbers a vector and without scales: Get, kVectors of them
// of a line, and Two, of the first 32 columns at p. Where kTurned, vector j of Get has the columns
// 8 * i + j.

// A column a byte.
template <typename Kind>
struct Bytes {
  static constexpr int kVectors = 4;
  static constexpr bool kTurned = false;
  static constexpr bool kHasNan = false;
  RLX_AVX512 static void Get(const uint8_t* p, __m512* numbers) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) numbers[v] = Kind::From(Bytes16(p + 16 * v));
  }
  RLX_AVX512 static void Two(const uint8_t* p, __m512* numbers) {
    numbers[0] = Kind::From(Bytes16(p));
    numbers[1] = Kind::From(Bytes16(p + 16));
  }
};

// Signed whole numbers.
struct Int8 : Bytes<Int8> {
  RLX_AVX512 static __m512 From(__m128i codes) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
  }
};

struct E5m2 : Bytes<E5m2> {
  RLX_AVX512 static __m512 From(__m128i codes) {
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8));
  }
};

// E4M3 times kFactor, but for NaN: the same fields in an f16, whose exponent is eight less.
struct E4m3 : Bytes<E4m3> {
  static constexpr bool kHasNan = true;  // where all bits but the sign are set
  static constexpr float kFactor = 0x1p-8f;
  RLX_AVX512 static __m512 From(__m128i codes) {
    const __m256i fields = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
    const __m256i kept = _mm256_set1_epi16(static_cast<int16_t>(0xbf80));
    return _mm512_cvtph_ps(_mm256_and_si256(fields, kept));
  }
  // Where there are numbers.
  RLX_AVX512 static __mmask16 Numbers(__m128i codes) {
    const __m128i most = _mm_set1_epi8(0x7f);
    return _mm_cmpneq_epi8_mask(_mm_and_si128(codes, most), most);
  }
  RLX_AVX512 static void Two(const uint8_t* p, __m512* numbers) {
    const __m512 nan = _mm512_set1_ps(std::numeric_limits<float>::quiet_NaN());
    const __m512 inverse = _mm512_set1_ps(1 / kFactor);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const __m128i codes = Bytes16(p + 16 * v);
      numbers[v] = _mm512_mask_mul_ps(nan, Numbers(codes), From(codes), inverse);
    }
  }
};

// Nibbles that stand for the sixteen numbers of a table.
template <const int8_t* kTable>
struct Nibbles {
  static constexpr int kVectors = 8;
  static constexpr bool kTurned = true;
  static constexpr bool kHasNan = false;
  RLX_AVX512 static void Get(const uint8_t* p, __m512* numbers) {
    const __m512 table = blocks::Numbers16(kTable);
    const __m512i words = _mm512_loadu_si512(p);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      numbers[v] = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 4 * v), table);
    }
  }
  RLX_AVX512 static void Two(const uint8_t* p, __m512* numbers) {
    const __m512 table = blocks::Numbers16(kTable);
    const __m256i wide = _mm256_cvtepu8_epi16(Bytes16(p));
    // Both nibbles of a byte, the low one first, as two bytes; a look-up ignores their high bits.
    const __m256i codes = _mm256_or_si256(wide, _mm256_slli_epi16(wide, 4));
    numbers[0] = _mm512_permutexvar_ps(
        _mm512_cvtepu8_epi32(_mm256_castsi256_si128(codes)), table);
    numbers[1] = _mm512_permutexvar_ps(
        _mm512_cvtepu8_epi32(_mm256_extracti128_si256(codes, 1)), table);
  }
};

inline constexpr int8_t kWhole[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Halves of E4M3 numbers, of which NaN counts as 0, for as many as fill vectors: how many.
RLX_AVX512 inline int64_t HalvesOfE4m3(const uint8_t* codes, int64_t count, float* out) {
  int64_t at = 0;
  for (; at + 16 <= count; at += 16) {
    const __m128i bytes = Bytes16(codes + at);
    const __m512 half = _mm512_set1_ps(0.5f / E4m3::kFactor);
    const __m512 made = _mm512_maskz_mul_ps(E4m3::Numbers(bytes), E4m3::From(bytes), half);
    _mm512_storeu_ps(out + at, made);
  }
  return at;
}

// The scales, and perhaps zero points, of a group of rows, in the order of a kind's vectors; either
// may be null.
struct Scales {
  const float* scale;
  const float* zero;
};

// to[c] = (column c - zero[c]) * scale[c] for as many columns of one row as fill vectors: how many.
// Either of scale and zero may be null.
template <typename Kind>
RLX_AVX512 int64_t Widen(const uint8_t* from, int64_t count, const Scales& scales, float* to) {
  int64_t c = 0;
  for (; c + 32 <= count; c += 32) {
    __m512 numbers[2];
    Kind::Two(from + c * 4 / Kind::kVectors, numbers);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const int64_t at = c + 16 * v;
      if (scales.zero != nullptr) {
        numbers[v] = _mm512_sub_ps(numbers[v], _mm512_loadu_ps(scales.zero + at));
      }
      if (scales.scale != nullptr) {
        numbers[v] = _mm512_mul_ps(numbers[v], _mm512_loadu_ps(scales.scale + at));
      }
      _mm512_storeu_ps(to + at, numbers[v]);
    }
  }
  return c;
}

// The columns 8 * i + j of 128 numbers for each j.
RLX_AVX512 inline void Turn(const float* in, float* out) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  __m512 from[8], to[8];
#pragma GCC unroll 8
  for (int v = 0; v < 8; ++v) from[v] = _mm512_loadu_ps(in + 16 * v);
  // Each round moves what lies at even places before what lies at odd ones.
#pragma GCC unroll 3
  for (int round = 0; round < 3; ++round) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      to[v] = _mm512_permutex2var_ps(from[2 * v], even, from[2 * v + 1]);
      to[4 + v] = _mm512_permutex2var_ps(from[2 * v], odd, from[2 * v + 1]);
    }
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) from[v] = to[v];
  }
#pragma GCC unroll 8
  for (int v = 0; v < 8; ++v) _mm512_storeu_ps(out + 16 * v, from[v]);
}

// The same for each 128 of `count` numbers.
inline void TurnAll(const float* in, int64_t count, float* out) {
  for (int64_t at = 0; at < count; at += 128) Turn(in + at, out + at);
}

// Eight rows or fewer of a piece: where they lie, and where those that follow do.
struct Rows {
  const uint8_t* data;
  int64_t stride;
  int64_t lines;
};

// What rows are multiplied with, and their sums: a second row of each lies so much further.
struct Inputs {
  const float* x;
  int64_t x_stride;
  float* acc;
  int64_t acc_stride;
};

// acc[m] += (x[m][r] * (row r - zero)) * scale for kRows rows of one group and kX rows of x; the
// zero is taken away once, times the sum of x.
template <typename Kind, int kRows, bool kZero, int kX>
RLX_AVX512 void AddRows(const Rows& rows, const Scales& scales, const Inputs& in) {
  constexpr int kVectors = Kind::kVectors;
  float totals[kX] = {};
  if constexpr (kZero) {
    for (int m = 0; m < kX; ++m) {
      for (int r = 0; r < kRows; ++r) totals[m] += in.x[m * in.x_stride + r];
    }
  }
  const int64_t bytes = rows.lines * kLine;
  for (int64_t at = 0; at < bytes; at += kLine) {
    const uint8_t* row = rows.data + at;
    // Past the end of these rows begin those that follow.
    const int64_t further = kAhead < bytes - at ? kAhead : kAhead - bytes + kRows * rows.stride;
    const int64_t column = at / kLine * kVectors * 16;
    __m512 sums[kX][kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      __m512 zero = _mm512_setzero_ps();
      if constexpr (kZero) zero = _mm512_loadu_ps(scales.zero + column + 16 * v);
#pragma GCC unroll 2
      for (int m = 0; m < kX; ++m) {
        sums[m][v] = kZero ? _mm512_mul_ps(zero, _mm512_set1_ps(-totals[m])) : zero;
      }
    }
    __m512i most = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r, row += rows.stride) {
      __builtin_prefetch(row + further);
      __m512 numbers[kVectors];
      Kind::Get(row, numbers);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 2
        for (int m = 0; m < kX; ++m) {
          const __m512 value = _mm512_set1_ps(in.x[m * in.x_stride + r]);
          sums[m][v] = _mm512_fmadd_ps(value, numbers[v], sums[m][v]);
        }
      }
      if constexpr (Kind::kHasNan) {
        const __m512i codes = _mm512_loadu_si512(row);
        most = _mm512_max_epu8(most, _mm512_and_si512(codes, _mm512_set1_epi8(0x7f)));
      }
    }
    __mmask64 nan = 0;
    if constexpr (Kind::kHasNan) nan = _mm512_cmpeq_epi8_mask(most, _mm512_set1_epi8(0x7f));
#pragma GCC unroll 2
    for (int m = 0; m < kX; ++m) {
      if (Kind::kHasNan && nan != 0) {
        const __m512 value = _mm512_set1_ps(std::numeric_limits<float>::quiet_NaN());
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          const auto here = static_cast<__mmask16>(nan >> (16 * v % 64));
          sums[m][v] = _mm512_mask_mov_ps(sums[m][v], here, value);
        }
      }
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        float* to = in.acc + m * in.acc_stride + column + 16 * v;
        const __m512 before = _mm512_loadu_ps(to);
        const __m512 after =
            scales.scale == nullptr
                ? _mm512_add_ps(before, sums[m][v])
                : _mm512_fmadd_ps(sums[m][v], _mm512_loadu_ps(scales.scale + column + 16 * v),
                                  before);
        _mm512_storeu_ps(to, after);
      }
    }
  }
}

template <typename Kind, bool kZero, int kX>
void AddRun(int64_t count, const Rows& rows, const Scales& scales, const Inputs& in) {
  switch (count) {
    case 8: return AddRows<Kind, 8, kZero, kX>(rows, scales, in);
    case 4: return AddRows<Kind, 4, kZero, kX>(rows, scales, in);
    case 2: return AddRows<Kind, 2, kZero, kX>(rows, scales, in);
    default: return AddRows<Kind, 1, kZero, kX>(rows, scales, in);
  }
}

// How a product is cut: stretches of columns, each of `width` but perhaps the last, and of rows,
// each of `depth` but perhaps the last.
struct Cut {
  Cut(int64_t k, int64_t columns, int64_t unit) {
    const int64_t least = (columns + kWidth - 1) / kWidth;
    width = ((columns + least - 1) / least + unit - 1) / unit * unit;
    across = (columns + width - 1) / width;
    const int64_t wanted = std::clamp<int64_t>(k * width / kPiece, 1, kPieces);
    depth = ((k + wanted - 1) / wanted + 31) / 32 * 32;
    down = (k + depth - 1) / depth;
  }
  int64_t width;
  int64_t across;
  int64_t depth;
  int64_t down;
};

// Rows [from, to) of w, of which `columns` from `column` on.
struct Piece {
  int64_t from;
  int64_t to;
  int64_t column;
  int64_t columns;
};

// in.acc[m] += in.x[m] . w for kX rows of x; buffer has room for twice the columns.
template <typename Kind, int kX, typename Weights>
void AddPiece(const Weights& w, const Piece& piece, Inputs in, float* buffer) {
  constexpr int64_t kColumns = Kind::kVectors * 16;
  const int64_t stride = w.cols * kLine / kColumns;
  for (int64_t row = piece.from; row < piece.to;) {
    const int64_t group = row / w.GroupRows();
    const int64_t stop = std::min(piece.to, (group + 1) * w.GroupRows());
    const Scales scales = w.OfGroup(group, piece.column, piece.columns, buffer);
    while (row < stop) {
      const int64_t left = stop - row;
      const int64_t run = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
      const uint8_t* data = w.codes + row * stride + piece.column * kLine / kColumns;
      const Rows rows = {data, stride, piece.columns / kColumns};
      if (scales.zero != nullptr) {
        AddRun<Kind, true, kX>(run, rows, scales, in);
      } else {
        AddRun<Kind, false, kX>(run, rows, scales, in);
      }
      if (stop < piece.to) {  // a share of the scales that come next
        const int64_t rows_before = row - group * w.GroupRows();
        const int64_t first = piece.columns * rows_before / w.GroupRows();
        const int64_t end = piece.columns * (rows_before + run) / w.GroupRows();
        w.FetchScales(group + 1, piece.column + first, end - first);
      }
      row += run;
      in.x += run;
    }
  }
}

// y[kX, 0 .. the result) of x[kX, k] and weights w: the columns that fill lines. w has codes, cols,
// GroupRows(), the rows of a group, OfGroup(group, column, count, buffer), its scales for `count`
// columns, for which buffer has room twice, FetchScales(group, column, count), and Finish(column,
// sum).
template <typename Kind, int kX, typename Pool, typename Weights>
int64_t Few(const Pool& pool, const Weights& w, int64_t k, const float* x, float* y) {
  constexpr int64_t kColumns = Kind::kVectors * 16;
  const int64_t columns = w.cols / kColumns * kColumns;
  if (columns == 0 || k == 0) return 0;
  const Cut cut(k, columns, kColumns);
  const int64_t row_sums = cut.down * columns;
  const Scratch<float> sums(kX * row_sums);
  ParallelFor(pool, cut.down * cut.across, 1, [&](int64_t begin, int64_t end) {
    const Scratch<float> buffer(2 * cut.width);
    for (int64_t at = begin; at < end; ++at) {
      const int64_t down = at / cut.across;
      const int64_t column = at % cut.across * cut.width;
      const Piece piece = {down * cut.depth, std::min(k, (down + 1) * cut.depth), column,
                           std::min(cut.width, columns - column)};
      float* acc = sums.get() + down * columns + column;
      for (int m = 0; m < kX; ++m) {
        std::fill(acc + m * row_sums, acc + m * row_sums + piece.columns, 0.0f);
      }
      AddPiece<Kind, kX>(w, piece, {x + piece.from, k, acc, row_sums}, buffer.get());
    }
  });
  for (int64_t at = 0; at < kX * columns; at += kColumns) {
    const int64_t m = at / columns, from = at % columns;
    const float* first = sums.get() + m * row_sums + from;
    float total[kColumns];
    std::copy(first, first + kColumns, total);
    for (int64_t d = 1; d < cut.down; ++d) {
      const float* more = first + d * columns;
      for (int64_t c = 0; c < kColumns; ++c) total[c] += more[c];
    }
    for (int64_t c = 0; c < kColumns; ++c) {
      const int64_t lies = Kind::kTurned ? c % 8 * 16 + c / 8 : c;
      y[m * w.cols + from + c] = w.Finish(from + c, total[lies]);
    }
  }
  return columns;
}

// The same for any number of rows.
template <typename Kind, typename Pool, typename Weights>
int64_t Product(const Pool& pool, const Weights& w, int64_t rows, int64_t k, const float* x,
                float* y) {
  int64_t made = 0;
  int64_t m = 0;
  for (; m + 2 <= rows; m += 2) made = Few<Kind, 2>(pool, w, k, x + m * k, y + m * w.cols);
  if (m < rows) made = Few<Kind, 1>(pool, w, k, x + m * k, y + m * w.cols);
  return made;
}

}  // namespace columns

}  // namespace rlx

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif  // defined(__x86_64__)

namespace rlx {

namespace columns {

// y[rows, 0 .. some) of few rows of x and weights that have a Kind: how many, which is 0 where this
// CPU has no way that is better than their Get.
template <typename Pool, typename Weights>
int64_t FewRows(const Pool& pool, const Weights& w, int64_t rows, int64_t k, const float* x,
                float* y) {
#if defined(__x86_64__)
  if (matmul::HasAvx512()) return Product<typename Weights::Kind>(pool, w, rows, k, x, y);
#endif
  (void)pool, (void)w, (void)rows, (void)k, (void)x, (void)y;
  return 0;
}

}  // namespace columns

}  // namespace rlx

#endif  // RLX_KERNELS_COLUMNS_AVX512_H_
