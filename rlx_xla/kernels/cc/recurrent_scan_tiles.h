// The work of recurrent_scan.h on a stretch of channels or columns. No include guard: see wide.h.

namespace rlx {
namespace RLX_WIDE {

template <typename T>
void StoreSome(V v, int64_t n, T* out) {
  float some[kW];
  StoreV(v, some);
  Narrow(some, std::min(n, kW), out);
}

template <typename T>
void ScanChannels(const SelectiveScanShape& s, const SelectiveScanData<T>& data, int64_t batch,
                  int64_t channel) {
  constexpr int kC = scans::kChannels / kW;
  const int64_t width = std::min(scans::kChannels, s.width - channel);
  const int64_t used = (width + kW - 1) / kW;
  Scratch<float> rates(s.states * scans::kChannels);
  Scratch<float> state(s.states * scans::kChannels);
  Scratch<float> now(2 * s.states);
  WidenTurned(data.a + channel * s.states, s.states, width, s.states, rates.get(),
              scans::kChannels, scans::kChannels);
  std::fill(state.get(), state.get() + s.states * scans::kChannels, 0.0f);
  for (int64_t t = 0; t < s.steps; ++t) {
    const int64_t row = batch * s.steps + t;
    const int64_t at = row * s.width + channel;
    V delta[kC] = {};
    V entering[kC] = {};
    V sum[kC] = {};
    for (int64_t i = 0; i < used; ++i) {
      delta[i] = LoadSome(data.delta + at + i * kW, width - i * kW);
      entering[i] = delta[i] * LoadSome(data.x + at + i * kW, width - i * kW);
    }
    const T* b = data.b + row * s.states;
    const T* c = data.c + row * s.states;
    for (int64_t n = 0; n < s.states; ++n) {
      const V gain = Set(ToFloat(b[n]));
      const V shown = Set(ToFloat(c[n]));
      const float* rate = rates.get() + n * scans::kChannels;
      float* h = state.get() + n * scans::kChannels;
#pragma GCC unroll 8
      for (int i = 0; i < kC; ++i) {
        const V decay = Exp(delta[i] * LoadV(rate + i * kW));
        const V after = MulAdd(decay, LoadV(h + i * kW), entering[i] * gain);
        StoreV(after, h + i * kW);
        sum[i] = MulAdd(after, shown, sum[i]);
      }
    }
    for (int64_t i = 0; i < used; ++i) {
      StoreSome(sum[i], width - i * kW, data.y + at + i * kW);
    }
  }
}

template <typename T>
void DeltaColumns(const DeltaShape& s, const DeltaData<T>& data, int64_t head, int64_t column) {
  constexpr int kC = scans::kColumns / kW;
  const int64_t size = s.size;
  const int64_t padded = Padded(size);
  const int64_t width = std::min(scans::kColumns, size - column);
  const int64_t batch = head / s.heads;
  const float scale = 1.0f / std::sqrt(static_cast<float>(size));
  Scratch<float> state(size * scans::kColumns);
  Scratch<float> rows(4 * padded);
  float* key = rows.get();
  float* query = key + padded;
  float* gate = query + padded;
  float* before = gate + padded;  // the key of the step before
  std::fill(before, before + padded, 0.0f);
  if (data.first == nullptr) {
    std::fill(state.get(), state.get() + size * scans::kColumns, 0.0f);
  } else {
    Widen(data.first + head * size * size + column, size, size, width, state.get(),
          scans::kColumns);
  }
  V correction[kC] = {};
  for (int64_t t = 0; t < s.steps; ++t) {
    const int64_t row = (batch * s.steps + t) * s.heads + head % s.heads;
    Widen(data.k + row * size, 0, 1, size, key, padded);
    Widen(data.q + row * size, 0, 1, size, query, padded);
    if (s.gate_per_channel) {
      Widen(data.g + row * size, 0, 1, size, gate, padded);
      for (int64_t i = 0; i < padded; i += kW) StoreV(Exp(LoadV(gate + i)), gate + i);
    } else {
      const V same = Exp(Set(ToFloat(data.g[row])));
      for (int64_t i = 0; i < padded; i += kW) StoreV(same, gate + i);
    }
    V product = {};
    for (int64_t i = 0; i < padded; i += kW) {
      product = MulAdd(LoadV(key + i), LoadV(query + i), product);
    }
    V found[kC] = {};
    V shown[kC] = {};
    for (int64_t i = 0; i < size; ++i) {
      const V k = Set(key[i]);
      const V q = Set(query[i]);
      const V decay = Set(gate[i]);
      const V last = Set(before[i]);
      float* at = state.get() + i * scans::kColumns;
#pragma GCC unroll 4
      for (int c = 0; c < kC; ++c) {
        const V now = MulAdd(last, correction[c], LoadV(at + c * kW)) * decay;
        StoreV(now, at + c * kW);
        found[c] = MulAdd(now, k, found[c]);
        shown[c] = MulAdd(now, q, shown[c]);
      }
    }
    const V both = Set(Sum(product));
    const V strength = Set(ToFloat(data.beta[row]));
    for (int c = 0; c < kC && c * kW < width; ++c) {
      const int64_t at = row * size + column + c * kW;
      const V value = LoadSome(data.v + at, width - c * kW);
      correction[c] = (value - found[c]) * strength;
      StoreSome(MulAdd(correction[c], both, shown[c]) * scale, width - c * kW, data.y + at);
    }
    std::swap(key, before);
  }
  if (data.last == nullptr) return;
  for (int64_t i = 0; i < size; ++i) {
    const V last = Set(before[i]);
    for (int c = 0; c < kC && c * kW < width; ++c) {
      const V now = MulAdd(last, correction[c], LoadV(state.get() + i * scans::kColumns + c * kW));
      StoreSome(now, width - c * kW,
                data.last + (head * size + i) * size + column + c * kW);
    }
  }
}

}  // namespace RLX_WIDE
}  // namespace rlx
