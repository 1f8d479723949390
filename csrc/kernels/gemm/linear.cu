// Product with its epilogue: the choice of kernel, and the kernel for any GPU and alignment;
// linear.h has the formulas.
//
// The general kernel, on CUDA cores: a CTA owns 64 rows and the columns of one part of the head, 64
// at a time; a thread has 4 x 4 sums, strided by 16, so that a warp's shared-memory reads are
// broadcasts or neighbours; k is walked in slices of 16, staged in shared memory as float32.
#include <algorithm>

#include "cuda/cuda_check.h"
#include "kernels/gemm/epilogue.cuh"
#include "kernels/gemm/sm90_linear.h"

namespace dpiframe {
namespace {

constexpr int kTile = 64;
constexpr int kSlice = 16;
constexpr int kEach = 4;
constexpr int kSide = kTile / kEach;

struct GeneralParams {
  LinearParams linear;
  const void* w;  // [n, ldw]
  std::int64_t ldw;
  bool ordered;  // w's rows are in the order of physical_row
  int tile_n;    // columns a part of the head
};

template <class T>
__device__ void stage(const T* source, std::int64_t stride, std::int64_t first, std::int64_t limit,
                      bool ordered, int k0, int k, float (*target)[kTile + 1]) {
  for (int i = threadIdx.x; i < kTile * kSlice; i += kSide * kSide) {
    const int row = i / kSlice;
    const int column = i % kSlice;
    const bool inside = first + row < limit && k0 + column < k;
    const std::int64_t place = ordered ? physical_row(static_cast<int>(first) + row) : first + row;
    target[column][row] = inside ? to_float(source[place * stride + k0 + column]) : 0.0f;
  }
}

template <class T>
__global__ void __launch_bounds__(kSide* kSide)
    general_kernel(const __grid_constant__ GeneralParams g) {
  __shared__ float xs[kSlice][kTile + 1];
  __shared__ float ws[kSlice][kTile + 1];
  const LinearParams& p = g.linear;
  const std::int64_t row0 = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const int limit = min((static_cast<int>(blockIdx.y) + 1) * g.tile_n, p.n);
  const int tx = threadIdx.x % kSide;
  const int ty = threadIdx.x / kSide;
  float dots[kEach] = {};
  for (int column0 = blockIdx.y * g.tile_n; column0 < limit; column0 += kTile) {
    float sums[kEach][kEach] = {};
    for (int k0 = 0; k0 < p.k; k0 += kSlice) {
      stage(static_cast<const T*>(p.x), p.ldx, row0, p.rows, false, k0, p.k, xs);
      stage(static_cast<const T*>(g.w), g.ldw, column0, p.n, g.ordered, k0, p.k, ws);
      __syncthreads();
      for (int k = 0; k < kSlice; ++k)
        for (int i = 0; i < kEach; ++i)
          for (int j = 0; j < kEach; ++j)
            sums[i][j] = fmaf(xs[k][ty + i * kSide], ws[k][tx + j * kSide], sums[i][j]);
      __syncthreads();
    }
    for (int i = 0; i < kEach; ++i) {
      for (int j = 0; j < kEach; ++j) {
        const std::int64_t row = row0 + ty + i * kSide;
        const int column = column0 + tx + j * kSide;
        if (row >= p.rows || column >= limit) continue;
        const float biased = p.bias == nullptr ? sums[i][j] : sums[i][j] + p.bias[column];
        const float value = finish_element<T>(p, row, column, biased);
        if (column >= p.head_begin && column < p.head_end)
          dots[i] = fmaf(value, p.head[column - p.head_begin], dots[i]);
      }
    }
  }
  for (int i = 0; i < kEach; ++i) {
    for (int width = kSide / 2; width > 0; width /= 2)
      dots[i] += __shfl_xor_sync(0xffffffffu, dots[i], width);
    const std::int64_t row = row0 + ty + i * kSide;
    if (p.head_partial != nullptr && tx == 0 && row < p.rows)
      p.head_partial[blockIdx.y * p.ld_partial + row] = dots[i];
  }
}

template <class T>
void launch(const GeneralParams& general, cudaStream_t stream) {
  const LinearParams& p = general.linear;
  const dim3 grid(static_cast<unsigned>((p.rows + kTile - 1) / kTile),
                  static_cast<unsigned>((p.n + general.tile_n - 1) / general.tile_n));
  general_kernel<T><<<grid, kSide * kSide, 0, stream>>>(general);
  DPIF_CUDA_CHECK(cudaGetLastError());
}

void linear_general(Precision precision, const LinearParams& p, const LinearConfig& config,
                    cudaStream_t stream) {
  const WeightLayout layout(precision, p.n, p.k);
  const DataType type = activation_type(precision);
  GeneralParams general{p, p.w, std::int64_t{layout.k_tile} * layout.num_k_tiles, true,
                        config.tile_n};
  if (precision == Precision::kFp32) {
    general.w = static_cast<const char*>(p.w) + layout.plain_offset;
    general.ldw = p.k;
    general.ordered = false;
  }
  if (type == DataType::kHalf) launch<__half>(general, stream);
  if (type == DataType::kBfloat16) launch<__nv_bfloat16>(general, stream);
  if (type == DataType::kFloat) launch<float>(general, stream);
}

void check_sizes(const LinearParams& params) {
  DPIF_CHECK(params.rows >= 0 && params.n >= 1 && params.k >= 1,
             "a product needs rows >= 0, n >= 1 and k >= 1, got ", params.rows, ", ", params.n,
             " and ", params.k);
}

}  // namespace

void linear(Precision precision, const LinearParams& params, cudaStream_t stream) {
  check_sizes(params);
  if (params.rows == 0) return;
  linear(precision, params, linear_config(precision, params.rows, params.n, params.k), stream);
}

void linear(Precision precision, const LinearParams& params, const LinearConfig& config,
            cudaStream_t stream) {
  check_sizes(params);
  if (params.rows == 0) return;
  if (!sm90_supports(precision, params))
    linear_general(precision, params, config, stream);
  else if (precision == Precision::kFp32)
    sm90_linear_fp16x3(params, config, stream);
  else
    sm90_linear(precision, params, config, stream);
}

}  // namespace dpiframe
