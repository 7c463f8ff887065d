// Products of inputs rounded to signed bytes with integer codes by columns.
//
// Computes: y[m, n] = sum over blocks b of k of
//     d[m, b] * scale[g(b), n] * sum over k in b of c[m, k] * (q[k, n] - zero[g(b), n]),
//   where x is about d * c, a scale for each block of x.
// Layout: ColumnsOfCodes of blocks.h, whose blocks are multiples of 32 rows.
// Numerics: as rlx/ops/quantized/rounded.py says. Sums of codes in a block are exact; they and the
//   zero's share are then fused with f32 sums, stretch by stretch of k. The order depends on the
//   sizes of the weights alone: not on the number of threads, of rows of x or the vectors' width.
// Algorithm: x is rounded once. Weights are read from end to end, a block of rows of them at a time,
//   for up to four rows of x in registers; for more, a line of them is unpacked into the first-level
//   cache. Scales and sums lie in the order in which columns come out (columns_int8_tiles.h).
//   Columns that do not fill a line are copied into one.
#ifndef RLX_KERNELS_COLUMNS_INT8_H_
#define RLX_KERNELS_COLUMNS_INT8_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "blocks.h"
#include "dequant_int8.h"
#include "parallel.h"
#include "products.h"
#include "scratch.h"

namespace rlx {

namespace columns {

constexpr int64_t kMostBlock = 256;  // rows that share a scale of x
constexpr int kMostX = 4;            // rows of x that are taken at once
constexpr int64_t kChunk = 16;       // and whose sums lie side by side
constexpr int64_t kStretches = 4;    // of k, each with sums of its own
constexpr int64_t kWidest = 4096;    // columns of a piece
constexpr int64_t kLeastWork = 1 << 17;  // products that are worth a piece
constexpr int64_t kNear = 256;  // bytes of each row that are fetched before they are taken

// Some rows of weights that share their scales, from a column on: `lines` lines of each.
struct Rows8 {
  const uint8_t* data;
  int64_t stride;
  int64_t rows;
  int64_t lines;
};

// Rows of x: their codes, scale and sum of codes in a block, and where their sums lie.
struct Inputs8 {
  const int8_t* codes[kMostX];
  float scale[kMostX];
  int32_t total[kMostX];
  float* acc[kMostX];
};

}  // namespace columns

}  // namespace rlx

#if defined(__AVX2__)
#define RLX_INT8 pairs
#define RLX_INT8_WAY 0
#define RLX_INT8_TARGET
#include "columns_int8_tiles.h"
#undef RLX_INT8
#undef RLX_INT8_WAY
#undef RLX_INT8_TARGET

#if defined(RLX_HAS_AVX_VNNI)
#define RLX_INT8 fours
#define RLX_INT8_WAY 1
#define RLX_INT8_TARGET __attribute__((target("avxvnni")))
#include "columns_int8_tiles.h"
#undef RLX_INT8
#undef RLX_INT8_WAY
#undef RLX_INT8_TARGET
#endif

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined vectors of its own intrinsics for ours.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#define RLX_INT8 wide
#define RLX_INT8_WAY 2
#define RLX_INT8_TARGET RLX_VNNI
#include "columns_int8_tiles.h"
#undef RLX_INT8
#undef RLX_INT8_WAY
#undef RLX_INT8_TARGET
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif  // defined(__AVX2__)

namespace rlx {

namespace columns {

// Tests take the plain way by clearing it and the others.
inline bool allow_vectors = true;

// One column after another, for CPUs without these vectors.
namespace plain {

template <bool kNibbles>
struct Way {
  static constexpr int64_t kBytes = 32;
  static constexpr int64_t kColumns = kNibbles ? 64 : 32;
  static constexpr int64_t Place(int64_t column) { return column; }
  static void TurnLine(const float* in, float* out) { std::copy(in, in + kColumns, out); }
  static void Add(int64_t count, const Rows8& rows, const Scales& scales, const Inputs8* x) {
    for (int64_t m = 0; m < count; ++m) AddOne(rows, scales, x[m / kMostX], m % kMostX);
  }

 private:
  static void AddOne(const Rows8& rows, const Scales& scales, const Inputs8& x, int64_t m) {
    for (int64_t c = 0; c < rows.lines * kColumns; ++c) {
      int32_t codes = 0;
      const uint8_t* p = rows.data + (kNibbles ? c / 2 : c);
      for (int64_t r = 0; r < rows.rows; ++r, p += rows.stride) {
        const int32_t code = kNibbles ? *p >> (c % 2 * 4) & 15 : static_cast<int8_t>(*p);
        codes += code * x.codes[m][r];
      }
      auto sum = static_cast<float>(codes);
      if (scales.zero != nullptr) {
        sum = std::fma(-scales.zero[c], static_cast<float>(x.total[m]), sum);
      }
      x.acc[m][c] = std::fma(sum, scales.scale[c] * x.scale[m], x.acc[m][c]);
    }
  }
};

}  // namespace plain

// Rows that share a scale of x, where `block` share those of the weights.
inline int64_t BlockOfInputs(int64_t block) {
  return block <= kMostBlock ? block : std::gcd(block, kMostBlock);
}

// Rows of x as codes, whose rows are filled up with zeros to whole blocks.
struct Rounded8 {
  Rounded8(int64_t rows, int64_t k, int64_t block)
      : block(block),
        blocks((k + block - 1) / block),
        codes(rows * blocks * block),
        scale(rows * blocks),
        total(rows * blocks) {}

