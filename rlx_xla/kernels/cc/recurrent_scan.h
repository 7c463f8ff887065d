// Recurrences over the steps of a sequence whose state stays in the first-level cache: the
// selective scan and the gated delta rule.
//
// Computes: h = exp(delta a) h + delta x b, y = sum over n of c h; and S = exp(g) S,
//   d = (v - S^T k) beta, S = S + k d^T, y = S^T q / sqrt(N).
// Layout: row-major, as the ops have it.
// Numerics: all in f32, exp to 2 ulp; results rounded once. The delta rule takes S^T q before S is
//   corrected and adds d (k . q).
// Algorithm: channels, or columns of S, do not know of each other: a stretch of them goes from the
//   first step to the last, so that x and y are read and written once and the state never leaves
//   the cache.
#ifndef RLX_KERNELS_RECURRENT_SCAN_H_
#define RLX_KERNELS_RECURRENT_SCAN_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "numbers.h"
#include "parallel.h"
#include "scratch.h"
#include "wide.h"

namespace rlx {

struct SelectiveScanShape {
  int64_t batch;
  int64_t steps;
  int64_t width;
  int64_t states;
};

// The operands x, delta [B, S, H], a [H, N], b, c [B, S, N] and the result [B, S, H].
template <typename T>
struct SelectiveScanData {
  const T* x;
  const T* delta;
  const T* a;
  const T* b;
  const T* c;
  T* y;
};

struct DeltaShape {
  int64_t batch;
  int64_t steps;
  int64_t heads;
  int64_t size;  // N
  bool gate_per_channel;
};

// q, k, v [B, S, H, N], g [B, S, H] or [B, S, H, N], beta [B, S, H], the first state and the last
// [B, H, N, N], or null, and the result [B, S, H, N].
template <typename T>
struct DeltaData {
  const T* q;
  const T* k;
  const T* v;
  const T* g;
  const T* beta;
  const T* first;
  T* y;
  T* last;
};

namespace scans {

constexpr int64_t kChannels = 64;  // that go together through a selective scan
constexpr int64_t kColumns = 32;   // of a state that go together through the delta rule

}  // namespace scans

}  // namespace rlx

#define RLX_TILES "recurrent_scan_tiles.h"
#include "each_width.h"

namespace rlx {

template <typename Pool, typename T>
void SelectiveScan(const Pool& pool, const SelectiveScanShape& s, const SelectiveScanData<T>& data) {
  constexpr int64_t kGrain = 16 * 1024;  // updates of a state that are worth a second thread
  const int64_t blocks = (s.width + scans::kChannels - 1) / scans::kChannels;
  const int64_t cost = std::max<int64_t>(1, s.steps * s.states * scans::kChannels);
  ParallelFor(pool, s.batch * blocks, kGrain / cost + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t channel = i % blocks * scans::kChannels;
#if defined(RLX_HAS_WIDE512)
      if (HasWide512()) {
        wide512::ScanChannels(s, data, i / blocks, channel);
        continue;
      }
#endif
      wide256::ScanChannels(s, data, i / blocks, channel);
    }
  });
}

template <typename Pool, typename T>
void GatedDelta(const Pool& pool, const DeltaShape& s, const DeltaData<T>& data) {
  constexpr int64_t kGrain = 64 * 1024;
  const int64_t blocks = (s.size + scans::kColumns - 1) / scans::kColumns;
  const int64_t cost = std::max<int64_t>(1, s.steps * s.size * scans::kColumns);
  ParallelFor(pool, s.batch * s.heads * blocks, kGrain / cost + 1,
              [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t column = i % blocks * scans::kColumns;
#if defined(RLX_HAS_WIDE512)
                  if (HasWide512()) {
                    wide512::DeltaColumns(s, data, i / blocks, column);
                    continue;
                  }
#endif
                  wide256::DeltaColumns(s, data, i / blocks, column);
                }
              });
}

}  // namespace rlx

#endif  // RLX_KERNELS_RECURRENT_SCAN_H_
