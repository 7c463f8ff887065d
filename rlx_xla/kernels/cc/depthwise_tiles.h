// The sums of depthwise.h. No include guard: see wide.h.

namespace rlx {
namespace RLX_WIDE {

// `kVectors` vectors of channels from c on, at the first `count` places; y is [places, channels].
template <int kVectors, typename T>
void DepthwiseBlock(const DepthwiseRows<T>& rows, const float* w, int64_t taps, int64_t channels,
                    int64_t c, int64_t count, T* y) {
  V sums[kDepthwisePlaces][kVectors];
#pragma GCC unroll 4
  for (int p = 0; p < kDepthwisePlaces; ++p) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[p][v] = V{};
  }
  for (int64_t tap = 0; tap < taps; ++tap) {
    V weight[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) weight[v] = LoadV(w + tap * channels + c + v * kW);
#pragma GCC unroll 4
    for (int p = 0; p < kDepthwisePlaces; ++p) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        sums[p][v] = MulAdd(LoadV(rows.at[tap][p] + c + v * kW), weight[v], sums[p][v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < kDepthwisePlaces; ++p) {
    if (p >= count) break;
    T* to = y + p * channels + c;
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (std::is_same_v<T, float>) {
        StoreV(sums[p][v], to + v * kW);
      } else {
        float wide[kW];
        StoreV(sums[p][v], wide);
        matmul::NarrowRow(wide, kW, to + v * kW);
      }
    }
  }
}

template <typename T>
void DepthwisePlaces(const DepthwiseRows<T>& rows, const float* w, int64_t taps, int64_t channels,
                     int64_t count, T* y) {
  int64_t c = 0;
  for (; c + 2 * kW <= channels; c += 2 * kW) {
    DepthwiseBlock<2>(rows, w, taps, channels, c, count, y);
  }
  for (; c + kW <= channels; c += kW) {
    DepthwiseBlock<1>(rows, w, taps, channels, c, count, y);
  }
  for (; c < channels; ++c) {
    for (int64_t p = 0; p < count; ++p) {
      float sum = 0.0f;
      for (int64_t tap = 0; tap < taps; ++tap) {
        sum += ToFloat(rows.at[tap][p][c]) * w[tap * channels + c];
      }
      y[p * channels + c] = FromFloat<T>(sum);
    }
  }
}

}  // namespace RLX_WIDE
}  // namespace rlx
