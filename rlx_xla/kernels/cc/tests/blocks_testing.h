// Random numbers and packed blocks for the tests of their products.
#ifndef RLX_KERNELS_TESTS_BLOCKS_TESTING_H_
#define RLX_KERNELS_TESTS_BLOCKS_TESTING_H_

#include <cstdint>
#include <cstring>
#include <memory>

#include "testing.h"

namespace rlx {
namespace testing {

inline float Uniform() { return static_cast<float>(NextRandom() % 2001) / 1000.0f - 1.0f; }

// Random blocks, their halves between 1/128 and 1/64. They begin `skip` bytes into their memory.
template <typename Block>
std::unique_ptr<uint8_t[]> RandomBlocks(int64_t count, int64_t skip = 0) {
  auto w = Exactly<uint8_t>(skip + count * Block::kBytes);
  for (int64_t i = 0; i < skip + count * Block::kBytes; ++i) {
    w[i] = static_cast<uint8_t>(NextRandom());
  }
  const bool two = Block::kBytes == 20 || Block::kBytes == 24 || Block::kBytes == 144 ||
                   Block::kBytes == 176;
  const int64_t first = Block::kBytes == 210 ? 208 : Block::kBytes == 54 ? 52 : 0;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t at = first; at < first + (two ? 4 : 2); at += 2) {
      const auto half = static_cast<uint16_t>(0x2000 | (NextRandom() & 0x3ff));
      std::memcpy(w.get() + skip + i * Block::kBytes + at, &half, sizeof(half));
    }
    if (Block::kBytes == 17) {  // a power of two
      w[skip + i * Block::kBytes] = static_cast<uint8_t>(110 + NextRandom() % 15);
    }
    if (Block::kBytes == 56) {  // the top of its half lies in the last byte's high bits
      uint8_t* top = w.get() + skip + i * Block::kBytes + 55;
      *top = static_cast<uint8_t>((*top & 15) | 0x20);
    }
  }
  return w;
}

}  // namespace testing
}  // namespace rlx

#endif  // RLX_KERNELS_TESTS_BLOCKS_TESTING_H_
