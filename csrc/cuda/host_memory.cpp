#include "cuda/host_memory.h"

#include <sys/mman.h>

#include <new>

#ifdef DPIFRAME_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace dpiframe {

HostMemory::HostMemory(std::size_t bytes) : bytes_(bytes > 0 ? bytes : 1) {
  data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data_ == MAP_FAILED) throw std::bad_alloc();
  // Large pages where the system gives them: fewer faults, fewer to lock.
  (void)madvise(data_, bytes_, MADV_HUGEPAGE);
}

HostMemory::~HostMemory() {
#ifdef DPIFRAME_WITH_CUDA
  // Refused when CUDA has ended before, which unlocked them.
  if (locked_ && cudaHostUnregister(data_) != cudaSuccess) (void)cudaGetLastError();
#endif
  munmap(data_, bytes_);
}

bool HostMemory::lock() {
#ifdef DPIFRAME_WITH_CUDA
  if (!locked_) {
    locked_ = cudaHostRegister(data_, bytes_, cudaHostRegisterPortable) == cudaSuccess;
    if (!locked_) (void)cudaGetLastError();
  }
#endif
  return locked_;
}

}  // namespace dpiframe
