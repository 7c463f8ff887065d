// A fuzzer of the cores that go over arrays: bytes choose a kernel, its sizes and its data; what
// comes out is checked by what must hold of it, and the sanitizers watch every access. Blocks have
// their exact sizes.
//
// By itself it makes its own bytes: kernels_fuzz [inputs] [seed]; the seed is drawn, and printed.
#include <cstring>

#include "argreduce.h"
#include "blocks.h"
#include "columns_int8.h"
#include "conv.h"
#include "cumulative.h"
#include "dequant_int8.h"
#include "fuzzing.h"
#include "grids.h"
#include "minifloat.h"
#include "mlx.h"
#include "mx_rows.h"
#include "pool.h"
#include "products.h"
#include "sort.h"
#include "top_k.h"

namespace {

using rlx::testing::Bytes;
using rlx::testing::Exactly;

template <typename T>
void FuzzSort(Bytes* in, rlx::ElementType type) {
  const int64_t outer = 1 + in->Below(3);
  const int64_t n = in->Below(in->Next() % 8 == 0 ? 20000 : 200);
  const int64_t inner = 1 + in->Below(20) * (in->Next() % 2);
  const int64_t size = outer * n * inner;
  if (size > 60000) return;
  const int64_t num_keys = 1 + in->Below(2);
  auto key = in->Fill<T>(size);
  auto second = in->Fill<uint8_t>(size);
  auto index = Exactly<int32_t>(size);
  for (int64_t i = 0; i < size; ++i) index[i] = static_cast<int32_t>(i / inner % n);
  auto key_out = Exactly<T>(size);
  auto second_out = Exactly<uint8_t>(size);
  auto index_out = Exactly<int32_t>(size);
  rlx::Sort(rlx::testing::InlinePool{},
            {{key.get(), key_out.get(), sizeof(T), type},
             {second.get(), second_out.get(), 1, rlx::ElementType::kU8},
             {index.get(), index_out.get(), 4, rlx::ElementType::kI32}},
            outer, n, inner, num_keys);
  for (int64_t line = 0; line < outer * inner; ++line) {
    const int64_t base = line / inner * n * inner + line % inner;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = base + i * inner;
      const int64_t from = base + index_out[at] * inner;
      CHECK(0 <= index_out[at] && index_out[at] < n);
      CHECK(std::memcmp(&key_out[at], &key[from], sizeof(T)) == 0);
      CHECK(second_out[at] == second[from]);
      if (i == 0) continue;
      const auto now = rlx::sort::Encode(key_out[at]);
      const auto before = rlx::sort::Encode(key_out[at - inner]);
      CHECK(before <= now);
      if (before < now) continue;
      const bool by_second = num_keys == 2 && second_out[at - inner] != second_out[at];
      CHECK(by_second ? second_out[at - inner] < second_out[at]
                      : index_out[at - inner] < index_out[at]);
    }
  }
}

template <typename T>
void FuzzTopK(Bytes* in) {
  const int64_t n = 1 + in->Below(3000);
  const int64_t k = 1 + in->Below(n);
  auto x = in->Fill<T>(n);
  auto values = Exactly<T>(k);
  auto indices = Exactly<int32_t>(k);
  rlx::TopK<T, false>(x.get(), 1, n, k, values.get(), indices.get());
  const auto key = [](T v) { return rlx::top_k::KeyOf<T, false>(v); };
  int64_t above = 0;
  for (int64_t i = 0; i < n; ++i) above += key(x[i]) > key(values[k - 1]);
  CHECK(above < k);
  for (int64_t i = 0; i < k; ++i) {
    CHECK(0 <= indices[i] && indices[i] < n && key(values[i]) == key(x[indices[i]]));
    if (i == 0) continue;
    CHECK(key(values[i - 1]) > key(values[i]) ||
          (key(values[i - 1]) == key(values[i]) && indices[i - 1] < indices[i]));
  }
}

