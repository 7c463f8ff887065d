// Working memory of a kernel, freed when it goes out of scope.
//
// A large block asks the system for huge pages: touching 16 MiB for the first time then takes 8
// page faults, not 4,096, which cost as much as sorting what is put there.
#ifndef RLX_KERNELS_SCRATCH_H_
#define RLX_KERNELS_SCRATCH_H_

#include <cstdint>
#include <cstdlib>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace rlx {

// `count` elements of a trivial type T, not initialised, 64-byte aligned.
template <typename T>
class Scratch {
 public:
  explicit Scratch(int64_t count) {
    constexpr uint64_t kHugePage = uint64_t{1} << 21;
    const uint64_t bytes = static_cast<uint64_t>(count) * sizeof(T);
    const uint64_t unit = bytes >= 2 * kHugePage ? kHugePage : 64;
    const uint64_t size = (bytes + unit - 1) / unit * unit;
    data_ = static_cast<T*>(std::aligned_alloc(unit, size == 0 ? unit : size));
    if (data_ == nullptr) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (unit == kHugePage) madvise(data_, size, MADV_HUGEPAGE);
#endif
  }
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  T* get() const { return data_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  T* data_;
};

}  // namespace rlx

#endif  // RLX_KERNELS_SCRATCH_H_
