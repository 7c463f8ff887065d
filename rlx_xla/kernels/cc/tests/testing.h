// What the cores' tests and the fuzzer share: checks, random numbers, and pools of threads that
// misbehave within their rights.
#ifndef RLX_KERNELS_TESTS_TESTING_H_
#define RLX_KERNELS_TESTS_TESTING_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);    \
      std::abort();                                                           \
    }                                                                         \
  } while (false)

namespace rlx {
namespace testing {

inline uint32_t NextRandom() {
  static uint32_t state = 1;
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}

// A heap block of exactly n elements, so that a read or write past its end is seen.
template <typename T>
std::unique_ptr<T[]> Exactly(int64_t n) {
  return std::unique_ptr<T[]>(new T[n]);
}

// Refuses every task.
struct FullPool {
  int64_t Threads() const { return 4; }
  bool Schedule(void (*)(void*), void*) const { return false; }
};

// Runs every task on the thread that schedules it.
struct InlinePool {
  int64_t Threads() const { return 4; }
  bool Schedule(void (*task)(void*), void* data) const {
    task(data);
    return true;
  }
};

// Starts every task after the loop has returned.
struct LatePool {
  int64_t Threads() const { return 4; }
  bool Schedule(void (*task)(void*), void* data) const {
    tasks.emplace_back(task, data);
    return true;
  }
  ~LatePool() {
    for (auto [task, data] : tasks) task(data);
  }
  mutable std::vector<std::pair<void (*)(void*), void*>> tasks;
};

struct ThreadPool {
  int64_t Threads() const { return 4; }
  bool Schedule(void (*task)(void*), void* data) const {
    threads.emplace_back(task, data);
    return true;
  }
  ~ThreadPool() {
    for (std::thread& thread : threads) thread.join();
  }
  mutable std::vector<std::thread> threads;
};

}  // namespace testing
}  // namespace rlx

#endif  // RLX_KERNELS_TESTS_TESTING_H_
