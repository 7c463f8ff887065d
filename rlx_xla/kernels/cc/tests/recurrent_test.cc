// recurrent.h and recurrent_scan.h against sums in double, on heap blocks of exact sizes.
#include "recurrent.h"

#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "recurrent_scan.h"
#include "testing.h"

namespace {

using rlx::testing::Exactly;
using rlx::testing::NextRandom;

float Uniform() { return static_cast<float>(NextRandom() % 2001) / 2000.0f - 0.5f; }

template <typename T>
std::unique_ptr<T[]> Random(int64_t n, float scale = 1) {
  auto x = Exactly<T>(n);
  for (int64_t i = 0; i < n; ++i) x[i] = rlx::FromFloat<T>(scale * Uniform());
  return x;
}

template <typename T>
void Close(T found, double wanted) {
  const double bound = sizeof(T) == 2 ? 2e-2 : 2e-5;
  CHECK(std::fabs(rlx::ToFloat(found) - wanted) <= bound * (1 + std::fabs(wanted)));
}

template <typename T, typename Pool>
void TestScan(const Pool& pool, int64_t batch, int64_t steps, int64_t width, int64_t states) {
  auto x = Random<T>(batch * steps * width);
  auto delta = Random<T>(batch * steps * width);
  auto a = Random<T>(width * states);
  auto b = Random<T>(batch * steps * states);
  auto c = Random<T>(batch * steps * states);
  auto y = Exactly<T>(batch * steps * width);
  rlx::SelectiveScan(pool, {batch, steps, width, states},
                     rlx::SelectiveScanData<T>{x.get(), delta.get(), a.get(), b.get(), c.get(),
                                               y.get()});
  for (int64_t i = 0; i < batch * width; ++i) {
    std::vector<double> state(states);
    for (int64_t t = 0; t < steps; ++t) {
      const int64_t row = i / width * steps + t;
      const double step = rlx::ToFloat(delta[row * width + i % width]);
      double sum = 0;
      for (int64_t n = 0; n < states; ++n) {
        state[n] = std::exp(step * rlx::ToFloat(a[i % width * states + n])) * state[n] +
                   step * rlx::ToFloat(x[row * width + i % width]) *
                       rlx::ToFloat(b[row * states + n]);
        sum += state[n] * rlx::ToFloat(c[row * states + n]);
      }
      Close(y[row * width + i % width], sum);
    }
  }
}

template <typename T, typename Pool>
void TestDelta(const Pool& pool, const rlx::DeltaShape& s, bool carried) {
  const int64_t tokens = s.batch * s.steps * s.heads;
  const int64_t n = s.size;
  auto q = Random<T>(tokens * n), k = Random<T>(tokens * n), v = Random<T>(tokens * n);
  auto g = Random<T>(tokens * (s.gate_per_channel ? n : 1));
  auto beta = Random<T>(tokens);
  auto first = Random<T>(s.batch * s.heads * n * n);
  auto y = Exactly<T>(tokens * n);
  auto last = Exactly<T>(s.batch * s.heads * n * n);
  rlx::GatedDelta(pool, s,
                  rlx::DeltaData<T>{q.get(), k.get(), v.get(), g.get(), beta.get(),
                                    carried ? first.get() : nullptr, y.get(),
                                    carried ? last.get() : nullptr});
  for (int64_t head = 0; head < s.batch * s.heads; ++head) {
    std::vector<double> state(n * n);
    for (int64_t i = 0; carried && i < n * n; ++i) state[i] = rlx::ToFloat(first[head * n * n + i]);
    for (int64_t t = 0; t < s.steps; ++t) {
      const int64_t row = (head / s.heads * s.steps + t) * s.heads + head % s.heads;
      for (int64_t j = 0; j < n; ++j) {
        double found = 0;
        for (int64_t i = 0; i < n; ++i) {
          const int64_t at = s.gate_per_channel ? row * n + i : row;
          state[i * n + j] *= std::exp(double{rlx::ToFloat(g[at])});
          found += state[i * n + j] * rlx::ToFloat(k[row * n + i]);
        }
        const double correction =
            (rlx::ToFloat(v[row * n + j]) - found) * rlx::ToFloat(beta[row]);
        double shown = 0;
        for (int64_t i = 0; i < n; ++i) {
          state[i * n + j] += rlx::ToFloat(k[row * n + i]) * correction;
          shown += state[i * n + j] * rlx::ToFloat(q[row * n + i]);
        }
        Close(y[row * n + j], shown / std::sqrt(static_cast<double>(n)));
      }
    }
    for (int64_t i = 0; carried && i < n * n; ++i) Close(last[head * n * n + i], state[i]);
  }
}

double Logistic(double x) { return 1 / (1 + std::exp(-x)); }

template <typename T, typename Pool>
void TestNetwork(const Pool& pool, const rlx::RecurrentShape& s, bool carried,
                 bool masked = false) {
  using rlx::RecurrentKind;
  const int64_t hidden = s.hidden;
  const int64_t gates = rlx::GatesOf(s.kind) * hidden;
  const int64_t ways = s.layers * s.directions;
  const int64_t out_width = s.directions * hidden;
  const int64_t packed = s.directions * gates * (s.width + (s.layers - 1) * out_width);
  auto x = Random<T>(s.batch * s.steps * s.width);
  // Weights that keep a network without bounds, that of max(., 0), from growing with its steps.
  const float scale = 1 / std::sqrt(static_cast<float>(hidden));
  auto w_ih = Random<T>(packed, scale), w_hh = Random<T>(ways * gates * hidden, scale);
  auto bias = Random<T>(ways * gates), hidden_bias = Random<T>(ways * gates);
  auto h0 = Random<T>(ways * s.batch * hidden), c0 = Random<T>(ways * s.batch * hidden);
  auto y = Exactly<T>(s.batch * s.steps * out_width);
  auto h1 = Exactly<T>(ways * s.batch * hidden), c1 = Exactly<T>(ways * s.batch * hidden);
  rlx::RecurrentData<T> data = {};
  data.x = x.get();
  data.w_ih = w_ih.get();
  data.w_hh = w_hh.get();
  data.bias = bias.get();
  data.y = y.get();
  const bool resets_first = s.kind == RecurrentKind::kGruResetFirst;
  if (rlx::IsGru(s.kind)) data.hidden_bias = hidden_bias.get();
  auto mask = Exactly<uint8_t>(s.batch * s.steps);
  for (int64_t i = 0; i < s.batch * s.steps; ++i) mask[i] = !masked || i % 3 != 1;
  if (masked) data.mask = mask.get();
  if (carried) {
    data.first_hidden = h0.get();
    data.last_hidden = h1.get();
    if (s.kind == RecurrentKind::kLstm) data.first_cell = c0.get(), data.last_cell = c1.get();
  }
  rlx::Recurrent(pool, s, data);
  std::vector<double> entering(s.batch * s.steps * s.width);
  for (size_t i = 0; i < entering.size(); ++i) entering[i] = rlx::ToFloat(x[i]);
  int64_t width = s.width, offset = 0;
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    std::vector<double> leaving(s.batch * s.steps * out_width);
    for (int64_t way = 0; way < s.directions; ++way) {
      const int64_t at = layer * s.directions + way;
      for (int64_t b = 0; b < s.batch; ++b) {
        std::vector<double> h(hidden), c(hidden);
        for (int64_t j = 0; carried && j < hidden; ++j) {
          h[j] = rlx::ToFloat(h0[(at * s.batch + b) * hidden + j]);
          c[j] = rlx::ToFloat(c0[(at * s.batch + b) * hidden + j]);
        }
        for (int64_t step = 0; step < s.steps; ++step) {
          const int64_t t = way == 1 ? s.steps - 1 - step : step;
          std::vector<double> in(gates), kept(gates);
          for (int64_t r = 0; r < gates; ++r) {
            in[r] = rlx::ToFloat(bias[at * gates + r]);
            for (int64_t d = 0; d < width; ++d) {
              in[r] += entering[(b * s.steps + t) * width + d] *
                       rlx::ToFloat(w_ih[offset + r * width + d]);
            }
            if (rlx::IsGru(s.kind)) kept[r] = rlx::ToFloat(hidden_bias[at * gates + r]);
            for (int64_t d = 0; d < hidden; ++d) {
              const bool reset = resets_first && r >= 2 * hidden;
              const double state = reset ? Logistic(in[d] + kept[d]) * h[d] : h[d];
              kept[r] += state * rlx::ToFloat(w_hh[(at * gates + r) * hidden + d]);
            }
          }
          std::vector<double> after(h);
          const bool goes = mask[b * s.steps + t];
          for (int64_t j = 0; j < hidden; ++j) {
            if (!goes) {
              leaving[(b * s.steps + t) * out_width + way * hidden + j] = h[j];
              continue;
            }
            const auto gate = [&](int64_t g) { return in[g * hidden + j] + kept[g * hidden + j]; };
            switch (s.kind) {
              case RecurrentKind::kPlain: h[j] = std::tanh(gate(0)); break;
              case RecurrentKind::kRelu: h[j] = std::max(gate(0), 0.0); break;
              case RecurrentKind::kLstm:
                c[j] = Logistic(gate(1)) * c[j] + Logistic(gate(0)) * std::tanh(gate(2));
                h[j] = Logistic(gate(3)) * std::tanh(c[j]);
                break;
              case RecurrentKind::kGru: {
                const double reset = Logistic(gate(0)), keep = Logistic(gate(1));
                const double offered =
                    std::tanh(in[2 * hidden + j] + reset * kept[2 * hidden + j]);
                h[j] = (1 - keep) * offered + keep * h[j];
                break;
              }
              case RecurrentKind::kGruResetFirst: {
                const double keep = Logistic(gate(1));
                after[j] = (1 - keep) * std::tanh(gate(2)) + keep * h[j];
                break;
              }
            }
            if (resets_first) h[j] = after[j];
            leaving[(b * s.steps + t) * out_width + way * hidden + j] = h[j];
          }
        }
        for (int64_t j = 0; carried && j < hidden; ++j) {
          Close(h1[(at * s.batch + b) * hidden + j], h[j]);
          if (s.kind == RecurrentKind::kLstm) Close(c1[(at * s.batch + b) * hidden + j], c[j]);
        }
      }
      offset += gates * width;
    }
    entering = leaving;
    width = out_width;
  }
  for (size_t i = 0; i < entering.size(); ++i) Close(y[i], entering[i]);
}

