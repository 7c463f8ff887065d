// Copies from global to shared memory, 16 or 8 bytes that nobody waits for.

#include "integers.cuh"

template <int LENGTH>
__device__ __forceinline__ void copy(void* to, const void* from) {
  const u32 address = (u32)__cvta_generic_to_shared(to);
  if (LENGTH == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(address), "l"(from) : "memory");
}
// The first bytes of 16, up to all of them; the others become 0.
__device__ __forceinline__ void copy_first(void* to, const void* from, int bytes) {
  const u32 address = (u32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
}