template <typename T>
void FuzzCumulative(Bytes* in) {
  const int64_t outer = 1 + in->Below(3);
  const int64_t n = in->Below(700);
  const int64_t inner = 1 + in->Below(600) * (in->Next() % 2);
  const int64_t size = outer * n * inner;
  if (size > 60000) return;
  const auto kind = static_cast<rlx::Running>(in->Below(5));
  if (kind == rlx::Running::kLogSumExp && !(rlx::kIsFloat<T> && sizeof(T) <= 4)) return;
  const bool reverse = in->Next() % 2;
  auto x = in->Fill<T>(size);
  auto y = Exactly<T>(size);
  rlx::Cumulate(rlx::testing::InlinePool{}, kind, x.get(), outer, n, inner, reverse, y.get());
  if (kind != rlx::Running::kMaximum || rlx::kIsFloat<T>) return;
  for (int64_t i = inner; i < n * inner; ++i) {
    CHECK(reverse ? rlx::sort::Encode(y[i - inner]) >= rlx::sort::Encode(y[i])
                  : rlx::sort::Encode(y[i - inner]) <= rlx::sort::Encode(y[i]));
  }
}

void FuzzArgReduce(Bytes* in) {
  const int64_t n = 1 + in->Below(300);
  const int64_t inner = 1 + in->Below(300);
  auto x = in->Fill<float>(n * inner);
  auto rows = Exactly<int32_t>(n);
  auto columns = Exactly<int32_t>(inner);
  rlx::ArgReduce<rlx::Extreme::kMax>(x.get(), n, inner, rows.get());
  rlx::ArgReduceColumns<rlx::Extreme::kMax>(x.get(), n, inner, inner, columns.get());
  const auto least = [](float best, float v) { return best != best || !(v > best); };
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t c = 0; c < inner; ++c) {
      CHECK(least(x[i * inner + rows[i]], x[i * inner + c]));
      CHECK(least(x[columns[c] * inner + c], x[i * inner + c]));
    }
  }
}

template <typename W, typename X = float>
void FuzzMatmul(Bytes* in) {
  const rlx::MatmulShape shape = {1 + in->Below(2), in->Below(40), in->Below(300), in->Below(600),
                                  in->Next() % 2 == 0};
  if (shape.batch * shape.k * shape.n > 60000) return;
  auto x = in->Fill<X>(shape.batch * shape.rows * shape.k);
  auto w = in->Fill<W>(shape.batch * shape.k * shape.n);
  auto y = Exactly<float>(shape.batch * shape.rows * shape.n);
  const int64_t cols = shape.by_rows ? shape.k : shape.n;
  rlx::Product(
      rlx::testing::InlinePool{}, shape, x.get(),
      [&](int64_t b) {
        return rlx::matmul::PlainWeights<W>{w.get() + b * shape.k * shape.n, cols};
      },
      y.get());
}

template <typename Block>
void FuzzBlocks(Bytes* in) {
  const int64_t k = in->Below(5) * Block::kElements;
  const rlx::MatmulShape shape = {1, in->Below(20), k, in->Below(40), true};
  auto x = in->Fill<rlx::Bf16>(shape.rows * k);
  auto w = in->Fill<uint8_t>(shape.n * k / Block::kElements * Block::kBytes);
  auto y = Exactly<rlx::Bf16>(shape.rows * shape.n);
  const rlx::blocks::RowsOfBlocks<Block> weights = {w.get(), k};
  rlx::Product(
      rlx::testing::InlinePool{}, shape, x.get(), [&](int64_t) { return weights; }, y.get());
}

template <bool kNibbles>
void FuzzCodes(Bytes* in) {
  const int64_t k = in->Below(100);
  const int64_t n = in->Below(300) * 2;
  const int64_t block = 1 + in->Below(40);
  const int64_t scales = (k + block - 1) / block * n;
  const rlx::MatmulShape shape = {1, in->Below(20), k, n, false};
  auto x = in->Fill<float>(shape.rows * k);
  auto codes = in->Fill<uint8_t>(kNibbles ? k * n / 2 : k * n);
  auto scale = in->Fill<float>(scales);
  auto zero = in->Fill<float>(scales);
  auto y = Exactly<float>(shape.rows * n);
  const rlx::blocks::ColumnsOfCodes<kNibbles> weights = {
      codes.get(), scale.get(), in->Next() % 2 ? zero.get() : nullptr, block, n};
  rlx::Product(
      rlx::testing::InlinePool{}, shape, x.get(), [&](int64_t) { return weights; }, y.get());
}

