// Product on Hopper's tensor cores, operands in shared memory; sm90_linear.cuh has the kernel,
// linear.h the formulas.
#include "common/check.h"
#include "kernels/gemm/sm90_epilogue.cuh"
#include "kernels/gemm/sm90_linear.cuh"
#include "kernels/gemm/sm90_linear.h"

namespace dpiframe {
namespace {

template <class T, int kTileN, int kBlocks>
__global__ void __launch_bounds__(kThreads, 1)
    linear_kernel(const __grid_constant__ CUtensorMap x_map,
                  const __grid_constant__ CUtensorMap w_map,
                  const __grid_constant__ EpilogueMaps maps,
                  const __grid_constant__ EpilogueParams e,
                  const __grid_constant__ TileScheduler scheduler) {
  linear_tiles<T, kTileN, kBlocks, TileEpilogue<T, kTileN, false>>(x_map, w_map, maps, e,
                                                                   scheduler);
}

template <class T, int kTileN, int kBlocks>
void launch(Precision precision, const LinearParams& p, const LinearConfig& config,
            cudaStream_t stream) {
  const WeightLayout layout(precision, p.n, p.k);
  const DataType type = activation_type(precision);
  const CUtensorMap x_map = tensor_map(type, p.x, p.rows, p.k, p.ldx, config.rows);
  const std::int64_t width = std::int64_t{layout.k_tile} * layout.num_k_tiles;
  const EpilogueParams e = epilogue_params(p, sizeof(T));
  const TileScheduler scheduler =
      tile_scheduler<kTileN>(e, p.k * static_cast<int>(bytes_of(type)), config);
  const CUtensorMap w_map = tensor_map(type, p.w, layout.rows, width, width, kTileN);
  launch_persistent<kTileN>(linear_kernel<T, kTileN, kBlocks>, scheduler, stream, x_map, w_map,
                            epilogue_maps(type, e), e, scheduler);
}

template <class T>
void launch_config(Precision precision, const LinearParams& params, const LinearConfig& config,
                   cudaStream_t stream) {
  switch (config.tile_n + (config.pingpong ? 1 : 0)) {
    case 64:
      return launch<T, 64, 1>(precision, params, config, stream);
    case 112:
      return launch<T, 112, 1>(precision, params, config, stream);
    case 128:
      return launch<T, 128, 1>(precision, params, config, stream);
    case 160:
      return launch<T, 160, 1>(precision, params, config, stream);
    case 208:
      return launch<T, 208, 1>(precision, params, config, stream);
    case 256:
      return launch<T, 256, 1>(precision, params, config, stream);
    case 129:
      return launch<T, 128, 2>(precision, params, config, stream);
    default:
      DPIF_CHECK(false, "no kernel has tiles of ", config.tile_n, " columns");
  }
}

}  // namespace

void sm90_linear(Precision precision, const LinearParams& params, const LinearConfig& config,
                 cudaStream_t stream) {
  if (precision == Precision::kFp16) launch_config<__half>(precision, params, config, stream);
  if (precision == Precision::kBf16)
    launch_config<__nv_bfloat16>(precision, params, config, stream);
  if (precision == Precision::kTf32) launch_config<float>(precision, params, config, stream);
}

}  // namespace dpiframe
