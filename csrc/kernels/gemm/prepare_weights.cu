// Weights as the products read them; tile_config.h has the layout. Runs once for each weight.
#include "cuda/conversions.cuh"
#include "cuda/cuda_check.h"
#include "kernels/gemm/linear.h"
#include "kernels/gemm/tile_config.h"

namespace dpiframe {
namespace {

constexpr int kThreads = 128;

// Rounded to tf32's 10 bits of mantissa, to nearest.
struct Tf32 {
  float value;
};
template <class T>
__device__ T stored(float value) {
  return from_float<T>(value);
}
template <>
__device__ Tf32 stored<Tf32>(float value) {
  std::uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return {__uint_as_float(bits)};
}

// A CTA a row, converted; zeros beyond n and k.
template <class T>
__global__ void convert_kernel(const float* w, int n, int k, T* target, int width) {
  const std::int64_t row = blockIdx.x;
  target += static_cast<std::int64_t>(physical_row(blockIdx.x)) * width;
  for (int c = threadIdx.x; c < width; c += kThreads)
    target[c] = stored<T>(row < n && c < k ? w[row * k + c] : 0.0f);
}

// The exponent bits of the largest value of a row.
__device__ int largest_exponent(const float* row, int k) {
  __shared__ int shared;
  if (threadIdx.x == 0) shared = 0;
  __syncthreads();
  int exponent = 0;
  for (int c = threadIdx.x; c < k; c += kThreads)
    exponent = max(exponent, static_cast<int>(__float_as_uint(fabsf(row[c])) >> 23));
  atomicMax(&shared, exponent);
  __syncthreads();
  return shared;
}

// The column of x that wgmma multiplies with column `place` of a k tile (Fp16x3Rows).
__device__ int column_at(int place) {
  const int step = place / 16;
  const int thread = place % 8 / 2;
  return thread * 8 + step * 4 + place % 16 / 8 * 2 + place % 2;
}

// FP16x3: a CTA a row: large and small parts after a power of two, its inverse, the row itself.
__global__ void fp16x3_kernel(const float* w, int n, int k, int num_k_tiles, __half* parts,
                              float* inverses, float* plain) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t place = physical_row(blockIdx.x);
  const int exponent = row < n ? max(largest_exponent(w + row * k, k), 16) : 127;
  const float factor = __uint_as_float((127 + 14 + 127 - exponent) << 23);
  if (threadIdx.x == 0 && row < n) inverses[row] = __uint_as_float((exponent - 14) << 23);
  for (int c = threadIdx.x; c < num_k_tiles * 32; c += kThreads) {
    const int column = c / 32 * 32 + column_at(c % 32);
    const float value = row < n && column < k ? w[row * k + column] * factor : 0.0f;
    const __half large = __float2half_rn(value);
    __half* k_tile = parts + (place * num_k_tiles + c / 32) * 64 + c % 32;
    k_tile[0] = large;
    k_tile[32] = __float2half_rn(value - __half2float(large));
  }
  for (int c = threadIdx.x; row < n && c < k; c += kThreads) plain[row * k + c] = w[row * k + c];
}

}  // namespace

void prepare_linear_weight(Precision precision, const float* w, int n, int k, void* prepared,
                           cudaStream_t stream) {
  if (n == 0 || k == 0) return;
  const WeightLayout layout(precision, n, k);
  const int width = layout.k_tile * layout.num_k_tiles;
  auto* bytes = static_cast<char*>(prepared);
  switch (precision) {
    case Precision::kFp32:
      fp16x3_kernel<<<layout.rows, kThreads, 0, stream>>>(
          w, n, k, layout.num_k_tiles, static_cast<__half*>(prepared),
          reinterpret_cast<float*>(bytes + layout.scale_offset),
          reinterpret_cast<float*>(bytes + layout.plain_offset));
      break;
    case Precision::kTf32:
      convert_kernel<<<layout.rows, kThreads, 0, stream>>>(w, n, k, static_cast<Tf32*>(prepared),
                                                           width);
      break;
    case Precision::kFp16:
      convert_kernel<<<layout.rows, kThreads, 0, stream>>>(w, n, k, static_cast<__half*>(prepared),
                                                           width);
      break;
    case Precision::kBf16:
      convert_kernel<<<layout.rows, kThreads, 0, stream>>>(
          w, n, k, static_cast<__nv_bfloat16*>(prepared), width);
      break;
  }
  DPIF_CUDA_CHECK(cudaGetLastError());
}

}  // namespace dpiframe
