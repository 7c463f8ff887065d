// y = x W with W in codes by columns, for a few rows of x, on the matrix units.
//
// Layout: x T[M, K]; codes of W [K, N] row by row, a byte or, low one first, a nibble each; scales and zeros
// [K / BLOCK, N]; y T[M, N].
// Work: a block takes 128 columns of W, a cluster of CLUSTER blocks the same ones; their warps take turns at STEPS * 16
// rows of W each. A lane reads 16 neighbouring codes of four rows at once and has the codes of a turn and its part of x in
// registers a turn before they are needed. Two rows make the pairs of a product along K: the same order holds for x.
// Wider x goes in as a sum of bf16 parts (PARTS: 1 for bf16, 2 for f16, 3 for f32), each a column of the product.
// Sums of the cluster meet in shared memory, each block finishing 128 / CLUSTER columns.
// Numerics: codes are exact in bf16; products and sums of a scale's rows in f32, then times the scale; zeros meet sums of
// x that the matrix units make with ones. Result rounded once. A scale that is no number or infinite makes its columns so.
//
// Macros: M, PARTS, N, K, KIND (of x and y: 0 f32, 1 bf16, 2 f16), FORMAT (8 i8, 4 nibbles 0 to 15, 43 E4M3, 52 E5M2,
// 21 E2M1), BLOCK (rows of a scale, 16 or a multiple of 32; 0 one for all, -1 none), ZERO, GLOBAL (one more factor),
// WARPS, CLUSTER, STEPS (of 16 rows in a turn), BLOCKS (on a multiprocessor).

#include "cluster.cuh"
#include "pairs.cuh"
#include "reads.cuh"
#include "stored.cuh"

#define COLUMNS (M * PARTS)
#define TILES ((COLUMNS + 7) / 8)
#define NIBBLES (FORMAT == 4 || FORMAT == 21)
#define PER_BYTE (NIBBLES ? 2 : 1)
#define WHOLE (K % (16 * STEPS) == 0)  // no turn ends beyond K
#define TURNS ((K + 16 * STEPS - 1) / (16 * STEPS))
#define OFTEN (BLOCK > 0)  // scales inside the sum along K
#define ROWS_APART (BLOCK == 16 ? 1 : OFTEN && BLOCK % (16 * STEPS) ? 2 : STEPS)  // steps of a scale
#define SCALES (STEPS / ROWS_APART)  // of a turn
#define PER (128 / CLUSTER)

__device__ __forceinline__ u32 times(u32 a, u32 b) {  // two bf16; numbers below the normal ones are kept
  u32 r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
  return r;
}
// The codes of one column and two rows, as bytes 0 and 1 (or 2 and 3) of a word, to two bf16.
#if FORMAT == 8
__device__ __forceinline__ u32 pair(u32 bytes, int upper, bool) {
  // 0x43 in front of seven bits makes 128 + their number; the eighth doubles it.
  const u32 v = permute(bytes, 0x43434343u, upper ? 0x4342 : 0x4140);
  return minus(v & 0xFF7FFF7Fu, v & 0xFF80FF80u);
}
#elif FORMAT == 4
__device__ __forceinline__ u32 pair(u32 bytes, int upper, bool) {
  return minus(permute(bytes, 0x43434343u, upper ? 0x4342 : 0x4140), 0x43004300u);
}
#elif FORMAT == 21
__device__ __forceinline__ u32 pair(u32 bytes, int upper, bool) {  // sign, two bits of exponent, one of mantissa
  const u32 v = permute(bytes, 0u, upper ? 0x4342 : 0x4140);
  return times((v & 0x00080008u) << 12 | (v & 0x00070007u) << 6, 0x7E807E80u);  // 2^126
}
#else
#define FRACTION (FORMAT == 43 ? 3 : 2)
#define HIGHEST (FORMAT == 43 ? 0x7F : 0x7C)  // from here on a code is no number, or infinite
// A carry out of seven bits says that one of four codes is special.
__device__ __forceinline__ u32 specials(u32 four) { return (four & 0x7F7F7F7Fu) + (0x80u - HIGHEST) * 0x01010101u; }
__device__ __forceinline__ u32 special_half(u32 code, u32 found) {
  const u32 size = code & 0x7Fu;
  if (size < HIGHEST) return found;
  return (code & 0x80u) << 8 | (FORMAT == 52 && size == 0x7C ? 0x7F80u : 0x7FC0u);
}
__device__ __forceinline__ u32 pair(u32 bytes, int upper, bool special) {
  const u32 v = permute(bytes, 0u, upper ? 0x3424 : 0x1404);  // the codes in the upper bytes
  const u32 moved = v >> (1 + FRACTION) & 0x7F007F00u >> (1 + FRACTION);
  const u32 found = times((v & 0x80008000u) | moved, FORMAT == 43 ? 0x7B807B80u : 0x77807780u);  // 2^120, 2^112
  if (!special) return found;
  return special_half(v >> 8 & 255u, found & 0xFFFFu) | special_half(v >> 24, found >> 16) << 16;
}
#endif

