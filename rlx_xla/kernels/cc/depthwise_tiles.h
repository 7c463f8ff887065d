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

// kVectors vectors of channels from c on, at `count` of kPlaces neighbouring places. A column of x
// is loaded once, for all taps that meet it.
template <int kAcross, int kStride, int kPlaces, int kVectors, typename T>
void SlideBlock(const DepthwiseBand<T>& band, const int64_t* columns, const float* w, int64_t c,
                int64_t count, T* y) {
  constexpr int kColumns = (kPlaces - 1) * kStride + kAcross;
  const int64_t channels = band.channels;
  V sums[kPlaces][kVectors];
#pragma GCC unroll 8
  for (int p = 0; p < kPlaces; ++p) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[p][v] = V{};
  }
  w += c;
  for (int64_t kh = 0; kh < band.taps; ++kh, w += kAcross * channels) {
    V weight[kAcross][kVectors];
#pragma GCC unroll 8
    for (int kw = 0; kw < kAcross; ++kw) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) weight[kw][v] = LoadV(w + kw * channels + v * kW);
    }
    const T* row = band.rows[kh];
    const int64_t* at = row == nullptr ? band.outside : columns;
#pragma GCC unroll 16
    for (int i = 0; i < kColumns; ++i) {
      const T* from = (at[i] < 0 ? band.zeros : row + at[i]) + c;
      V value[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) value[v] = LoadV(from + v * kW);
#pragma GCC unroll 8
      for (int kw = 0; kw < kAcross; ++kw) {
        if (i < kw || (i - kw) % kStride != 0 || (i - kw) / kStride >= kPlaces) continue;
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          V& sum = sums[(i - kw) / kStride][v];
          sum = MulAdd(value[v], weight[kw][v], sum);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPlaces; ++p) {
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

// One row of the result, for some vectors of channels.
template <int kAcross, int kStride, int kVectors, typename T>
void SlideRow(const DepthwiseBand<T>& band, const float* w, int64_t c, T* y) {
  constexpr int kMany = kStride == 1 ? 7 : 4;  // places, of sides that are multiples of 7
  for (int64_t p = 0; p < band.out;) {
    const int64_t left = band.out - p;
    const int64_t* columns = band.columns + p * kStride;
    T* to = y + p * band.channels;
    if (left > 4 && kMany > 4) {
      SlideBlock<kAcross, kStride, kMany, kVectors>(band, columns, w, c, left, to);
      p += kMany;
    } else {
      SlideBlock<kAcross, kStride, 4, kVectors>(band, columns, w, c, left, to);
      p += 4;
    }
  }
}

template <int kAcross, int kStride, typename T>
void SlideChannels(const DepthwiseBand<T>& band, const float* w, int64_t c, int64_t vectors, T* y) {
  if constexpr (RLX_WIDE_BYTES == 64) {
    if (vectors == 2) return SlideRow<kAcross, kStride, 2>(band, w, c, y);
  }
  SlideRow<kAcross, kStride, 1>(band, w, c, y);
}

// One row of the result, for one or two vectors of channels.
template <typename T>
void Slide(const DepthwiseBand<T>& band, int64_t across, int64_t stride, const float* w, int64_t c,
           int64_t vectors, T* y) {
  switch (across * 2 + stride) {
    case 7: return SlideChannels<3, 1>(band, w, c, vectors, y);
    case 8: return SlideChannels<3, 2>(band, w, c, vectors, y);
    case 11: return SlideChannels<5, 1>(band, w, c, vectors, y);
    case 12: return SlideChannels<5, 2>(band, w, c, vectors, y);
    case 15: return SlideChannels<7, 1>(band, w, c, vectors, y);
    default: return SlideChannels<7, 2>(band, w, c, vectors, y);
  }
}

// Pieces [begin, end) of all images: each is a band of rows of one, and a set of channels.
template <typename Shape, typename T>
void SlidePieces(const Shape& s, const int64_t* columns, const int64_t* outside, const T* zeros,
                 const T* x, const float* w, int64_t begin, int64_t end, T* y) {
  const int64_t channels = s.in_channels;
  const int64_t set = DepthwiseSet(channels);
  const int64_t sets = (channels + set - 1) / set;
  const int64_t bands = (s.out[0] + kDepthwiseRows - 1) / kDepthwiseRows;
  for (int64_t at = begin; at < end; ++at) {
    const int64_t image = at / sets / bands;
    const int64_t first = at / sets % bands * kDepthwiseRows;
    int64_t c = at % sets * set;
    // The last set goes over what the one before it does.
    const int64_t vectors = set > kW && channels - c > kW ? 2 : 1;
    c = std::min(c, channels - vectors * kW);
    for (int64_t p = first; p < std::min(s.out[0], first + kDepthwiseRows); ++p) {
      DepthwiseBand<T> band = {{}, s.kernel[0], columns, outside, zeros, s.out[1], channels};
      for (int64_t kh = 0; kh < s.kernel[0]; ++kh) {
        const int64_t h = p * s.stride[0] + kh * s.dilation[0] - s.low[0];
        if (h < 0 || h >= s.in[0]) continue;
        band.rows[kh] = x + (image * s.in[0] + h) * s.in[1] * channels;
      }
      Slide(band, s.kernel[1], s.stride[1], w, c, vectors,
            y + (image * s.out[0] + p) * s.out[1] * channels);
    }
  }
}

}  // namespace RLX_WIDE
}  // namespace rlx
