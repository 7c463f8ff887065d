// Copies from global to shared memory that nobody waits for.

#include "integers.cuh"

// Copies 16 bytes to shared memory, or zeros when `inside` is false.
__device__ __forceinline__ void copy16(void* to, const void* from, bool inside) {
  const u32 address = (u32)__cvta_generic_to_shared(to);
  const u32 bytes = inside ? 16u : 0u;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes)
               : "memory");
}
