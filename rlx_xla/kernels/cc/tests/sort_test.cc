// sort.h against std::stable_sort by the definition of the order.
#include "sort.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <tuple>
#include <type_traits>
#include <vector>

#include "testing.h"

namespace {

using rlx::ElementType;
using rlx::testing::Exactly;
using rlx::testing::NextRandom;
using rlx::testing::ThreadPool;

double Number(rlx::Bf16 x) { return rlx::ToFloat(x); }
double Number(rlx::F16 x) { return rlx::ToFloat(x); }
template <typename T>
T Number(T x) {
  return x;
}

template <typename T>
bool Less(T a, T b) {
  const auto x = Number(a);
  const auto y = Number(b);
  if constexpr (rlx::kIsFloat<T>) {
    if (x != x || y != y) return x == x && y != y;
  }
  return x < y;
}

// Any bits, or few values with many ties.
template <typename T>
T RandomElement(bool ties) {
  using U = rlx::BitsOf<T>;
  const uint64_t bits = (static_cast<uint64_t>(NextRandom()) << 40) ^
                        (static_cast<uint64_t>(NextRandom()) << 20) ^ NextRandom();
  if (!ties) return rlx::BitCast<T>(static_cast<U>(bits));
  const U sign = static_cast<U>(static_cast<U>(bits & 1) << (8 * sizeof(U) - 1));
  const U special[] = {0, rlx::kInfinityBits<T>, static_cast<U>(rlx::kInfinityBits<T> + 1), 5};
  return rlx::BitCast<T>(static_cast<U>(special[bits >> 8 & 3] | sign));
}

// Whether rows are sorted as where there are no vector instructions.
bool by_digits = false;

template <typename Pool>
void SortAny(const Pool& pool, const std::vector<rlx::SortOperand>& operands, int64_t outer,
             int64_t n, int64_t inner, int64_t num_keys) {
  if (!by_digits) return rlx::Sort(pool, operands, outer, n, inner, num_keys);
  if (n > 0) {
    rlx::sort::SortWith<rlx::sort::DigitSorter>(rlx::sort::AnyPool(pool), operands, outer, n, inner,
                                                num_keys);
  }
}

template <typename T, typename Pool>
void CheckSort(const Pool& pool, ElementType type, int64_t outer, int64_t n, int64_t inner) {
  const int64_t size = outer * n * inner;
  for (bool ties : {false, true}) {
    for (bool with_index : {false, true}) {
      auto key = Exactly<T>(size);
      auto index = Exactly<int32_t>(size);
      auto sorted_key = Exactly<T>(size);
      auto sorted_index = Exactly<int32_t>(size);
      for (int64_t i = 0; i < size; ++i) {
        key[i] = RandomElement<T>(ties);
        index[i] = static_cast<int32_t>(i / inner % n);
      }
      std::vector<rlx::SortOperand> operands = {
          {key.get(), sorted_key.get(), sizeof(T), type}};
      if (with_index) operands.push_back({index.get(), sorted_index.get(), 4, ElementType::kI32});
      SortAny(pool, operands, outer, n, inner, 1);
      std::vector<int64_t> order(n);
      for (int64_t line = 0; line < outer * inner; ++line) {
        const int64_t base = line / inner * n * inner + line % inner;
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
          return Less(key[base + a * inner], key[base + b * inner]);
        });
        for (int64_t i = 0; i < n; ++i) {
          const T want = key[base + order[i] * inner];
          const T got = sorted_key[base + i * inner];
          CHECK(rlx::BitCast<rlx::BitsOf<T>>(got) == rlx::BitCast<rlx::BitsOf<T>>(want));
          if (with_index) CHECK(sorted_index[base + i * inner] == order[i]);
        }
      }
    }
  }
}

template <typename T>
void TestType(ElementType type) {
  const rlx::sort::Alone alone;
  for (int64_t n : {0, 1, 2, 7, 63, 64, 65, 95, 96, 97, 100, 250, 500, 511, 1000, 20000}) {
    CheckSort<T>(alone, type, n > 1000 ? 1 : 3, n, 1);
    if (n <= 1000) CheckSort<T>(alone, type, 2, n, 17);
  }
  ThreadPool pool;
  CheckSort<T>(pool, type, 1, 70000, 1);
  CheckSort<T>(pool, type, 100, 200, 1);
  CheckSort<T>(pool, type, 1, 200, 100);
}

