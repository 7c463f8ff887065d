// Handlers of argreduce.h: rlx_argreduce_<dtype>_cpu(x[..., cols]) -> s32[...],
// attribute `minimum`: bool.
#include "argreduce.h"

#include <limits>

#include "handler.h"

namespace {

// A piece of work that is worth a second thread, in bytes.
constexpr int64_t kGrainBytes = 128 * 1024;

template <typename T>
void ArgReduceHandler(const rlx::Call& call) {
  call.Expect(/*args=*/1, /*results=*/1);
  const rlx::Tensor x = call.Arg(0, rlx::DataTypeOf<T>::value);
  const rlx::Tensor out = call.Result(0, XLA_FFI_DataType_S32);
  const bool minimum = call.Attr<bool>("minimum");
  const int64_t cols = x.rank >= 1 ? x.dim(x.rank - 1) : 0;
  if (cols < 1 || cols > std::numeric_limits<int32_t>::max()) {
    rlx::InvalidArgument(call.name() + ": the last axis must have 1 to 2^31 - 1 elements; got " +
                         x.ShapeText() + ".");
  }
  const int64_t rows = x.Count(0, x.rank - 1);
  if (out.size() != rows) {
    rlx::InvalidArgument(call.name() + ": the result must have one element a row of " +
                         x.ShapeText() + "; got " + out.ShapeText() + ".");
  }
  const T* values = x.As<const T>();
  int32_t* indices = out.As<int32_t>();
  const int64_t grain = kGrainBytes / static_cast<int64_t>(sizeof(T)) / cols + 1;
  call.ParallelFor(rows, grain, [=](int64_t begin, int64_t end) {
    const T* first = values + begin * cols;
    if (minimum) {
      rlx::ArgReduce<rlx::Extreme::kMin>(first, end - begin, cols, indices + begin);
    } else {
      rlx::ArgReduce<rlx::Extreme::kMax>(first, end - begin, cols, indices + begin);
    }
  });
}

}  // namespace

RLX_HANDLER(rlx_argreduce_f32_cpu, ArgReduceHandler<float>)
RLX_HANDLER(rlx_argreduce_f64_cpu, ArgReduceHandler<double>)
RLX_HANDLER(rlx_argreduce_i32_cpu, ArgReduceHandler<int32_t>)