template <rlx::blocks::Byte kByte>
void FuzzBytes(Bytes* in) {
  const int64_t k = in->Below(300);
  const int64_t n = in->Below(600);
  if (k * n > 60000) return;
  const rlx::MatmulShape shape = {1, in->Below(20), k, n, false};
  auto x = in->Fill<float>(shape.rows * k);
  auto codes = in->Fill<uint8_t>(k * n);
  auto scale = in->Fill<float>(n);
  auto y = Exactly<float>(shape.rows * n);
  const rlx::blocks::ColumnsOfBytes<kByte> weights = {
      codes.get(), in->Next() % 2 ? scale.get() : nullptr, n};
  rlx::Product(
      rlx::testing::InlinePool{}, shape, x.get(), [&](int64_t) { return weights; }, y.get());
}

void FuzzNvfp4(Bytes* in) {
  const int64_t k = in->Below(300);
  const int64_t n = in->Below(300) * 2;
  if (k * n > 60000) return;
  const rlx::MatmulShape shape = {1, in->Below(20), k, n, false};
  auto x = in->Fill<float>(shape.rows * k);
  auto codes = in->Fill<uint8_t>(k * n / 2);
  auto scale = in->Fill<uint8_t>((k + 15) / 16 * n);
  auto whole = in->Fill<float>(1);
  auto y = Exactly<float>(shape.rows * n);
  const rlx::blocks::ColumnsOfNvfp4 weights = {codes.get(), scale.get(),
                                               in->Next() % 2 ? whole.get() : nullptr, n};
  rlx::Product(
      rlx::testing::InlinePool{}, shape, x.get(), [&](int64_t) { return weights; }, y.get());
}

template <typename Block>
void FuzzRounded(Bytes* in) {
  const int64_t k = in->Below(5) * Block::kElements;
  const int64_t rows = in->Below(10);
  const int64_t n = in->Below(20);
  auto x = in->Fill<float>(rows * k);
  auto w = in->Fill<uint8_t>(n * k / Block::kElements * Block::kBytes);
  auto y = Exactly<float>(rows * n);
  rlx::int8::Matmul<Block>(rlx::testing::InlinePool{}, x.get(), rows, k, w.get(), n, y.get());
}

template <bool kNibbles>
void FuzzRoundedCodes(Bytes* in) {
  const int64_t k = in->Below(300);
  const int64_t n = in->Below(300) * 2;
  const int64_t block = 32 * (1 + in->Below(12));
  if (k * n > 60000) return;
  const int64_t scales = (k + block - 1) / block * n;
  const int64_t rows = in->Below(12);
  auto x = in->Fill<float>(rows * k);
  auto codes = in->Fill<uint8_t>(kNibbles ? k * n / 2 : k * n);
  auto scale = in->Fill<float>(scales);
  auto zero = in->Fill<float>(scales);
  auto y = Exactly<float>(rows * n);
  const rlx::blocks::ColumnsOfCodes<kNibbles> weights = {
      codes.get(), scale.get(), in->Next() % 2 ? zero.get() : nullptr, block, n};
  rlx::columns::RoundedProduct(rlx::testing::InlinePool{}, weights, rows, k, x.get(), y.get());
}

template <typename S>
void FuzzMlx(Bytes* in) {
  constexpr int kBits[] = {2, 3, 4, 5, 6, 8};
  const int bits = kBits[in->Below(6)];
  const int64_t block = int64_t{32} << in->Below(3);
  const int64_t k = in->Below(9) * block;
  const rlx::MatmulShape shape = {1, in->Below(20), k, in->Below(40), true};
  auto x = in->Fill<float>(shape.rows * k);
  auto w = in->Fill<uint8_t>(shape.n * k * bits / 8);
  auto scale = in->Fill<S>(shape.n * k / block);
  auto bias = in->Fill<S>(shape.n * k / block);
  auto y = Exactly<float>(shape.rows * shape.n);
  const rlx::mlx::Rows<S> weights = {w.get(), scale.get(), bias.get(), k, block, bits};
  rlx::Product(
      rlx::testing::InlinePool{}, shape, x.get(), [&](int64_t) { return weights; }, y.get());
}

