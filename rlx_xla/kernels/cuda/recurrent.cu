// One layer of an LSTM, a GRU or a plain recurrent network, in one or both directions.
//
// Layout, all f32 and row-major: entering [B, L, D, G, H], what x adds to the gates; w [D, G * H, H]; with RESET
// (the GRU) the hidden bias [D, G * H]; with CARRY first states [D, B, H], two for the LSTM. Results: y [B, L, D, H]
// and the last states [D, B, H], as many as first ones there can be.
// Work: a cluster of CLUSTER blocks takes ROWS sequences of one direction. Each block keeps the weights of UNITS
// hidden units in registers from the first step to the last: SPLIT neighbouring threads hold a row. A step ends with
// each block writing its new h into the shared memory of all blocks of the cluster.
// Numerics: f32; sums of a row in SPLIT parts.
//
// Macros: B, L, D, H (sizes), G (gates), ROWS, KIND (0 LSTM, 1 GRU, 2 tanh, 3 relu), CARRY.

typedef unsigned int u32;
typedef unsigned long long u64;

#define CLUSTER 8
#define SPLIT 4
#define WIDTH ((H + 31) / 32 * 32)
#define UNITS (WIDTH / CLUSTER)
#define WORK (G * UNITS * SPLIT)
#define THREADS ((WORK + 31) / 32 * 32)
#define EACH (WIDTH / SPLIT)
#define STATES (KIND == 0 ? 2 : 1)
// Elements of (unit, sequence) that one thread updates.
#define CELLS ((UNITS * ROWS + THREADS - 1) / THREADS)

