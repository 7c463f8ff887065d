// Gated delta rule. For each token, with a state S of N x N:
//   S = exp(g) * S;  d = beta * (v - S^T k);  S = S + k (x) d;  y = S^T q / sqrt(N).
//
// Layout: q, k, v, y T[B, L, H, N]; g T[B, L, H] or, with GATES, T[B, L, H, N]; beta T[B, L, H]; with CARRY the first
// and the last state T[B, H, N, N], rows along k. All row-major; rows of N elements are multiples of 16 bytes.
// Work: the columns of S do not meet, so a block takes COLUMNS of one head and walks along L in tiles of TILE tokens,
// which arrive in shared memory while the tile before is worked on. A column's N rows lie on GROUP neighbouring
// threads, four rows in turn, in registers from the first token to the last; a thread has PER columns.
// Numerics: f32. y is taken from the decayed state and corrected, S^T q + (q.k) d, so that both sums of a token wait
// for the same exchange.
//
// Macros: L, H, N (sizes), COLUMNS, GROUP, PER, TILE, GATES, CARRY, KIND (0 f32, 1 bf16, 2 f16).

#include "copy16.cuh"
#include "stored.cuh"

typedef stored T;

// At least TILE: see `ask`.
#define THREADS (COLUMNS / PER * GROUP)
#define ROWS (N / GROUP)
#define TILES ((L + TILE - 1) / TILE)
#define WIDE (16 / (int)sizeof(T))

// Four neighbouring elements of shared memory.
__device__ __forceinline__ void read4(const T* from, float* to) {
#if KIND == 0
  const float4 four = *(const float4*)from;
  to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
#else
  const uint2 four = *(const uint2*)from;
  to[0] = widen((T)(four.x & 0xffff)), to[1] = widen((T)(four.x >> 16));
  to[2] = widen((T)(four.y & 0xffff)), to[3] = widen((T)(four.y >> 16));
#endif
}

__device__ __forceinline__ float over_group(float x) {
#pragma unroll
  for (int bit = 1; bit < GROUP; bit <<= 1) x += __shfl_xor_sync(0xffffffffu, x, bit);
  return x;
}

struct Stage {
  T q[TILE][N], k[TILE][N], v[TILE][COLUMNS];
#if GATES
  T g[TILE][N];
#endif
};

struct Shared {
  Stage stages[2];
  float beta[2][TILE], match[TILE];
#if GATES
  float gate[TILE][N];
#else
  float gate[2][TILE];
#endif
};

extern "C" __global__ void __launch_bounds__(THREADS)
    gated_delta_net(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                    const T* __restrict__ g, const T* __restrict__ beta,
#if CARRY
                    const T* __restrict__ before,
#endif
                    T* __restrict__ y
#if CARRY
                    ,
                    T* __restrict__ after
#endif
    ) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *(Shared*)memory;

  const int thread = threadIdx.x, column = thread / GROUP * PER, part = thread % GROUP;
  const int first = blockIdx.x * COLUMNS, head = blockIdx.y;
  const u64 batch = blockIdx.z;
  const u64 token = (u64)H * N;                              // elements from a token to the next
  const u64 start = batch * L * token + (u64)head * N;       // of q, k, v
  const u64 scalar = batch * L * H + head;                   // of beta and of a gate for all rows

  // Row r of this thread is row 4 * (GROUP * (r / 4) + part) + r % 4 of the state.
  float state[PER][ROWS];
#if CARRY
  const u64 matrix = (batch * H + head) * N * N + first + column;
#endif
#pragma unroll
  for (int c = 0; c < PER; c++) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#if CARRY
      state[c][r] = widen(before[matrix + c + (u64)(4 * (GROUP * (r / 4) + part) + r % 4) * N]);
#else
      state[c][r] = 0.0f;