template <bool kNibbles>
void FuzzMx(Bytes* in) {
  const int64_t block = 32 * (1 + in->Below(4)), planes = 1 + in->Below(2);
  const int64_t k = in->Below(6) * block;
  const rlx::MatmulShape shape = {1, in->Below(20), k, in->Below(40), true};
  auto x = in->Fill<float>(shape.rows * k);
  auto w = in->Fill<uint8_t>(planes * shape.n * k / (kNibbles ? 2 : 1));
  auto scale = in->Fill<uint8_t>(planes * shape.n * k / block);
  auto y = Exactly<float>(shape.rows * shape.n);
  const rlx::blocks::RowsOfMx<kNibbles> weights = {w.get(), scale.get(), shape.n, k, block, planes};
  rlx::Product(
      rlx::testing::InlinePool{}, shape, x.get(), [&](int64_t) { return weights; }, y.get());
}

void FuzzConv(Bytes* in) {
  rlx::ConvShape s = {};
  s.channels_last = in->Next() % 2;
  s.groups = 1 + in->Below(4);
  s.batch = in->Below(3);
  s.in_channels = s.groups * in->Below(in->Next() % 8 == 0 ? 300 : 12);
  s.out_channels = s.groups * (1 + in->Below(70));
  if (in->Next() % 4 == 0) s.groups = s.in_channels = s.out_channels;
  for (int axis = 0; axis < 2; ++axis) {
    s.in[axis] = in->Below(12);
    s.kernel[axis] = 1 + in->Below(4);
    s.stride[axis] = 1 + in->Below(3);
    s.dilation[axis] = 1 + in->Below(3);
    s.low[axis] = in->Below(20) - 8;
    s.out[axis] = in->Below(9);
  }
  const int64_t x_size = s.batch * s.in_channels * s.in[0] * s.in[1];
  const int64_t w_size = s.out_channels * s.features() * s.taps();
  if (x_size > 60000 || w_size > 60000) return;
  auto x = in->Fill<rlx::Bf16>(x_size);
  auto w = in->Fill<rlx::Bf16>(w_size);
  auto y = Exactly<rlx::Bf16>(s.batch * s.out_channels * s.places());
  rlx::Conv(rlx::testing::InlinePool{}, s, x.get(), w.get(), y.get());
}

