// y = x W^T with W in packed blocks, for a few rows of x.
//
// Layout: x T[M, K]; packed u8[N, K / BLOCK * BYTES], each row blocks in order (the public ggml formats); y T[M, N].
// Work: the SLICES warps of a block split K into slices of 1024 weights, 32 on each lane, so the values of x that a lane
// needs stay in its registers while the block walks over rows of W. A slice of ROWS rows at a time arrives in shared
// memory STAGES - 1 turns ahead, in 16- or 8-byte pieces; a lane decodes its 32 weights from there. Sums over lanes
// by exchanges, over warps in shared memory. Where K is no multiple of 1024 the last lanes meet x = 0 and read nothing.
// Numerics: weights decoded exactly, products and sums in f32, result rounded once.
//
// Macros: M (rows of x at once), ALL (rows of x), N, K, FORMAT (as below), KIND (0 f32, 1 bf16, 2 f16), SLICES, ROWS,
// STAGES.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#if KIND == 0
typedef float stored;
__device__ __forceinline__ float widen(stored v) { return v; }
__device__ __forceinline__ stored narrow(float v) { return v; }
#elif KIND == 1
typedef u16 stored;
__device__ __forceinline__ float widen(stored v) { return __uint_as_float((u32)v << 16); }
__device__ __forceinline__ stored narrow(float v) {
  u16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(v));
  return r;
}
#else
typedef u16 stored;
__device__ __forceinline__ float widen(stored v) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v));
  return r;
}
__device__ __forceinline__ stored narrow(float v) {
  u16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(v));
  return r;
}
#endif

__device__ __forceinline__ float half_at(const u8* p) {  // p is even
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(*(const u16*)p));
  return r;
}
__device__ __forceinline__ u32 word_at(const u8* p) {  // p is even
  return (u32) * (const u16*)p | (u32) * (const u16*)(p + 2) << 16;
}
// Byte i of a word as a float: the bits of 2^23 + byte, less 2^23.
__device__ __forceinline__ float byte_of(u32 word, int i) {
  u32 r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(word), "r"(0x4B000000u), "r"(0x7440 | i));
  return __uint_as_float(r) - 8388608.0f;
}

// Each format: bytes of 256 weights, and `dot`: the sums of a lane's 32 weights with M rows of x.
// `at` is the slice's row in shared memory, `unit` the lane's group of 32.
#define FOR_ROWS for (int m = 0; m < M; m++)

#if FORMAT == 80  // Q8_0: f16 d, 32 i8
#define BYTES256 272
__device__ __forceinline__ void dot(const u8* at, int unit, const float (&x)[M][32], float (&sum)[M]) {
  const u8* p = at + unit * 34;
  const float d = half_at(p);
  float s[M] = {};
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const u32 q = word_at(p + 2 + 4 * i) ^ 0x80808080u;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float w = byte_of(q, j) - 128.0f;
#pragma unroll
      FOR_ROWS s[m] += w * x[m][4 * i + j];
    }
  }
#pragma unroll
  FOR_ROWS sum[m] = d * s[m];
}
#elif FORMAT == 40 || FORMAT == 41  // Q4_0: f16 d, 16 bytes; Q4_1: f16 d, f16 m, 16 bytes
#define SIZE (FORMAT == 40 ? 18 : 20)
#define BYTES256 (8 * SIZE)
__device__ __forceinline__ void dot(const u8* at, int unit, const float (&x)[M][32], float (&sum)[M]) {
  const u8* p = at + unit * SIZE;
  const float d = half_at(p);
  const float low = FORMAT == 40 ? -8.0f * d : half_at(p + 2);
  float s[M] = {}, all[M] = {};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const u32 q = word_at(p + SIZE - 16 + 4 * i);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float first = byte_of(q & 0x0F0F0F0Fu, j), second = byte_of((q >> 4) & 0x0F0F0F0Fu, j);
#pragma unroll
      FOR_ROWS {
        s[m] += first * x[m][4 * i + j] + second * x[m][16 + 4 * i + j];
        all[m] += x[m][4 * i + j] + x[m][16 + 4 * i + j];
      }
    }
  }
