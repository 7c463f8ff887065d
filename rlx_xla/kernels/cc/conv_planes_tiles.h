// The copies and sums of conv_planes.h. No include guard: see wide.h.

namespace rlx {
namespace RLX_WIDE {

// to[d * stride + r] = from[r * step + d] for eight rows; eight numbers of each are read.
template <typename T>
void TurnBlock(const T* from, int64_t step, int64_t count, float* to, int64_t stride) {
  Lanes<float> block[8];
  Lanes<float> turned[8];
#pragma GCC unroll 8
  for (int64_t i = 0; i < 8; ++i) block[i] = matmul::LoadWide(from + i * step);
  Turn8(block, turned);
  if (count == 8) {
#pragma GCC unroll 8
    for (int64_t i = 0; i < 8; ++i) rlx::Store<float>(turned[i], to + i * stride);
  } else {
    for (int64_t i = 0; i < count; ++i) rlx::Store<float>(turned[i], to + i * stride);
  }
}

// The same for n numbers of `rows` rows. What lies before `end` may be read.
template <typename T>
void TurnPlaces(const T* from, int64_t step, int64_t rows, int64_t n, const T* end, float* to,
                int64_t stride) {
  for (int64_t d = 0; d < n; d += 8, from += 8, to += 8 * stride) {
    const int64_t count = std::min<int64_t>(8, n - d);
    if (rows < 8 || end - (from + (rows - 1) * step) < 8) {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < count; ++i) to[i * stride + r] = ToFloat(from[r * step + i]);
      }
      continue;
    }
    for (int64_t r = 0; r < rows; r += 8) {  // the last eight go over what is done
      const int64_t at = std::min(r, rows - 8);
      TurnBlock(from + at * step, step, count, to + at, stride);
    }
  }
}

// The planes of a band.
template <typename Shape, typename T>
void CopyPlanes(const PlaneBand<Shape, T>& band, float* to) {
  const Shape& s = band.s;
  const Planes& p = band.planes;
  const int64_t channels = band.groups * s.features();
  const int64_t channel = band.group * s.features();  // the first
  const int64_t step = s.stride[1];
  const T* end = band.x + s.batch * s.in[0] * s.in[1] * s.in_channels;
  for (int64_t kind = 0; kind < p.h.kinds * p.w.kinds; ++kind) {
    const int64_t left = p.w.start[kind % p.w.kinds] - s.low[1];
    const PlaneReach columns(left, step, s.in[1], p.width);
    for (int64_t j = 0; j < band.rows + p.h.reach; ++j) {
      float* row = to + kind * p.plane + j * p.width;
      const int64_t h = (band.row + j) * s.stride[0] + p.h.start[kind / p.w.kinds] - s.low[0];
      const bool inside = h >= 0 && h < s.in[0];
      const int64_t low = inside ? columns.low : 0;
      const int64_t high = inside ? columns.high : 0;
      const int64_t first = left + low * step;
      if (s.channels_last && low < high) {
        const T* from = band.x + ((band.batch * s.in[0] + h) * s.in[1] + first) * s.in_channels +
                        channel;
        TurnPlaces(from, step * s.in_channels, high - low, channels, end, row + low, p.channel);
      }
      for (int64_t i = 0; i < channels; ++i, row += p.channel) {
        for (int64_t c = 0; c < low; ++c) row[c] = 0.0f;
        if (!s.channels_last && low < high) {
          const T* from =
              band.x + ((band.batch * s.in_channels + channel + i) * s.in[0] + h) * s.in[1] + first;
          if (step == 1) {
            matmul::WidenRow(from, high - low, /*ahead=*/0, row + low);
          } else if (step == 2) {
            for (int64_t c = 0; c < high - low; ++c) row[low + c] = ToFloat(from[c * 2]);
          } else {
            for (int64_t c = 0; c < high - low; ++c) row[low + c] = ToFloat(from[c * step]);
          }
        }
        for (int64_t c = high; c < p.width; ++c) row[c] = 0.0f;
      }
    }
  }
}

// A kernel: element k of output channel o is data[k * term + o * output].
struct PlaneKernel {
  const float* data;
  int64_t term, output;
};

template <int kO, int kV>
void PlaneTile(const float* x, const int64_t* offsets, int64_t terms, PlaneKernel w, float* to,
               int64_t stride) {
  V sums[kO][kV];
#pragma GCC unroll 8
  for (int o = 0; o < kO; ++o) {
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) sums[o][v] = V{};
  }
  for (int64_t k = 0; k < terms; ++k, w.data += w.term) {
    V value[kV];
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) value[v] = LoadV(x + offsets[k] + v * kW);
#pragma GCC unroll 8
    for (int o = 0; o < kO; ++o) {
      const V weight = Set(w.data[o * w.output]);
#pragma GCC unroll 8
      for (int v = 0; v < kV; ++v) sums[o][v] = MulAdd(value[v], weight, sums[o][v]);
    }
  }
#pragma GCC unroll 8
  for (int o = 0; o < kO; ++o) {
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) StoreV(sums[o][v], to + o * stride + v * kW);
  }
}