// 16 codes of four rows in order, as they lie.
struct Codes {
#if NIBBLES
  uint2 rows[4];
#else
  uint4 rows[4];
#endif
};
__device__ __forceinline__ u32 word(uint4 four, int i) { return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w; }

// Which of a lane's 16 columns row g (upper) or g + 8 of product i is.
__device__ __forceinline__ int number(int i, int lower) {
  return NIBBLES ? i / 4 * 8 + i % 2 * 4 + lower * 2 + i / 2 % 2 : 2 * i + lower;
}

// What a turn needs.
struct Turn {
  Codes codes[STEPS];
#if KIND == 0
  uint4 x[STEPS][TILES];
#else
  uint2 x[STEPS][TILES];
#endif
#if OFTEN
  uint4 scale[SCALES];  // of E4M3 all 16, else of four columns: the lanes of a quad share
#if ZERO
  uint4 zero[SCALES];
#endif
#endif
};

// Four neighbouring elements of x in bf16: what their part number `wanted` takes of them.
#if KIND == 0
__device__ __forceinline__ uint2 part_of(uint4 x, int wanted) {
  float four[4] = {__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w)};
#else
__device__ __forceinline__ uint2 part_of(uint2 x, int wanted) {
#if KIND == 1
  return x;
#endif
  float four[4] = {widen((u16)x.x), widen((u16)(x.x >> 16)), widen((u16)x.y), widen((u16)(x.y >> 16))};
#endif
  uint2 r = make_uint2(0u, 0u);
#pragma unroll
  for (int p = 0; p < PARTS; p++) {
    const u32 low = take(four[0], four[1]), high = take(four[2], four[3]);
    if (p == wanted) r = make_uint2(low, high);
  }
  return r;
}

#if OFTEN && FORMAT == 21
// Two neighbouring E4M3; what is no number stays none.
struct Two {
  float low, high;
};
__device__ __forceinline__ Two scales_of(u32 codes) {
#if __CUDA_ARCH__ >= 890
  Two r;
  asm("{.reg .b32 both; .reg .b16 l, h; cvt.rn.f16x2.e4m3x2 both, %2; mov.b32 {l, h}, both;"
      " cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(r.low), "=f"(r.high)
      : "h"((u16)codes));
  return r;
#else
  float r[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const u32 code = codes >> 8 * i, size = code & 0x7Fu;
    const float found = __uint_as_float(size << 20) * __uint_as_float(0x7B800000u);  // 2^120
    r[i] = size == 0x7Fu ? __uint_as_float(0x7FC00000u) : code & 0x80u ? -found : found;
  }
  return {r[0], r[1]};
#endif
}
#endif

#define PITCH (8 * TILES + 1)

extern "C" __global__ void
#if CLUSTER > 1
    __cluster_dims__(CLUSTER, 1, 1)
