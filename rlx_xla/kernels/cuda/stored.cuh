// Numbers as they lie in memory: KIND 0 f32, 1 bf16, 2 f16. Kernels compute with f32 and round once.

#include "integers.cuh"

#if KIND == 0
typedef float stored;
__device__ __forceinline__ float widen(stored x) { return x; }
__device__ __forceinline__ stored narrow(float x) { return x; }
#elif KIND == 1
typedef u16 stored;
__device__ __forceinline__ float widen(stored x) { return __uint_as_float((u32)x << 16); }
__device__ __forceinline__ stored narrow(float x) {
  u16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
#else
typedef u16 stored;
__device__ __forceinline__ float widen(stored x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
__device__ __forceinline__ stored narrow(float x) {
  u16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
#endif
