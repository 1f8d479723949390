// float32 to float32, half or bfloat16, a thread a number; convert.h.
#include "cuda/conversions.cuh"
#include "cuda/cuda_check.h"
#include "kernels/elementwise/convert.h"

namespace dpiframe {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    convert_kernel(std::int64_t size, const float* source, T* target) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < size) target[i] = from_float<T>(source[i]);
}

template <class T>
void launch(std::int64_t size, const float* source, void* target, cudaStream_t stream) {
  const auto num_blocks = static_cast<unsigned>((size + kThreads - 1) / kThreads);
  convert_kernel<<<num_blocks, kThreads, 0, stream>>>(size, source, static_cast<T*>(target));
}

}  // namespace

void convert(std::int64_t size, const float* source, void* target, DataType type,
             cudaStream_t stream) {
  if (size == 0) return;
  if (type == DataType::kHalf) launch<__half>(size, source, target, stream);
  if (type == DataType::kBfloat16) launch<__nv_bfloat16>(size, source, target, stream);
  if (type == DataType::kFloat) launch<float>(size, source, target, stream);
  DPIF_CUDA_CHECK(cudaGetLastError());
}

}  // namespace dpiframe
