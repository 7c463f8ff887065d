// One layer of an LSTM, a GRU or a plain recurrent network, in one or both directions.
//
// Layout, all f32 and row-major: entering [B, L, D, G, H], what x adds to the gates; w [D, G * H, H]; with RESET
// (the GRU) the hidden bias [D, G * H]; with CARRY first states [D, B, H], two for the LSTM. Results: y [B, L, D, H]
// and the last states [D, B, H], as many as first ones there can be.
// Work: a cluster of CLUSTER blocks takes ROWS sequences of one direction. Each block keeps the weights of UNITS
// hidden units in registers from the first step to the last: LANES neighbouring threads hold all gates of a unit, a
// part of the columns each. Their sums are exchanged so that a thread ends with the total of one gate of one sequence
// and computes its activation; four threads make a cell. A step ends with each block writing its new h into the
// shared memory of all blocks of the cluster.
// Where registers are too few, KEPT columns of a thread's part are in them and the others in its block's shared memory.
// Numerics: f32; the sum of a gate in LANES parts.
//
// Macros: B, L, D, H (sizes), G (gates), ROWS (1, 2, 4 or 8), KIND (0 LSTM, 1 GRU, 2 tanh, 3 relu), CARRY, KEPT (a
// multiple of 4 up to EACH).

#include "cluster.cuh"

#define CLUSTER 8
#define LANES 16
#define WIDTH ((H + 63) / 64 * 64)
#define UNITS ((H + CLUSTER - 1) / CLUSTER)
#define THREADS ((UNITS * LANES + 31) / 32 * 32)
#define EACH (WIDTH / LANES)
#define APART ((EACH - KEPT) / 4)  // fours of columns in shared memory
// Gates of a unit that are exchanged; what is above G is zero.
#define SLOTS 4
#define SUMS (SLOTS * ROWS)
// Sequences of one exchange, and exchanged values that stay with a thread.
#define SPREAD (ROWS < 4 ? ROWS : 4)
#define CELLS (ROWS / SPREAD)
// Threads that end with the same total of a sequence, all gates counted.
#define TEAM (LANES / SPREAD)

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }

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
#if APART
  extern __shared__ __align__(16) float4 apart[];  // [G][APART][THREADS]; a thread reads what it wrote
#endif

  const int thread = threadIdx.x, part = thread % LANES;
  const int rank = blockIdx.x % CLUSTER, direction = blockIdx.y;
  const int first = blockIdx.x / CLUSTER * ROWS;
  const int unit = rank * UNITS + thread / LANES;
  const bool holds = thread / LANES < UNITS && unit < H;
  const int gate = part % SLOTS, mate = part / SLOTS % SPREAD;
  const int member = gate + part / SLOTS / SPREAD * SLOTS;  // of the TEAM
  const int quad = thread % 32 & ~(SLOTS - 1);

  // Column i of this thread is column 4 * (LANES * (i / 4) + part) + i % 4 of the weights.
  auto weight_of = [&](int g, int i) {
    const int column = 4 * (LANES * (i / 4) + part) + i % 4;
    return holds && column < H ? w[((u64)direction * G * H + g * H + unit) * H + column] : 0.0f;
  };
  float weights[G][KEPT];
