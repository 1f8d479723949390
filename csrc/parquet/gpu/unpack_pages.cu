// A warp is a block and takes page after page: those that are taken last are short, and warps that
// are done take no more.
//
// A page of 80,000 bytes is some 10^6 steps one behind the other, so that many warps must share an
// SM: what a warp needs of its memory is 10 KB. Read are the stored bytes, written are the unpacked
// ones and, of blocks with sequences, once more the literals.
#include <algorithm>

#include "cuda/cuda_check.h"
#include "parquet/gpu/unpack_page.cuh"
#include "parquet/gpu/unpack_pages.h"

namespace dpiframe {
namespace {

__global__ void __launch_bounds__(32, 16)
    unpack_pages_kernel(const __grid_constant__ UnpackParams params) {
  __shared__ zstd::Work work;
  for (;;) {
    int taken = 0;
    if (lanes::index() == 0) taken = static_cast<int>(atomicAdd(params.next, 1u));
    taken = zstd::from_lane(taken, 0);
    if (taken >= params.num_packed) return;
    const parquet::StoredPage& page = params.pages[params.order[taken]];
    const bool fine = unpack_page(page, params.packed, params.unpacked, params.literals, work);
    if (!fine && lanes::index() == 0) atomicOr(params.failed, 1u);
    lanes::sync();
  }
}

}  // namespace

void unpack_pages(const UnpackParams& params, cudaStream_t stream) {
  if (params.num_packed == 0) return;
  int device = 0, processors = 0, warps = 0;
  DPIF_CUDA_CHECK(cudaGetDevice(&device));
  DPIF_CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  DPIF_CUDA_CHECK(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&warps, unpack_pages_kernel, 32, 0));
  const int blocks = std::min(params.num_packed, processors * warps);
  unpack_pages_kernel<<<blocks, 32, 0, stream>>>(params);
  DPIF_CUDA_CHECK(cudaGetLastError());
}

}  // namespace dpiframe