// Waits for all threads of the cluster; what they wrote before is seen after.
__device__ __forceinline__ void meet() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Writes a float at the same place of the shared memory of a block of the cluster.
__device__ __forceinline__ void send(float* to, u32 block, float x) {
  u32 address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"((u32)__cvta_generic_to_shared(to)), "r"(block));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS)
    recurrent(const float* __restrict__ entering, const float* __restrict__ w,
#if KIND == 1
              const float* __restrict__ bias,
#endif
#if CARRY
              const float* __restrict__ h_first,
#if KIND == 0
              const float* __restrict__ c_first,
#endif
#endif
              float* __restrict__ y, float* __restrict__ h_last
#if KIND == 0
              ,
              float* __restrict__ c_last
#endif
    ) {
  __shared__ __align__(16) float hidden[2][ROWS][WIDTH];
  __shared__ float sums[ROWS][G][UNITS];

  const int thread = threadIdx.x, row = thread / SPLIT, part = thread % SPLIT;
  const int rank = blockIdx.x % CLUSTER, direction = blockIdx.y;
  const int first_unit = rank * UNITS, first = blockIdx.x / CLUSTER * ROWS;
  const int gate = row / UNITS, unit = row % UNITS;
  const bool holds = thread < WORK && first_unit + unit < H;

  // Column i of this thread is column 4 * (SPLIT * (i / 4) + part) + i % 4 of the weights.
  float weights[EACH];
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int column = 4 * (SPLIT * (i / 4) + part) + i % 4;
    weights[i] = holds && column < H
                     ? w[((u64)direction * G * H + gate * H + first_unit + unit) * H + column]
                     : 0.0f;
  }

  for (int i = thread; i < 2 * ROWS * WIDTH; i += THREADS) {
    (&hidden[0][0][0])[i] = 0.0f;
#if CARRY
    const int sequence = first + i / WIDTH, column = i % WIDTH;
    if (i < ROWS * WIDTH && sequence < B && column < H) {
      (&hidden[0][0][0])[i] = h_first[((u64)direction * B + sequence) * H + column];
    }
#endif
  }

  float state[CELLS], ahead[CELLS][G], known[CELLS][G];
#pragma unroll
  for (int cell = 0; cell < CELLS; cell++) {
    state[cell] = 0.0f;
#pragma unroll
    for (int j = 0; j < G; j++) ahead[cell][j] = known[cell][j] = 0.0f;
  }

  auto time_of = [&](int step) { return direction ? L - 1 - step : step; };
  auto inside = [&](int cell, int& sequence, int& at) {
    const int i = thread + cell * THREADS;
    sequence = first + i / UNITS, at = first_unit + i % UNITS;
    return i < UNITS * ROWS && sequence < B && at < H;
  };
  auto look_ahead = [&](int step) {
#pragma unroll
    for (int cell = 0; cell < CELLS; cell++) {
      int sequence, at;
      if (!inside(cell, sequence, at) || step >= L) continue;
      const u64 from = (((u64)sequence * L + time_of(step)) * D + direction) * G * H + at;
#pragma unroll
      for (int j = 0; j < G; j++) ahead[cell][j] = entering[from + (u64)j * H];
    }
  };

#pragma unroll
  for (int cell = 0; cell < CELLS; cell++) {
    int sequence, at;
    if (!inside(cell, sequence, at)) continue;
#if CARRY
    const u64 from = ((u64)direction * B + sequence) * H + at;
#if KIND == 0
    state[cell] = c_first[from];
#else
    state[cell] = h_first[from];
#endif
#endif
#if KIND == 1
#pragma unroll
    for (int j = 0; j < G; j++) known[cell][j] = bias[(u64)direction * G * H + j * H + at];
#endif
  }
  look_ahead(0);
  // No block may send before all have cleared their memory.
  meet();

  for (int step = 0; step < L; step++) {
    float now[CELLS][G];
#pragma unroll
    for (int cell = 0; cell < CELLS; cell++) {
#pragma unroll
      for (int j = 0; j < G; j++) now[cell][j] = ahead[cell][j];
    }
    look_ahead(step + 1);

    float(*before)[WIDTH] = hidden[step & 1];
    float sum[ROWS][2];
#pragma unroll
    for (int b = 0; b < ROWS; b++) sum[b][0] = sum[b][1] = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i += 4) {
#pragma unroll
      for (int b = 0; b < ROWS; b++) {
        const float4 four = *(const float4*)&before[b][SPLIT * i + 4 * part];
        sum[b][0] += weights[i] * four.x, sum[b][1] += weights[i + 1] * four.y;
        sum[b][0] += weights[i + 2] * four.z, sum[b][1] += weights[i + 3] * four.w;
      }
    }
#pragma unroll
    for (int b = 0; b < ROWS; b++) {
      float total = sum[b][0] + sum[b][1];
#pragma unroll
      for (int bit = 1; bit < SPLIT; bit <<= 1) total += __shfl_xor_sync(0xffffffffu, total, bit);
      if (thread < WORK && part == b % SPLIT) sums[b][gate][unit] = total;
    }
    __syncthreads();

#pragma unroll
    for (int cell = 0; cell < CELLS; cell++) {
      int sequence, at;
      if (!inside(cell, sequence, at)) continue;
      const int b = sequence - first, mine = at - first_unit;
      float h;
#if KIND == 0
      const float i = sigmoid(now[cell][0] + sums[b][0][mine]), f = sigmoid(now[cell][1] + sums[b][1][mine]);
      const float g = tanhf(now[cell][2] + sums[b][2][mine]), o = sigmoid(now[cell][3] + sums[b][3][mine]);
      state[cell] = f * state[cell] + i * g;
      h = o * tanhf(state[cell]);
#elif KIND == 1
      const float r = sigmoid(now[cell][0] + (sums[b][0][mine] + known[cell][0]));
      const float z = sigmoid(now[cell][1] + (sums[b][1][mine] + known[cell][1]));
      const float n = tanhf(now[cell][2] + r * (sums[b][2][mine] + known[cell][2]));
      h = state[cell] = (1.0f - z) * n + z * state[cell];
#elif KIND == 2
      h = state[cell] = tanhf(now[cell][0] + sums[b][0][mine]);
#else
      const float total = now[cell][0] + sums[b][0][mine];
      h = state[cell] = total < 0.0f ? 0.0f : total;  // NaN stays
#endif
#pragma unroll
      for (u32 block = 0; block < CLUSTER; block++) send(&hidden[(step + 1) & 1][b][at], block, h);
      y[(((u64)sequence * L + time_of(step)) * D + direction) * H + at] = h;
    }
    meet();
  }

#pragma unroll
  for (int cell = 0; cell < CELLS; cell++) {
    int sequence, at;
    if (!inside(cell, sequence, at)) continue;
    const u64 to = ((u64)direction * B + sequence) * H + at;
    h_last[to] = hidden[L & 1][sequence - first][at];
#if KIND == 0
    c_last[to] = state[cell];
#endif
  }
}
