// The layers of recurrent.h. No include guard: see wide.h.

namespace rlx {
namespace RLX_WIDE {

constexpr int64_t kPanel = (RLX_WIDE_BYTES == 64 ? 4 : 2) * kW;

// Panels of a weight [gates * hidden, depth]: each kPanel columns of [depth, gates * padded].
template <typename T>
void Panels(const T* w, int64_t gates, int64_t hidden, int64_t depth, float* out) {
  const int64_t padded = Padded(hidden);
  const int64_t columns = gates * padded;
  Scratch<float> turned(depth * columns);
  for (int64_t g = 0; g < gates; ++g) {
    WidenTurned(w + g * hidden * depth, depth, hidden, depth, turned.get() + g * padded, columns,
                padded);
  }
  for (int64_t c = 0; c < columns; c += kPanel) {
    const int64_t width = std::min(kPanel, columns - c);
    for (int64_t d = 0; d < depth; ++d) {
      std::memcpy(out, turned.get() + d * columns + c, width * sizeof(float));
      out += width;
    }
  }
}

template <typename T>
void GateRow(const T* bias, int64_t gates, int64_t hidden, float* out) {
  for (int64_t g = 0; g < gates; ++g) {
    Widen(bias + g * hidden, 0, 1, hidden, out + g * Padded(hidden), Padded(hidden));
  }
}

// c[rows, columns] += a b, where b lies in panels.
inline void PanelProduct(Factor a, int64_t rows, int64_t depth, const float* panels,
                         int64_t columns, float* c, int64_t c_stride) {
  for (int64_t n = 0; n < columns; n += kPanel) {
    const int64_t width = std::min(kPanel, columns - n);
    Product<true>(a, rows, depth, panels + n * depth, width, width, c + n, c_stride);
  }
}

// One step of a cell for one row; `entering` holds all gates, or for a GRU those of the input, and
// `kept` then those of the state.
inline void Cell(RecurrentKind kind, int64_t padded, const float* entering, const float* kept,
                 float* hidden, float* cell) {
  for (int64_t j = 0; j < padded; j += kW) {
    const V first = LoadV(entering + j);
    switch (kind) {
      case RecurrentKind::kPlain:
        StoreV(Tanh(first), hidden + j);
        break;
      case RecurrentKind::kRelu:
        StoreV(first < 0.0f ? V{} : first, hidden + j);
        break;
      case RecurrentKind::kLstm: {
        const V forget = Logistic(LoadV(entering + padded + j));
        const V offered = Tanh(LoadV(entering + 2 * padded + j));
        const V c = MulAdd(forget, LoadV(cell + j), Logistic(first) * offered);
        StoreV(c, cell + j);
        StoreV(Logistic(LoadV(entering + 3 * padded + j)) * Tanh(c), hidden + j);
        break;
      }
      case RecurrentKind::kGru: {
        const V reset = Logistic(first + LoadV(kept + j));
        const V keep = Logistic(LoadV(entering + padded + j) + LoadV(kept + padded + j));
        const V offered =
            Tanh(MulAdd(reset, LoadV(kept + 2 * padded + j), LoadV(entering + 2 * padded + j)));
        StoreV(MulAdd(keep, LoadV(hidden + j), (1.0f - keep) * offered), hidden + j);
        break;
      }
      case RecurrentKind::kGruResetFirst: {
        const V keep = Logistic(LoadV(entering + padded + j) + LoadV(kept + padded + j));
        const V offered = Tanh(LoadV(entering + 2 * padded + j) + LoadV(kept + 2 * padded + j));
        StoreV(MulAdd(keep, LoadV(hidden + j), (1.0f - keep) * offered), hidden + j);
        break;
      }
    }
  }
}

// The state's part of the gates of a GRU, for `count` rows; `now` are those of the input, and `reset`
// is filled with r h where the state is reset first.
inline void KeptGates(const RecurrentShape& s, const recurrent::Direction& way, int64_t count,
                      const float* now, const float* hidden, float* reset, float* kept) {
  const int64_t padded = Padded(s.hidden);
  const int64_t columns = GatesOf(s.kind) * padded;
  const Factor states = {hidden, padded, 1};
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(kept + i * columns, way.hidden_bias, columns * sizeof(float));
  }
  if (s.kind == RecurrentKind::kGru) {
    return PanelProduct(states, count, s.hidden, way.kept, columns, kept, columns);
  }
  const int64_t early = 2 * padded;
  PanelProduct(states, count, s.hidden, way.kept, early, kept, columns);
  for (int64_t i = 0; i < count; ++i) {
    const float* entering = now + i * recurrent::kSteps * columns;
    for (int64_t j = 0; j < padded; j += kW) {
      const V gate = Logistic(LoadV(entering + j) + LoadV(kept + i * columns + j));
      StoreV(gate * LoadV(hidden + i * padded + j), reset + i * padded + j);
    }
  }
  PanelProduct({reset, padded, 1}, count, s.hidden, way.kept + early * s.hidden, padded,
               kept + early, columns);
}

// Sequences [begin, end) of a batch through all steps of one direction.
inline void Sequences(const RecurrentShape& s, const recurrent::Direction& way, int64_t begin,
                      int64_t end) {
  constexpr int64_t kSteps = recurrent::kSteps;
  const int64_t padded = Padded(s.hidden);
  const int64_t columns = GatesOf(s.kind) * padded;
  const int64_t count = end - begin;
  const bool gru = IsGru(s.kind);
  Scratch<float> gates(count * kSteps * columns);
  Scratch<float> kept(gru ? count * columns : 0);
  Scratch<float> reset(s.kind == RecurrentKind::kGruResetFirst ? count * padded : 0);
  Scratch<float> hidden(count * padded);
  Scratch<float> cell(count * padded);
  Widen(way.hidden + begin * s.hidden, s.hidden, count, s.hidden, hidden.get(), padded);
  if (way.cell != nullptr) {
    Widen(way.cell + begin * s.hidden, s.hidden, count, s.hidden, cell.get(), padded);
  }
  for (int64_t done = 0; done < s.steps; done += kSteps) {
    const int64_t steps = std::min(kSteps, s.steps - done);
    const int64_t first = way.backward ? s.steps - done - steps : done;
    for (int64_t i = 0; i < count; ++i) {
      float* rows = gates.get() + i * kSteps * columns;
      for (int64_t t = 0; t < steps; ++t) {
        std::memcpy(rows + t * columns, way.bias, columns * sizeof(float));
      }
      const float* x = way.x + ((begin + i) * s.steps + first) * way.width;
      PanelProduct({x, way.width, 1}, steps, way.width, way.entering, columns, rows, columns);
    }
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t t = way.backward ? steps - 1 - step : step;
      float* now = gates.get() + t * columns;
      if (gru) {
        KeptGates(s, way, count, now, hidden.get(), reset.get(), kept.get());
      } else {
        PanelProduct({hidden.get(), padded, 1}, count, s.hidden, way.kept, columns, now,
                     kSteps * columns);
      }
      for (int64_t i = 0; i < count; ++i) {
        float* h = hidden.get() + i * padded;
        const int64_t token = (begin + i) * s.steps + first + t;
        if (way.mask == nullptr || way.mask[token]) {
          Cell(s.kind, padded, now + i * kSteps * columns,
               gru ? kept.get() + i * columns : nullptr, h, cell.get() + i * padded);
        }
        std::memcpy(way.y + token * way.y_stride, h, s.hidden * sizeof(float));
      }
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(way.hidden + (begin + i) * s.hidden, hidden.get() + i * padded,
                s.hidden * sizeof(float));
    if (way.cell != nullptr) {
      std::memcpy(way.cell + (begin + i) * s.hidden, cell.get() + i * padded,
                  s.hidden * sizeof(float));
    }
  }
}

template <typename Pool, typename T>
void WidenAll(const Pool& pool, const T* in, int64_t n, float* out) {
  ParallelFor(pool, n, 64 * 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = ToFloat(in[i]);
  });
}

