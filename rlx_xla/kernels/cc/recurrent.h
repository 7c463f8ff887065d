// Recurrent networks: LSTM, GRU and the plain one, in layers and both directions.
//
// Computes: gates = x_t W_ih^T + b + h W_hh^T for every step, and the cell of the network. A GRU that
//   resets its state first multiplies r h, in place of h, for its last gate.
// Layout: x [B, S, I]; W_ih flat, by layer, then direction, each [G H, I]; W_hh [L D, G H, H];
//   biases [L D, G H]; states [L D, B, H]; y [B, S, D H], forward, then backward.
//   mask [B, S]: where it is false, the states of a sequence stay, and y is the hidden one.
// Numerics: all in f32, the functions of gates to 4 ulp; sums of at most kStretch terms at a time;
//   results rounded once.
// Algorithm: weights are turned once, into panels of columns that lie side by side. A piece of the
//   batch goes through all steps: the inputs of a few steps are multiplied together, and each step
//   multiplies the state; the gates stay in the cache.
#ifndef RLX_KERNELS_RECURRENT_H_
#define RLX_KERNELS_RECURRENT_H_

#include <algorithm>
#include <cstdint>

#include "numbers.h"
#include "parallel.h"
#include "scratch.h"
#include "wide.h"

namespace rlx {

enum class RecurrentKind { kPlain, kRelu, kLstm, kGru, kGruResetFirst };

inline bool IsGru(RecurrentKind kind) {
  return kind == RecurrentKind::kGru || kind == RecurrentKind::kGruResetFirst;
}

inline int64_t GatesOf(RecurrentKind kind) {
  return kind == RecurrentKind::kLstm ? 4 : IsGru(kind) ? 3 : 1;
}

struct RecurrentShape {
  RecurrentKind kind;
  int64_t batch;
  int64_t steps;
  int64_t width;  // of x
  int64_t hidden;
  int64_t layers;
  int64_t directions;
};

// Null states are zeros, or not wanted; the second bias is that of a GRU, the cell that of an LSTM.
// Without a mask all sequences go on in all steps.
template <typename T>
struct RecurrentData {
  const T* x;
  const T* w_ih;
  const T* w_hh;
  const T* bias;
  const T* hidden_bias;
  const T* first_hidden;
  const T* first_cell;
  const uint8_t* mask;
  T* y;
  T* last_hidden;
  T* last_cell;
};

namespace recurrent {

constexpr int64_t kSteps = 16;  // whose inputs are multiplied together
constexpr int64_t kStretch = 64;  // terms of a sum that is taken in registers
constexpr int64_t kPiece = 8;   // of a batch that goes through the steps together

// One direction of one layer, in f32. Rows of the gates are [G, padded H].
struct Direction {
  const float* x;  // [B, S, width]
  int64_t width;
  const float* entering;     // panels of [width, G padded H]
  const float* kept;         // panels of [H, G padded H]; resetting first: of two gates, of one
  const float* bias;         // [G padded H]
  const float* hidden_bias;  // the same, or null
  const uint8_t* mask;       // [B, S], or null
  bool backward;
  float* y;  // [B, S, y_stride], at this direction's columns
  int64_t y_stride;
  float* hidden;  // [B, H], first and last states
  float* cell;    // the same, or null
};

}  // namespace recurrent

}  // namespace rlx

#define RLX_TILES "recurrent_tiles.h"
#include "each_width.h"

namespace rlx {

template <typename Pool, typename T>
void Recurrent(const Pool& pool, const RecurrentShape& s, const RecurrentData<T>& data) {
#if defined(RLX_HAS_WIDE512)
  if (HasWide512()) return wide512::RecurrentLayers(pool, s, data);
#endif
  wide256::RecurrentLayers(pool, s, data);
}

}  // namespace rlx

#endif  // RLX_KERNELS_RECURRENT_H_
