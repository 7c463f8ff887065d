// Selective scan: h[n] = exp(delta * a[n]) * h[n] + delta * x * b[n];  y = sum over n of h[n] * c[n].
//
// Layout: x, delta, y f32[B, S, H]; a f32[H, N]; b, c f32[B, S, N]; all row-major, rows of x, delta, b and c 16-byte
// aligned (H and N multiples of 4).
// Work: a block takes CHANNELS channels of one batch row and walks along S in tiles of TILE steps, which arrive in
// shared memory STAGES - 1 tiles ahead. A channel's N states lie on GROUP = N / STATES neighbouring threads; what they
// add up to is summed by exchanges that leave each thread with one of GROUP steps.
// Numerics: f32; exponentials as 2^x by the hardware (2 ulp).
//
// Macros: S, H, N (sizes), STATES (a thread), TILE, CHANNELS, STAGES.

#include "copy16.cuh"

#define GROUP (N / STATES)
#define THREADS (CHANNELS * GROUP)
#define TILES ((S + TILE - 1) / TILE)

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    selective_scan(const float* __restrict__ x, const float* __restrict__ delta,
                   const float* __restrict__ a, const float* __restrict__ b,
                   const float* __restrict__ c, float* __restrict__ y) {
  extern __shared__ __align__(16) float shared[];
  float(*xs)[TILE][CHANNELS] = (float(*)[TILE][CHANNELS])shared;
  float(*deltas)[TILE][CHANNELS] = xs + STAGES;
  float(*bs)[TILE][N] = (float(*)[TILE][N])(deltas + STAGES);
  float(*cs)[TILE][N] = bs + STAGES;

  const int thread = threadIdx.x, channel = thread / GROUP, part = thread % GROUP;
  const int first = blockIdx.x * CHANNELS;
  const bool live = first + channel < H;
  const u64 row = (u64)blockIdx.y * S;

  float decay[STATES], state[STATES];
#pragma unroll
  for (int n = 0; n < STATES; n++) {
    const float rate = live ? a[(u64)(first + channel) * N + part * STATES + n] : 0.0f;
    decay[n] = rate * 1.4426950408889634f;
    state[n] = 0.0f;
  }

  auto load = [&](int tile, int stage) {
    for (int i = thread; i < TILE * CHANNELS / 4; i += THREADS) {
      const int step = i / (CHANNELS / 4), at = i % (CHANNELS / 4) * 4;
      const bool inside = tile * TILE + step < S && first + at < H;
      const u64 from = inside ? (row + tile * TILE + step) * H + first + at : 0;
      copy16(&xs[stage][step][at], x + from, inside);
      copy16(&deltas[stage][step][at], delta + from, inside);
    }
    for (int i = thread; i < TILE * N / 4; i += THREADS) {
      const bool inside = tile * TILE + i / (N / 4) < S;
      const u64 from = inside ? (row + tile * TILE) * N + (u64)i * 4 : 0;
      copy16(&bs[stage][0][0] + i * 4, b + from, inside);
      copy16(&cs[stage][0][0] + i * 4, c + from, inside);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };

#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) {
    if (i < TILES) load(i, i);
    else asm volatile("cp.async.commit_group;" ::: "memory");
  }
  for (int tile = 0; tile < TILES; tile++) {
    const int stage = tile % STAGES;
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();
    const int next = tile + STAGES - 1;
    if (next < TILES) load(next, next % STAGES);
    else asm volatile("cp.async.commit_group;" ::: "memory");
#pragma unroll 2
    for (int step = 0; step < TILE; step += GROUP) {
      float sums[GROUP];
#pragma unroll
      for (int i = 0; i < GROUP; i++) {
        const float width = deltas[stage][step + i][channel];
        const float entering = width * xs[stage][step + i][channel];
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < STATES; n++) {
          const int at = part * STATES + n;
          state[n] = exp2_fast(width * decay[n]) * state[n] + entering * bs[stage][step + i][at];
          sum += state[n] * cs[stage][step + i][at];
        }
        sums[i] = sum;
      }
      // After log2(GROUP) exchanges sums[0] is the whole sum of step `part`.
#pragma unroll
      for (int bit = 1, left = GROUP / 2; bit < GROUP; bit <<= 1, left >>= 1) {
#pragma unroll
        for (int j = 0; j < GROUP / 2; j++) {
          if (j < left) {
            const bool upper = part & bit;
            const float keep = upper ? sums[2 * j + 1] : sums[2 * j];
            const float send = upper ? sums[2 * j] : sums[2 * j + 1];
            sums[j] = keep + __shfl_xor_sync(0xffffffffu, send, bit);
          }
        }
      }
      const int at = tile * TILE + step + part;
      if (live && at < S) y[(row + at) * H + first + channel] = sums[0];
    }
  }
}
