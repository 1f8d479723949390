// Decompressed pages become columns of numbers; decode_pages.h, decode_page.cuh.
//
// A warp owns a page, a CTA four of them. Bytes: each page is read once, each number is written
// once; a dictionary is read number by number, and stays in the caches.
#include <algorithm>
#include <type_traits>

#include "cuda/cuda_check.h"
#include "parquet/gpu/decode_codes.cuh"
#include "parquet/gpu/decode_pages.h"
#include "parquet/gpu/refused_page.h"

namespace dpiframe {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;

// Pages that have a kernel of their own.
enum class Pages { kUsual, kRare, kRaw };

__device__ bool is_of(Pages pages, parquet::PageKind kind) {
  if (pages::is_raw(kind)) return pages == Pages::kRaw;
  return pages == (pages::is_rare(kind) ? Pages::kRare : Pages::kUsual);
}

template <class Number, Pages kPages>
__global__ void __launch_bounds__(kThreads)
    decode_pages_kernel(const __grid_constant__ DecodeParams params) {
  using Scratch = std::conditional_t<kPages == Pages::kRaw, pages::CodesScratch, pages::Scratch>;
  __shared__ Scratch scratch[kWarps];
  const auto warp = static_cast<int>(threadIdx.x / 32);
  const std::int64_t p = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  if (p >= params.num_pages) return;
  const parquet::Page page = params.pages[p];
  if (page.kind == parquet::PageKind::kDictionary || !is_of(kPages, page.kind)) return;
  const pages::Unit unit{params.pages, params.compressed, params.uncompressed};
  auto* out = static_cast<Number*>(params.out);
  bool good = false;
  if constexpr (kPages == Pages::kRaw)
    good = pages::decode_codes(unit, page, params.rows, scratch[warp], out);
  else
    good = pages::decode_page<kPages == Pages::kRare>(unit, page, params.rows, scratch[warp], out);
  if (!good && lanes::index() == 0)
    atomicCAS(params.failed, 0u,
              pages::refused_page(static_cast<std::int32_t>(p), pages::Failed::kDecode));
}

template <class Number>
void launch(const DecodeParams& params, cudaStream_t stream) {
  const auto num_blocks = static_cast<unsigned>((params.num_pages - 1) / kWarps + 1);
  if (params.num_rare + params.num_raw < params.num_pages)
    decode_pages_kernel<Number, Pages::kUsual><<<num_blocks, kThreads, 0, stream>>>(params);
  if (params.num_rare > 0)
    decode_pages_kernel<Number, Pages::kRare><<<num_blocks, kThreads, 0, stream>>>(params);
  if constexpr (sizeof(Number) == sizeof(std::int32_t))
    if (params.num_raw > 0)
      decode_pages_kernel<Number, Pages::kRaw><<<num_blocks, kThreads, 0, stream>>>(params);
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
