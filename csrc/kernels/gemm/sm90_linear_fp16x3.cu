// Float32 product on Hopper's float16 tensor cores; sm90_linear_fp16x3.cuh has the kernel, linear.h
// the formulas.
#include "common/check.h"
#include "kernels/gemm/sm90_epilogue.cuh"
#include "kernels/gemm/sm90_linear.h"
#include "kernels/gemm/sm90_linear_fp16x3.cuh"

namespace dpiframe {
namespace {

template <class Form>
__global__ void __launch_bounds__(Form::kThreads, Form::kCtas)
    fp16x3_kernel(const __grid_constant__ CUtensorMap x_map,
                  const __grid_constant__ CUtensorMap w_map,
                  const __grid_constant__ EpilogueMaps maps,
                  const __grid_constant__ EpilogueParams e,
                  const __grid_constant__ TileScheduler scheduler) {
  fp16x3_tiles<Form, TileEpilogue<float, Form::kTileN, true>>(x_map, w_map, maps, e, scheduler);
}

template <class Form>
void launch(const LinearParams& p, const LinearConfig& config, cudaStream_t stream) {
  const WeightLayout layout(Precision::kFp32, p.n, p.k);
  const CUtensorMap x_map = tensor_map(DataType::kFloat, p.x, p.rows, p.k, p.ldx, config.rows);
  const std::int64_t width = std::int64_t{64} * layout.num_k_tiles;
  EpilogueParams e = epilogue_params(p, sizeof(float));
  const TileScheduler scheduler = tile_scheduler(e, p.k * static_cast<int>(sizeof(float)), config);
  const CUtensorMap w_map =
      tensor_map(DataType::kHalf, p.w, layout.rows, width, width, config.tile_n);
  e.column_scale =
      reinterpret_cast<const float*>(static_cast<const char*>(p.w) + layout.scale_offset);
  launch_product<Form>(fp16x3_kernel<Form>, scheduler, config, stream, x_map, w_map,
                       epilogue_maps(DataType::kFloat, e), e, scheduler);
}

template <class... Forms>
void launch_one(const LinearParams& params, const LinearConfig& config, cudaStream_t stream) {
  const bool found =
      ((Forms::is_of(config) && (launch<Forms>(params, config, stream), true)) || ...);
  DPIF_CHECK(found, "no kernel has tiles of ", config.rows, " x ", config.tile_n, " in fp32");
}

}  // namespace

void sm90_linear_fp16x3(const LinearParams& params, const LinearConfig& config,
                        cudaStream_t stream) {
  launch_one<TileForm<64, 1, kShortTileRows>, TileForm<64>, TileForm<112>, TileForm<128>,
             TileForm<144>, TileForm<160>>(params, config, stream);
}

}  // namespace dpiframe
