// Float32 product on Hopper's float16 tensor cores; sm90_linear_fp16x3.cuh has the kernel, linear.h
// the formulas.
#include "common/check.h"
#include "kernels/gemm/sm90_epilogue.cuh"
#include "kernels/gemm/sm90_linear.h"
#include "kernels/gemm/sm90_linear_fp16x3.cuh"

namespace dpiframe {
namespace {

template <int kTileN>
__global__ void __launch_bounds__(kThreads, 1)
    fp16x3_kernel(const __grid_constant__ CUtensorMap x_map,
                  const __grid_constant__ CUtensorMap w_map,
                  const __grid_constant__ EpilogueMaps maps,
                  const __grid_constant__ EpilogueParams e,
                  const __grid_constant__ TileScheduler scheduler) {
  fp16x3_tiles<kTileN, TileEpilogue<float, kTileN, true>>(x_map, w_map, maps, e, scheduler);
}

template <int kTileN>
void launch(const LinearParams& p, const LinearConfig& config, cudaStream_t stream) {
  const WeightLayout layout(Precision::kFp32, p.n, p.k);
  DPIF_CHECK(config.rows == kTileRows, "no kernel has tiles of ", config.rows, " rows in fp32");
  const CUtensorMap x_map = tensor_map(DataType::kFloat, p.x, p.rows, p.k, p.ldx, kTileRows);
  const std::int64_t width = std::int64_t{64} * layout.num_k_tiles;
  EpilogueParams e = epilogue_params(p, sizeof(float));
  const TileScheduler scheduler =
      tile_scheduler<kTileN>(e, p.k * static_cast<int>(sizeof(float)), config);
  const CUtensorMap w_map = tensor_map(DataType::kHalf, p.w, layout.rows, width, width, kTileN);
  e.column_scale =
      reinterpret_cast<const float*>(static_cast<const char*>(p.w) + layout.scale_offset);
  launch_persistent<kTileN>(fp16x3_kernel<kTileN>, scheduler, stream, x_map, w_map,
                            epilogue_maps(DataType::kFloat, e), e, scheduler);
}

}  // namespace

void sm90_linear_fp16x3(const LinearParams& params, const LinearConfig& config,
                        cudaStream_t stream) {
  switch (config.tile_n) {
    case 64:
      return launch<64>(params, config, stream);
    case 112:
      return launch<112>(params, config, stream);
    case 128:
      return launch<128>(params, config, stream);
    case 144:
      return launch<144>(params, config, stream);
    case 160:
      return launch<160>(params, config, stream);
    default:
      DPIF_CHECK(false, "no kernel has tiles of ", config.tile_n, " columns");
  }
}

}  // namespace dpiframe
