// y = x W with W in codes by columns, for a few rows of x, on the matrix units.
//
// Layout: x T[M, K]; codes of W [K, N] row by row, a byte or, low one first, a nibble each; scales and zeros
// [K / BLOCK, N]; y T[M, N].
// Work: a block takes 128 columns of W, a cluster of CLUSTER blocks the same ones; their warps take turns at 32 rows of
// W each, which arrive with their scales in shared memory of the warp STAGES - 1 turns ahead. Reading them transposed
// puts the codes of neighbouring rows side by side, the pairs of a product along K. The order along K is x's too.
// Wider x goes in as a sum of bf16 parts (PARTS: 1 for bf16, 2 for f16, 3 for f32), each a column of the product.
// Sums of the cluster meet in shared memory, each block finishing 128 / CLUSTER columns.
// Numerics: codes are exact in bf16; products and sums of a scale's rows in f32, then times the scale. Nibbles 0 to 15
// enter as 16 + q, less 16 times the sum of x; zeros meet that sum too. Result rounded once. A scale that is no number
// or infinite makes its columns so.
//
// Macros: M, PARTS, N, K, KIND (of x and y: 0 f32, 1 bf16, 2 f16), FORMAT (8 i8, 4 nibbles 0 to 15, 43 E4M3, 52 E5M2,
// 21 E2M1), BLOCK (rows of a scale, 16 or a multiple of 32; 0 one for all, -1 none), ZERO, GLOBAL (one more factor),
// WARPS, CLUSTER, STAGES, TILE (bytes of a turn), BLOCKS (on a multiprocessor).

#include "cluster.cuh"
#include "copies.cuh"
#include "pairs.cuh"
#include "reads.cuh"
#include "stored.cuh"

#define COLUMNS (M * PARTS)
#define TILES ((COLUMNS + 7) / 8)
#define WIDE (COLUMNS > 1 ? 2 : 1)  // columns of a lane's that are needed
#define NIBBLES (FORMAT == 4 || FORMAT == 21)
#define PER_BYTE (NIBBLES ? 2 : 1)
#define WHOLE (K % 32 == 0)  // no turn ends beyond K
#define TURNS ((K + 31) / 32)
#define OFTEN (BLOCK > 0)  // scales inside the sum along K
#define TOTALS (ZERO || FORMAT == 4)  // sums of x are needed
#define STEPS (BLOCK == 16 ? 1 : 2)  // of 16 rows, with one scale
#define PER (128 / CLUSTER)

#define ROW_BYTES (128 / PER_BYTE)
#define CHUNKS (ROW_BYTES / 16)
#define PIECE (NIBBLES && N % 32 ? 8 : 16)
#define PIECES (ROW_BYTES / PIECE)  // of a row
#define SIDE (2 * PER_BYTE)  // columns that are read as one: nibbles or bytes of 16 bits
#define SCALE_BYTES (FORMAT == 21 ? 128 : 512)  // of 128 columns

__device__ __forceinline__ u32 times(u32 a, u32 b) {  // two bf16; numbers below the normal ones are kept
  u32 r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
  return r;
}