#pragma unroll
  FOR_ROWS sum[m] = d * s[m] + low * all[m];
}
#elif FORMAT == 50 || FORMAT == 51  // Q5_0: f16 d, u32 high bits, 16 bytes; Q5_1: f16 d, f16 m, then the same
#define HEAD (FORMAT == 50 ? 2 : 4)
#define SIZE (HEAD + 20)
#define BYTES256 (8 * SIZE)
__device__ __forceinline__ void dot(const u8* at, int unit, const float (&x)[M][32], float (&sum)[M]) {
  const u8* p = at + unit * SIZE;
  const float d = half_at(p);
  const float low = FORMAT == 50 ? -16.0f * d : half_at(p + 2);
  const u32 high = word_at(p + HEAD);
  float s[M] = {}, all[M] = {};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const u32 q = word_at(p + HEAD + 4 + 4 * i);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int k = 4 * i + j;
      const float first = byte_of(q & 0x0F0F0F0Fu, j) + (float)((high >> k & 1u) << 4);
      const float second = byte_of((q >> 4) & 0x0F0F0F0Fu, j) + (float)((high >> (k + 16) & 1u) << 4);
#pragma unroll
      FOR_ROWS {
        s[m] += first * x[m][k] + second * x[m][16 + k];
        all[m] += x[m][k] + x[m][16 + k];
      }
    }
  }
#pragma unroll
  FOR_ROWS sum[m] = d * s[m] + low * all[m];
}
#elif FORMAT == 4 || FORMAT == 5  // Q4_K, Q5_K: f16 d, f16 dmin, 12 bytes of 6-bit scales and mins, [32 high bits], 128 nibbles
#define HIGH (FORMAT == 5 ? 32 : 0)
#define BYTES256 (144 + HIGH)
__device__ __forceinline__ void dot(const u8* at, int unit, const float (&x)[M][32], float (&sum)[M]) {
  const u8* p = at + (unit >> 3) * BYTES256;
  const int group = unit & 7;
  const u8* packed = p + 4;
  u32 scale, least;
  if (group < 4) {
    scale = packed[group] & 63u;
    least = packed[group + 4] & 63u;
  } else {
    scale = (packed[group + 4] & 15u) | (u32)(packed[group - 4] >> 6) << 4;
    least = (packed[group + 4] >> 4) | (u32)(packed[group] >> 6) << 4;
  }
  const float d = half_at(p) * (float)scale, low = -half_at(p + 2) * (float)least;
  const u8* codes = p + 16 + HIGH + (group >> 1) * 32;
  const int shift = (group & 1) * 4;
  float s[M] = {}, all[M] = {};
#pragma unroll
  for (int i = 0; i < 8; i++) {
    u32 q = (*(const u32*)(codes + 4 * i) >> shift) & 0x0F0F0F0Fu;
    if (FORMAT == 5) q |= ((*(const u32*)(p + 16 + 4 * i) >> group) & 0x01010101u) << 4;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float w = byte_of(q, j);
#pragma unroll
      FOR_ROWS {
        s[m] += w * x[m][4 * i + j];
        all[m] += x[m][4 * i + j];
      }
    }
  }
#pragma unroll
  FOR_ROWS sum[m] = d * s[m] + low * all[m];
}
#elif FORMAT == 6  // Q6_K: 128 low nibbles, 64 high pairs, 16 signed scales, f16 d
#define BYTES256 210
__device__ __forceinline__ void dot(const u8* at, int unit, const float (&x)[M][32], float (&sum)[M]) {
  const u8* p = at + (unit >> 3) * BYTES256;
  const int group = unit & 7, part = group >> 2, quarter = group & 3;  // 32 weights: part * 128 + quarter * 32
  const u8* low = p + part * 64 + (quarter & 1) * 32;
  const u8* high = p + 128 + part * 32;
  const signed char* scales = (const signed char*)(p + 192) + part * 8 + quarter * 2;
  const float d = half_at(p + 208);
  const int shift = (quarter >> 1) * 4;
#pragma unroll
  FOR_ROWS sum[m] = 0.0f;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float s[M] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const u32 q = ((word_at(low + 16 * h + 4 * i) >> shift) & 0x0F0F0F0Fu) |
                    ((word_at(high + 16 * h + 4 * i) >> (2 * quarter)) & 0x03030303u) << 4;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float w = byte_of(q, j) - 32.0f;
#pragma unroll
        FOR_ROWS s[m] += w * x[m][16 * h + 4 * i + j];
      }
    }
