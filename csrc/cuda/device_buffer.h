// Move-only owners of a piece of device memory, on the device that is current when it is made, and
// of pinned host memory. Where there is too little, the error says how much was asked for and how
// much is free; the device stays usable.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

#include "cuda/cuda_check.h"

namespace dpiframe {

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0 || cudaMalloc(&data_, bytes) == cudaSuccess) return;
    const cudaError_t status = cudaGetLastError();
    data_ = nullptr;
    const std::string text = join_message("the GPU gave no ", bytes, " bytes", free_memory(), ": ",
                                          cudaGetErrorString(status));
    if (status == cudaErrorMemoryAllocation) throw DeviceMemoryError(text);
    throw std::runtime_error(text);
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) DPIF_CUDA_WARN(cudaFree(data_));
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  void* get() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Page-locked host memory that the device can reach by the same pointer.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(std::size_t bytes) {
    if (bytes == 0 || cudaHostAlloc(&data_, bytes, cudaHostAllocMapped) == cudaSuccess) return;
    const char* reason = cudaGetErrorString(cudaGetLastError());
    data_ = nullptr;
    throw std::runtime_error(
        join_message("no ", bytes, " bytes of page-locked host memory: ", reason));
  }
  ~PinnedBuffer() {
    if (data_ != nullptr) DPIF_CUDA_WARN(cudaFreeHost(data_));
  }
  PinnedBuffer(PinnedBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }

  void* get() const { return data_; }

 private:
  void* data_ = nullptr;
};

}  // namespace dpiframe
