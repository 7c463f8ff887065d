// y = x W^T with W in packed blocks, for a few rows of x, on the matrix units.
//
// Layout: parts bf16[COLUMNS, K], the rows of x, each as PARTS neighbouring rows that add up to it (1 for bf16, 2 for
// f16, 3 for f32), or with SPLIT x T[M, K] itself; packed u8[N, K / 256 * BYTES], rows of blocks in order (the public
// ggml formats); y T[M, N].
// Work: a block takes ROWS rows of W, 16 or 32 (which share x, where it has many rows); its WARPS warps take turns at
// 256 weights of each along K, which arrive in shared memory STAGES - 1 turns ahead. A lane decodes the weights of two
// rows of sixteen that its part of the product needs, t = lane % 4: of 32 weights those with numbers 8t to 8t + 7 where
// NEIGHBOURS, of four of which the first and third make a pair, and the second and fourth; else 4t to 4t + 3 of each
// half, in pairs as they stand. The order along K is x's too.
// With SPLIT a warp makes the parts of 256 elements of x when it comes to them, in shared memory of its own: a block
// splits each element once, and nothing waits but the warp.
// Numerics: weights are small integers, exact in bf16; products and sums of 16 in f32, times the scale in f32; minima
// meet sums of x in f32. Q4_K and Q5_K enter as 16 + q and 32 + q, and what that adds goes with the minima. Result
// rounded once.
//
// Macros: M, PARTS, N, K, FORMAT (as below), KIND (of x and y: 0 f32, 1 bf16, 2 f16), ROWS, WARPS, STAGES, SPLIT,
// BLOCKS (least on a multiprocessor at once).

#include "copies.cuh"
#include "pairs.cuh"
#include "reads.cuh"
#include "stored.cuh"

#define COLUMNS (M * PARTS)
#define BANDS (ROWS / 16)
#define TILES ((COLUMNS + 7) / 8)
#define WIDE (COLUMNS > 1 ? 2 : 1)  // columns of a lane's that are needed

__device__ __forceinline__ float half_at(const u8* p) {  // p is even
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(*(const u16*)p));
  return r;
}
__device__ __forceinline__ u32 word_at(const u8* p) {  // p is even
  return (u32) * (const u16*)p | (u32) * (const u16*)(p + 2) << 16;
}
// Bytes 0, 1 (or 2, 3) of a word of numbers below 128 as two bf16, less `offset`: 0x43 in front makes 128 + byte.
__device__ __forceinline__ u32 pair(u32 bytes, int upper, u32 offset, u32 joined) {
  return minus(permute(bytes, joined, upper ? 0x4342 : 0x4140), offset);
}
#define OFFSET(n) (((0x4300u + (n)) << 16) | (0x4300u + (n)))  // 128 + n, twice

// Four neighbouring weights and four others, for one row.
struct Weights {
  u32 first[2], second[2];
};
__device__ __forceinline__ Weights weights(u32 low, u32 high, u32 offset, u32 joined) {
  return {{pair(low, 0, offset, joined), pair(low, 1, offset, joined)},
          {pair(high, 0, offset, joined), pair(high, 1, offset, joined)}};
}

