// The products of conv_few.h. No include guard: see wide.h.

namespace rlx {
namespace RLX_WIDE {

// Rows of a panel: what terms [begin, end) of a sum meet at the places of whole vectors, and, of
// each place that is left, the same terms side by side.
template <typename Shape>
class FewWindows {
 public:
  FewWindows(const Shape& s, int64_t depth)
      : s_(s),
        vectors_(s.places() / kW),
        rest_(s.places() % kW),
        area_(s.in[0] * s.in[1]),
        before_(s.low[0] * s.in[1] + s.low[1]),
        size_(std::max(area_, s.kernel[0] * s.dilation[0] * s.in[1] +
                                  s.kernel[1] * s.dilation[1] + s.places())),
        inside_(s.taps() * Padded(s.places())),
        plane_(before_ + size_),
        panel_(depth * vectors_ * kW),
        left_(rest_ * Padded(depth)),
        stride_(Padded(depth)) {
    std::fill(plane_.get(), plane_.get() + before_ + size_, 0.0f);
    for (int64_t tap = 0; tap < s.taps(); ++tap) {
      for (int64_t p = 0; p < s.places(); ++p) {
        const int64_t h = p / s.out[1] + tap / s.kernel[1] * s.dilation[0] - s.low[0];
        const int64_t v = p % s.out[1] + tap % s.kernel[1] * s.dilation[1] - s.low[1];
        const bool in = h >= 0 && h < s.in[0] && v >= 0 && v < s.in[1];
        inside_[tap * Padded(s.places()) + p] = in ? -1 : 0;
      }
    }
  }

  // Of `x`, one group's image.
  void Fill(const float* x, int64_t begin, int64_t end) {
    const int64_t width = vectors_ * kW;
    int64_t channel = begin / s_.taps();
    int64_t tap = begin % s_.taps();
    const float* image = nullptr;
    for (int64_t k = begin; k < end; ++k) {
      if (image == nullptr || tap == 0) {
        // Loads reach into the channels around one; what is next to the first and the last is not
        // there to read.
        image = x + channel * area_;
        const int64_t around = before_ + size_;
        if (channel * area_ < before_ || (s_.features() - channel) * area_ < around) {
          std::memcpy(plane_.get() + before_, image, area_ * sizeof(float));
          image = plane_.get() + before_;
        }
      }
      const float* from = image + (tap / s_.kernel[1] * s_.dilation[0] - s_.low[0]) * s_.in[1] +
                          tap % s_.kernel[1] * s_.dilation[1] - s_.low[1];
      const int32_t* inside = inside_.get() + tap * Padded(s_.places());
      float* to = panel_.get() + (k - begin) * width;
      for (int64_t v = 0; v < width; v += kW) {
        I mask;
        std::memcpy(&mask, inside + v, sizeof(mask));
        StoreV(reinterpret_cast<V>(reinterpret_cast<I>(LoadV(from + v)) & mask), to + v);
      }
      for (int64_t c = 0; c < rest_; ++c) {
        left_[c * stride_ + k - begin] = inside[width + c] != 0 ? from[width + c] : 0.0f;
      }
      if (++tap < s_.taps()) continue;
      tap = 0;
      ++channel;
    }
  }

  const float* panel() const { return panel_.get(); }
  const float* left(int64_t c) const { return left_.get() + c * stride_; }
  int64_t vectors() const { return vectors_; }
  int64_t rest() const { return rest_; }