  template <typename T>
  void Round(int64_t m, const T* x, int64_t k) const {
    float wide[kMostBlock];
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t at = m * blocks + b;
      int8_t* to = codes.get() + at * block;
      const int64_t count = std::min(block, k - b * block);
      matmul::WidenRow(x + b * block, count, /*ahead=*/0, wide);
      std::fill(wide + count, wide + block, 0.0f);
      scale[at] = int8::RoundCodes(wide, block, to);
      int32_t sum = 0;
      for (int64_t i = 0; i < block; ++i) sum += to[i];
      total[at] = sum;
    }
  }

  int64_t block;
  int64_t blocks;
  Scratch<int8_t> codes;
  Scratch<float> scale;
  Scratch<int32_t> total;
};

// Blocks [from, to) of x and of rows of w, and `lines` lines of columns from `column` on, of which
// the last may have only `columns` in all.
struct Piece8 {
  int64_t from;
  int64_t to;
  int64_t column;
  int64_t columns;
  int64_t lines;
};

// acc[m] += x[m] . w for rows [first, first + count) of x; acc's rows lie acc_stride apart.
template <typename Way, bool kNibbles>
void AddPiece8(const blocks::ColumnsOfCodes<kNibbles>& w, int64_t k, const Rounded8& x,
               int64_t first, int64_t count, const Piece8& piece, float* acc, int64_t acc_stride) {
  const int64_t width = piece.lines * Way::kColumns;
  const Scratch<float> buffer(2 * width);
  float* scale = buffer.get();
  float* zero = w.zero == nullptr ? nullptr : scale + width;
  const bool whole = piece.columns == width;
  const int64_t line_bytes = piece.lines * Way::kBytes;
  const Scratch<uint8_t> copies(whole ? 0 : x.block * line_bytes);
  const auto turn = [&](const float* from, float* to) {
    int64_t at = 0;
    for (; at + Way::kColumns <= piece.columns; at += Way::kColumns) {
      Way::TurnLine(from + at, to + at);
    }
    if (at == width) return;
    float last[Way::kColumns] = {};
    std::copy(from + at, from + piece.columns, last);
    Way::TurnLine(last, to + at);
  };
  int64_t turned = -1;
  for (int64_t b = piece.from; b < piece.to; ++b) {
    const int64_t row = b * x.block;
    const int64_t group = row / w.block;
    if (group != turned) {
      turn(w.scale + group * w.cols + piece.column, scale);
      if (zero != nullptr) turn(w.zero + group * w.cols + piece.column, zero);
      turned = group;
    }
    const int64_t at = row * w.cols + piece.column;
    const uint8_t* data = w.codes + (kNibbles ? at / 2 : at);
    const int64_t stride = kNibbles ? w.cols / 2 : w.cols;
    Rows8 rows = {data, stride, std::min(x.block, k - row), piece.lines};
    if (!whole) {
      const int64_t bytes = kNibbles ? piece.columns / 2 : piece.columns;
      for (int64_t r = 0; r < rows.rows; ++r) {
        uint8_t* to = copies.get() + r * line_bytes;
        std::memcpy(to, data + r * stride, bytes);
        std::memset(to + bytes, 0, line_bytes - bytes);
      }
      rows = {copies.get(), line_bytes, rows.rows, piece.lines};
    }
    Inputs8 in[kChunk / kMostX] = {};
    for (int64_t m = 0; m < count; ++m) {
      Inputs8& some = in[m / kMostX];
      const int64_t i = m % kMostX, of = (first + m) * x.blocks + b;
      some.codes[i] = x.codes.get() + of * x.block;
      some.scale[i] = x.scale[of];
      some.total[i] = x.total[of];
      some.acc[i] = acc + m * acc_stride;
    }
    Way::Add(count, rows, {scale, zero}, in);
  }
}

// y[rows, n] of x, rounded, and w.
template <typename Way, bool kNibbles, typename Pool>
void Product8(const Pool& pool, const blocks::ColumnsOfCodes<kNibbles>& w, int64_t rows, int64_t k,
              const Rounded8& x, float* y) {
  const int64_t lines = (w.cols + Way::kColumns - 1) / Way::kColumns;
  // The columns that do not fill a line are a piece of their own, and so are copied alone.
  const int64_t full = w.cols / Way::kColumns;
  const int64_t wanted = std::clamp<int64_t>(k * w.cols / kLeastWork, 1, kStretches);
  const int64_t depth = std::max<int64_t>((x.blocks + wanted - 1) / wanted, 1);
  const int64_t down = std::max<int64_t>((x.blocks + depth - 1) / depth, 1);
  // Every thread has some pieces; sums do not depend on how columns are cut.
  const int64_t least = std::max((w.cols + kWidest - 1) / kWidest,
                                 wanted < kStretches ? 1 : 4 * pool.Threads() / kStretches);
  const int64_t width = std::max<int64_t>((full + least - 1) / least, 1);
  const int64_t across = (full + width - 1) / width;
  const int64_t pieces = across + (lines - full);
  const int64_t row_sums = lines * Way::kColumns;
  const Scratch<float> sums(down * std::min(rows, kChunk) * row_sums);
  for (int64_t first = 0; first < rows; first += kChunk) {
    const int64_t count = std::min(kChunk, rows - first);
    ParallelFor(pool, down * pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) {
        const int64_t stretch = at / pieces;
        const int64_t line = at % pieces < across ? at % pieces * width : full;
        const int64_t taken = line < full ? std::min(width, full - line) : 1;
        const int64_t column = line * Way::kColumns;
        const Piece8 piece = {stretch * depth, std::min(x.blocks, (stretch + 1) * depth), column,
                              std::min(taken * Way::kColumns, w.cols - column), taken};
        float* acc = sums.get() + stretch * count * row_sums + column;
        for (int64_t m = 0; m < count; ++m) {
          std::fill_n(acc + m * row_sums, taken * Way::kColumns, 0.0f);
        }
        AddPiece8<Way, kNibbles>(w, k, x, first, count, piece, acc, row_sums);
      }
    });
    ParallelFor(pool, count * lines, kLeastWork / (down * Way::kColumns) + 1,
                [&](int64_t begin, int64_t end) {
                  for (int64_t at = begin; at < end; ++at) {
                    const int64_t m = at / lines, column = at % lines * Way::kColumns;
                    float total[Way::kColumns] = {};
                    for (int64_t d = 0; d < down; ++d) {
                      const float* more = sums.get() + (d * count + m) * row_sums + column;
                      for (int64_t c = 0; c < Way::kColumns; ++c) total[c] += more[c];
                    }
                    float* to = y + (first + m) * w.cols + column;
                    const int64_t columns = std::min(Way::kColumns, w.cols - column);
                    for (int64_t c = 0; c < columns; ++c) to[c] = total[Way::Place(c)];
                  }
                });
  }
}