template <typename T>
void TestAll() {
  const rlx::testing::FullPool alone;
  const rlx::testing::ThreadPool pool;
  for (int64_t width : {1, 7, 64, 65, 130}) {
    TestScan<T>(alone, 2, 3, width, 5);
    TestScan<T>(pool, 1, 40, width, 16);
  }
  TestScan<T>(alone, 1, 0, 3, 2);
  for (int64_t size : {1, 7, 31, 33, 64}) {
    for (bool per_channel : {false, true}) {
      TestDelta<T>(alone, {1, 3, 2, size, per_channel}, per_channel);
      TestDelta<T>(pool, {2, 9, 1, size, per_channel}, !per_channel);
    }
  }
  TestDelta<T>(alone, {1, 0, 1, 3, false}, true);
  for (int64_t kind = 0; kind < 5; ++kind) {
    const auto named = static_cast<rlx::RecurrentKind>(kind);
    for (int64_t hidden : {1, 15, 17, 33}) {
      TestNetwork<T>(alone, {named, 3, 5, 7, hidden, 1, 1}, false);
      TestNetwork<T>(pool, {named, 10, 19, 3, hidden, 3, 2}, true, hidden > 15);
    }
    TestNetwork<T>(alone, {named, 7, 3, 70, 130, 1, 1}, true);  // several stretches and panels
    TestNetwork<T>(alone, {named, 2, 0, 3, 4, 2, 1}, true);
    TestNetwork<T>(alone, {named, 1, 17, 0, 4, 1, 2}, false);
  }
}

