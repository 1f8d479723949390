// A CTA is one warp. It takes page after page, the longest first, so that all warps end at about
// the same time.
//
// A page of 80,000 bytes is a chain of some 10^6 dependent steps, so many warps must share an SM: a
// warp needs 10 KB of shared memory for zstd, 3 KB for snappy and LZ4. Bytes: each page is read
// once and written once, decompressed; literals of zstd's blocks with sequences are written once
// more.
#include <algorithm>

#include "codec/lz/lz4.cuh"
#include "codec/lz/snappy.cuh"
#include "codec/zstd/frame.cuh"
#include "cuda/cuda_check.h"
#include "parquet/gpu/decompress_pages.h"
#include "parquet/gpu/refused_page.h"

namespace dpiframe {
namespace {

struct ZstdPages {
  using Workspace = zstd::Workspace;
  static constexpr int kWarps = 16;  // of an SM

  __device__ static bool decode(const DecompressParams& params, const parquet::Page& page,
                                Workspace& workspace) {
    return zstd::decode_frame({params.compressed + page.compressed_at, page.compressed_bytes},
                              params.uncompressed + page.uncompressed_at, page.uncompressed_bytes,
                              params.literals + page.uncompressed_at, workspace);
  }
};

template <auto decode_page>
struct LzPages {
  using Workspace = lz::BatchBytes;
  static constexpr int kWarps = 32;

  __device__ static bool decode(const DecompressParams& params, const parquet::Page& page,
                                Workspace& workspace) {
    return decode_page({params.compressed + page.compressed_at, page.compressed_bytes},
                       params.uncompressed + page.uncompressed_at, page.uncompressed_bytes,
                       workspace);
  }
};

template <class Pages>
__global__ void __launch_bounds__(32, Pages::kWarps)
    decompress_pages_kernel(const __grid_constant__ DecompressParams params) {
  __shared__ typename Pages::Workspace workspace;
  for (;;) {
    int taken = 0;
    if (lanes::index() == 0) taken = static_cast<int>(atomicAdd(params.next, 1u));
    taken = lanes::shuffle(taken, 0);
    if (taken >= params.num_compressed) return;
    const std::int32_t page = params.order[taken];
    const bool fine = Pages::decode(params, params.pages[page], workspace);
    if (!fine && lanes::index() == 0)
      atomicCAS(params.failed, 0u, pages::refused_page(page, pages::Failed::kDecompress));
    lanes::sync();
  }
}

template <class Pages>
void launch(const DecompressParams& params, cudaStream_t stream) {
  int device = 0, processors = 0, warps = 0;
  DPIF_CUDA_CHECK(cudaGetDevice(&device));
  DPIF_CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  DPIF_CUDA_CHECK(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&warps, decompress_pages_kernel<Pages>, 32, 0));
  const int blocks = std::min(params.num_compressed, processors * warps);
  decompress_pages_kernel<Pages><<<blocks, 32, 0, stream>>>(params);
  DPIF_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void decompress_pages(Codec codec, const DecompressParams& params, cudaStream_t stream) {
  if (params.num_compressed == 0) return;
  switch (codec) {
    case Codec::kZstd:
      return launch<ZstdPages>(params, stream);
    case Codec::kSnappy:
      return launch<LzPages<lz::decode_snappy>>(params, stream);
    case Codec::kLz4Raw:
      return launch<LzPages<lz::decode_lz4>>(params, stream);
    default:
      DPIF_CHECK(false, "pages of codec ", static_cast<int>(codec), " are not unpacked on a GPU");
  }
}

}  // namespace dpiframe
