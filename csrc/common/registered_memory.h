// Move-only owner of a registration: host memory of somebody else, such as a mapped file or shared
// memory, page-locked so that every device of this process can read it by itself. The memory must
// stay mapped for as long.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/cuda_check.h"

namespace dpiframe {

class RegisteredMemory {
 public:
  RegisteredMemory() = default;
  // The pages that hold [data, data + bytes). Read-only where the device can, since a mapping that
  // this process may not write can be registered in no other way.
  RegisteredMemory(const void* data, std::size_t bytes) : data_(const_cast<void*>(data)) {
    DPIF_CHECK(data != nullptr && bytes > 0, "memory to register must not be empty, got ", bytes,
               " bytes");
    if (cudaHostRegister(data_, bytes, cudaHostRegisterPortable | cudaHostRegisterReadOnly) ==
        cudaSuccess)
      return;
    (void)cudaGetLastError();
    if (cudaHostRegister(data_, bytes, cudaHostRegisterPortable) == cudaSuccess) return;
    const cudaError_t status = cudaGetLastError();
    const auto address = reinterpret_cast<std::uintptr_t>(std::exchange(data_, nullptr));
    throw std::runtime_error(join_message(
        "cannot page-lock ", bytes, " bytes of host memory at address ", address, ": ",
        cudaGetErrorName(status), ", ", cudaGetErrorString(status),
        "; they must be mapped, on no page that is registered already, and within the limit on "
        "locked memory (ulimit -l)"));
  }
  ~RegisteredMemory() {
    if (data_ != nullptr) DPIF_CUDA_WARN(cudaHostUnregister(data_));
  }
  RegisteredMemory(RegisteredMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)) {}
  RegisteredMemory& operator=(RegisteredMemory&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }

 private:
  void* data_ = nullptr;
};

}  // namespace dpiframe