// Elements of two bytes by counting: rows of any length, of all values, of few, of one.
template <typename T, typename Pool>
void TestCounted(const Pool& pool) {
  for (int64_t n : {1, 2, 15, 16, 17, 1000, 70000, 300001}) {
    for (int kind : {0, 1, 2}) {
      auto in = Exactly<T>(n);
      auto out = Exactly<T>(n);
      for (int64_t i = 0; i < n; ++i) {
        in[i] = kind == 2 && i > 0 ? in[0] : RandomElement<T>(kind == 1);
      }
      rlx::sort::SortShorts(pool, in.get(), n, out.get());
      std::vector<T> want(in.get(), in.get() + n);
      std::stable_sort(want.begin(), want.end(), [](T a, T b) { return Less(a, b); });
      CHECK(std::memcmp(want.data(), out.get(), sizeof(T) * n) == 0);
    }
  }
}

// Three keys of different types, the first most significant, and companions of every size.
void TestManyOperands() {
  for (int64_t n : {2, 50, 300}) {
    auto a = Exactly<uint8_t>(n), a_out = Exactly<uint8_t>(n);
    auto b = Exactly<int16_t>(n), b_out = Exactly<int16_t>(n);
    auto c = Exactly<double>(n), c_out = Exactly<double>(n);
    auto d = Exactly<rlx::sort::Wide>(n), d_out = Exactly<rlx::sort::Wide>(n);
    for (int64_t i = 0; i < n; ++i) {
      a[i] = NextRandom() % 3;
      b[i] = static_cast<int16_t>(NextRandom() % 3) - 1;
      c[i] = NextRandom() % 3 * 0.5;
      d[i] = {{static_cast<uint64_t>(i), 7}};
    }
    const std::vector<rlx::SortOperand> operands = {
        {a.get(), a_out.get(), 1, ElementType::kU8},
        {b.get(), b_out.get(), 2, ElementType::kI16},
        {c.get(), c_out.get(), 8, ElementType::kF64},
        {d.get(), d_out.get(), 16, ElementType::kU8},
    };
    SortAny(rlx::sort::Alone{}, operands, 1, n, 1, 3);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t from = static_cast<int64_t>(d_out[i].half[0]);
      CHECK(a_out[i] == a[from] && b_out[i] == b[from] && c_out[i] == c[from]);
      if (i == 0) continue;
      const auto before = std::make_tuple(a_out[i - 1], b_out[i - 1], c_out[i - 1],
                                          d_out[i - 1].half[0]);
      CHECK(before < std::make_tuple(a_out[i], b_out[i], c_out[i], d_out[i].half[0]));
    }
  }
}

// Keys of 64 bits that differ only in their last bits, which do not fit beside the position: some
// runs of them short, one long.
template <typename T>
void TestAlike(ElementType type) {
  constexpr int64_t kN = 3000;
  auto key = Exactly<T>(kN), sorted_key = Exactly<T>(kN);
  auto index = Exactly<int32_t>(kN), sorted_index = Exactly<int32_t>(kN);
  for (int64_t i = 0; i < kN; ++i) {
    const uint64_t high = i % 3 == 0 ? 7 : NextRandom() % 500;
    const uint64_t sign = static_cast<uint64_t>(NextRandom() & 1) << 63;
    key[i] = rlx::BitCast<T>(sign | high << 54 | NextRandom() % 50);
    index[i] = static_cast<int32_t>(i);
  }
  const std::vector<rlx::SortOperand> operands = {
      {key.get(), sorted_key.get(), 8, type},
      {index.get(), sorted_index.get(), 4, ElementType::kI32}};
  SortAny(rlx::sort::Alone{}, operands, 1, kN, 1, 1);
  std::vector<int64_t> order(kN);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return Less(key[a], key[b]); });
  for (int64_t i = 0; i < kN; ++i) {
    CHECK(sorted_index[i] == order[i]);
    CHECK(rlx::BitCast<uint64_t>(sorted_key[i]) == rlx::BitCast<uint64_t>(key[order[i]]));
  }
}

