// A fuzzer of the cores that go over sequences: attention and its gradients, recurrent networks,
// the selective scan and the delta rule. What comes out is checked by what must hold of it.
//
// By itself it makes its own bytes: sequence_fuzz [inputs] [seed]; the seed is drawn, and printed.
#include <cmath>
#include <cstdint>
#include <limits>

#include "attention.h"
#include "attention_backward.h"
#include "fuzzing.h"
#include "recurrent.h"
#include "recurrent_scan.h"

namespace {

using rlx::AttentionMask;
using rlx::AttentionShape;
using rlx::EmptyRows;
using rlx::testing::Bytes;
using rlx::testing::Exactly;

// Numbers from -1 to 1, or any, NaN and infinities among them.
template <typename T>
std::unique_ptr<T[]> Draw(Bytes* in, bool tame, int64_t n) {
  return tame ? in->Small<T>(n) : in->Fill<T>(n);
}

template <typename T>
void Within(const T* x, int64_t n, float bound) {
  for (int64_t i = 0; i < n; ++i) CHECK(std::fabs(rlx::ToFloat(x[i])) <= bound);
}

AttentionShape ShapeOf(Bytes* in) {
  AttentionShape s = {};
  s.batch = in->Below(3);
  s.kv_heads = 1 + in->Below(3);
  s.heads = s.kv_heads * (1 + in->Below(3));
  s.queries = in->Next() % 4 == 0 ? in->Below(120) : in->Below(9);
  s.keys = in->Next() % 4 == 0 ? in->Below(300) : in->Below(20);
  s.depth = 1 + in->Below(40);
  s.v_depth = 1 + in->Below(40);
  s.scale = in->Below(9) / 4.0f;
  s.softcap = in->Next() % 4 == 0 ? 1.5f : 0;
  s.mask = static_cast<AttentionMask>(in->Below(6));
  s.window = in->Below(12);
  s.empty_rows = static_cast<EmptyRows>(in->Below(3));
  const bool heads_first = in->Next() % 2;
  const auto strides = [&](int64_t steps, int64_t heads, int64_t width) {
    const int64_t whole = steps * heads * width;
    return heads_first ? rlx::HeadStrides{whole, width, steps * width}
                       : rlx::HeadStrides{whole, heads * width, width};
  };
  s.q = strides(s.queries, s.heads, s.depth);
  s.k = strides(s.keys, s.kv_heads, s.depth);
  s.v = strides(s.keys, s.kv_heads, s.v_depth);
  s.y = strides(s.queries, s.heads, s.v_depth);
  return s;
}

// A mask that is repeated over some axes, with its block of memory.
std::unique_ptr<uint8_t[]> MaskOf(Bytes* in, bool tame, AttentionShape* s) {
  if (s->mask == AttentionMask::kLengths) {
    s->mask_type = rlx::ElementType::kI32;
    auto ends = in->Fill<uint8_t>(4 * s->batch);
    s->mask_data = ends.get();
    return ends;
  }
  const int64_t full[4] = {s->batch, s->heads, s->queries, s->keys};
  int64_t size = 1;
  for (int axis = 3; axis >= 0; --axis) {
    const bool repeated = in->Next() % 3 == 0;
    s->mask_strides[axis] = repeated ? 0 : size;
    if (!repeated) size *= full[axis];
  }
  const bool bias = s->mask == AttentionMask::kBias;
  s->mask_type = bias ? rlx::ElementType::kF32 : rlx::ElementType::kI8;
  auto made = Exactly<uint8_t>(bias ? 4 * size : size);
  if (bias && tame) {
    auto numbers = in->Small<float>(size);
    std::memcpy(made.get(), numbers.get(), 4 * size);
  } else {
    in->Into(made.get(), bias ? 4 * size : size);
  }
  s->mask_data = made.get();
  return made;
}

template <typename T>
void FuzzAttention(Bytes* in) {
  AttentionShape s = ShapeOf(in);
  const bool tame = in->Next() % 2;
  const int64_t q_size = s.batch * s.queries * s.heads * s.depth;
  const int64_t k_size = s.batch * s.keys * s.kv_heads * s.depth;
  const int64_t v_size = s.batch * s.keys * s.kv_heads * s.v_depth;
  const int64_t y_size = s.batch * s.queries * s.heads * s.v_depth;
  if (q_size + k_size + v_size + y_size > 60000) return;
  const rlx::testing::InlinePool pool;
  auto mask = MaskOf(in, tame, &s);
  auto q = Draw<T>(in, tame, q_size), k = Draw<T>(in, tame, k_size), v = Draw<T>(in, tame, v_size);
  auto y = Exactly<T>(y_size);
  rlx::Attention(pool, s, q.get(), k.get(), v.get(), y.get());
  // A result is a mean of values.
  if (tame && s.empty_rows != EmptyRows::kNan) Within(y.get(), y_size, 1.01f);
  if (in->Next() % 2) return;
  auto dy = Draw<T>(in, tame, y_size);
  auto dq = Exactly<T>(q_size), dk = Exactly<T>(k_size), dv = Exactly<T>(v_size);
  rlx::AttentionBackward(pool, s, q.get(), k.get(), v.get(), dy.get(),
                         rlx::AttentionGradients<T>{in->Next() % 4 ? dq.get() : nullptr,
                                                    in->Next() % 4 ? dk.get() : nullptr,
                                                    dv.get()});
  // Weights are at most 1, and so is what reaches a value from each row that shares it.
  const float bound = 1.02f * static_cast<float>(s.rows()) + 0.1f;
  if (tame && s.empty_rows != EmptyRows::kNan) Within(dv.get(), v_size, bound);
}

template <typename T>
void FuzzRecurrent(Bytes* in) {
  rlx::RecurrentShape s = {};
  s.kind = static_cast<rlx::RecurrentKind>(in->Below(5));
  s.batch = in->Below(12);
  s.steps = in->Below(20);
  s.width = in->Below(12);
  s.hidden = 1 + in->Below(36);
  s.layers = 1 + in->Below(3);
  s.directions = 1 + in->Below(2);
  const bool tame = in->Next() % 2, carried = in->Next() % 2;
  const bool lstm = s.kind == rlx::RecurrentKind::kLstm, gru = rlx::IsGru(s.kind);
  const int64_t gates = rlx::GatesOf(s.kind) * s.hidden, ways = s.layers * s.directions;
  const int64_t later = (s.layers - 1) * s.directions * s.hidden;
  const int64_t states = ways * s.batch * s.hidden;
  const int64_t y_size = s.batch * s.steps * s.directions * s.hidden;
  auto x = Draw<T>(in, tame, s.batch * s.steps * s.width);
  auto w_ih = Draw<T>(in, tame, s.directions * gates * (s.width + later));
  auto w_hh = Draw<T>(in, tame, ways * gates * s.hidden);
  auto bias = Draw<T>(in, tame, ways * gates), hidden_bias = Draw<T>(in, tame, ways * gates);
  auto h0 = Draw<T>(in, tame, states), c0 = Draw<T>(in, tame, states);
  auto y = Exactly<T>(y_size), h1 = Exactly<T>(states), c1 = Exactly<T>(states);
  rlx::RecurrentData<T> data = {};
  data.x = x.get();
  data.w_ih = w_ih.get();
  data.w_hh = w_hh.get();
  data.bias = bias.get();
  data.y = y.get();
  if (gru) data.hidden_bias = hidden_bias.get();
  auto mask = Exactly<uint8_t>(s.batch * s.steps);
  for (int64_t i = 0; i < s.batch * s.steps; ++i) mask[i] = in->Next();
  if (in->Next() % 2) data.mask = mask.get();
  if (carried) {
    data.first_hidden = h0.get();
    data.last_hidden = h1.get();
    if (lstm) data.first_cell = c0.get(), data.last_cell = c1.get();
  }
  rlx::Recurrent(rlx::testing::InlinePool{}, s, data);
  if (!tame || s.kind == rlx::RecurrentKind::kRelu) return;
  Within(y.get(), y_size, 1.01f);
  if (carried) Within(h1.get(), states, 1.01f);
}

template <typename T>
void FuzzSelectiveScan(Bytes* in) {
  const rlx::SelectiveScanShape s = {in->Below(3), in->Below(20), in->Below(140), in->Below(20)};
  const int64_t tokens = s.batch * s.steps;
  const bool tame = in->Next() % 2;
  auto x = Draw<T>(in, tame, tokens * s.width), delta = Draw<T>(in, tame, tokens * s.width);
  auto a = Draw<T>(in, tame, s.width * s.states);
  auto b = Draw<T>(in, tame, tokens * s.states), c = Draw<T>(in, tame, tokens * s.states);
  auto y = Exactly<T>(tokens * s.width);
  for (int64_t i = 0; tame && i < s.width * s.states; ++i) {
    a[i] = rlx::FromFloat<T>(-std::fabs(rlx::ToFloat(a[i])));
  }
  for (int64_t i = 0; tame && i < tokens * s.width; ++i) {
    delta[i] = rlx::FromFloat<T>(std::fabs(rlx::ToFloat(delta[i])));
  }
  rlx::SelectiveScan(rlx::testing::InlinePool{}, s,
                     rlx::SelectiveScanData<T>{x.get(), delta.get(), a.get(), b.get(), c.get(),
                                               y.get()});
  // A state decays and gains at most 1 a step.
  const float most = 1.02f * static_cast<float>(s.steps * s.states) + 0.1f;
  if (tame) Within(y.get(), tokens * s.width, most);
}

template <typename T>
void FuzzGatedDelta(Bytes* in) {
  const bool per_channel = in->Next() % 2, carried = in->Next() % 2;
  const rlx::DeltaShape s = {in->Below(3), in->Below(12), 1 + in->Below(3), in->Below(70),
                             per_channel};
  const int64_t tokens = s.batch * s.steps * s.heads, n = s.size;
  const int64_t state = s.batch * s.heads * n * n;
  if (state > 60000) return;
  auto q = in->Fill<T>(tokens * n), k = in->Fill<T>(tokens * n), v = in->Fill<T>(tokens * n);
  auto g = in->Fill<T>(tokens * (per_channel ? n : 1)), beta = in->Fill<T>(tokens);
  auto first = in->Fill<T>(state);
  auto y = Exactly<T>(tokens * n), last = Exactly<T>(state);
  rlx::GatedDelta(rlx::testing::InlinePool{}, s,
                  rlx::DeltaData<T>{q.get(), k.get(), v.get(), g.get(), beta.get(),
                                    carried ? first.get() : nullptr, y.get(),
                                    carried ? last.get() : nullptr});
  if (!carried || s.steps > 0) return;
  for (int64_t i = 0; i < state; ++i) {  // no step: the state stays, NaN as NaN
    const float before = rlx::ToFloat(first[i]), after = rlx::ToFloat(last[i]);
    CHECK(before == after || (before != before && after != after));
  }
}

template <typename T>
void One(Bytes* in) {
  switch (in->Below(7)) {
    case 0:
    case 1:
    case 2: return FuzzAttention<T>(in);
    case 3:
    case 4: return FuzzRecurrent<T>(in);
    case 5: return FuzzSelectiveScan<T>(in);
    default: return FuzzGatedDelta<T>(in);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes in(data, size);
#if defined(RLX_HAS_WIDE512)
  rlx::matmul::allow_avx512 = in.Next() % 2;
#endif
  switch (in.Next() % 3) {
    case 0: One<float>(&in); break;
    case 1: One<rlx::Bf16>(&in); break;
    default: One<rlx::F16>(&in); break;
  }
  return 0;
}

RLX_FUZZER_MAIN("sequence_fuzz", 5000)