// Each format: bytes of 256 weights; `decode` the weights of group `group` (of 8) of a row's 256 at `p`; `scales` the
// factors of both halves and, where MINIMUM, what is added for each x.
#if FORMAT == 80  // Q8_0: f16 d, 32 i8
#define BYTES 272
#define MINIMUM 0
__device__ __forceinline__ u32 signed_pair(u32 bytes, int upper, u32 joined) {
  const u32 v = permute(bytes, joined, upper ? 0x4342 : 0x4140);
  return minus(v & 0xFF7FFF7Fu, v & 0xFF80FF80u);
}
__device__ __forceinline__ Weights decode(const u8* p, int group, int t, u32 joined) {
  const u32 low = word_at(p + group * 34 + 2 + 4 * t), high = word_at(p + group * 34 + 18 + 4 * t);
  return {{signed_pair(low, 0, joined), signed_pair(low, 1, joined)},
          {signed_pair(high, 0, joined), signed_pair(high, 1, joined)}};
}
__device__ __forceinline__ void scales(const u8* p, int group, float (&s)[2], float& low) {
  s[0] = s[1] = half_at(p + group * 34);
}
#elif FORMAT == 40 || FORMAT == 41  // Q4_0: f16 d, 16 bytes; Q4_1: f16 d, f16 m, 16 bytes
#define SIZE (FORMAT == 40 ? 18 : 20)
#define BYTES (8 * SIZE)
#define MINIMUM (FORMAT == 41)
__device__ __forceinline__ Weights decode(const u8* p, int group, int t, u32 joined) {
  const u32 q = word_at(p + group * SIZE + SIZE - 16 + 4 * t);
  return weights(q & 0x0F0F0F0Fu, (q >> 4) & 0x0F0F0F0Fu, OFFSET(FORMAT == 40 ? 8 : 0), joined);
}
__device__ __forceinline__ void scales(const u8* p, int group, float (&s)[2], float& low) {
  s[0] = s[1] = half_at(p + group * SIZE);
  if (MINIMUM) low = half_at(p + group * SIZE + 2);
}
#elif FORMAT == 50 || FORMAT == 51  // Q5_0: f16 d, u32 high bits, 16 bytes; Q5_1: f16 d, f16 m, then the same
#define HEAD (FORMAT == 50 ? 2 : 4)
#define SIZE (HEAD + 20)
#define BYTES (8 * SIZE)
#define MINIMUM (FORMAT == 51)
// Bits 0 to 3 to bit 4 of bytes 0 to 3.
__device__ __forceinline__ u32 spread(u32 bits) {
  return ((bits & 1u) | (bits & 2u) << 7 | (bits & 4u) << 14 | (bits & 8u) << 21) << 4;
}
__device__ __forceinline__ Weights decode(const u8* p, int group, int t, u32 joined) {
  const u8* at = p + group * SIZE + HEAD;
  const u32 high = word_at(at), q = word_at(at + 4 + 4 * t);
  return weights((q & 0x0F0F0F0Fu) | spread(high >> (4 * t)),
                 ((q >> 4) & 0x0F0F0F0Fu) | spread(high >> (16 + 4 * t)),
                 OFFSET(FORMAT == 50 ? 16 : 0), joined);
}
__device__ __forceinline__ void scales(const u8* p, int group, float (&s)[2], float& low) {
  s[0] = s[1] = half_at(p + group * SIZE);
  if (MINIMUM) low = half_at(p + group * SIZE + 2);
}
// Q4_K, Q5_K: f16 d, f16 dmin, 12 bytes of 6-bit scales and minima, [32 high bits], 128 nibbles
#elif FORMAT == 4 || FORMAT == 5
#define HIGH (FORMAT == 5 ? 32 : 0)
#define BYTES (144 + HIGH)
#define MINIMUM 1
#define NEIGHBOURS 1
#define LOWEST (FORMAT == 5 ? 2 : 3)  // bit of a bf16 that is worth 1 in 16 + q, 32 + q
#define ADDED (FORMAT == 5 ? 32.0f : 16.0f)
__device__ __forceinline__ u32 shifted_pair(u32 codes, u32 high, int group, int odd, u32 joined) {
  u32 r = (moved(codes, LOWEST - group % 2 * 4 - odd * 8) & 0x000F000Fu << LOWEST) | joined;
  if (FORMAT == 5) r |= moved(high, 6 - group - odd * 8) & 0x00400040u;
  return r;
}
__device__ __forceinline__ Weights decode(const u8* p, int group, int t, u32 joined) {
  const uint2 codes = *(const uint2*)(p + 16 + HIGH + group / 2 * 32 + 8 * t);
  uint2 high = make_uint2(0u, 0u);
  if (FORMAT == 5) high = *(const uint2*)(p + 16 + 8 * t);
  return {{shifted_pair(codes.x, high.x, group, 0, joined), shifted_pair(codes.x, high.x, group, 1, joined)},
          {shifted_pair(codes.y, high.y, group, 0, joined), shifted_pair(codes.y, high.y, group, 1, joined)}};
}
// Scales and minima, less what the weights have too much, of groups 2t and 2t + 1.
__device__ __forceinline__ void two_scales(const u8* p, int t, float (&s)[2][1], float (&low)[2]) {
  const uint4 head = *(const uint4*)p;
  u32 six = head.y & 0x3F3F3F3Fu, least = head.z & 0x3F3F3F3Fu;
  if (t > 1) {
    six = (head.w & 0x0F0F0F0Fu) | (head.y >> 2 & 0x30303030u);
    least = (head.w >> 4 & 0x0F0F0F0Fu) | (head.z >> 2 & 0x30303030u);
  }
  const float d = half_at(p), d_least = half_at(p + 2);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const u32 selector = 0x7440u + 2 * (t & 1) + i;  // 0x4B000000 + a byte: 2^23 + its number
    s[i][0] = d * (__uint_as_float(permute(six, 0x4B000000u, selector)) - 8388608.0f);
    low[i] = -d_least * (__uint_as_float(permute(least, 0x4B000000u, selector)) - 8388608.0f) - ADDED * s[i][0];
  }
}
#elif FORMAT == 6  // Q6_K: 128 low nibbles, 64 high pairs, 16 signed scales, f16 d
#define BYTES 210
#define MINIMUM 0
#define HALVES 2
__device__ __forceinline__ Weights decode(const u8* p, int group, int t, u32 joined) {
  const int part = group / 4, quarter = group % 4;  // 32 weights: part * 128 + quarter * 32
  const u8* low = p + part * 64 + quarter % 2 * 32 + 4 * t;
  const u8* high = p + 128 + part * 32 + 4 * t;
  u32 codes[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    codes[i] = (moved(word_at(low + 16 * i), quarter / 2 * -4) & 0x0F0F0F0Fu) |
               (moved(word_at(high + 16 * i), 4 - 2 * quarter) & 0x30303030u);
  }
  return weights(codes[0], codes[1], OFFSET(32), joined);
}
// Scales of both halves of groups 2t and 2t + 1.
__device__ __forceinline__ void two_scales(const u8* p, int t, float (&s)[2][2], float (&)[2]) {
  const float d = half_at(p + 208);
  const u32 four = word_at(p + 192 + 4 * t) ^ 0x80808080u;
#pragma unroll
  for (int i = 0; i < 4; i++) {  // 0x4B000000 + a byte: 2^23 + its number
    s[i / 2][i % 2] = d * (__uint_as_float(permute(four, 0x4B000000u, 0x7440u + i)) - 8388736.0f);
  }
}
#endif