#if defined(__AVX2__)
// Rows that lead pivots astray: sorted, turned, of two values, of one and some others, waves.
template <typename Key>
void TestHardRows() {
  constexpr int64_t kN = 70000;
  ThreadPool pool;
  auto keys = Exactly<Key>(kN), spare = Exactly<Key>(kN);
  for (int kind = 0; kind < 8; ++kind) {
    for (int64_t n : {257, 700, 9000, 70000}) {
      for (int64_t i = 0; i < n; ++i) {
        const Key choices[] = {static_cast<Key>(i),
                               static_cast<Key>(n - i),
                               static_cast<Key>(std::min(i, n - i)),
                               std::numeric_limits<Key>::min(),
                               std::numeric_limits<Key>::max(),
                               static_cast<Key>(NextRandom() % 2 == 0 ? -1 : 1),
                               static_cast<Key>(i % 50 == 0 ? NextRandom() : 3),
                               static_cast<Key>((i * 40503) % 65536)};
        keys[i] = choices[kind];
      }
      std::vector<Key> want(keys.get(), keys.get() + n);
      std::sort(want.begin(), want.end());
      if (rlx::HasWide512()) {
#if defined(RLX_HAS_WIDE512)
        rlx::sort::wide512::SortKeys(pool, keys.get(), spare.get(), n);
#endif
      } else {
        rlx::sort::wide256::SortKeys(pool, keys.get(), spare.get(), n);
      }
      CHECK(std::equal(want.begin(), want.end(), keys.get()));
    }
  }
  // Where splits have led nowhere, digits end it.
  for (bool away : {false, true}) {
    Key* from = away ? spare.get() : keys.get();
    for (int64_t i = 0; i < 500; ++i) from[i] = static_cast<Key>(NextRandom()) - (1 << 20);
    std::vector<Key> want(from, from + 500);
    std::sort(want.begin(), want.end());
    rlx::sort::SortSigned(keys.get(), spare.get(), 500, away);
    CHECK(std::equal(want.begin(), want.end(), keys.get()));
  }
}
#endif

// A companion that counts down, from any number; and one that does so but for one place.
void TestCountsDown() {
  for (int64_t n : {2, 63, 64, 300, 70000}) {
    for (bool broken : {false, true}) {
      auto key = Exactly<float>(n), key_out = Exactly<float>(n);
      auto index = Exactly<int32_t>(n), index_out = Exactly<int32_t>(n);
      for (int64_t i = 0; i < n; ++i) {
        key[i] = static_cast<float>(NextRandom() % 1000);
        index[i] = static_cast<int32_t>(n + 5 - i);
      }
      if (broken) index[NextRandom() % n] = -3;
      std::vector<int32_t> order(n);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return key[a] < key[b]; });
      const std::vector<rlx::SortOperand> operands = {
          {key.get(), key_out.get(), 4, ElementType::kF32},
          {index.get(), index_out.get(), 4, ElementType::kI32}};
      SortAny(rlx::sort::Alone{}, operands, 1, n, 1, 1);
      for (int64_t i = 0; i < n; ++i) CHECK(index_out[i] == index[order[i]]);
    }
  }
}

}  // namespace

int main() {
  TestType<uint8_t>(ElementType::kU8);
  TestType<int8_t>(ElementType::kI8);
  TestType<uint16_t>(ElementType::kU16);
  TestType<int16_t>(ElementType::kI16);
  TestType<uint32_t>(ElementType::kU32);
  TestType<int32_t>(ElementType::kI32);
  TestType<uint64_t>(ElementType::kU64);
  TestType<int64_t>(ElementType::kI64);
  TestType<rlx::Bf16>(ElementType::kBf16);
  TestType<rlx::F16>(ElementType::kF16);
  TestType<float>(ElementType::kF32);
  TestType<double>(ElementType::kF64);
  TestManyOperands();
  TestCountsDown();
  ThreadPool pool;
  TestCounted<int16_t>(pool);
  TestCounted<uint16_t>(rlx::sort::Alone{});
  TestCounted<rlx::Bf16>(rlx::sort::Alone{});
  TestCounted<rlx::F16>(pool);
  CheckSort<int16_t>(pool, ElementType::kI16, 1, (1 << 18) + 5, 1);
  TestAlike<int64_t>(ElementType::kI64);
  TestAlike<double>(ElementType::kF64);
#if defined(__AVX2__)
  // First as this CPU does it, then as others do.
  for (bool wide : {true, false}) {
    rlx::matmul::allow_avx512 = wide;
    TestHardRows<int32_t>();
    TestHardRows<int64_t>();
    TestAlike<int64_t>(ElementType::kI64);
    TestAlike<double>(ElementType::kF64);
  }
#endif
  TestType<float>(ElementType::kF32);
  TestType<double>(ElementType::kF64);
  TestType<int16_t>(ElementType::kI16);
  by_digits = true;
  TestType<float>(ElementType::kF32);
  TestType<int64_t>(ElementType::kI64);
  TestType<uint8_t>(ElementType::kU8);
  TestManyOperands();
  TestCountsDown();
  std::puts("sort: ok");
  return 0;
}
