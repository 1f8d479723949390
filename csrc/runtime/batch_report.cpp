#include "runtime/batch_report.h"

#include <cstring>

#include "cuda/cuda_check.h"

namespace dpiframe {
namespace {

constexpr unsigned long long kNone = ~0ull;

}  // namespace

Report::Report(int size)
    : size_(size),
      device_(sizeof(kNone) * size),
      host_(sizeof(kNone) * size),
      initial_(sizeof(kNone) * size) {
  // All ones, so that counts start at -1 and places at the largest number there is.
  std::memset(initial_.get(), 0xff, sizeof(kNone) * size);
  std::memset(host_.get(), 0xff, sizeof(kNone) * size);
  DPIF_CUDA_CHECK(
      cudaMemcpy(device_.get(), initial_.get(), sizeof(kNone) * size, cudaMemcpyHostToDevice));
}

bool Report::take(std::span<std::int64_t> values, const Stream& stream) {
  DPIF_CHECK(values.size() == static_cast<std::size_t>(size_), "the report has ", size_,
             " entries, got room for ", values.size());
  if (std::memcmp(host(), initial_.get(), sizeof(kNone) * size_) == 0) return false;
  std::memcpy(values.data(), host(), sizeof(kNone) * size_);
  std::memcpy(host(), initial_.get(), sizeof(kNone) * size_);
  DPIF_CUDA_CHECK(cudaMemcpyAsync(device_.get(), initial_.get(), sizeof(kNone) * size_,
                                  cudaMemcpyHostToDevice, stream.get()));
  return true;
}

}  // namespace dpiframe
