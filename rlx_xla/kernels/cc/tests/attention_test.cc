// attention.h and attention_backward.h against sums in double, on heap blocks of exact sizes.
#include "attention.h"

#include <cmath>
#include <cstdio>
#include <vector>

#include "attention_backward.h"
#include "testing.h"

namespace {

using rlx::AttentionMask;
using rlx::AttentionShape;
using rlx::EmptyRows;
using rlx::testing::Exactly;
using rlx::testing::NextRandom;

float Uniform() { return static_cast<float>(NextRandom() % 2001) / 1000.0f - 1.0f; }

template <typename T>
std::unique_ptr<T[]> Random(int64_t n) {
  auto x = Exactly<T>(n);
  for (int64_t i = 0; i < n; ++i) x[i] = rlx::FromFloat<T>(Uniform());
  return x;
}

AttentionShape ShapeOf(int64_t batch, int64_t queries, int64_t keys, int64_t heads,
                       int64_t kv_heads, int64_t depth, int64_t v_depth, bool heads_first) {
  AttentionShape s = {};
  s.batch = batch;
  s.queries = queries;
  s.keys = keys;
  s.heads = heads;
  s.kv_heads = kv_heads;
  s.depth = depth;
  s.v_depth = v_depth;
  s.scale = 0.7f;
  const auto strides = [&](int64_t steps, int64_t count, int64_t width) {
    const int64_t whole = steps * count * width;
    return heads_first ? rlx::HeadStrides{whole, width, steps * width}
                       : rlx::HeadStrides{whole, count * width, width};
  };
  s.q = strides(queries, heads, depth);
  s.k = strides(keys, kv_heads, depth);
  s.v = strides(keys, kv_heads, v_depth);
  s.y = strides(queries, heads, v_depth);
  return s;
}

// The weights of one query; `hidden` tells which keys have no gradient.
template <typename T>
std::vector<double> WeightsOf(const AttentionShape& s, const T* q, const T* k, int64_t b,
                              int64_t h, int64_t i, std::vector<bool>* hidden) {
  const rlx::attention::Seen seen = rlx::attention::SeenBy(s, b, i);
  const int64_t group = s.heads / s.kv_heads;
  std::vector<double> weights(s.keys);
  hidden->assign(s.keys, false);
  double most = -INFINITY;
  for (int64_t j = 0; j < s.keys; ++j) {
    double dot = 0;
    for (int64_t d = 0; d < s.depth; ++d) {
      dot += double{rlx::ToFloat(q[s.q.At(b, i, h) + d])} *
             rlx::ToFloat(k[s.k.At(b, j, h / group) + d]);
    }
    dot *= s.scale;
    if (s.softcap != 0) dot = s.softcap * std::tanh(dot / s.softcap);
    const int64_t at = rlx::attention::MaskAt(s, b, h, i, j);
    if (rlx::attention::Biased(s)) dot += static_cast<const float*>(s.mask_data)[at];
    bool hides = j < seen.begin || j >= seen.end;
    if (s.mask == AttentionMask::kCustom) hides = !static_cast<const uint8_t*>(s.mask_data)[at];
    (*hidden)[j] = hides;
    weights[j] = hides ? (s.empty_rows == EmptyRows::kUniform ? rlx::kHiddenScore : -INFINITY)
                       : dot;
    most = std::max(most, weights[j]);
  }
  double total = 0;
  for (double& weight : weights) {
    weight = most == -INFINITY ? 0 : std::exp(weight - most);
    total += weight;
  }
  for (double& weight : weights) weight /= total == 0 ? 1 : total;
  return weights;
}

template <typename T, typename Pool>
void Test(const Pool& pool, AttentionShape s) {
  const double bound = sizeof(T) == 2 ? 2e-2 : 2e-5;
  auto q = Random<T>(s.batch * s.queries * s.heads * s.depth);
  auto k = Random<T>(s.batch * s.keys * s.kv_heads * s.depth);
  auto v = Random<T>(s.batch * s.keys * s.kv_heads * s.v_depth);
  auto dy = Random<T>(s.batch * s.queries * s.heads * s.v_depth);
  auto y = Exactly<T>(s.batch * s.queries * s.heads * s.v_depth);
  auto dq = Exactly<T>(s.batch * s.queries * s.heads * s.depth);
  auto dk = Exactly<T>(s.batch * s.keys * s.kv_heads * s.depth);
  auto dv = Exactly<T>(s.batch * s.keys * s.kv_heads * s.v_depth);
  const int64_t mask_size = s.batch * s.queries * s.keys;
  auto keep = Exactly<uint8_t>(mask_size);
  auto bias = Random<float>(mask_size);
  auto ends = Exactly<int32_t>(s.batch);
  for (int64_t i = 0; i < mask_size; ++i) keep[i] = NextRandom() % 3 > 0;
  for (int64_t b = 0; b < s.batch; ++b) ends[b] = static_cast<int32_t>(NextRandom() % (s.keys + 1));
  s.mask_strides[0] = s.queries * s.keys;
  s.mask_strides[2] = s.keys;
  s.mask_strides[3] = 1;
  if (s.mask == AttentionMask::kCustom) s.mask_data = keep.get();
  if (rlx::attention::Biased(s)) s.mask_data = bias.get(), s.mask_type = rlx::ElementType::kF32;
  if (s.mask == AttentionMask::kLengths) {
    s.mask_data = ends.get();
    s.mask_type = rlx::ElementType::kI32;
  }
  rlx::Attention(pool, s, q.get(), k.get(), v.get(), y.get());
  rlx::AttentionBackward(pool, s, q.get(), k.get(), v.get(), dy.get(),
                         rlx::AttentionGradients<T>{dq.get(), dk.get(), dv.get()});
  const int64_t group = s.heads / s.kv_heads;
  std::vector<double> by_key(s.batch * s.keys * s.kv_heads * s.depth);
  std::vector<double> by_value(s.batch * s.keys * s.kv_heads * s.v_depth);
  std::vector<bool> hidden;
  const auto close = [&](T found, double wanted) {
    CHECK(std::fabs(rlx::ToFloat(found) - wanted) <= bound * (1 + std::fabs(wanted)));
  };
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t i = 0; i < s.queries; ++i) {
        const auto weights = WeightsOf(s, q.get(), k.get(), b, h, i, &hidden);
        std::vector<double> upstream(s.keys);
        double delta = 0;
        for (int64_t j = 0; j < s.keys; ++j) {
          for (int64_t d = 0; d < s.v_depth; ++d) {
            const double up = rlx::ToFloat(dy[s.y.At(b, i, h) + d]);
            upstream[j] += up * rlx::ToFloat(v[s.v.At(b, j, h / group) + d]);
            by_value[s.v.At(b, j, h / group) + d] += weights[j] * up;
          }
          delta += weights[j] * upstream[j];
        }
        std::vector<double> by_query(s.depth);
        for (int64_t j = 0; j < s.keys; ++j) {
          double dot = 0;
          for (int64_t d = 0; d < s.depth; ++d) {
            dot += double{rlx::ToFloat(q[s.q.At(b, i, h) + d])} *
                   rlx::ToFloat(k[s.k.At(b, j, h / group) + d]);
          }
          double gradient = hidden[j] ? 0 : weights[j] * (upstream[j] - delta) * s.scale;
          if (s.softcap != 0) {
            const double t = std::tanh(dot * s.scale / s.softcap);
            gradient *= 1 - t * t;
          }
          for (int64_t d = 0; d < s.depth; ++d) {
            by_query[d] += gradient * rlx::ToFloat(k[s.k.At(b, j, h / group) + d]);
            by_key[s.k.At(b, j, h / group) + d] +=
                gradient * rlx::ToFloat(q[s.q.At(b, i, h) + d]);
          }
        }
        for (int64_t d = 0; d < s.depth; ++d) close(dq[s.q.At(b, i, h) + d], by_query[d]);
        for (int64_t d = 0; d < s.v_depth; ++d) {
          double sum = 0;
          for (int64_t j = 0; j < s.keys; ++j) {
            sum += weights[j] * rlx::ToFloat(v[s.v.At(b, j, h / group) + d]);
          }
          close(y[s.y.At(b, i, h) + d], sum);
        }
      }
    }
  }
  for (size_t i = 0; i < by_key.size(); ++i) close(dk[i], by_key[i]);
  for (size_t i = 0; i < by_value.size(); ++i) close(dv[i], by_value[i]);
}

