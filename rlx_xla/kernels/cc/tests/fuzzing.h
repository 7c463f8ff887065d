// What the fuzzers share: bytes as a source of decisions and data, and a program that draws them.
#ifndef RLX_KERNELS_TESTS_FUZZING_H_
#define RLX_KERNELS_TESTS_FUZZING_H_

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "numbers.h"
#include "testing.h"

namespace rlx {
namespace testing {

// Reads from the input, and zeros once it is used up.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  uint8_t Next() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  int64_t Below(int64_t bound) { return (Next() << 8 | Next()) % bound; }

  void Into(void* to, size_t size) {
    auto* bytes = static_cast<uint8_t*>(to);
    for (size_t i = 0; i < size; ++i) bytes[i] = Next();
  }
  template <typename T>
  std::unique_ptr<T[]> Fill(int64_t n) {
    auto x = Exactly<T>(n);
    Into(x.get(), n * sizeof(T));
    return x;
  }
  // Numbers from -1 to 1.
  template <typename T>
  std::unique_ptr<T[]> Small(int64_t n) {
    auto x = Exactly<T>(n);
    for (int64_t i = 0; i < n; ++i) x[i] = FromFloat<T>((Next() - 127.5f) / 127.5f);
    return x;
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

// The program of a fuzzer: NAME [inputs] [seed]; the seed is drawn, and printed.
inline int RunFuzzer(const char* name, int64_t inputs, int argc, char** argv,
                     int (*one)(const uint8_t*, size_t)) {
  if (argc > 1) inputs = std::atoll(argv[1]);
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::random_device{}();
  uint64_t state = seed;
  std::printf("%s: seed %llu\n", name, static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  const auto next = [&state] {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<uint32_t>(state >> 33);
  };
  std::vector<uint8_t> bytes;
  for (int64_t i = 0; i < inputs; ++i) {
    bytes.resize(next() % 8 == 0 ? next() % 100000 : next() % 3000);
    const bool few = next() % 2;  // many equal elements, or anything
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(few ? next() % 2 * 0x7f : next());
    for (size_t j = 0; j < std::min<size_t>(bytes.size(), 32); ++j) {
      bytes[j] = static_cast<uint8_t>(next());
    }
    one(bytes.data(), bytes.size());
  }
  std::printf("%s: %lld inputs of seed %llu, ok\n", name, static_cast<long long>(inputs),
              static_cast<unsigned long long>(seed));
  return 0;
}

}  // namespace testing
}  // namespace rlx

// `main` of a fuzzer that has LLVMFuzzerTestOneInput; built with -fsanitize=fuzzer
// -DRLX_LIBFUZZER it is a target of libFuzzer instead.
#if defined(RLX_LIBFUZZER)
#define RLX_FUZZER_MAIN(name, inputs)
#else
#define RLX_FUZZER_MAIN(name, inputs)                                                       \
  int main(int argc, char** argv) {                                                         \
    return rlx::testing::RunFuzzer(name, inputs, argc, argv, LLVMFuzzerTestOneInput);       \
  }
#endif

#endif  // RLX_KERNELS_TESTS_FUZZING_H_