// y[rows, n] of x[rows, k] and w, whose block is a multiple of 32.
template <bool kNibbles, typename Pool, typename T>
void RoundedProduct(const Pool& pool, const blocks::ColumnsOfCodes<kNibbles>& w, int64_t rows,
                    int64_t k, const T* x, T* y) {
  constexpr bool kDirect = std::is_same_v<T, float>;
  const Rounded8 rounded(rows, k, BlockOfInputs(w.block));
  ParallelFor(pool, rows, kLeastWork / (k + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) rounded.Round(m, x + m * k, k);
  });
  const Scratch<float> made(kDirect ? 0 : rows * w.cols);
  float* out = made.get();
  if constexpr (kDirect) out = y;
  bool done = false;
#if defined(__AVX2__)
  if (int8::HasVnni()) {
    Product8<wide::Way<kNibbles>, kNibbles>(pool, w, rows, k, rounded, out);
    done = true;
  }
#if defined(RLX_HAS_AVX_VNNI)
  if (!done && int8::HasAvxVnni()) {
    Product8<fours::Way<kNibbles>, kNibbles>(pool, w, rows, k, rounded, out);
    done = true;
  }
#endif
  if (!done && allow_vectors) {
    Product8<pairs::Way<kNibbles>, kNibbles>(pool, w, rows, k, rounded, out);
    done = true;
  }
#endif
  if (!done) Product8<plain::Way<kNibbles>, kNibbles>(pool, w, rows, k, rounded, out);
  if (!products::Finite(out, rows * w.cols)) {
    const Scratch<float> numbers(rows * k);
    for (int64_t i = 0; i < rows * k; ++i) {
      const int64_t at = i / k * rounded.blocks + i % k / rounded.block;
      const int8_t code = rounded.codes[at * rounded.block + i % k % rounded.block];
      numbers[i] = static_cast<float>(code) * rounded.scale[at];
    }
    const MatmulShape shape = {1, rows, k, w.cols, /*by_rows=*/false};
    products::MakeAgain(pool, w, shape, w.cols, static_cast<const float*>(numbers.get()), out);
  }
  if constexpr (!kDirect) matmul::NarrowRow(out, rows * w.cols, y);
}

}  // namespace columns

}  // namespace rlx

#endif  // RLX_KERNELS_COLUMNS_INT8_H_
