// Handlers of argreduce.h: rlx_argreduce_<dtype>_cpu(x) -> s32 of x's shape without `axis`;
// attributes `axis`: s64, `minimum`: bool.
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
  const int64_t axis = call.Attr<int64_t>("axis");
  const int64_t n = axis >= 0 && axis < x.rank ? x.dim(axis) : 0;
  if (n < 1 || n > std::numeric_limits<int32_t>::max()) {
    rlx::InvalidArgument(call.name() + ": an axis of 1 to 2^31 - 1 elements is required; got axis " +
                         std::to_string(axis) + " of " + x.ShapeText() + ".");
  }
  const int64_t outer = x.Count(0, axis);
  const int64_t inner = x.Count(axis + 1, x.rank);
  if (out.size() != outer * inner) {
    rlx::InvalidArgument(call.name() + ": the result must have one element for each of " +
                         x.ShapeText() + " along axis " + std::to_string(axis) + "; got " +
                         out.ShapeText() + ".");
  }
  const T* values = x.As<const T>();
  int32_t* indices = out.As<int32_t>();
  const int64_t piece = kGrainBytes / static_cast<int64_t>(sizeof(T));
  if (inner == 1) {
    call.ParallelFor(outer, piece / n + 1, [=](int64_t begin, int64_t end) {
      const T* first = values + begin * n;
      if (minimum) {
        rlx::ArgReduce<rlx::Extreme::kMin>(first, end - begin, n, indices + begin);
      } else {
        rlx::ArgReduce<rlx::Extreme::kMax>(first, end - begin, n, indices + begin);
      }
    });
    return;
  }
  // Stretches of columns that fill cache lines.
  constexpr int64_t kWidth = 128;
  const int64_t stretches = (inner + kWidth - 1) / kWidth;
  call.ParallelFor(outer * stretches, piece / (n * kWidth) + 1, [=](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end;) {
      // Neighbouring stretches of one matrix are taken together.
      const int64_t row = at / stretches;
      const int64_t last = std::min(end, (row + 1) * stretches);
      const int64_t column = at % stretches * kWidth;
      const int64_t columns = std::min(inner - column, (last - at) * kWidth);
      const T* first = values + row * n * inner + column;
      int32_t* to = indices + row * inner + column;
      if (minimum) {
        rlx::ArgReduceColumns<rlx::Extreme::kMin>(first, n, inner, columns, to);
      } else {
        rlx::ArgReduceColumns<rlx::Extreme::kMax>(first, n, inner, columns, to);
      }
      at = last;
    }
  });
}

}  // namespace

RLX_HANDLER(rlx_argreduce_f32_cpu, ArgReduceHandler<float>)
RLX_HANDLER(rlx_argreduce_f64_cpu, ArgReduceHandler<double>)
RLX_HANDLER(rlx_argreduce_i32_cpu, ArgReduceHandler<int32_t>)
