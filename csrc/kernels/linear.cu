// Product with its epilogue: the choice of kernel, and the kernel for every GPU and alignment;
// linear.h has the formulas.
//
// The general kernel: a block owns 64 rows and the columns of one part of the head, 64 at a time; it
// walks k in slices of 16 staged in shared memory as float32; a thread has 4 x 4 sums, strided
// by 16, so that a warp's reads of shared memory are broadcasts and neighbours. Then the sums go
// through shared memory to the epilogue that the Hopper kernels have.
#include <algorithm>

#include "common/cuda_check.h"
#include "kernels/linear_epilogue.cuh"
#include "kernels/linear_hopper.h"

namespace dpiframe {
namespace {

constexpr int kTile = 64;
constexpr int kSlice = 16;
constexpr int kEach = 4;
constexpr int kSide = kTile / kEach;
constexpr int kSumsStride = kTile + 4;

struct GeneralParams {
  EpilogueParams epilogue;
  const void* w;  // [n, ldw]
  std::int64_t ldw;
  int tile_n;  // columns a part of the head
};

template <class T>
__device__ void stage(const T* source, std::int64_t stride, std::int64_t first, std::int64_t limit,
                      int k0, int k, float (*target)[kTile + 1]) {
  for (int i = threadIdx.x; i < kTile * kSlice; i += kSide * kSide) {
    const int row = i / kSlice;
    const int column = i % kSlice;
    const bool inside = first + row < limit && k0 + column < k;
    target[column][row] = inside ? to_float(source[(first + row) * stride + k0 + column]) : 0.0f;
  }
}

template <class T>
__global__ void __launch_bounds__(kSide* kSide)
    general_kernel(const __grid_constant__ GeneralParams g) {
  __shared__ float xs[kSlice][kTile + 1];
  __shared__ float ws[kSlice][kTile + 1];
  __shared__ alignas(16) float staging[kTile * kSumsStride];
  __shared__ alignas(16) float column_memory[ColumnVectors::kVectors * kTile];
  const ColumnVectors columns(column_memory, kTile);
  const LinearParams& p = g.epilogue.linear;
  const std::int64_t row0 = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const int limit = min((static_cast<int>(blockIdx.y) + 1) * g.tile_n, p.n);
  const int tx = threadIdx.x % kSide;
  const int ty = threadIdx.x / kSide;
  const int warp = threadIdx.x / 32;
  float dots[SliceThreads<T>::kPasses] = {};
  for (int column0 = blockIdx.y * g.tile_n; column0 < limit; column0 += kTile) {
    columns.start_copies(g.epilogue, column0, kTile, threadIdx.x, kSide * kSide);
    float sums[kEach][kEach] = {};
    for (int k0 = 0; k0 < p.k; k0 += kSlice) {
      stage(static_cast<const T*>(p.x), p.ldx, row0, p.rows, k0, p.k, xs);
      stage(static_cast<const T*>(g.w), g.ldw, column0, p.n, k0, p.k, ws);
      __syncthreads();
      for (int k = 0; k < kSlice; ++k)
        for (int i = 0; i < kEach; ++i)
          for (int j = 0; j < kEach; ++j)
            sums[i][j] = fmaf(xs[k][ty + i * kSide], ws[k][tx + j * kSide], sums[i][j]);
      __syncthreads();
    }
    for (int i = 0; i < kEach; ++i)
      for (int j = 0; j < kEach; ++j)
        staging[(ty + i * kSide) * kSumsStride + tx + j * kSide] = sums[i][j];
    ColumnVectors::wait_copies();
    __syncthreads();
    // 4 of the 8 warps finish 16 rows each, so that one thread sums a row's dots in a fixed order.
    for (int half = 0; half < 2 && warp < 4; ++half)
      Slice<T>(g.epilogue, row0 + warp * 16, column0 + half * 32, limit)
          .template finish<false>(p, staging + warp * 16 * kSumsStride + half * 32, kSumsStride,
                                  columns.from(half * 32), dots);
    __syncthreads();
  }
  if (warp < 4) store_head<T>(p, row0 + warp * 16, blockIdx.y, dots);
}

template <class T>
void launch(const GeneralParams& general, cudaStream_t stream) {
  const LinearParams& p = general.epilogue.linear;
  const dim3 grid(static_cast<unsigned>((p.rows + kTile - 1) / kTile),
                  static_cast<unsigned>((p.n + general.tile_n - 1) / general.tile_n));
  general_kernel<T><<<grid, kSide * kSide, 0, stream>>>(general);
  DPIF_CUDA_CHECK(cudaGetLastError());
}

void linear_general(Precision precision, const LinearParams& p, const LinearConfig& config,
                    cudaStream_t stream) {
  const WeightLayout layout(precision, p.n, p.k);
  const DataType type = activation_type(precision);
  GeneralParams general{epilogue_params(p, bytes_of(type)), p.w,
                        std::int64_t{layout.chunk} * layout.chunks, config.tile_n};
  if (precision == Precision::kFp32) {
    general.w = static_cast<const char*>(p.w) + layout.plain_offset;
    general.ldw = p.k;
  }
  if (type == DataType::kHalf) launch<__half>(general, stream);
  if (type == DataType::kBfloat16) launch<__nv_bfloat16>(general, stream);
  if (type == DataType::kFloat) launch<float>(general, stream);
}

}  // namespace

void linear(Precision precision, const LinearParams& params, cudaStream_t stream) {
  DPIF_CHECK(params.rows >= 0 && params.n >= 1 && params.k >= 1,
             "a product needs rows >= 0, n >= 1 and k >= 1, got ", params.rows, ", ", params.n,
             " and ", params.k);
  if (params.rows == 0) return;
  const LinearConfig config = linear_config(precision, params.rows, params.n);
  if (!hopper_takes(precision, params))
    linear_general(precision, params, config, stream);
  else if (precision == Precision::kFp32)
    linear_hopper_split(params, config, stream);
  else
    linear_hopper(precision, params, config, stream);
}

}  // namespace dpiframe