#pragma unroll
  for (int g = 0; g < G; g++) {
#pragma unroll
    for (int i = 0; i < KEPT; i++) weights[g][i] = weight_of(g, i);
#if APART
    for (int i = 0; i < APART; i++) {
      const int from = KEPT + 4 * i;
      apart[(g * APART + i) * THREADS + thread] = make_float4(
          weight_of(g, from), weight_of(g, from + 1), weight_of(g, from + 2), weight_of(g, from + 3));
    }
#endif
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

  auto time_of = [&](int step) { return direction ? L - 1 - step : step; };
  auto sequence_of = [&](int cell) { return first + cell * SPREAD + mate; };
  auto inside = [&](int cell) { return holds && sequence_of(cell) < B; };
  auto look_ahead = [&](int step, int cell) {
    if (!inside(cell) || gate >= G || step >= L) return 0.0f;
    const u64 row = ((u64)sequence_of(cell) * L + time_of(step)) * D + direction;
    return entering[(row * G + gate) * H + unit];
  };

  float state[CELLS], ahead[CELLS];
#pragma unroll
  for (int cell = 0; cell < CELLS; cell++) {
    state[cell] = 0.0f;
#if CARRY
    if (inside(cell)) {
      const u64 from = ((u64)direction * B + sequence_of(cell)) * H + unit;
#if KIND == 0
      state[cell] = c_first[from];
#else
      state[cell] = h_first[from];
#endif
    }
#endif
    ahead[cell] = look_ahead(0, cell);
  }
#if KIND == 1
  const float known = holds && gate < G ? bias[(u64)direction * G * H + gate * H + unit] : 0.0f;
#endif
  // No block may send before all have cleared their memory.
  __syncthreads();
  meet();

  for (int step = 0; step < L; step++) {
    float now[CELLS], out[CELLS];
#pragma unroll
    for (int cell = 0; cell < CELLS; cell++) {
      now[cell] = ahead[cell];
      ahead[cell] = look_ahead(step + 1, cell);
    }

    float(*before)[WIDTH] = hidden[step & 1];
    float sums[SUMS];
#pragma unroll
    for (int b = 0; b < ROWS; b++) {
#pragma unroll
      for (int g = 0; g < SLOTS; g++) sums[b * SLOTS + g] = 0.0f;
#pragma unroll
      for (int i = 0; i < KEPT; i += 4) {
        const float4 four = *(const float4*)&before[b][LANES * i + 4 * part];
#pragma unroll
        for (int g = 0; g < G; g++) {
          float& sum = sums[b * SLOTS + g];
          sum += weights[g][i] * four.x, sum += weights[g][i + 1] * four.y;
          sum += weights[g][i + 2] * four.z, sum += weights[g][i + 3] * four.w;
        }
      }
    }
#if APART
#pragma unroll 2
    for (int i = 0; i < APART; i++) {
      float4 four[ROWS];
#pragma unroll
      for (int b = 0; b < ROWS; b++) {
        four[b] = *(const float4*)&before[b][LANES * (KEPT + 4 * i) + 4 * part];
      }
#pragma unroll
      for (int g = 0; g < G; g++) {
        const float4 weight = apart[(g * APART + i) * THREADS + thread];
#pragma unroll
        for (int b = 0; b < ROWS; b++) {
          float& sum = sums[b * SLOTS + g];
          sum += weight.x * four[b].x, sum += weight.y * four[b].y;
          sum += weight.z * four[b].z, sum += weight.w * four[b].w;
        }
      }
    }
#endif
    // After log2(LANES) exchanges sums[j] is the total of index j * LANES + part, modulo SUMS.
#pragma unroll
    for (int bit = 1, left = SUMS; bit < LANES; bit <<= 1, left = left > 1 ? left / 2 : 1) {
      const bool upper = part & bit;
      if (left == 1) sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], bit);
#pragma unroll
      for (int j = 0; j < SUMS / 2; j++) {
        if (j < left / 2) {
          const float keep = upper ? sums[2 * j + 1] : sums[2 * j];
          const float give = upper ? sums[2 * j] : sums[2 * j + 1];
          sums[j] = keep + __shfl_xor_sync(0xffffffffu, give, bit);
        }
      }
    }

#pragma unroll
    for (int cell = 0; cell < CELLS; cell++) {
      float h;
      auto of_gate = [&](float x, int which) { return __shfl_sync(0xffffffffu, x, quad + which); };
#if KIND == 0
      const float total = now[cell] + sums[cell];
      const float active = gate == 2 ? tanhf(total) : sigmoid(total);
      const float i = of_gate(active, 0), f = of_gate(active, 1), g = of_gate(active, 2);
      state[cell] = f * state[cell] + i * g;
      h = of_gate(active, 3) * tanhf(state[cell]);
#elif KIND == 1
      const float kept = sums[cell] + known;
      const float active = sigmoid(now[cell] + kept);
      const float r = of_gate(active, 0), z = of_gate(active, 1);
      const float n = of_gate(tanhf(now[cell] + r * kept), 2);
      h = state[cell] = (1.0f - z) * n + z * state[cell];
#else
      const float total = of_gate(now[cell] + sums[cell], 0);
#if KIND == 2
      h = state[cell] = tanhf(total);
#else
      h = state[cell] = total < 0.0f ? 0.0f : total;  // NaN stays
#endif
#endif
      if (inside(cell)) {
        float* to = &hidden[(step + 1) & 1][cell * SPREAD + mate][unit];
#pragma unroll
        for (int block = 0; block < CLUSTER; block += TEAM) {
          if (block + member < CLUSTER) send(to, block + member, h);
        }
      }
      out[cell] = h;
    }
    meet();
    // Only now, so that the meeting does not wait for a write to memory that no block of the cluster reads.
#pragma unroll
    for (int cell = 0; cell < CELLS; cell++) {
      if (!inside(cell) || member != 0) continue;
      const u64 row = ((u64)sequence_of(cell) * L + time_of(step)) * D + direction;
      y[row * H + unit] = out[cell];
    }
  }

#pragma unroll
  for (int cell = 0; cell < CELLS; cell++) {
    if (!inside(cell) || member != 0) continue;
    const u64 to = ((u64)direction * B + sequence_of(cell)) * H + unit;
    h_last[to] = hidden[L & 1][sequence_of(cell) - first][unit];
#if KIND == 0
    c_last[to] = state[cell];
#endif
  }
}
