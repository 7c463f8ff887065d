// A handler of another package: example_cube_f64_cpu(x) -> x·x·x, both f64 of one shape.
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

static ffi::Error Cube(ffi::Buffer<ffi::F64> x, ffi::ResultBuffer<ffi::F64> y) {
  if (x.element_count() != y->element_count()) {
    return ffi::Error::InvalidArgument("example_cube: x and the result must have one shape.");
  }
  for (size_t i = 0; i < x.element_count(); ++i) {
    const double value = x.typed_data()[i];
    y->typed_data()[i] = value * value * value;
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(example_cube_f64_cpu, Cube,
                              ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::F64>>().Ret<ffi::Buffer<ffi::F64>>());