#endif
        __launch_bounds__(WARPS * 32, BLOCKS)
            dequant_columns(const stored* __restrict__ x, const u8* __restrict__ codes,
#if BLOCK >= 0
                            const u8* __restrict__ scale,
#endif
#if ZERO
                            const u8* __restrict__ zero,
#endif
#if GLOBAL
                            const float* __restrict__ factor,
#endif
                            stored* __restrict__ y) {
  extern __shared__ __align__(16) float sums[];
  __shared__ __align__(16) float inbox[128 * COLUMNS];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int rank = blockIdx.x % CLUSTER, first = blockIdx.x / CLUSTER * 128;
  const int mine = first + 16 * g < N ? first + 16 * g : N - 16;  // N is a multiple of 16

  // What a lane of the quad read: element n % 4 of lane n / 4.
  auto shared_by_quad = [&](uint4 four, int n) {
    return __uint_as_float(__shfl_sync(0xffffffffu, word(four, n % 4), (lane & 28) + n / 4));
  };

  // A column of the product depends on one column of x alone, so that those beyond COLUMNS may hold anything: the last.
  auto column_of = [&](int j) { return j * 8 + g < COLUMNS ? j * 8 + g : COLUMNS - 1; };

  float sum[TILES][8][4] = {};
#if ZERO && !OFTEN
  float total[TILES][4] = {};  // of x, in each row the same
#endif
  Turn ahead;
  auto look_ahead = [&](int turn) {
    // Offsets from one pointer a turn, all known to the compiler; steps beyond the last read the first again.
    const int row0 = turn * STEPS * 16;
    const u8* own = codes + ((u64)(row0 + 4 * t) * N + mine) / PER_BYTE;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      const int further = WHOLE || row0 + s * 16 < K ? s * 16 : 0;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const u8* at = own + (u64)(further + i) * N / PER_BYTE;
#if NIBBLES
        ahead.codes[s].rows[i] = read8(at);
#else
        ahead.codes[s].rows[i] = read16(at);
#endif
      }
#pragma unroll
      for (int j = 0; j < TILES; j++) {
        const stored* at = x + (u64)(column_of(j) / PARTS) * K + row0 + 4 * t + further;
#if KIND == 0
        ahead.x[s][j] = read16(at);
#else
        ahead.x[s][j] = read8(at);
#endif
      }
    }
#if OFTEN
#pragma unroll
    for (int s = 0; s < SCALES; s++) {
      const int row = (turn * STEPS + s * ROWS_APART) * 16;
      const u64 at = (u64)((WHOLE || row < K ? row : 0) / BLOCK) * N + mine;
#if FORMAT == 21
      ahead.scale[s] = read16(scale + at);
#else
      ahead.scale[s] = read16(scale + 4 * (at + 4 * t));
#endif
#if ZERO
      ahead.zero[s] = read16(zero + 4 * (at + 4 * t));
#endif
    }
