// Products of any number of rows, by panels of 32 columns.
//
// Computes: acc[m, n] = sum over k of x[m, k] * w[k, n], where a Problem says where rows of x lie
//   and copies panels of w.
// Numerics: products are fused with their sums, which are f32 and are taken of stretches of k
//   before they are added up.
// Algorithm: a panel of 32 columns and at most 256 rows of w is copied into the first-level cache
//   and multiplied with tiles of 12 rows of x, whose sums stay in registers. Rows of x are read
//   where they lie. Vectors of 64 bytes are used where the CPU has them.
#ifndef RLX_KERNELS_GEMM_H_
#define RLX_KERNELS_GEMM_H_

#include <algorithm>
#include <cstdint>

#include "lanes.h"
#include "matmul.h"
#include "matmul_avx512.h"
#include "parallel.h"
#include "scratch.h"

namespace rlx {

namespace gemm {

constexpr int64_t kPanel = 32;   // columns of a panel
constexpr int64_t kDepth = 256;  // the most rows of a panel, a multiple of every packed block
constexpr int64_t kTile = 12;    // rows of x that are multiplied at once
constexpr int64_t kBlock = 192;  // rows of x that share a panel, unless a problem says otherwise

#if defined(__x86_64__)
// acc[m * stride + c] (+)= sum over i of x[m][i] * panel[i * kPanel + c], for 16 * kV columns.
template <int kX, int kV>
RLX_AVX512 void Tile512(const float* const* x, const float* panel, int64_t depth, bool first,
                        float* acc, int64_t stride) {
  __m512 sums[kX][kV];
#pragma GCC unroll 12
  for (int m = 0; m < kX; ++m) {
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) {
      sums[m][v] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(acc + m * stride + v * 16);
    }
  }
  for (int64_t i = 0; i < depth; ++i) {
    __m512 weight[kV];
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) weight[v] = _mm512_loadu_ps(panel + i * kPanel + v * 16);
#pragma GCC unroll 12
    for (int m = 0; m < kX; ++m) {
      const __m512 value = _mm512_set1_ps(x[m][i]);
#pragma GCC unroll 2
      for (int v = 0; v < kV; ++v) sums[m][v] = _mm512_fmadd_ps(value, weight[v], sums[m][v]);
    }
  }
#pragma GCC unroll 12
  for (int m = 0; m < kX; ++m) {
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) _mm512_storeu_ps(acc + m * stride + v * 16, sums[m][v]);
  }
}
#endif

// The same for 16 columns in vectors of 32 bytes.
template <int kX>
void Tile256(const float* const* x, const float* panel, int64_t depth, bool first, float* acc,
             int64_t stride) {
  using matmul::F;
  constexpr int64_t kWide = matmul::kWide;
  F sums[kX][2];
#pragma GCC unroll 6
  for (int m = 0; m < kX; ++m) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) sums[m][v] = first ? F{} : Load(acc + m * stride + v * kWide);
  }
  for (int64_t i = 0; i < depth; ++i) {
    F weight[2];
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) weight[v] = Load(panel + i * kPanel + v * kWide);
#pragma GCC unroll 6
    for (int m = 0; m < kX; ++m) {
      const F value = Broadcast(x[m][i]);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) sums[m][v] = matmul::MulAdd(value, weight[v], sums[m][v]);
    }
  }
#pragma GCC unroll 6
  for (int m = 0; m < kX; ++m) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) Store<float>(sums[m][v], acc + m * stride + v * kWide);
  }
}

// Up to kX rows of x: halves what is left until nothing is.
template <int kX>
void Rows256(const float* const* x, int64_t rows, const float* panel, int64_t depth, bool first,
             float* acc, int64_t stride) {
  for (; rows >= kX; rows -= kX, x += kX, acc += kX * stride) {
    Tile256<kX>(x, panel, depth, first, acc, stride);
  }
  if constexpr (kX > 1) Rows256<kX / 2>(x, rows, panel, depth, first, acc, stride);
}

