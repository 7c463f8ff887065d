// What the blocks of a cluster do together.

#include "integers.cuh"

// All threads of the cluster, with what they wrote before.
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
