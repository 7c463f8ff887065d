// What the kernels of rlx_xla/kernels/cuda need of CUDA, on a CPU: every thread of a launch is a fiber, which runs until
// it waits for its warp, its block or its cluster.

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

struct Place {
  int x, y, z;
};
struct Barrier {
  int expected, count;
  unsigned turn;
};
struct Warp {
  Barrier barrier;
  uint32_t slots[32], registers[32][6];
};
struct Block {
  std::vector<char> dynamic, fixed;
  std::vector<Warp> warps;
  Barrier barrier;
  Place place;
};
struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  bool done;
  Place place;
  Block* block;
  Warp* warp;
  int lane;
};

static std::vector<Block> blocks;
static Barrier everyone;
static Fiber* current;
static ucontext_t scheduler;
static void (*entry)();

static void wait(Barrier& barrier) {
  if (++barrier.count == barrier.expected) {
    barrier.count = 0;
    barrier.turn++;
    return;
  }
  const unsigned turn = barrier.turn;
  while (barrier.turn == turn) {
    Fiber* me = current;
    swapcontext(&me->context, &scheduler);
  }
}

static void begin() {
  entry();
  current->done = true;
  swapcontext(&current->context, &scheduler);
}

static char* aligned(std::vector<char>& memory) {
  return (char*)(((uintptr_t)memory.data() + 15) / 16 * 16);
}

// One cluster, or blocks that do not meet. Shared memory starts with NaN, so that what is read unwritten is seen.
static void launch(const std::vector<Place>& places, int threads, int dynamic, int fixed, void (*kernel)()) {
  entry = kernel;
  blocks.assign(places.size(), Block());
  everyone = {(int)places.size() * threads, 0, 0};
  std::vector<Fiber> fibers(places.size() * threads);
  for (size_t b = 0; b < places.size(); b++) {
    blocks[b].dynamic.assign(dynamic + 16, (char)0xff);
    blocks[b].fixed.assign(fixed + 16, (char)0xff);
    blocks[b].warps.assign(threads / 32, Warp());
    for (auto& warp : blocks[b].warps) warp.barrier.expected = 32;
    blocks[b].barrier.expected = threads;
    blocks[b].place = places[b];
    for (int t = 0; t < threads; t++) {
      Fiber& fiber = fibers[b * threads + t];
      fiber.stack.resize(1 << 15);
      fiber.done = false;
      fiber.place = {t, 0, 0};
      fiber.block = &blocks[b];
      fiber.warp = &blocks[b].warps[t / 32];
      fiber.lane = t % 32;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.data();
      fiber.context.uc_stack.ss_size = fiber.stack.size();
      makecontext(&fiber.context, begin, 0);
    }
  }
  for (bool any = true; any;) {
    any = false;
    for (auto& fiber : fibers) {
      if (fiber.done) continue;
      any = true;
      current = &fiber;
      swapcontext(&scheduler, &fiber.context);
    }
  }
}

static const Place gridDim = {1, 1, 1};
#define threadIdx (current->place)
#define blockIdx (current->block->place)
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)

struct float4 {
  float x, y, z, w;
};
struct uint2 {
  uint32_t x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
static float __fdividef(float x, float y) { return x / y; }
static float __uint_as_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
static void __syncwarp() { wait(current->warp->barrier); }
static void __syncthreads() { wait(current->block->barrier); }
template <class T>
static T __shfl_sync(unsigned, T x, int from) {
  Warp& warp = *current->warp;
  memcpy(&warp.slots[current->lane], &x, 4);
  wait(warp.barrier);
  T found;
  memcpy(&found, &warp.slots[from & 31], 4);
  wait(warp.barrier);
  return found;
}
template <class T>
static T __shfl_xor_sync(unsigned all, T x, int bits) {
  return __shfl_sync(all, x, current->lane ^ bits);
}

static bool __any_sync(unsigned all, unsigned x) {
  for (int bits = 1; bits < 32; bits *= 2) x |= __shfl_xor_sync(all, x, bits);
  return x != 0;
}

static uint16_t to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static uint16_t to_f16(float x) {
  const _Float16 half = (_Float16)x;
  uint16_t bits;
  memcpy(&bits, &half, 2);
  return bits;
}
static float of_f16(const void* from) {
  _Float16 half;
  memcpy(&half, from, 2);
  return (float)half;
}
static float of_bf16(uint32_t pair, bool upper) { return __uint_as_float(upper ? pair & 0xffff0000u : pair << 16); }

// Instructions that the sources write as text.
static uint32_t permuted(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = (uint64_t)b << 32 | a;
  uint32_t found = 0;
  for (int i = 0; i < 4; i++) found |= (uint32_t)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return found;
}
static uint32_t difference(uint32_t a, uint32_t b) {
  const uint32_t low = to_bf16(of_bf16(a, false) - of_bf16(b, false));
  return low | (uint32_t)to_bf16(of_bf16(a, true) - of_bf16(b, true)) << 16;
}
static uint32_t product(uint32_t a, uint32_t b) {
  const uint32_t low = to_bf16(of_bf16(a, false) * of_bf16(b, false));
  return low | (uint32_t)to_bf16(of_bf16(a, true) * of_bf16(b, true)) << 16;
}
static void matrix_product(float (&d)[4], const uint32_t (&mine)[6]) {
  Warp& warp = *current->warp;
  memcpy(warp.registers[current->lane], mine, sizeof(mine));
  wait(warp.barrier);
  for (int i = 0; i < 4; i++) {
    const int row = current->lane / 4 + i / 2 * 8, column = current->lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; k++) {
      const int at = k % 8 / 2, high = k / 8;
      const uint32_t a = warp.registers[row % 8 * 4 + at][row / 8 + 2 * high];
      d[i] += of_bf16(a, k % 2) * of_bf16(warp.registers[column * 4 + at][4 + high], k % 2);
    }
  }
  wait(warp.barrier);
}
static void transposed_rows(uint32_t (&r)[4], const void* row) {
  Warp& warp = *current->warp;
  memcpy(warp.registers[current->lane], &row, sizeof(row));
  wait(warp.barrier);
  for (int i = 0; i < 4; i++) {
    uint16_t found[2];
    for (int k = 0; k < 2; k++) {
      const char* from;
      memcpy(&from, warp.registers[8 * i + current->lane % 4 * 2 + k], sizeof(from));
      memcpy(&found[k], from + current->lane / 4 * 2, 2);
    }
    r[i] = found[0] | (uint32_t)found[1] << 16;
  }
  wait(warp.barrier);
}
// The same place of another block of the cluster.
static float* beside(float* here, int block) {
  return (float*)(aligned(blocks[block].fixed) + ((char*)here - aligned(current->block->fixed)));
}
