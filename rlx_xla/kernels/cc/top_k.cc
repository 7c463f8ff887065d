// Handlers of top_k.h: rlx_top_k_<dtype>_cpu(x[..., n]) -> values[..., k], s32[..., k]; attribute
// `nan_is_lowest`: bool.
#include "top_k.h"

#include <limits>

#include "handler.h"

namespace {

// A piece of work that is worth a second thread, in elements.
constexpr int64_t kGrain = 16 * 1024;

template <typename T>
void TopKHandler(const rlx::Call& call) {
  call.Expect(/*args=*/1, /*results=*/2);
  const rlx::Tensor x = call.Arg(0, rlx::DataTypeOf<T>::value);
  const rlx::Tensor values = call.Result(0, rlx::DataTypeOf<T>::value);
  const rlx::Tensor indices = call.Result(1, XLA_FFI_DataType_S32);
  const bool nan_is_lowest = call.Attr<bool>("nan_is_lowest");
  if (x.rank < 1 || values.rank != x.rank || values.ShapeText() != indices.ShapeText()) {
    rlx::InvalidArgument(call.name() + ": two results of one shape and of the operand's rank are "
                         "required; got " + x.ShapeText() + " -> " + values.ShapeText() + ", " +
                         indices.ShapeText() + ".");
  }
  const int64_t n = x.dim(x.rank - 1);
  const int64_t k = values.dim(values.rank - 1);
  const int64_t rows = x.Count(0, x.rank - 1);
  if (k < 1 || k > n || n > std::numeric_limits<int32_t>::max() ||
      values.Count(0, values.rank - 1) != rows) {
    rlx::InvalidArgument(call.name() + ": as many rows, of 1 to n < 2^31 elements, are required; "
                         "got " + x.ShapeText() + " -> " + values.ShapeText() + ".");
  }
  const T* from = x.As<const T>();
  T* to = values.As<T>();
  int32_t* at = indices.As<int32_t>();
  call.ParallelFor(rows, kGrain / n + 1, [=](int64_t begin, int64_t end) {
    const T* first = from + begin * n;
    if (nan_is_lowest) {
      rlx::TopK<T, true>(first, end - begin, n, k, to + begin * k, at + begin * k);
    } else {
      rlx::TopK<T, false>(first, end - begin, n, k, to + begin * k, at + begin * k);
    }
  });
}

}  // namespace

RLX_HANDLER(rlx_top_k_f32_cpu, TopKHandler<float>)
RLX_HANDLER(rlx_top_k_bf16_cpu, TopKHandler<rlx::Bf16>)
RLX_HANDLER(rlx_top_k_f16_cpu, TopKHandler<rlx::F16>)
RLX_HANDLER(rlx_top_k_i32_cpu, TopKHandler<int32_t>)
RLX_HANDLER(rlx_top_k_u32_cpu, TopKHandler<uint32_t>)
