// Short names of unsigned integers.


typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// A number that the compiler does not know, since it does not know that the grid is flat: it stays in a register, where
// an instruction that takes one number as part of itself has need of two.
__device__ __forceinline__ u32 unknown(u32 x) { return x * gridDim.z; }

// Bits moved up, or down.
__device__ __forceinline__ u32 moved(u32 bits, int up) { return up >= 0 ? bits << up : bits >> -up; }