void FuzzPool(Bytes* in) {
  rlx::PoolShape s = {};
  s.outer = in->Below(4);
  s.inner = in->Next() % 2 ? 1 : in->Below(100);
  for (int axis = 0; axis < 2; ++axis) {
    s.in[axis] = in->Below(20);
    s.window[axis] = 1 + in->Below(6);
    s.stride[axis] = 1 + in->Below(4);
    s.low[axis] = in->Below(20) - 8;
    s.out[axis] = in->Below(12);
  }
  const rlx::testing::InlinePool pool;
  const int64_t size = s.outer * s.in[0] * s.in[1] * s.inner;
  const int64_t results = s.outer * s.out[0] * s.out[1] * s.inner;
  auto x = in->Fill<float>(size);
  auto y = in->Fill<float>(results);
  auto dx = Exactly<float>(size);
  rlx::PoolBackward(pool, s, in->Next() % 2, y.get(), x.get(), dx.get());
  rlx::PoolWindows<rlx::Pooling::kMax>(pool, s, x.get(), y.get());
  rlx::PoolWindows<rlx::Pooling::kSum>(pool, s, x.get(), y.get());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using rlx::ElementType;
  Bytes in(data, size);
  switch (in.Next() % 61) {
    case 0: FuzzSort<float>(&in, ElementType::kF32); break;
    case 1: FuzzSort<double>(&in, ElementType::kF64); break;
    case 2: FuzzSort<rlx::Bf16>(&in, ElementType::kBf16); break;
    case 3: FuzzSort<int64_t>(&in, ElementType::kI64); break;
    case 4: FuzzSort<uint8_t>(&in, ElementType::kU8); break;
    case 5: FuzzSort<int16_t>(&in, ElementType::kI16); break;
    case 6: FuzzTopK<float>(&in); break;
    case 7: FuzzTopK<rlx::F16>(&in); break;
    case 8: FuzzTopK<uint32_t>(&in); break;
    case 9: FuzzCumulative<float>(&in); break;
    case 10: FuzzCumulative<double>(&in); break;
    case 11: FuzzCumulative<rlx::F16>(&in); break;
    case 12: FuzzCumulative<int32_t>(&in); break;
    case 13: FuzzCumulative<int64_t>(&in); break;
    case 14: FuzzArgReduce(&in); break;
    case 15: FuzzMatmul<float>(&in); break;
    case 16: in.Next() % 2 ? FuzzMatmul<rlx::Bf16>(&in) : FuzzMatmul<rlx::Bf16, rlx::Bf16>(&in); break;
    case 17: FuzzMatmul<rlx::F16>(&in); break;
    case 18: FuzzBlocks<rlx::blocks::Q8_0>(&in); break;
    case 19: FuzzBlocks<rlx::blocks::Q4_0>(&in); break;
    case 20: FuzzBlocks<rlx::blocks::Q4_1>(&in); break;
    case 21: FuzzBlocks<rlx::blocks::Q5_0>(&in); break;
    case 22: FuzzBlocks<rlx::blocks::Q5_1>(&in); break;
    case 23: FuzzBlocks<rlx::blocks::Q2_K>(&in); break;
    case 24: FuzzBlocks<rlx::blocks::Q3_K>(&in); break;
    case 25: FuzzBlocks<rlx::blocks::Q4_K>(&in); break;
    case 26: FuzzBlocks<rlx::blocks::Q5_K>(&in); break;
    case 27: FuzzBlocks<rlx::blocks::Q6_K>(&in); break;
    case 28: FuzzBlocks<rlx::blocks::Q8_K>(&in); break;
    case 29: FuzzCodes<true>(&in); break;
    case 30: FuzzBlocks<rlx::blocks::Iq4Nl>(&in); break;
    case 31: FuzzBlocks<rlx::blocks::Iq4Xs>(&in); break;
    case 32: FuzzBlocks<rlx::blocks::Tq2_0>(&in); break;
    case 33: FuzzBlocks<rlx::blocks::Mxfp4>(&in); break;
    case 34: FuzzBlocks<rlx::blocks::Nvfp4>(&in); break;
    case 35: FuzzBytes<rlx::blocks::Byte::kE4m3>(&in); break;
    case 36: FuzzBytes<rlx::blocks::Byte::kE5m2>(&in); break;
    case 37: FuzzNvfp4(&in); break;
    case 38: FuzzRounded<rlx::int8::Q4_1>(&in); break;
    case 39: FuzzRounded<rlx::int8::Q6_K>(&in); break;
    case 40: FuzzRounded<rlx::int8::Q5_K>(&in); break;
    case 41:
    case 42:
    case 43: FuzzConv(&in); break;
    case 44:
    case 45:
    case 46: FuzzPool(&in); break;
    case 47: FuzzRoundedCodes<false>(&in); break;
    case 48: FuzzRoundedCodes<true>(&in); break;
    case 49: FuzzMlx<float>(&in); break;
    case 50: FuzzMlx<rlx::F16>(&in); break;
    case 51: FuzzBlocks<rlx::blocks::Iq1S>(&in); break;
    case 52: FuzzBlocks<rlx::blocks::Iq1M>(&in); break;
    case 53: FuzzBlocks<rlx::blocks::Iq2Xxs>(&in); break;
    case 54: FuzzBlocks<rlx::blocks::Iq2Xs>(&in); break;
    case 55: FuzzBlocks<rlx::blocks::Iq2S>(&in); break;
    case 56: FuzzBlocks<rlx::blocks::Iq3Xxs>(&in); break;
    case 57: FuzzBlocks<rlx::blocks::Iq3S>(&in); break;
    case 58: FuzzBlocks<rlx::blocks::Tq1_0>(&in); break;
    case 59: in.Next() % 2 ? FuzzMx<true>(&in) : FuzzMx<false>(&in); break;
    default: FuzzCodes<false>(&in); break;
  }
  return 0;
}

RLX_FUZZER_MAIN("kernels_fuzz", 3000)
