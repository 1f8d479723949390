#include "runtime/bad_id_report.h"

#include <cstring>

#include "cuda/cuda_check.h"

namespace dpiframe {

BadIdReport::BadIdReport(int size)
    : bytes_(sizeof(unsigned long long) * size), device_(bytes_), host_(bytes_), initial_(bytes_) {
  if (bytes_ == 0) return;  // a program without a lookup
  std::memset(initial_.get(), 0xff, bytes_);
  std::memset(host_.get(), 0xff, bytes_);
  DPIF_CUDA_CHECK(cudaMemcpy(device_.get(), initial_.get(), bytes_, cudaMemcpyHostToDevice));
}

bool BadIdReport::take(std::span<std::int64_t> values, const Stream& stream) {
  DPIF_CHECK(values.size_bytes() == bytes_, "the report has ", bytes_ / sizeof(std::int64_t),
             " entries, got room for ", values.size());
  if (bytes_ == 0) return false;
  if (std::memcmp(host(), initial_.get(), bytes_) == 0) return false;
  std::memcpy(values.data(), host(), bytes_);
  std::memcpy(host(), initial_.get(), bytes_);
  DPIF_CUDA_CHECK(
      cudaMemcpyAsync(device_.get(), initial_.get(), bytes_, cudaMemcpyHostToDevice, stream.get()));
  return true;
}

}  // namespace dpiframe