template <typename Pool, typename T>
void RecurrentLayers(const Pool& pool, const RecurrentShape& s, const RecurrentData<T>& data) {
  const int64_t gates = GatesOf(s.kind);
  const int64_t columns = gates * Padded(s.hidden);
  const int64_t tokens = s.batch * s.steps;
  const int64_t states = s.batch * s.hidden;
  const int64_t out_width = s.directions * s.hidden;
  const int64_t widest = std::max(s.width, s.layers > 1 ? out_width : 0);
  const bool lstm = s.kind == RecurrentKind::kLstm;
  constexpr bool kWhole = std::is_same_v<T, float>;
  Scratch<float> widened(kWhole ? 0 : tokens * s.width);
  Scratch<float> between(s.layers > 1 || !kWhole ? tokens * out_width : 0);
  Scratch<float> other(s.layers > 1 ? tokens * out_width : 0);
  Scratch<float> entering(s.directions * columns * widest);
  Scratch<float> kept(s.directions * columns * s.hidden);
  Scratch<float> biases(2 * s.directions * columns);
  Scratch<float> hidden(s.directions * states);
  Scratch<float> cell(s.directions * states);
  const float* x = nullptr;
  if constexpr (kWhole) {
    x = data.x;
  } else {
    WidenAll(pool, data.x, tokens * s.width, widened.get());
    x = widened.get();
  }
  int64_t width = s.width;
  const T* w_ih = data.w_ih;
  float* targets[2] = {between.get(), other.get()};
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    float* y = targets[layer % 2];
    if constexpr (kWhole) {
      if (layer + 1 == s.layers) y = data.y;
    }
    const int64_t first = layer * s.directions;
    // A piece of work is a direction's weights; and then a piece of a direction's batch.
    const int64_t weights = gates * s.hidden;
    ParallelFor(pool, s.directions, 1, [&](int64_t begin, int64_t end) {
      for (int64_t way = begin; way < end; ++way) {
        const int64_t at = first + way;
        Panels(w_ih + way * weights * width, gates, s.hidden, width,
               entering.get() + way * columns * widest);
        const int64_t apart = s.kind == RecurrentKind::kGruResetFirst ? 1 : 0;
        const T* w_hh = data.w_hh + at * weights * s.hidden;
        float* panels = kept.get() + way * columns * s.hidden;
        const int64_t early = gates - apart;
        Panels(w_hh, early, s.hidden, s.hidden, panels);
        if (apart > 0) {
          Panels(w_hh + early * s.hidden * s.hidden, apart, s.hidden, s.hidden,
                 panels + early * Padded(s.hidden) * s.hidden);
        }
        GateRow(data.bias + at * weights, gates, s.hidden, biases.get() + 2 * way * columns);
        if (data.hidden_bias != nullptr) {
          GateRow(data.hidden_bias + at * weights, gates, s.hidden,
                  biases.get() + (2 * way + 1) * columns);
        }
        for (int64_t i = 0; i < states; ++i) {
          const int64_t from = at * states + i;
          hidden[way * states + i] =
              data.first_hidden == nullptr ? 0 : ToFloat(data.first_hidden[from]);
          cell[way * states + i] =
              data.first_cell == nullptr ? 0 : ToFloat(data.first_cell[from]);
        }
      }
    });
    const int64_t pieces =
        std::max<int64_t>(1, std::min(s.batch, std::max((s.batch + recurrent::kPiece - 1) /
                                                            recurrent::kPiece,
                                                        pool.Threads() / s.directions)));
    ParallelFor(pool, s.directions * pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t way = i / pieces;
        const int64_t piece = i % pieces;
        recurrent::Direction one = {};
        one.x = x;
        one.width = width;
        one.entering = entering.get() + way * columns * widest;
        one.kept = kept.get() + way * columns * s.hidden;
        one.bias = biases.get() + 2 * way * columns;
        one.hidden_bias = one.bias + columns;
        one.mask = data.mask;
        one.backward = way == 1;
        one.y = y + way * s.hidden;
        one.y_stride = out_width;
        one.hidden = hidden.get() + way * states;
        one.cell = lstm ? cell.get() + way * states : nullptr;
        Sequences(s, one, piece * s.batch / pieces, (piece + 1) * s.batch / pieces);
      }
    });
    if (data.last_hidden != nullptr) {
      Narrow(hidden.get(), s.directions * states, data.last_hidden + first * states);
    }
    if (data.last_cell != nullptr) {
      Narrow(cell.get(), s.directions * states, data.last_cell + first * states);
    }
    w_ih += s.directions * weights * width;
    x = y;
    width = out_width;
  }
  if constexpr (!kWhole) Narrow(x, tokens * out_width, data.y);
}

}  // namespace RLX_WIDE
}  // namespace rlx
