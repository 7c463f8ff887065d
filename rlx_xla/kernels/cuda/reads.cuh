// Reads of memory that nobody writes, asked for where they stand and nowhere later: left to itself, the compiler may
// move one to where its value is needed, and wait there.

#include "integers.cuh"

__device__ __forceinline__ uint4 read16(const void* from) {
  uint4 r;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(from));
  return r;
}
__device__ __forceinline__ uint2 read8(const void* from) {
  uint2 r;
  asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(r.x), "=r"(r.y) : "l"(from));
  return r;
}