// All vectors of places, `per` at a time; the last tile goes over what the one before it has done.
template <int kO, int kV>
void PlaneTiles(const float* x, const int64_t* offsets, int64_t terms, PlaneKernel w,
                int64_t vectors, int64_t per, float* to, int64_t stride) {
  if constexpr (kV > 1) {
    if (per < kV) {
      return PlaneTiles<kO, kV - 1>(x, offsets, terms, w, vectors, per, to, stride);
    }
  }
  for (int64_t done = 0; done < vectors; done += kV) {
    const int64_t at = std::min(done, vectors - kV) * kW;
    PlaneTile<kO, kV>(x + at, offsets, terms, w, to + at, stride);
  }
}

// The same in as few tiles of at most kV vectors as there can be, all of one size.
template <int kO, int kV>
void EvenTiles(const float* x, const int64_t* offsets, int64_t terms, PlaneKernel w,
               int64_t vectors, float* to, int64_t stride) {
  const int64_t tiles = (vectors + kV - 1) / kV;
  const int64_t per = (vectors + tiles - 1) / tiles;
  PlaneTiles<kO, kV>(x, offsets, terms, w, vectors, per, to, stride);
}

// Sums of `count` output channels from `channel` on, as results.
template <typename Shape, typename T>
void StorePlanes(const PlaneBand<Shape, T>& band, const float* sums, int64_t channel,
                 int64_t count) {
  const Shape& s = band.s;
  const Planes& p = band.planes;
  for (int64_t r = 0; r < band.rows; ++r, sums += p.width) {
    const int64_t row = band.row + r;
    if (!s.channels_last) {
      T* to = band.y + ((band.batch * s.out_channels + channel) * s.out[0] + row) * s.out[1];
      for (int64_t o = 0; o < count; ++o) {
        matmul::NarrowRow(sums + o * p.sums, s.out[1], to + o * s.places());
      }
      continue;
    }
    T* to = band.y + (band.batch * s.places() + row * s.out[1]) * s.out_channels + channel;
    for (int64_t c = 0; c < s.out[1]; c += 8, to += 8 * s.out_channels) {
      const int64_t places = std::min<int64_t>(8, s.out[1] - c);
      for (int64_t o = 0; o < count; o += 8) {
        float turned[64];
        if (count - o >= 8) {
          TurnBlock(sums + o * p.sums + c, p.sums, 8, turned, 8);
          for (int64_t i = 0; i < places; ++i) {
            Narrow(turned + i * 8, 8, to + i * s.out_channels + o);
          }
          continue;
        }
        for (int64_t i = 0; i < places; ++i) {
          for (int64_t j = o; j < count; ++j) {
            to[i * s.out_channels + j] = FromFloat<T>(sums[j * p.sums + c + i]);
          }
        }
      }
    }
  }
}

template <typename Shape, typename T>
void ConvolveBand(const PlaneBand<Shape, T>& band, float* planes, float* sums, float* kernel) {
  constexpr bool kMany = RLX_WIDE_BYTES == 64;  // registers
  const Shape& s = band.s;
  const Planes& p = band.planes;
  CopyPlanes(band, planes);
  const int64_t terms = s.features() * s.taps();
  const int64_t vectors = (band.rows * p.width - p.w.reach + kW - 1) / kW;
  const int64_t first = band.group * s.outputs();
  const int64_t end = first + band.groups * s.outputs();
  for (int64_t o = first; o < end; o += kPlaneOutputs) {
    const int64_t held = std::min(kPlaneOutputs, end - o);
    for (int64_t done = 0; done < held;) {
      const int64_t at = o + done;
      const int64_t left = std::min(held - done, s.outputs() - at % s.outputs());
      const int64_t taken = left >= 8 && kMany ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
      PlaneKernel w = {band.w + at * terms, 1, terms};
      if (s.channels_last) {
        // Rows of a kernel that are a power of two apart fall on the same few lines of the cache.
        for (int64_t k = 0; k < terms; ++k) {
          const float* from = band.w + k * s.out_channels + at;
          float* to = kernel + k * taken;
          for (int64_t i = 0; i < taken; ++i) to[i] = from[i];
        }
        w = {kernel, taken, 1};
      }
      const float* x = planes + (at / s.outputs() - band.group) * s.features() * p.channel;
      float* to = sums + done * p.sums;
      if (taken == 8) {
        EvenTiles<kMany ? 8 : 4, 3>(x, band.offsets, terms, w, vectors, to, p.sums);
      } else if (taken == 4) {
        EvenTiles<4, kMany ? 6 : 3>(x, band.offsets, terms, w, vectors, to, p.sums);
      } else if (taken == 2) {
        EvenTiles<2, kMany ? 8 : 4>(x, band.offsets, terms, w, vectors, to, p.sums);
      } else {
        EvenTiles<1, kMany ? 8 : 4>(x, band.offsets, terms, w, vectors, to, p.sums);
      }
      done += taken;
    }
    StorePlanes(band, sums, o, held);
  }
}

}  // namespace RLX_WIDE
}  // namespace rlx