// Code i of the 16 bits of a row in the lower half, and of the next row in the upper, to two bf16, with what joins it.
#if FORMAT == 8
__device__ __forceinline__ u32 pair(u32 rows, int i, u32 joined, bool) {
  // 0x43 in front of seven bits makes 128 + their number; the eighth doubles it.
  const u32 v = permute(rows, joined, i ? 0x4341 : 0x4240);
  return minus(v & 0xFF7FFF7Fu, v & 0xFF80FF80u);
}
#elif FORMAT == 4
__device__ __forceinline__ u32 pair(u32 rows, int i, u32 joined, bool) {
  return (moved(rows, 3 - 4 * i) & 0x00780078u) | joined;  // 16 + q: the number's lowest bit is worth 1 there
}
#elif FORMAT == 21
__device__ __forceinline__ u32 pair(u32 rows, int i, u32, bool) {  // sign, two bits of exponent, one of mantissa
  const u32 size = moved(rows, 6 - 4 * i) & 0x01C001C0u;
  return times((moved(rows, 12 - 4 * i) & 0x80008000u) | size, 0x7E807E80u);  // 2^126
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
__device__ __forceinline__ u32 pair(u32 rows, int i, u32, bool special) {
  const u32 v = moved(rows, 8 - 8 * i);  // the codes in the upper bytes
  const u32 size = v >> (1 + FRACTION) & 0x7F007F00u >> (1 + FRACTION);
  const u32 found = times((v & 0x80008000u) | size, FORMAT == 43 ? 0x7B807B80u : 0x77807780u);  // 2^120, 2^112
  if (!special) return found;
  return special_half(v >> 8 & 255u, found & 0xFFFFu) | special_half(v >> 24, found >> 16) << 16;
}
#endif

// Four neighbouring elements of x.
#if KIND == 0
typedef uint4 entering;
__device__ __forceinline__ entering read_x(const stored* from) { return read16(from); }
#else
typedef uint2 entering;
__device__ __forceinline__ entering read_x(const stored* from) { return read8(from); }
#endif
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

#define PITCH (COLUMNS | 1)

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
  extern __shared__ __align__(16) u8 shared[];
  __shared__ __align__(16) float inbox[128 * COLUMNS];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int rank = blockIdx.x % CLUSTER, first = blockIdx.x / CLUSTER * 128;
  u8* own = shared + warp * STAGES * TILE;
#if CLUSTER > 1
  arrive();
#endif

  // Where a byte of a row lies: the 16 bytes that are read together of 8 rows are in banks of their own.
  auto turned = [](int row) { return (NIBBLES ? row >> 2 & 3 : (row & 1) | (row >> 2 & 3) << 1) << 4; };
  auto place = [&](int row, int at) { return row * ROW_BYTES + (at ^ turned(row)); };

  // Columns beyond N and rows beyond K are those before them again: nothing reads what they make.
  const int column = first + lane % PIECES * PIECE * PER_BYTE;
  const u8* codes_of_lane =
      codes + (u64)(lane / PIECES) * N / PER_BYTE + (column < N ? column : N - PIECE * PER_BYTE) / PER_BYTE;
  const int copied = place(lane / PIECES, lane % PIECES * PIECE);
#if OFTEN
  const int scaled = first + lane % (SCALE_BYTES / 16) * (FORMAT == 21 ? 16 : 4);
  const int scale_of_lane = scaled < N ? scaled : N - (FORMAT == 21 ? 16 : 4);
#endif
  const int start = rank * WARPS + warp;
  const u8* next = codes_of_lane + (u64)(start * 32) * N / PER_BYTE;
  auto load = [&](int turn, int stage) {
    if (turn < TURNS) {
      u8* to = own + stage * TILE;
#pragma unroll
      for (int k = 0; k < PIECES; k++) {
        constexpr int apart = 32 / PIECES;  // rows, a multiple of 4
#if WHOLE
        const u8* from = next + (u64)(k * apart) * N / PER_BYTE;
#else
        const int row = turn * 32 + k * apart;
        const u8* from = codes_of_lane + (u64)(row < K ? row : 0) * N / PER_BYTE;
#endif
        copy<PIECE>(to + (copied ^ turned(k * apart)) + k * apart * ROW_BYTES, from);
      }
#if OFTEN
      to += 32 * ROW_BYTES;
#pragma unroll
      for (int r = 0; r < 2 / STEPS; r++) {
        const int row = turn * 32 + r * 16;
        const u64 at = (u64)((WHOLE || row < K ? row : K - 1) / BLOCK) * N + scale_of_lane;
#if FORMAT == 21
        if (lane / 8 == r) copy<16>(to + lane * 16, scale + at);
#else
        copy<16>(to + r * 512 + lane * 16, scale + 4 * at);
#if ZERO
        copy<16>(to + (2 / STEPS + r) * 512 + lane * 16, zero + 4 * at);
#endif
#endif
      }
#endif
    }
    next += (u64)(CLUSTER * WARPS * 32) * N / PER_BYTE;
    asm volatile("cp.async.commit_group;" ::: "memory");
  };

  // A column of the product depends on one column of x alone, so that those beyond COLUMNS may hold anything: the last.
  auto column_of = [&](int j) { return j * 8 + g < COLUMNS ? j * 8 + g : COLUMNS - 1; };
  entering ahead[2][TILES];  // x of a turn
  auto look_ahead = [&](int turn) {
#pragma unroll
    for (int s = 0; s < 2; s++) {
      const int row = turn * 32 + s * 16, known = turn < TURNS && (WHOLE || row < K) ? row : 0;
#pragma unroll
      for (int j = 0; j < TILES; j++) ahead[s][j] = read_x(x + (u64)(column_of(j) / PARTS) * K + known + 4 * t);
    }
  };

  float sum[TILES][8][4] = {};
#if TOTALS && !OFTEN
  float total[TILES][4] = {};  // of x, in each row the same
#endif
  const u32 joined = unknown(FORMAT == 4 ? 0x41804180 : 0x43434343);

#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) load(start + i * CLUSTER * WARPS, i);
  look_ahead(start);
  // Where the lane points: rows 4t and 4t + 1 of all lanes t, or the other two, in the order of the matrix units.
  const int pointed = place(lane % 8 / 2 * 4 + lane % 2 + lane / 8 % 2 * 2, lane / 16 * 16);
  int stage = 0;
  for (int turn = start; turn < TURNS; turn += CLUSTER * WARPS) {
    load(turn + (STAGES - 1) * CLUSTER * WARPS, stage == 0 ? STAGES - 1 : stage - 1);
    uint2 b[2][TILES];
#pragma unroll
    for (int s = 0; s < 2; s++) {
#pragma unroll
      for (int j = 0; j < TILES; j++) b[s][j] = part_of(ahead[s][j], column_of(j) % PARTS);
    }
    look_ahead(turn + CLUSTER * WARPS);
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
    __syncwarp();
    const u8* tile = own + stage * TILE;
#pragma unroll
    for (int s0 = 0; s0 < 2; s0 += STEPS) {
      auto inside = [&](int s) { return WHOLE || turn * 32 + (s0 + s) * 16 < K; };
      if (!inside(0)) continue;
#if OFTEN
      const u8* scales = tile + 32 * ROW_BYTES + s0 * SCALE_BYTES;
      float total[TILES][4] = {};
#endif
#if TOTALS
#pragma unroll
      for (int s = 0; s < STEPS; s++) {
        const u32 ones = OFTEN && FORMAT == 4 ? 0xC180C180u : 0x3F803F80u;  // -16, 1
#pragma unroll
        for (int j = 0; j < TILES; j++) {
          if (inside(s)) multiply(total[j], ones, ones, ones, ones, b[s0 + s][j]);
        }
      }
#endif
#pragma unroll
      for (int q = 0; q < CHUNKS / 2; q++) {
        u32 rows[STEPS][4];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
          read_transposed(rows[s], tile + (pointed ^ q << 5) + (s0 + s) * 16 * ROW_BYTES);
        }
        auto add = [&](bool special) {
#pragma unroll
          for (int i = 0; i < SIDE; i++) {
            const int product = q * SIDE + i;
#if OFTEN
            float part[TILES][4];
#pragma unroll
            for (int j = 0; j < TILES; j++) {
#pragma unroll
              for (int e = 0; e < 4; e++) part[j][e] = FORMAT == 4 ? total[j][e] : 0.0f;
            }
#endif
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
              if (!inside(s)) continue;
              const u32 a0 = pair(rows[s][0], i, joined, special), a1 = pair(rows[s][2], i, joined, special);
              const u32 a2 = pair(rows[s][1], i, joined, special), a3 = pair(rows[s][3], i, joined, special);
#pragma unroll
              for (int j = 0; j < TILES; j++) {
#if OFTEN
                multiply(part[j], a0, a1, a2, a3, b[s0 + s][j]);
#else
                multiply(sum[j][product], a0, a1, a2, a3, b[s0 + s][j]);
#endif
              }
            }
#if OFTEN
#pragma unroll
            for (int row = 0; row < 2; row++) {
              const int n = ((2 * q + row) * 8 + g) * SIDE + i;
#if FORMAT == 21
              const Two both = scales_of(*(const u32*)(scales + n - i) >> i / 2 * 16);
              const float times_of = i % 2 ? both.high : both.low;
#else
              const float times_of = ((const float*)scales)[n];
#endif
#if ZERO
              const float less = ((const float*)(scales + 512 * (2 / STEPS)))[n];
#endif
#pragma unroll
              for (int j = 0; j < TILES; j++) {
#pragma unroll
                for (int e = 0; e < WIDE; e++) {
                  float value = part[j][2 * row + e];
#if ZERO
                  value -= less * (FORMAT == 4 ? -0.0625f * total[j][e] : total[j][e]);
#endif
                  sum[j][product][2 * row + e] += times_of * value;
                }
              }
            }
#endif
          }
        };
#if FORMAT > 40
        u32 found = 0;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
#pragma unroll
          for (int i = 0; i < 4; i++) found |= specials(rows[s][i]);
        }
        if (__any_sync(0xffffffffu, found & 0x80808080u)) {
          add(true);
          continue;
        }
#endif
        add(false);
      }
    }
    __syncwarp();
    stage = stage == STAGES - 1 ? 0 : stage + 1;
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();

  // Sums of the warps, over the staged bytes that are done with.
  float* sums = (float*)shared;
#define AT(w, n, column) sums[((w) * 128 + (n)) * PITCH + (column)]
#pragma unroll
  for (int product = 0; product < 8; product++) {
#pragma unroll
    for (int row = 0; row < 2; row++) {
      const int n = ((product / SIDE * 2 + row) * 8 + g) * SIDE + product % SIDE;
#pragma unroll
      for (int j = 0; j < TILES; j++) {
#pragma unroll
        for (int e = 0; e < WIDE; e++) {
          const int at = j * 8 + 2 * t + e;
          float value = sum[j][product][2 * row + e];
#if TOTALS && !OFTEN
          float less = FORMAT == 4 ? 16.0f : 0.0f;
#if ZERO
          if (first + n < N) less += ((const float*)zero)[first + n];
#endif
          value -= less * total[j][e];
#endif
          if (at < COLUMNS) AT(warp, n, at) = value;
        }
      }
    }
  }
  __syncthreads();
#if CLUSTER > 1
  await();  // all blocks of the cluster are there
#endif
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
