// Pairs of bf16 in a word, and products of them on the matrix units.

#include "integers.cuh"

// Four of the eight bytes of two words: the selector's nibbles say which.
__device__ __forceinline__ u32 permute(u32 a, u32 b, u32 selector) {
  u32 r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
  return r;
}
__device__ __forceinline__ u32 minus(u32 a, u32 b) {  // two bf16
  u32 r;
#if __CUDA_ARCH__ >= 900
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
#else
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(0x3F803F80u), "r"(b ^ 0x80008000u));
#endif
  return r;
}
// Two numbers to bf16; what is left of them stays.
__device__ __forceinline__ u32 take(float& low, float& high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  low -= __uint_as_float(r << 16);
  high -= __uint_as_float(r & 0xFFFF0000u);
  return r;
}
// d += a b for a of 16 x 16 and b of 16 x 8: lane 4g + t holds rows g, g + 8 of a, column g of b.
__device__ __forceinline__ void multiply(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, uint2 b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b.x), "r"(b.y));
}
// Four matrices of 8 rows of 16 bytes, transposed: lane 8 i + r points at row r of matrix i; lane 4g + t gets of each
// the 16 bits number g of rows 2t (lower half) and 2t + 1.
__device__ __forceinline__ void read_transposed(u32 (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"((u32)__cvta_generic_to_shared(row))
               : "memory");
}