#pragma unroll
    FOR_ROWS sum[m] += d * (float)scales[h] * s[m];
  }
}
#endif

#define ROW_BYTES ((u64)(K / 256) * BYTES256)
#define SLICE_BYTES (4 * BYTES256)
#define PIECE (BYTES256 % 16 == 0 ? 16 : 8)
#define PITCH ((SLICE_BYTES + 15) / 16 * 16)
#define TURNS ((N + ROWS - 1) / ROWS)

__device__ __forceinline__ void copy(void* to, const void* from) {
  const u32 address = (u32)__cvta_generic_to_shared(to);
#if BYTES256 % 16 == 0
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(address), "l"(from) : "memory");
#endif
}

extern "C" __global__ void __launch_bounds__(SLICES * 32)
    dequant_matmul(const stored* __restrict__ xs, const u8* __restrict__ packed,
                   stored* __restrict__ y) {
  extern __shared__ __align__(16) u8 shared[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  u8* own = shared + warp * STAGES * ROWS * PITCH;
  float* sums = (float*)(shared + SLICES * STAGES * ROWS * PITCH);  // [2][SLICES][ROWS][M]
  const int start = blockIdx.y * M;
  const int first = warp * 1024 + lane * 32;
  const bool live = first < K;

  float x[M][32];
#pragma unroll
  FOR_ROWS {
#pragma unroll
    for (int i = 0; i < 32; i++)
      x[m][i] = live && start + m < ALL ? widen(xs[(u64)(start + m) * K + first + i]) : 0.0f;
  }
  // How much of the slice lies within the row.
  const int weights = K - warp * 1024 < 1024 ? K - warp * 1024 : 1024;
  const int bytes = weights / 256 * BYTES256;

  auto load = [&](int turn, int stage) {
    if (turn < TURNS) {
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        const int row = turn * ROWS + r;
        if (row < N) {
          const u8* from = packed + row * ROW_BYTES + (u64)warp * SLICE_BYTES;
          u8* to = own + (stage * ROWS + r) * PITCH;
          for (int at = lane * PIECE; at < bytes; at += 32 * PIECE) copy(to + at, from + at);
        }
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };

  const int stride = gridDim.x;
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) load(blockIdx.x + i * stride, i);
  int stage = 0, side = 0;
  for (int turn = blockIdx.x; turn < TURNS; turn += stride) {
    load(turn + (STAGES - 1) * stride, stage == 0 ? STAGES - 1 : stage - 1);
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
    __syncwarp();
    float found[ROWS][M];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      if (live && turn * ROWS + r < N) dot(own + (stage * ROWS + r) * PITCH, lane, x, found[r]);
      else {
#pragma unroll
        FOR_ROWS found[r][m] = 0.0f;
      }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
      FOR_ROWS {
#pragma unroll
        for (int step = 16; step; step >>= 1)
          found[r][m] += __shfl_xor_sync(0xffffffffu, found[r][m], step);
        if (lane == 0) sums[((side * SLICES + warp) * ROWS + r) * M + m] = found[r][m];
      }
    }
    __syncthreads();
    if (threadIdx.x < ROWS * M) {
      const int r = threadIdx.x / M, m = threadIdx.x % M, row = turn * ROWS + r;
      float total = 0.0f;
#pragma unroll
      for (int w = 0; w < SLICES; w++) total += sums[((side * SLICES + w) * ROWS + r) * M + m];
      if (row < N && start + m < ALL) y[(u64)(start + m) * N + row] = narrow(total);
    }
    side ^= 1;
    stage = stage == STAGES - 1 ? 0 : stage + 1;
  }
}
