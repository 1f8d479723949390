// Move-only owners of memory: DeviceBuffer on the device that is current when it is made,
// PinnedBuffer on the host, DeviceArrays for several host arrays in one allocation. Where memory is
// short the error says how much was asked for and how much is free; the device stays usable.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda/cuda_check.h"

namespace dpiframe {

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    const cudaError_t status = DPIF_CUDA_STATUS(cudaMalloc(&data_, bytes));
    if (status == cudaSuccess) return;
    (void)cudaGetLastError();
    const std::string text = join_message("the GPU gave no ", bytes, " bytes", free_memory(), ": ",
                                          cudaGetErrorString(status));
    throw_device_error(status, text);
  }
  // For memory of which more is read than is written: rows of a bucket beyond its batch, the rest
  // of an aligned word. What is read there never reaches a result. Returns when any stream may use
  // it.
  static DeviceBuffer zeros(std::size_t bytes) {
    DeviceBuffer buffer(bytes);
    if (bytes == 0) return buffer;
    DPIF_CUDA_CHECK(cudaMemset(buffer.get(), 0, bytes));
    DPIF_CUDA_CHECK(cudaStreamSynchronize(nullptr));
    return buffer;
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
  explicit PinnedBuffer(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    const cudaError_t status = DPIF_CUDA_STATUS(cudaHostAlloc(&data_, bytes, cudaHostAllocMapped));
    if (status == cudaSuccess) return;
    (void)cudaGetLastError();
    const std::string text = join_message(
        "no ", bytes, " bytes of page-locked host memory: ", cudaGetErrorString(status));
    if (status == cudaErrorMemoryAllocation) throw std::runtime_error(text);  // not the device's
    throw_device_error(status, text);
  }
  ~PinnedBuffer() {
    if (data_ != nullptr) DPIF_CUDA_WARN(cudaFreeHost(data_));
  }
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
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

// Copies of host arrays, each at a multiple of 256 bytes.
class DeviceArrays {
 public:
  DeviceArrays() = default;
  explicit DeviceArrays(const std::vector<std::span<const std::byte>>& arrays) {
    std::size_t bytes = 0;
    for (const auto& array : arrays) {
      offsets_.push_back(bytes);
      bytes += (array.size() + 255) / 256 * 256;
    }
    memory_ = DeviceBuffer::zeros(bytes);
    for (std::size_t i = 0; i < arrays.size(); ++i)
      DPIF_CUDA_CHECK(
          cudaMemcpy(at(i), arrays[i].data(), arrays[i].size(), cudaMemcpyHostToDevice));
  }

  void* at(std::size_t i) const { return static_cast<char*>(memory_.get()) + offsets_[i]; }
  std::size_t bytes() const { return memory_.bytes(); }

 private:
  DeviceBuffer memory_;
  std::vector<std::size_t> offsets_;
};

}  // namespace dpiframe
