// A parallel loop over a pool that promises nothing: no order, no number of threads, and a task
// may start late or on the calling thread.
//
// The caller takes pieces like every worker and waits only for pieces that a worker has claimed.
// A worker that starts after the last piece was claimed finds nothing to do and touches only the
// shared state, which it owns a part of; so a busy machine costs the caller no waiting for the
// pool to wake up.
#ifndef RLX_KERNELS_PARALLEL_H_
#define RLX_KERNELS_PARALLEL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>

namespace rlx {

template <typename Body>
struct ParallelState {
  ParallelState(const Body& body, int64_t count, int64_t piece)
      : body(&body), count(count), piece(piece), pieces((count + piece - 1) / piece) {}

  void TakePieces() {
    for (int64_t taken; (taken = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) {
      const int64_t begin = taken * piece;
      try {
        (*body)(begin, std::min(begin + piece, count));
      } catch (...) {  // a worker's thread is not ours to unwind: the caller throws it again
        if (!failed.exchange(true)) failure = std::current_exception();
      }
      done.fetch_add(1, std::memory_order_release);
    }
  }

  const Body* body;  // valid while a piece is unfinished
  const int64_t count;
  const int64_t piece;
  const int64_t pieces;
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> done{0};
  std::atomic<bool> failed{false};
  std::exception_ptr failure;  // of the first piece that failed
};

// Runs body(begin, end) over [0, count) in pieces of at least `grain`. `Pool` has Threads() and
// Schedule(task, data). Four pieces a thread even out unequal speeds. What a piece throws, the
// caller throws once all are done.
template <typename Pool, typename Body>
void ParallelFor(const Pool& pool, int64_t count, int64_t grain, const Body& body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  const int64_t threads = count >= 2 * grain ? pool.Threads() : 1;
  if (threads <= 1) {
    body(int64_t{0}, count);
    return;
  }
  const int64_t even = (count + 4 * threads - 1) / (4 * threads);
  using State = ParallelState<Body>;
  auto state = std::make_shared<State>(body, count, std::max(grain, even));
  const int64_t workers = std::min(threads, state->pieces) - 1;
  for (int64_t i = 0; i < workers; ++i) {
    auto share = std::make_unique<std::shared_ptr<State>>(state);
    const auto task = [](void* data) {
      std::unique_ptr<std::shared_ptr<State>> owned(static_cast<std::shared_ptr<State>*>(data));
      (*owned)->TakePieces();
    };
    if (!pool.Schedule(task, share.get())) break;
    share.release();
  }
  state->TakePieces();
  while (state->done.load(std::memory_order_acquire) < state->pieces) std::this_thread::yield();
  if (state->failed.load()) std::rethrow_exception(state->failure);
}

}  // namespace rlx

#endif  // RLX_KERNELS_PARALLEL_H_