#if defined(__x86_64__)
template <int kX, int kV>
void Rows512(const float* const* x, int64_t rows, const float* panel, int64_t depth, bool first,
             float* acc, int64_t stride) {
  for (; rows >= kX; rows -= kX, x += kX, acc += kX * stride) {
    Tile512<kX, kV>(x, panel, depth, first, acc, stride);
  }
  if constexpr (kX > 1) Rows512<kX / 2, kV>(x, rows, panel, depth, first, acc, stride);
}
#endif

// acc[rows, kPanel] (+)= x[rows][depth] panel[depth, kPanel], of which `columns` are wanted: 16
// are written for up to as many, and else 32.
inline void Multiply(const float* const* x, int64_t rows, const float* panel, int64_t depth,
                     int64_t columns, bool first, float* acc, int64_t stride) {
#if defined(__x86_64__)
  if (matmul::HasAvx512()) {
    return columns > 16 ? Rows512<12, 2>(x, rows, panel, depth, first, acc, stride)
                        : Rows512<12, 1>(x, rows, panel, depth, first, acc, stride);
  }
#endif
  Rows256<6>(x, rows, panel, depth, first, acc, stride);
  if (columns > 16) Rows256<6>(x, rows, panel + 16, depth, first, acc + 16, stride);
}

// A panel's rows [0, rows) from a matrix whose rows are `stride` apart; zeros beyond `columns`.
template <typename T>
void CopyPanel(const T* w, int64_t stride, int64_t rows, int64_t columns, float* panel) {
  for (int64_t i = 0; i < rows; ++i, w += stride, panel += kPanel) {
    if (columns == kPanel) {
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        Store<float>(matmul::LoadWide(w + v * matmul::kWide), panel + v * matmul::kWide);
      }
    } else {
      matmul::WidenRow(w, columns, /*ahead=*/0, panel);
      std::fill(panel + columns, panel + kPanel, 0.0f);
    }
  }
}

// A panel from `columns` rows of a matrix, each of `depth` elements, `stride` apart.
template <typename T>
void TurnPanel(const T* w, int64_t stride, int64_t depth, int64_t columns, float* panel) {
  if (columns < kPanel) std::fill(panel, panel + depth * kPanel, 0.0f);
  int64_t c = 0;
  for (; c + matmul::kWide <= columns; c += matmul::kWide) {
    int64_t i = 0;
#if defined(__AVX2__)
    for (; i + 8 <= depth; i += 8) {
      __m256 a[8], b[8];
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r) {
        a[r] = reinterpret_cast<__m256>(matmul::LoadWide(w + (c + r) * stride + i));
      }
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        b[2 * r] = _mm256_unpacklo_ps(a[2 * r], a[2 * r + 1]);
        b[2 * r + 1] = _mm256_unpackhi_ps(a[2 * r], a[2 * r + 1]);
      }
#pragma GCC unroll 2
      for (int r = 0; r < 2; ++r) {
        a[4 * r] = _mm256_shuffle_ps(b[4 * r], b[4 * r + 2], 0x44);
        a[4 * r + 1] = _mm256_shuffle_ps(b[4 * r], b[4 * r + 2], 0xee);
        a[4 * r + 2] = _mm256_shuffle_ps(b[4 * r + 1], b[4 * r + 3], 0x44);
        a[4 * r + 3] = _mm256_shuffle_ps(b[4 * r + 1], b[4 * r + 3], 0xee);
      }
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        _mm256_storeu_ps(panel + (i + r) * kPanel + c,
                         _mm256_permute2f128_ps(a[r], a[4 + r], 0x20));
        _mm256_storeu_ps(panel + (i + 4 + r) * kPanel + c,
                         _mm256_permute2f128_ps(a[r], a[4 + r], 0x31));
      }
    }