// The functions of cells, to 4 ulp: of one unit, whose input is its gate.
void TestFunctions() {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x = {infinity, -infinity, nan,    0.0f,  -0.0f,
                          1e-30f,   89.0f,     -89.0f, 1e30f, -1e30f};
  for (int i = 0; i < 4000; ++i) {
    x.push_back(Uniform() * 2 * std::exp2(static_cast<float>(NextRandom() % 34) - 26));
  }
  const auto count = static_cast<int64_t>(x.size());
  const float one = 1, zero = 0;
  std::vector<float> y(count);
  rlx::RecurrentData<float> data = {};
  data.x = x.data();
  data.w_ih = &one;
  data.w_hh = &zero;
  data.bias = &zero;
  data.y = y.data();
  const rlx::testing::FullPool pool;
  rlx::Recurrent(pool, {rlx::RecurrentKind::kPlain, count, 1, 1, 1, 1, 1}, data);
  for (int64_t i = 0; i < count; ++i) {
    const double wanted = std::tanh(double{x[i]});
    CHECK(wanted != wanted ? y[i] != y[i] : std::fabs(y[i] - wanted) <= 2.4e-7 * std::fabs(wanted));
  }
  // An LSTM that keeps as much of a cell of 1 as its second gate says, and takes nothing.
  const float weights[4] = {0, 1, 0, 0}, kept[4] = {0, 0, 0, 0}, bias[4] = {-500, 0, 0, 0};
  std::vector<float> ones(count, 1.0f), h0(count), h1(count), cell(count);
  data.w_ih = weights;
  data.w_hh = kept;
  data.bias = bias;
  data.first_hidden = h0.data();
  data.first_cell = ones.data();
  data.last_hidden = h1.data();
  data.last_cell = cell.data();
  for (float& v : x) v = std::isinf(v) ? std::copysign(200.0f, v) : v;  // 0 * inf is NaN
  rlx::Recurrent(pool, {rlx::RecurrentKind::kLstm, count, 1, 1, 1, 1, 1}, data);
  for (int64_t i = 0; i < count; ++i) {
    const double wanted = Logistic(x[i]);
    CHECK(wanted != wanted ? cell[i] != cell[i]
                           : std::fabs(cell[i] - wanted) <= 2.4e-7 * wanted + 2e-38);
  }
}

}  // namespace

int main() {
  for (bool wide : {true, false}) {
#if defined(RLX_HAS_WIDE512)
    rlx::matmul::allow_avx512 = wide;
#endif
    TestFunctions();
    TestAll<float>();
    TestAll<rlx::Bf16>();
    TestAll<rlx::F16>();
  }
  std::printf("recurrent_test: ok\n");
  return 0;
}