#endif
  };

  auto add = [&](const Turn& now, int turn, bool special) {
    auto inside = [&](int s, int r) { return WHOLE || (turn * STEPS + s * ROWS_APART + r) * 16 < K; };
#pragma unroll
    for (int s = 0; s < SCALES; s++) {
      uint2 b[ROWS_APART][TILES];
#if ZERO && OFTEN
      float total[TILES][4] = {};
#endif
#pragma unroll
      for (int r = 0; r < ROWS_APART; r++) {
        if (!inside(s, r)) continue;
#pragma unroll
        for (int j = 0; j < TILES; j++) {
          b[r][j] = part_of(now.x[s * ROWS_APART + r][j], column_of(j) % PARTS);
#if ZERO
          const u32 one = 0x3F803F80u;
          multiply(total[j], one, one, one, one, b[r][j]);
#endif
        }
      }
      if (!inside(s, 0)) continue;
#pragma unroll
      for (int i = 0; i < 8; i++) {
#if OFTEN
        float part[TILES][4] = {};
#endif
#pragma unroll
        for (int r = 0; r < ROWS_APART; r++) {
          if (!inside(s, r)) continue;
          const Codes& c = now.codes[s * ROWS_APART + r];
          u32 words[4];  // four columns of each row
#pragma unroll
          for (int row = 0; row < 4; row++) {
#if NIBBLES
            const u32 eight = i < 4 ? c.rows[row].x : c.rows[row].y;
            // Columns 0, 2, 4, 6 of the eight, or 1, 3, 5, 7.
            words[row] = (i / 2 % 2 ? eight >> 4 : eight) & 0x0F0F0F0Fu;
#else
            words[row] = word(c.rows[row], i / 2);
#endif
          }
          const u32 selector = i % 2 ? 0x7362 : 0x5140;
          const u32 low = permute(words[0], words[1], selector), high = permute(words[2], words[3], selector);
          const u32 a0 = pair(low, 0, special), a1 = pair(low, 1, special);
          const u32 a2 = pair(high, 0, special), a3 = pair(high, 1, special);
#pragma unroll
          for (int j = 0; j < TILES; j++) {
#if OFTEN
            multiply(part[j], a0, a1, a2, a3, b[r][j]);
#else
            multiply(sum[j][i], a0, a1, a2, a3, b[r][j]);
#endif
          }
        }
#if OFTEN
#pragma unroll
        for (int row = 0; row < 2; row++) {
          const int n = number(i, row);
#if FORMAT == 21
          const Two both = scales_of(word(now.scale[s], n / 4) >> (n % 4 / 2 * 16));
          const float factor = n % 2 ? both.high : both.low;
#else
          const float factor = shared_by_quad(now.scale[s], n);
#endif
#if ZERO
          const float less = shared_by_quad(now.zero[s], n);
#endif
#pragma unroll
          for (int j = 0; j < TILES; j++) {
#pragma unroll
            for (int column = 0; column < (COLUMNS > 1 ? 2 : 1); column++) {
              float value = part[j][2 * row + column];
#if ZERO
              value -= less * total[j][column];
#endif
              sum[j][i][2 * row + column] += factor * value;
            }
          }
        }
#endif
      }
    }
  };

  const int start = rank * WARPS + warp;
  if (start < TURNS) look_ahead(start);
  for (int turn = start; turn < TURNS; turn += CLUSTER * WARPS) {
    const Turn now = ahead;
    if (turn + CLUSTER * WARPS < TURNS) look_ahead(turn + CLUSTER * WARPS);
#if FORMAT > 40
    u32 found = 0;
#pragma unroll
    for (int i = 0; i < STEPS * 16; i++) found |= specials(word(now.codes[i / 16].rows[i / 4 % 4], i % 4));
    if (__any_sync(0xffffffffu, found & 0x80808080u)) {
      add(now, turn, true);
      continue;
    }
#endif
    add(now, turn, false);
  }

#if CLUSTER > 1
  meet();  // all blocks of the cluster are there
#endif
#define AT(w, n, column) sums[((w) * 128 + (n)) * PITCH + (column)]
#pragma unroll
  for (int i = 0; i < 8; i++) {
#pragma unroll
    for (int row = 0; row < 2; row++) {
      const int n = number(i, row);
#pragma unroll
      for (int j = 0; j < TILES; j++) {
#pragma unroll
        for (int column = 0; column < 2; column++) {
          float value = sum[j][i][2 * row + column];
#if ZERO && !OFTEN
          value -= ((const float*)zero)[mine + n] * total[j][column];
#endif
          AT(warp, 16 * g + n, j * 8 + 2 * t + column) = value;
        }
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 128 * COLUMNS; i += WARPS * 32) {
    const int n = i / COLUMNS, column = i % COLUMNS;
    float value = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) value += AT(w, n, column);
    float* to = inbox + rank * PER * COLUMNS + i % (PER * COLUMNS);
#if CLUSTER > 1
    send(to, n / PER, value);
#else
    *to = value;
#endif
  }
#if CLUSTER > 1
  meet();
#else
  __syncthreads();
#endif
  for (int i = threadIdx.x; i < PER * M; i += WARPS * 32) {
    const int n = i % PER, m = i / PER, at = first + rank * PER + n;
    if (at >= N) continue;
    float value = 0.0f;
#pragma unroll
    for (int p = PARTS - 1; p >= 0; p--) {  // the small parts first
#pragma unroll
      for (int block = 0; block < CLUSTER; block++) value += inbox[(block * PER + n) * COLUMNS + m * PARTS + p];
    }
#if BLOCK == 0
    value *= ((const float*)scale)[at];
#endif
#if GLOBAL
    value *= *factor;
#endif
    y[(u64)m * N + at] = narrow(value);
  }
}