 private:
  const Shape& s_;
  int64_t vectors_, rest_, area_;
  int64_t before_, size_;  // numbers that are read before and from the first place on
  Scratch<int32_t> inside_;
  Scratch<float> plane_, panel_, left_;
  int64_t stride_;
};

// acc[m] += the products of `depth` numbers of rows of w, and of x, vector by vector.
template <int kM>
void LeftTile(const float* w, int64_t row, const float* x, int64_t depth, float* acc,
              int64_t acc_step) {
  V sums[kM];
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) sums[m] = LoadV(acc + m * acc_step);
  int64_t k = 0;
  for (; k + kW <= depth; k += kW) {
    const V value = LoadV(x + k);
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) sums[m] = MulAdd(LoadV(w + m * row + k), value, sums[m]);
  }
  if (k < depth) {
    const V value = LoadSome(x + k, depth - k);
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) {
      sums[m] = MulAdd(LoadSome(w + m * row + k, depth - k), value, sums[m]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) StoreV(sums[m], acc + m * acc_step);
}

template <int kM>
void LeftRows(int64_t rows, const float* w, int64_t row, const float* x, int64_t depth, float* acc,
              int64_t acc_step) {
  for (; rows >= kM; rows -= kM, w += kM * row, acc += kM * acc_step) {
    LeftTile<kM>(w, row, x, depth, acc, acc_step);
  }
  if constexpr (kM > 1) LeftRows<kM / 2>(rows, w, row, x, depth, acc, acc_step);
}

// One tile of rows and of one to kRowVectors vectors of places.
inline void OneFewTile(int64_t vectors, int64_t rows, const RowStretch& s, RowPanel panel) {
  switch (vectors) {
    case 1: OneTile<12, 1, false>(rows, s, panel); break;
#if RLX_WIDE_BYTES == 64
    case 2: OneTile<12, 2, false>(rows, s, panel); break;
    case 3: OneTile<8, 3, false>(rows, s, panel); break;
#endif
    default: OneTile<kRowSums / kRowVectors, kRowVectors, false>(rows, s, panel); break;
  }
}

// Output channels [first, last) of one group.
template <typename Shape, typename T>
void ConvolveFew(const Shape& s, int64_t depth, const float* x, const float* w, int64_t first,
                 int64_t last, FewWindows<Shape>* windows, T* y) {
  const int64_t rows = last - first;
  const int64_t terms = s.features() * s.taps();
  const int64_t width = windows->vectors() * kW;
  const int64_t step = width + windows->rest() * kW;
  Scratch<float> acc(rows * step);
  std::fill(acc.get(), acc.get() + rows * step, 0.0f);
  Scratch<const float*> row(rows);
  Scratch<float*> to(rows);
  for (int64_t r = 0; r < rows; ++r) row[r] = w + (first + r) * terms;
  for (int64_t begin = 0; begin < terms; begin += depth) {
    const int64_t end = std::min(terms, begin + depth);
    windows->Fill(x, begin, end);
    constexpr int64_t kMost = kRowVectors;
    const int64_t tile = std::min<int64_t>(12, kRowSums / std::min(kMost, windows->vectors()));
    for (int64_t r = 0; r < rows; r += tile) {
      const int64_t count = std::min(tile, rows - r);
      for (int64_t part = begin; part < end; part += kFewDepth) {
        const int64_t some = std::min(kFewDepth, end - part);
        const float* panel = windows->panel() + (part - begin) * width;
        for (int64_t n = 0; n < windows->vectors(); n += kMost) {
          for (int64_t i = 0; i < count; ++i) to[i] = acc.get() + (r + i) * step + n * kW;
          const RowStretch stretch = {row.get() + r, to.get(), 1, 0, part, some, false};
          OneFewTile(std::min(kMost, windows->vectors() - n), count, stretch,
                     {panel + n * kW, width});
        }
        // While these rows are in the first-level cache.
        for (int64_t c = 0; c < windows->rest(); ++c) {
          LeftRows<8>(count, row[r] + part, terms, windows->left(c) + part - begin, some,
                      acc.get() + r * step + width + c * kW, step);
        }
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = acc.get() + r * step;
    T* out = y + (first + r) * s.places();
    matmul::NarrowRow(from, width, out);
    for (int64_t c = 0; c < windows->rest(); ++c) {
      out[width + c] = FromFloat<T>(Sum(LoadV(from + width + c * kW)));
    }
  }
}

// Pieces [begin, end): each is a group's output channels of a block.
template <typename Shape, typename T>
void FewPieces(const Shape& s, int64_t block, const float* x, const float* w, int64_t begin,
               int64_t end, T* y) {
  const int64_t blocks = (s.outputs() + block - 1) / block;
  const int64_t depth = std::min(kFewTerms, s.features() * s.taps());
  FewWindows<Shape> windows(s, depth);
  for (int64_t at = begin; at < end; ++at) {
    const int64_t group = at / blocks;
    const int64_t first = at % blocks * block;
    const int64_t last = std::min(s.outputs(), first + block);
    ConvolveFew(s, depth, x + group * s.features() * s.in[0] * s.in[1],
                w + group * s.outputs() * s.features() * s.taps(), first, last, &windows,
                y + group * s.outputs() * s.places());
  }
}

}  // namespace RLX_WIDE
}  // namespace rlx