#ifndef NEIGHBOURS
#define NEIGHBOURS 0
#endif
#ifndef HALVES
#define HALVES 1  // of 32 weights that have scales of their own
#endif
#define SHARED_SCALES (FORMAT < 10)
// Minima meet sums of x that a warp makes as it splits x, or those of the matrix units.
#define OWN_SUMS (SHARED_SCALES && MINIMUM && SPLIT && M <= 2)

// Sixteen bytes at a time; where a row's 256 weights start between two sixteens, from the first.
#define UNITS (K / 256)
#define BETWEEN (BYTES % 16)
#define PIECES ((BYTES + (BETWEEN ? 14 : 0) + 15) / 16)
#define PITCH ((PIECES * 16 + 31) / 32 * 32 + 16)  // rows start 4 banks apart
#define ROW_BYTES ((u64)(K / 256) * BYTES)

#if SPLIT
typedef stored entering;
#define PARTS_PITCH 544  // bytes of 256 parts, and of 8 sums: rows start 8 banks apart

struct Entering {
  float left[M][2][4];  // four neighbouring elements of x, and of the other half
};
__device__ __forceinline__ void read4(const stored* from, float (&to)[4]) {
#if KIND == 0
  const float4 four = *(const float4*)from;
  to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
#else
  const uint2 four = *(const uint2*)from;
  to[0] = widen((u16)four.x), to[1] = widen((u16)(four.x >> 16));
  to[2] = widen((u16)four.y), to[3] = widen((u16)(four.y >> 16));
#endif
}
#else
typedef u16 entering;
struct Entering {
  uint2 b[8][TILES][2];
};
__device__ __forceinline__ uint2 in_pairs(uint2 four) {
#if NEIGHBOURS
  return make_uint2(permute(four.x, four.y, 0x5410), permute(four.x, four.y, 0x7632));
#else
  return four;
#endif
}
#endif

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    dequant_matmul(const entering* __restrict__ x, const u8* __restrict__ packed,
                   stored* __restrict__ y) {
  extern __shared__ __align__(16) u8 shared[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int row0 = blockIdx.x * ROWS;
  u8* own = shared + warp * STAGES * ROWS * PITCH;

  const u32 joined = unknown(FORMAT == 4 ? 0x41804180 : FORMAT == 5 ? 0x42004200 : 0x43434343);
  float sum[BANDS][TILES][4] = {};
#if OWN_SUMS
  float added[BANDS][M][2] = {};  // scales of this lane's groups times sums of x
#endif
#if SPLIT
  u8* parts = shared + WARPS * STAGES * ROWS * PITCH + warp * COLUMNS * PARTS_PITCH;
#endif
  // A column of the product depends on one column of x alone, so that those beyond COLUMNS may hold anything: the last.
  auto column_of = [&](int j) { return j * 8 + g < COLUMNS ? j * 8 + g : COLUMNS - 1; };

  // What a turn needs of x, read a turn ahead: 256 elements, number `chunk` of K.
  Entering ahead;
  auto look_ahead = [&](int chunk) {
    const int at = chunk < K / 256 ? chunk * 256 : 0;
#if SPLIT
#pragma unroll
    for (int m = 0; m < M; m++) {
      read4(x + (u64)m * K + at + 4 * lane, ahead.left[m][0]);
      read4(x + (u64)m * K + at + 4 * lane + 128, ahead.left[m][1]);
    }
#else
#pragma unroll
    for (int j = 0; j < TILES; j++) {
      const u16* from = x + (u64)column_of(j) * K + at + (NEIGHBOURS ? 8 : 4) * t;
#pragma unroll
      for (int group = 0; group < 8; group++) {
        ahead.b[group][j][0] = read8(from + group * 32);
        ahead.b[group][j][1] = read8(from + group * 32 + (NEIGHBOURS ? 4 : 16));
      }
    }
#endif
  };

  auto row_of = [&](int r) { return N % ROWS == 0 || row0 + r < N ? row0 + r : N - 1; };
  auto between = [](int row, int unit) { return (row * (int)(ROW_BYTES % 16) + unit * BETWEEN) % 16; };
  auto load = [&](int unit, int stage) {
    if (unit < UNITS) {
      auto piece = [&](int r, int at) {
        const int row = row_of(r);
        u8* to = own + (stage * ROWS + r) * PITCH + at * 16;
        const u8* from = packed + row * ROW_BYTES + (u64)unit * BYTES + at * 16;
#if BETWEEN
        const int before = between(row, unit);
        copy_first(to, from - before, at < PIECES - 1 ? 16 : BETWEEN + before);
#else
        copy<16>(to, from);
#endif
      };
      // Whole rows, or eight pieces of each, whose places are constants apart, and the rest.
      if (PIECES > 16) {
        for (int i = lane; i < ROWS * PIECES; i += 32) piece(i / PIECES, i % PIECES);
      } else if (PIECES > 12) {
#pragma unroll
        for (int r = 0; r < ROWS; r += 2) {
          if (lane < 2 * PIECES) piece(r + lane / PIECES, lane % PIECES);
        }
      } else {
#pragma unroll
        for (int r = 0; r < ROWS; r += 4) piece(r + lane / 8, lane % 8);
#pragma unroll
        for (int r = 0; r < ROWS; r += 16) {
#pragma unroll
          for (int at = 8; at < PIECES; at += 2) {
            if (at + lane / 16 < PIECES) piece(r + lane % 16, at + lane / 16);
          }
        }
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };

#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) load(warp + i * WARPS, i);
  look_ahead(warp);
  int stage = 0;
  for (int unit = warp; unit < UNITS; unit += WARPS) {
    load(unit + (STAGES - 1) * WARPS, stage == 0 ? STAGES - 1 : stage - 1);
    Entering now = ahead;
    look_ahead(unit + WARPS);
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
    __syncwarp();
#if SPLIT
#pragma unroll
    for (int m = 0; m < M; m++) {
#if OWN_SUMS
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float(&four)[4] = now.left[m][half];
        float total = (four[0] + four[1]) + (four[2] + four[3]);
#pragma unroll
        for (int bit = 1; bit < 8; bit *= 2) total += __shfl_xor_sync(0xffffffffu, total, bit);
        if (lane % 8 == 0) ((float*)(parts + m * PARTS * PARTS_PITCH + 512))[half * 4 + lane / 8] = total;
      }
#endif
#pragma unroll
      for (int p = 0; p < PARTS; p++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          float(&four)[4] = now.left[m][half];
          uint2 pairs;
          pairs.x = take(four[0], four[1 + NEIGHBOURS]);
          pairs.y = take(four[2 - NEIGHBOURS], four[3]);
          *(uint2*)(parts + (m * PARTS + p) * PARTS_PITCH + half * 256 + 8 * lane) = pairs;
        }
      }
    }
    __syncwarp();
#endif
    auto row_at = [&](int r) { return own + (stage * ROWS + r) * PITCH + (BETWEEN ? between(row_of(r), unit) : 0); };
    const u8* rows[BANDS][2];  // g and g + 8 of each sixteen
#pragma unroll
    for (int band = 0; band < BANDS; band++) {
#pragma unroll
      for (int r = 0; r < 2; r++) rows[band][r] = row_at(band * 16 + r * 8 + g);
    }
#if SHARED_SCALES
    // The four lanes of a row have need of the same eight pairs: each makes two.
    float mine[BANDS][2][2][HALVES], least[BANDS][2][2];
#pragma unroll
    for (int band = 0; band < BANDS; band++) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        two_scales(rows[band][r], t, mine[band][r], least[band][r]);
#if OWN_SUMS
#pragma unroll
        for (int m = 0; m < M; m++) {
          const float* totals = (const float*)(parts + m * PARTS * PARTS_PITCH + 512) + 2 * t;
          added[band][m][r] += least[band][r][0] * totals[0] + least[band][r][1] * totals[1];
        }
#endif
      }
    }
#endif
#pragma unroll
    for (int group = 0; group < 8; group++) {
      Weights w[BANDS][2];
      float scale[BANDS][2][2], low[BANDS][2];
#pragma unroll
      for (int band = 0; band < BANDS; band++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
          w[band][r] = decode(rows[band][r], group, t, joined);
#if SHARED_SCALES
          const int from = (lane & 28) + group / 2;
#pragma unroll
          for (int half = 0; half < 2; half++) {
            const float known = mine[band][r][group & 1][half % HALVES];
            scale[band][r][half] = half < HALVES ? __shfl_sync(0xffffffffu, known, from) : scale[band][r][0];
          }
#if MINIMUM && !OWN_SUMS
          low[band][r] = __shfl_sync(0xffffffffu, least[band][r][group & 1], from);
#endif
#else
          scales(rows[band][r], group, scale[band][r], low[band][r]);
#endif
        }
      }
#pragma unroll
      for (int j = 0; j < TILES; j++) {
#if SPLIT
        const u8* at = parts + column_of(j) * PARTS_PITCH + group * 64;
#if NEIGHBOURS
        const uint4 eight = *(const uint4*)(at + 16 * t);
        const uint2 b0 = make_uint2(eight.x, eight.y), b1 = make_uint2(eight.z, eight.w);
#else
        const uint2 b0 = *(const uint2*)(at + 8 * t), b1 = *(const uint2*)(at + 32 + 8 * t);
#endif
#else
        const uint2 b0 = in_pairs(now.b[group][j][0]), b1 = in_pairs(now.b[group][j][1]);
#endif
        float total[4] = {};  // of x
        if (MINIMUM && !OWN_SUMS) {
          const u32 one = 0x3F803F80u;
          multiply(total, one, one, one, one, b0);
          multiply(total, one, one, one, one, b1);
        }
#pragma unroll
        for (int band = 0; band < BANDS; band++) {
          const Weights &u = w[band][0], &l = w[band][1];
          float d[4] = {}, e[4] = {};  // of both halves
          multiply(d, u.first[0], l.first[0], u.first[1], l.first[1], b0);
          multiply(HALVES == 2 ? e : d, u.second[0], l.second[0], u.second[1], l.second[1], b1);
#pragma unroll
          for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int i = 0; i < WIDE; i++) {
              float& to = sum[band][j][2 * r + i];
              to += scale[band][r][0] * d[2 * r + i];
              if (HALVES == 2) to += scale[band][r][1] * e[2 * r + i];
              if (MINIMUM && !OWN_SUMS) to += low[band][r] * total[2 * r + i];
            }
          }
        }
      }
    }
    __syncwarp();
    stage = stage == STAGES - 1 ? 0 : stage + 1;
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();

