// Cumulative sum along the last axis, in either direction, with or without the element itself.
//
// Layout: x, y T[rows, LENGTH], row-major.
// Work: one block for each row. The row passes through registers in chunks of THREADS * EACH elements, the sum of
// what came before is carried along.
// Numerics: f32 sums; bf16 and f16 results are rounded once.
//
// Macros: LENGTH, THREADS, EACH (elements of a thread in a chunk), KIND (0 f32, 1 bf16, 2 f16), REVERSE, EXCLUSIVE.

#include "stored.cuh"

#define CHUNK (THREADS * EACH)
#define VECTOR (LENGTH % EACH == 0 && !REVERSE)

struct __align__(sizeof(stored) * EACH) Pack {
  stored v[EACH];
};

extern "C" __global__ void __launch_bounds__(THREADS)
    cumsum(const stored* __restrict__ x, stored* __restrict__ y) {
  __shared__ float totals[2][THREADS / 32];
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const stored* from = x + (u64)blockIdx.x * LENGTH;
  stored* to = y + (u64)blockIdx.x * LENGTH;
  float carry = 0.0f;

  auto read = [&](int start, Pack& pack) {
    const int at = start + thread * EACH;
#if VECTOR
    if (at < LENGTH) pack = *(const Pack*)(from + at);
#else
#pragma unroll
    for (int i = 0; i < EACH; i++)
      if (at + i < LENGTH) pack.v[i] = from[REVERSE ? LENGTH - 1 - at - i : at + i];
#endif
  };

  Pack ahead;
#pragma unroll
  for (int i = 0; i < EACH; i++) ahead.v[i] = narrow(0.0f);
  read(0, ahead);
  int turn = 0;
  for (int start = 0; start < LENGTH; start += CHUNK, turn ^= 1) {
    Pack pack = ahead;
    if (start + CHUNK < LENGTH) read(start + CHUNK, ahead);
    const int at = start + thread * EACH;
    float sums[EACH], own = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const float value = at + i < LENGTH ? widen(pack.v[i]) : 0.0f;
      if (EXCLUSIVE) sums[i] = own;
      own += value;
      if (!EXCLUSIVE) sums[i] = own;
    }
    float before = own;
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
      const float other = __shfl_up_sync(0xffffffffu, before, step);
      if (lane >= step) before += other;
    }
    if (lane == 31) totals[turn][warp] = before;
    // The sum of the lanes before this one: not `before - own`, which would make NaN of infinities.
    before = __shfl_up_sync(0xffffffffu, before, 1);
    if (lane == 0) before = 0.0f;
    __syncthreads();
    float base = carry;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) {
      const float total = totals[turn][i];
      if (i < warp) base += total;
      carry += total;
    }
    before = warp == 0 && start == 0 && lane == 0 ? 0.0f : base + before;
#if VECTOR
    if (at < LENGTH) {
      Pack out;
#pragma unroll
      for (int i = 0; i < EACH; i++) out.v[i] = narrow(before + sums[i]);
      *(Pack*)(to + at) = out;
    }
#else
#pragma unroll
    for (int i = 0; i < EACH; i++)
      if (at + i < LENGTH) to[REVERSE ? LENGTH - 1 - at - i : at + i] = narrow(before + sums[i]);
#endif
  }
}