#endif
    for (; i < depth; ++i) {
      for (int64_t r = 0; r < matmul::kWide; ++r) {
        panel[i * kPanel + c + r] = ToFloat(w[(c + r) * stride + i]);
      }
    }
  }
  for (; c < columns; ++c) {
    for (int64_t i = 0; i < depth; ++i) panel[i * kPanel + c] = ToFloat(w[c * stride + i]);
  }
}

// One block of a problem: rows [m, m + rows) and columns [n, n + columns). A Problem has
//   Stretches(), Depth(stretch) <= kDepth,
//   Panel(stretch, n, columns, buffer), which writes as many rows of kPanel numbers,
//   Rows(stretch, m, rows, pointers),
//   Direct(m, n, &stride) -> where f32 results lie in rows, or null,
//   Store(m, rows, n, columns, acc), where they do not.
template <typename Problem>
void Block(const Problem& problem, int64_t m, int64_t rows, int64_t n, int64_t columns,
           float* acc) {
  alignas(64) float panel[kDepth * kPanel];
  const float* pointers[kTile];
  // One stretch is summed in registers alone.
  int64_t stride = kPanel;
  const bool whole = columns == kPanel || columns == kPanel / 2;
  float* direct = whole && problem.Stretches() == 1 ? problem.Direct(m, n, &stride) : nullptr;
  if (direct != nullptr) acc = direct;
  for (int64_t s = 0; s < problem.Stretches(); ++s) {
    const int64_t depth = problem.Depth(s);
    problem.Panel(s, n, columns, panel);
    for (int64_t first = 0; first < rows; first += kTile) {
      const int64_t count = std::min(kTile, rows - first);
      problem.Rows(s, m + first, count, pointers);
      Multiply(pointers, count, panel, depth, columns, s == 0, acc + first * stride, stride);
    }
  }
  if (problem.Stretches() == 0) std::fill(acc, acc + rows * kPanel, 0.0f);
  if (direct == nullptr) problem.Store(m, rows, n, columns, acc);
}

// Every block, of at most `most_rows` rows, of problems with m rows, n columns and sums of k terms.
template <typename Pool, typename ProblemOf>
void Run(const Pool& pool, int64_t problems, int64_t m, int64_t n, int64_t k, int64_t most_rows,
         const ProblemOf& problem_of) {
  constexpr int64_t kGrain = 256 * 1024;  // products and sums that are worth a second thread
  if (problems == 0 || m == 0 || n == 0) return;
  // Enough blocks that every thread has some, of whole tiles.
  const int64_t columns = (n + kPanel - 1) / kPanel;
  const int64_t wanted = std::max<int64_t>(1, 2 * pool.Threads() / (problems * columns));
  const int64_t even = ((m + wanted - 1) / wanted + kTile - 1) / kTile * kTile;
  const int64_t block = std::min(most_rows, even);
  const int64_t blocks = (m + block - 1) / block;
  const int64_t cost = std::max<int64_t>(1, std::min(m, block) * std::min(n, kPanel) * (k + 1));
  ParallelFor(pool, problems * blocks * columns, kGrain / cost + 1,
              [&](int64_t begin, int64_t end) {
                Scratch<float> acc(block * kPanel);
                for (int64_t at = begin; at < end;) {
                  const int64_t last = std::min(end, (at / columns + 1) * columns);
                  const int64_t row = at / columns % blocks * block;
                  const int64_t rows = std::min(block, m - row);
                  // Columns of one block of rows share what the problem prepares for them.
                  const auto problem = problem_of(at / columns / blocks, row, rows);
                  for (; at < last; ++at) {
                    const int64_t col = at % columns * kPanel;
                    Block(problem, row, rows, col, std::min(kPanel, n - col), acc.get());
                  }
                }
              });
}

}  // namespace gemm

}  // namespace rlx

#endif  // RLX_KERNELS_GEMM_H_
