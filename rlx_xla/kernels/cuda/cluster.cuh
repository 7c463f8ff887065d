// What the blocks of a cluster do together.

#include "integers.cuh"

// All threads of the cluster meet, with what they wrote before: each arrives, and later waits for the others.
__device__ __forceinline__ void arrive() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void await() {
  __syncwarp();
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void meet() {
  arrive();
  await();
}

// Writes a float at the same place of the shared memory of a block of the cluster.
__device__ __forceinline__ void send(float* to, u32 block, float x) {
  u32 address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"((u32)__cvta_generic_to_shared(to)), "r"(block));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}