#endif
    }
  }

  auto load = [&](int tile, int at) {
    Stage& stage = shared.stages[at];
    const int begin = tile * TILE;
    for (int i = thread; i < TILE * N / WIDE; i += THREADS) {
      const int step = i / (N / WIDE), element = i % (N / WIDE) * WIDE;
      const bool inside = begin + step < L;
      const u64 from = inside ? start + (begin + step) * token + element : 0;
      copy16(&stage.q[step][element], q + from, inside);
      copy16(&stage.k[step][element], k + from, inside);
#if GATES
      copy16(&stage.g[step][element], g + from, inside);
#endif
    }
    for (int i = thread; i < TILE * COLUMNS / WIDE; i += THREADS) {
      const int step = i / (COLUMNS / WIDE), element = i % (COLUMNS / WIDE) * WIDE;
      const bool inside = begin + step < L;
      copy16(&stage.v[step][element], v + (inside ? start + (begin + step) * token + first + element : 0), inside);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  // Scalars of a token go through registers, so that nobody waits for them; the first TILE threads have one each.
  T strength = 0, decay = 0;
  auto ask = [&](int tile) {
    const int step = tile * TILE + thread;
    if (thread >= TILE || step >= L) return;
    strength = beta[scalar + (u64)step * H];
#if !GATES
    decay = g[scalar + (u64)step * H];
#endif
  };
  auto keep = [&](int at) {
    if (thread >= TILE) return;
    shared.beta[at][thread] = widen(strength);
#if !GATES
    shared.gate[at][thread] = expf(widen(decay));
#endif
  };

  load(0, 0);
  ask(0);
  keep(0);
  for (int tile = 0; tile < TILES; tile++) {
    const int at = tile & 1;
    const Stage& stage = shared.stages[at];
    if (tile + 1 < TILES) {
      load(tile + 1, at ^ 1);
      ask(tile + 1);
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncthreads();
    // q.k of each token, by GROUP threads.
    for (int i = thread; i < TILE * GROUP; i += THREADS) {
      const int step = i / GROUP;
      float sum = 0.0f;
      for (int r = 0; r < ROWS; r += 4) {
        float keys[4], queries[4];
        read4(&stage.k[step][GROUP * r + 4 * part], keys);
        read4(&stage.q[step][GROUP * r + 4 * part], queries);
#pragma unroll
        for (int j = 0; j < 4; j++) sum += keys[j] * queries[j];
      }
      sum = over_group(sum);
      if (part == 0) shared.match[step] = sum;
    }
#if GATES
    for (int i = thread; i < TILE * N; i += THREADS) {
      (&shared.gate[0][0])[i] = expf(widen((&stage.g[0][0])[i]));
    }
#endif
    __syncthreads();

    const int steps = min(TILE, L - tile * TILE);
    float keys[2][ROWS], queries[2][ROWS];
    auto fetch = [&](int step, float* to_keys, float* to_queries) {
#pragma unroll
      for (int r = 0; r < ROWS; r += 4) {
        read4(&stage.k[step][GROUP * r + 4 * part], to_keys + r);
        read4(&stage.q[step][GROUP * r + 4 * part], to_queries + r);
      }
    };
    auto work = [&](int step, const float* key, const float* query) {
      const float correct = shared.beta[at][step], match = shared.match[step];
      float values[PER], found[PER], seen[PER];
#pragma unroll
      for (int c = 0; c < PER; c++) values[c] = widen(stage.v[step][column + c]);
#if GATES
      const float gate = 1.0f;
#pragma unroll
      for (int r = 0; r < ROWS; r += 4) {
        const float4 four = *(const float4*)&shared.gate[step][GROUP * r + 4 * part];
#pragma unroll
        for (int c = 0; c < PER; c++) {
          state[c][r] *= four.x, state[c][r + 1] *= four.y, state[c][r + 2] *= four.z, state[c][r + 3] *= four.w;
        }
      }
#else
      const float gate = shared.gate[at][step];
#endif
#pragma unroll
      for (int c = 0; c < PER; c++) {
        float keyed[4] = {0.0f, 0.0f, 0.0f, 0.0f}, asked[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
          keyed[r % 4] += state[c][r] * key[r];
          asked[r % 4] += state[c][r] * query[r];
        }
        found[c] = (keyed[0] + keyed[1]) + (keyed[2] + keyed[3]);
        seen[c] = (asked[0] + asked[1]) + (asked[2] + asked[3]);
      }
#pragma unroll
      for (int bit = 1; bit < GROUP; bit <<= 1) {
#pragma unroll
        for (int c = 0; c < PER; c++) {
          found[c] += __shfl_xor_sync(0xffffffffu, found[c], bit);
          seen[c] += __shfl_xor_sync(0xffffffffu, seen[c], bit);
        }
      }
#if !GATES
      // The sums are of the state before its decay, which runs while they are exchanged.
#pragma unroll
      for (int c = 0; c < PER; c++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) state[c][r] *= gate;
      }
#endif
#pragma unroll
      for (int c = 0; c < PER; c++) {
        const float change = (values[c] - gate * found[c]) * correct;
#pragma unroll
        for (int r = 0; r < ROWS; r++) state[c][r] += key[r] * change;
        if (part == (step + c) % GROUP) {
          const float out = (gate * seen[c] + match * change) * rsqrtf((float)N);
          y[start + (tile * TILE + step) * token + first + column + c] = narrow(out);
        }
      }
    };
    fetch(0, keys[0], queries[0]);
    for (int step = 0; step < steps; step += 2) {
      fetch(step + 1, keys[1], queries[1]);
      work(step, keys[0], queries[0]);
      if (step + 1 == steps) break;
      fetch(min(step + 2, TILE - 1), keys[0], queries[0]);
      work(step + 1, keys[1], queries[1]);
    }
    keep(at ^ 1);
    __syncthreads();
  }
#if CARRY
#pragma unroll
  for (int c = 0; c < PER; c++) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      after[matrix + c + (u64)(4 * (GROUP * (r / 4) + part) + r % 4) * N] = narrow(state[c][r]);
    }
  }
#endif
}