#if OWN_SUMS
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int r = 0; r < 2 * BANDS; r++) {
      float total = added[r / 2][m][r % 2];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      if (t == m * PARTS % 8 / 2) sum[r / 2][m * PARTS / 8][r % 2 * 2 + m * PARTS % 2] += total;
    }
  }
#endif

  // Sums of the warps, over the staged bytes that are done with.
  float* sums = (float*)shared;
#define AT(w, r, column) sums[((w) * ROWS + (r)) * (8 * TILES + 1) + (column)]
#pragma unroll
  for (int band = 0; band < BANDS; band++) {
#pragma unroll
    for (int j = 0; j < TILES; j++) {
#pragma unroll
      for (int i = 0; i < 4; i++) AT(warp, band * 16 + i / 2 * 8 + g, j * 8 + 2 * t + i % 2) = sum[band][j][i];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < ROWS * M; i += WARPS * 32) {
    const int r = i % ROWS, m = i / ROWS;
    float total = 0.0f;
#pragma unroll
    for (int p = PARTS - 1; p >= 0; p--) {  // the small parts first
#pragma unroll
      for (int w = 0; w < WARPS; w++) total += AT(w, r, m * PARTS + p);
    }
    if (row0 + r < N) y[(u64)m * N + row0 + r] = narrow(total);
  }
}
