// Stable sort of rows by one or more keys; further operands follow.
//
// Computes: operands[i] of shape [outer, n, inner], each permuted along n so that the keys (the
//   first `num_keys` operands, the first one most significant) ascend; equal keys keep their order.
// Layout: row-major, elements aligned to their size.
// Numerics: jax.lax.sort. -0 equals 0, NaN comes last and all NaNs are equal, so elements keep
//   their bits. Subnormals are compared exactly.
// Algorithm: integers that are ordered as the keys are, in vector lanes (sort_vectors.h); without
//   such instructions, by digits (sort_digit_rows.h). Columns become rows, some at a time.
#ifndef RLX_KERNELS_SORT_H_
#define RLX_KERNELS_SORT_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "numbers.h"
#include "parallel.h"
#include "scratch.h"
#include "sort_digit_rows.h"
#include "sort_keys.h"
#include "sort_vectors.h"

namespace rlx {
namespace sort {

constexpr int64_t kTile = 16;  // columns that are turned into rows at once

template <typename T>
void TileToRows(const T* in, int64_t n, int64_t inner, int64_t lanes, T* rows) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t lane = 0; lane < lanes; ++lane) rows[lane * n + i] = in[i * inner + lane];
  }
}

template <typename T>
void RowsToTile(const T* rows, int64_t n, int64_t inner, int64_t lanes, T* out) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t lane = 0; lane < lanes; ++lane) out[i * inner + lane] = rows[lane * n + i];
  }
}

// Sorts columns [begin, end) of the outer * tiles, where a tile is up to kTile columns.
template <typename Sorter>
void SortTiles(const std::vector<SortOperand>& operands, int64_t n, int64_t inner,
                      int64_t num_keys, int64_t begin, int64_t end) {
  const size_t count = operands.size();
  const int64_t tiles = (inner + kTile - 1) / kTile;
  int64_t bytes = 0;
  for (const SortOperand& operand : operands) bytes += (operand.bytes * n * kTile + 63) / 64 * 64;
  Scratch<char> rows(2 * bytes);
  std::vector<char*> in_rows(count);
  std::vector<char*> out_rows(count);
  char* next = rows.get();
  for (size_t i = 0; i < count; ++i) {
    const int64_t size = (operands[i].bytes * n * kTile + 63) / 64 * 64;
    in_rows[i] = next;
    out_rows[i] = next + size;
    next += 2 * size;
  }
  const Alone one;
  const AnyPool alone(one);
  Sorter sorter(alone, operands, n, num_keys);
  std::vector<const void*> in(count);
  std::vector<void*> out(count);
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t column = tile % tiles * kTile;
    const int64_t offset = tile / tiles * n * inner + column;
    const int64_t lanes = std::min(kTile, inner - column);
    for (size_t i = 0; i < count; ++i) {
      WithBytes(operands[i].bytes, [&](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        TileToRows(static_cast<const T*>(operands[i].in) + offset, n, inner, lanes,
                   reinterpret_cast<T*>(in_rows[i]));
      });
    }
    for (int64_t lane = 0; lane < lanes; ++lane) {
      for (size_t i = 0; i < count; ++i) {
        in[i] = in_rows[i] + lane * n * operands[i].bytes;
        out[i] = out_rows[i] + lane * n * operands[i].bytes;
      }
      sorter.Sort(in.data(), out.data());
    }
    for (size_t i = 0; i < count; ++i) {
      WithBytes(operands[i].bytes, [&](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        RowsToTile(reinterpret_cast<const T*>(out_rows[i]), n, inner, lanes,
                   static_cast<T*>(operands[i].out) + offset);
      });
    }
  }
}

template <typename Sorter>
void SortRows(const AnyPool& pool, const std::vector<SortOperand>& operands, int64_t n,
              int64_t num_keys, int64_t begin, int64_t end) {
  const size_t count = operands.size();
  Sorter sorter(pool, operands, n, num_keys);
  std::vector<const void*> in(count);
  std::vector<void*> out(count);
  for (int64_t row = begin; row < end; ++row) {
    for (size_t i = 0; i < count; ++i) {
      const int64_t offset = row * n * operands[i].bytes;
      in[i] = static_cast<const char*>(operands[i].in) + offset;
      out[i] = static_cast<char*>(operands[i].out) + offset;
    }
    sorter.Sort(in.data(), out.data());
  }
}

template <typename Sorter>
void SortWith(const AnyPool& pool, const std::vector<SortOperand>& operands, int64_t outer,
              int64_t n, int64_t inner, int64_t num_keys) {
  // A piece that is worth a second thread.
  constexpr int64_t kGrain = 4096;
  if (inner == 1) {
    if (outer < pool.Threads() && n >= kParallelMin) {
      return SortRows<Sorter>(pool, operands, n, num_keys, 0, outer);
    }
    const Alone one;
    const AnyPool alone(one);
    return ParallelFor(pool, outer, kGrain / n + 1, [&](int64_t begin, int64_t end) {
      SortRows<Sorter>(alone, operands, n, num_keys, begin, end);
    });
  }
  const int64_t tiles = outer * ((inner + kTile - 1) / kTile);
  ParallelFor(pool, tiles, kGrain / (n * kTile) + 1, [&](int64_t begin, int64_t end) {
    SortTiles<Sorter>(operands, n, inner, num_keys, begin, end);
  });
}

}  // namespace sort

// Sorts operands of shape [outer, n, inner] along n; n < 2^31, 1 <= num_keys <= operands.
template <typename Pool>
void Sort(const Pool& pool, const std::vector<SortOperand>& operands, int64_t outer, int64_t n,
          int64_t inner, int64_t num_keys) {
  if (outer == 0 || n == 0 || inner == 0) return;
  const sort::AnyPool any(pool);
#if defined(RLX_HAS_WIDE512)
  if (HasWide512()) {
    return sort::SortWith<sort::wide512::LaneSorter>(any, operands, outer, n, inner, num_keys);
  }
#endif
#if defined(__AVX2__)
  sort::SortWith<sort::wide256::LaneSorter>(any, operands, outer, n, inner, num_keys);
#else
  sort::SortWith<sort::DigitSorter>(any, operands, outer, n, inner, num_keys);
#endif
}

}  // namespace rlx

#endif  // RLX_KERNELS_SORT_H_