template <typename T>
void TestAll() {
  const rlx::testing::FullPool alone;
  const AttentionMask kinds[] = {AttentionMask::kNone,   AttentionMask::kCausal,
                                 AttentionMask::kSlidingWindow, AttentionMask::kCustom,
                                 AttentionMask::kBias,   AttentionMask::kLengths,
                                 AttentionMask::kCausalBias};
  for (AttentionMask kind : kinds) {
    for (int64_t case_number = 0; case_number < 6; ++case_number) {
      constexpr int64_t kSizes[6][7] = {{2, 1, 131, 4, 2, 7, 9},   {1, 3, 5, 1, 1, 1, 1},
                                        {1, 100, 129, 2, 1, 17, 65}, {1, 65, 64, 2, 2, 16, 8},
                                        {1, 7, 3, 2, 1, 5, 3},     {2, 2, 300, 1, 1, 33, 31}};
      const int64_t* n = kSizes[case_number];
      AttentionShape s = ShapeOf(n[0], n[1], n[2], n[3], n[4], n[5], n[6], case_number % 2 == 1);
      s.mask = kind;
      s.window = case_number;
      s.softcap = case_number == 3 ? 1.5f : 0.0f;
      s.empty_rows = case_number % 2 == 0 ? EmptyRows::kZeros : EmptyRows::kUniform;
      Test<T>(alone, s);
      const rlx::testing::ThreadPool pool;
      Test<T>(pool, s);
    }
  }
  AttentionShape empty = ShapeOf(1, 3, 0, 1, 1, 2, 2, false);
  Test<T>(alone, empty);
  Test<T>(alone, ShapeOf(1, 0, 3, 1, 1, 2, 2, false));
  Test<T>(alone, ShapeOf(0, 2, 3, 1, 1, 2, 2, false));
}

}  // namespace

int main() {
  for (bool wide : {true, false}) {
#if defined(RLX_HAS_WIDE512)
    rlx::matmul::allow_avx512 = wide;
#endif
    TestAll<float>();
    TestAll<rlx::Bf16>();
    TestAll<rlx::F16>();
  }
  std::printf("attention_test: ok\n");
  return 0;
}
