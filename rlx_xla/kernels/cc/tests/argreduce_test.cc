// argreduce.h against the plain definition, and parallel.h against pools that misbehave within
// their rights. Built with the sanitizers: every row is a heap block of its exact size, so that
// a read past an end is seen.
#include "argreduce.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "parallel.h"
#include "testing.h"

namespace {

using rlx::testing::FullPool;
using rlx::testing::InlinePool;
using rlx::testing::LatePool;
using rlx::testing::NextRandom;
using rlx::testing::ThreadPool;

template <rlx::Extreme kind, typename T>
int64_t Definition(const T* x, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] != x[i]) return i;
    if (kind == rlx::Extreme::kMax ? x[i] > x[best] : x[i] < x[best]) best = i;
  }
  return best;
}

template <typename T>
void CheckRow(const T* x, int64_t n) {
  int32_t max = -1;
  int32_t min = -1;
  rlx::ArgReduce<rlx::Extreme::kMax>(x, 1, n, &max);
  rlx::ArgReduce<rlx::Extreme::kMin>(x, 1, n, &min);
  CHECK(max == (Definition<rlx::Extreme::kMax>(x, n)));
  CHECK(min == (Definition<rlx::Extreme::kMin>(x, n)));
}

template <typename T>
void TestRows() {
  std::vector<int64_t> sizes;
  for (int64_t n = 1; n <= 200; ++n) sizes.push_back(n);
  for (int64_t n : {1023, 1024, 1025, 2047, 2048, 2049, 4097, 10000}) sizes.push_back(n);
  for (int64_t n : sizes) {
    for (uint32_t values : {1u, 3u, 1000000u}) {  // all equal, many ties, few ties
      for (uint32_t nans : {0u, 1u, 5u}) {
        if (nans > 0 && !std::is_floating_point_v<T>) continue;
        std::unique_ptr<T[]> x(new T[n]);
        for (int64_t i = 0; i < n; ++i) x[i] = static_cast<T>(NextRandom() % values) - T{1};
        for (uint32_t i = 0; i < nans; ++i) {
          x[NextRandom() % n] = std::numeric_limits<T>::quiet_NaN();
        }
        CheckRow(x.get(), n);
      }
    }
  }
}

void TestSpecialValues() {
  const float inf = std::numeric_limits<float>::infinity();
  for (int64_t n : {1, 31, 32, 33, 100}) {
    std::unique_ptr<float[]> x(new float[n]);
    for (float fill : {inf, -inf, 0.0f, -0.0f}) {
      std::fill(x.get(), x.get() + n, fill);
      CheckRow(x.get(), n);
      x[n / 2] = -fill;
      CheckRow(x.get(), n);
    }
  }
}

// Columns of x[n, inner], each against the definition of its own elements.
template <typename T>
void TestColumns() {
  for (int64_t n : {1, 2, 33, 100}) {
    for (int64_t inner : {1, 2, 63, 64, 65, 513, 1100}) {
      std::unique_ptr<T[]> x(new T[n * inner]);
      for (int64_t i = 0; i < n * inner; ++i) x[i] = static_cast<T>(NextRandom() % 5) - T{1};
      if (std::is_floating_point_v<T>) x[n * inner / 2] = std::numeric_limits<T>::quiet_NaN();
      std::unique_ptr<int32_t[]> max(new int32_t[inner]);
      std::unique_ptr<int32_t[]> min(new int32_t[inner]);
      rlx::ArgReduceColumns<rlx::Extreme::kMax>(x.get(), n, inner, inner, max.get());
      rlx::ArgReduceColumns<rlx::Extreme::kMin>(x.get(), n, inner, inner, min.get());
      std::unique_ptr<T[]> column(new T[n]);
      for (int64_t c = 0; c < inner; ++c) {
        for (int64_t i = 0; i < n; ++i) column[i] = x[i * inner + c];
        CHECK(max[c] == (Definition<rlx::Extreme::kMax>(column.get(), n)));
        CHECK(min[c] == (Definition<rlx::Extreme::kMin>(column.get(), n)));
      }
    }
  }
}

// What a piece throws comes out of the loop, and every other piece is run all the same.
template <typename Pool>
void TestThrowingPiece() {
  Pool pool;
  std::atomic<int> visits{0};
  bool thrown = false;
  try {
    rlx::ParallelFor(pool, 1000, 10, [&](int64_t begin, int64_t end) {
      visits.fetch_add(static_cast<int>(end - begin));
      if (begin <= 500 && 500 < end) throw std::bad_alloc();
    });
  } catch (const std::bad_alloc&) {
    thrown = true;
  }
  CHECK(thrown);
  CHECK(visits.load() == 1000);
}

template <typename Pool>
void TestParallelFor() {
  for (int64_t count : {0, 1, 2, 7, 64, 1000}) {
    for (int64_t grain : {0, 1, 3, 2000}) {
      Pool pool;
      std::vector<std::atomic<int>> visits(count);
      rlx::ParallelFor(pool, count, grain, [&](int64_t begin, int64_t end) {
        CHECK(0 <= begin && begin < end && end <= count);
        for (int64_t i = begin; i < end; ++i) visits[i].fetch_add(1);
      });
      for (const std::atomic<int>& visit : visits) CHECK(visit.load() == 1);
    }
  }
}

}  // namespace

int main() {
  TestRows<float>();
  TestRows<double>();
  TestRows<int32_t>();
  TestSpecialValues();
  TestColumns<float>();
  TestColumns<double>();
  TestColumns<int32_t>();
  TestThrowingPiece<FullPool>();
  TestThrowingPiece<InlinePool>();
  TestThrowingPiece<LatePool>();
  TestThrowingPiece<ThreadPool>();
  TestParallelFor<FullPool>();
  TestParallelFor<InlinePool>();
  TestParallelFor<LatePool>();
  TestParallelFor<ThreadPool>();
  std::puts("argreduce: ok");
  return 0;
}
