// Product with its epilogue on CUDA cores; linear.h has the formulas.
//
// A block owns 64 x 64 of the output, a thread 4 x 4 of it, strided by 16, so that a warp's reads
// of shared memory are broadcasts and neighbours; k is walked in slices of 16 staged in shared
// memory. Any alignment and row stride will do. Each block writes one part of the head for its
// columns.
#include <algorithm>

#include "common/cuda_check.h"
#include "common/numbers.cuh"
#include "kernels/linear.h"

namespace dpiframe {
namespace {

constexpr int kTile = 64;
constexpr int kSlice = 16;
constexpr int kEach = 4;
constexpr int kSide = kTile / kEach;

template <class T>
__device__ void stage(const T* source, std::int64_t stride, std::int64_t first, std::int64_t limit,
                      int k0, int k, float (*target)[kTile + 1]) {
  for (int i = threadIdx.x; i < kTile * kSlice; i += blockDim.x) {
    const int row = i / kSlice;
    const int column = i % kSlice;
    const bool inside = first + row < limit && k0 + column < k;
    target[column][row] = inside ? to_float(source[(first + row) * stride + k0 + column]) : 0.0f;
  }
}

// The value of one output element, in float32, and its store.
template <class T>
__device__ float finish(const LinearParams& p, std::int64_t row, int column, float value) {
  if (p.bias != nullptr) value += p.bias[column];
  if (column >= p.relu_begin && column < p.relu_end) value = fmaxf(value, 0.0f);
  if (column >= p.cross_begin && column < p.cross_end) {
    const int c = column - p.cross_begin;
    const float x0 = to_float(static_cast<const T*>(p.x0)[row * p.ldx0 + c]);
    value = fmaf(x0, value, to_float(static_cast<const T*>(p.xl)[row * p.ldxl + c]));
  }
  if (p.out != nullptr) static_cast<T*>(p.out)[row * p.ldo + column] = from_float<T>(value);
  return value;
}

template <class T>
__global__ void __launch_bounds__(kSide* kSide)
    linear_kernel(const __grid_constant__ LinearParams p) {
  __shared__ float xs[kSlice][kTile + 1];
  __shared__ float ws[kSlice][kTile + 1];
  const std::int64_t row0 = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const int column0 = blockIdx.y * kTile;
  const int tx = threadIdx.x % kSide;
  const int ty = threadIdx.x / kSide;
  float sums[kEach][kEach] = {};
  for (int k0 = 0; k0 < p.k; k0 += kSlice) {
    stage(static_cast<const T*>(p.x), p.ldx, row0, p.rows, k0, p.k, xs);
    stage(static_cast<const T*>(p.w), p.k, column0, p.n, k0, p.k, ws);
    __syncthreads();
    for (int k = 0; k < kSlice; ++k)
      for (int i = 0; i < kEach; ++i)
        for (int j = 0; j < kEach; ++j)
          sums[i][j] = fmaf(xs[k][ty + i * kSide], ws[k][tx + j * kSide], sums[i][j]);
    __syncthreads();
  }
  for (int i = 0; i < kEach; ++i) {
    const std::int64_t row = row0 + ty + i * kSide;
    float dot = 0.0f;
    for (int j = 0; j < kEach; ++j) {
      const int column = column0 + tx + j * kSide;
      if (row >= p.rows || column >= p.n) continue;
      const float value = finish<T>(p, row, column, sums[i][j]);
      if (column >= p.head_begin && column < p.head_end)
        dot = fmaf(value, p.head[column - p.head_begin], dot);
    }
    for (int width = kSide / 2; width > 0; width /= 2)
      dot += __shfl_xor_sync(0xffffffffu, dot, width);
    if (p.head_partial != nullptr && tx == 0 && row < p.rows)
      p.head_partial[blockIdx.y * p.ld_partial + row] = dot;
  }
}

template <class T>
__global__ void convert_kernel(const float* source, T* target, std::int64_t size) {
  const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (i < size) target[i] = from_float<T>(source[i]);
}

template <class T>
void convert(const float* source, void* target, std::int64_t size, cudaStream_t stream) {
  const auto num_blocks = static_cast<unsigned>((size + 255) / 256);
  convert_kernel<<<num_blocks, 256, 0, stream>>>(source, static_cast<T*>(target), size);
}

}  // namespace

std::size_t prepared_weight_bytes(Precision precision, int n, int k) {
  return bytes_of(activation_type(precision)) * n * k;
}

void prepare_linear_weight(Precision precision, const float* w, int n, int k, void* prepared,
                           cudaStream_t stream) {
  const std::int64_t size = static_cast<std::int64_t>(n) * k;
  if (size == 0) return;
  const DataType type = activation_type(precision);
  if (type == DataType::kHalf) convert<__half>(w, prepared, size, stream);
  if (type == DataType::kBfloat16) convert<__nv_bfloat16>(w, prepared, size, stream);
  if (type == DataType::kFloat) convert<float>(w, prepared, size, stream);
  DPIF_CUDA_CHECK(cudaGetLastError());
}

int head_partials(Precision, std::int64_t, int n) {
  return (n + kTile - 1) / kTile;
}

void linear(Precision precision, const LinearParams& params, cudaStream_t stream) {
  DPIF_CHECK(params.rows >= 0 && params.n >= 1 && params.k >= 0,
             "a product needs rows >= 0, n >= "
             "1 and k >= 0, got ",
             params.rows, ", ", params.n, " and ", params.k);
  if (params.rows == 0) return;
  const dim3 grid(static_cast<unsigned>((params.rows + kTile - 1) / kTile),
                  static_cast<unsigned>((params.n + kTile - 1) / kTile));
  const DataType type = activation_type(precision);
  if (type == DataType::kHalf) linear_kernel<__half><<<grid, 256, 0, stream>>>(params);
  if (type == DataType::kBfloat16) linear_kernel<__nv_bfloat16><<<grid, 256, 0, stream>>>(params);
  if (type == DataType::kFloat) linear_kernel<float><<<grid, 256, 0, stream>>>(params);
  DPIF_CUDA_CHECK(cudaGetLastError());
}

}  // namespace dpiframe
