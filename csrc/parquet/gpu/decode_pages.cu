// Decompressed pages become columns of numbers; decode_pages.h, decode_page.cuh.
//
// A warp owns a page, a CTA four of them. Bytes: each page is read once, each number is written
// once; a dictionary is read number by number, and stays in the caches.
#include <algorithm>

#include "cuda/cuda_check.h"
#include "parquet/gpu/decode_page.cuh"
#include "parquet/gpu/decode_pages.h"

namespace dpiframe {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;

template <class Number, bool kRare>
__global__ void __launch_bounds__(kThreads)
    decode_pages_kernel(const __grid_constant__ DecodeParams params) {
  __shared__ pages::Scratch scratch[kWarps];
  const auto warp = static_cast<int>(threadIdx.x / 32);
  const std::int64_t p = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  if (p >= params.num_pages) return;
  const parquet::Page page = params.pages[p];
  if (page.kind == parquet::PageKind::kDictionary || pages::is_rare(page.kind) != kRare) return;
  const pages::Unit unit{params.pages, params.compressed, params.uncompressed};
  auto* out = static_cast<Number*>(params.out);
  const bool good = pages::decode_page<kRare>(unit, page, params.rows, scratch[warp], out);
  if (!good && lanes::index() == 0) atomicOr(params.failed, 1u);
}

template <class Number>
void launch(const DecodeParams& params, cudaStream_t stream) {
  const auto num_blocks = static_cast<unsigned>((params.num_pages - 1) / kWarps + 1);
  if (params.num_rare < params.num_pages)
    decode_pages_kernel<Number, false><<<num_blocks, kThreads, 0, stream>>>(params);
  if (params.num_rare > 0)
    decode_pages_kernel<Number, true><<<num_blocks, kThreads, 0, stream>>>(params);
  DPIF_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void decode_pages(const DecodeParams& params, cudaStream_t stream) {
  DPIF_CHECK(params.num_pages >= 0, "num_pages must not be negative, got ", params.num_pages);
  DPIF_CHECK(params.number_bytes == 4 || params.number_bytes == 8,
             "number_bytes must be 4 or 8, got ", params.number_bytes);
  if (params.num_pages == 0) return;
  if (params.number_bytes == 4)
    launch<std::int32_t>(params, stream);
  else
    launch<std::int64_t>(params, stream);
}

}  // namespace dpiframe
