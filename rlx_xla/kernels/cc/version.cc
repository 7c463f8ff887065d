// What the loader asks before it registers anything: the FFI API that the library was built
// against, the sources it was built from, and whether this CPU can run it. This file is compiled
// for the architecture's baseline, so that the question itself cannot fault.
#include "xla/ffi/api/c_api.h"

#define RLX_EXPORT extern "C" __attribute__((visibility("default")))

RLX_EXPORT int rlx_kernels_ffi_api_major() { return XLA_FFI_API_MAJOR; }

RLX_EXPORT int rlx_kernels_ffi_api_minor() { return XLA_FFI_API_MINOR; }

// "<package version>+<digest of the sources>".
RLX_EXPORT const char* rlx_kernels_version() { return RLX_VERSION "+" RLX_DIGEST; }

// The first CPU feature that the library needs and this CPU lacks, or an empty string.
RLX_EXPORT const char* rlx_kernels_missing_cpu_feature() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2")) return "avx2";
  if (!__builtin_cpu_supports("fma")) return "fma";
#endif
  return "";
}
