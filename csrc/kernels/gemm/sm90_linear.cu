// Product on Hopper's tensor cores, operands in shared memory; sm90_linear.cuh has the kernel,
// linear.h the formulas.
#include "common/check.h"
#include "kernels/gemm/sm90_epilogue.cuh"
#include "kernels/gemm/sm90_linear.cuh"
#include "kernels/gemm/sm90_linear.h"

namespace dpiframe {
namespace {

template <class T, class Form>
__global__ void __launch_bounds__(Form::kThreads, Form::kCtas)
    linear_kernel(const __grid_constant__ CUtensorMap x_map,
                  const __grid_constant__ CUtensorMap w_map,
                  const __grid_constant__ EpilogueMaps maps,
                  const __grid_constant__ EpilogueParams e,
                  const __grid_constant__ TileScheduler scheduler) {
  linear_tiles<T, Form, TileEpilogue<T, Form::kTileN, false>>(x_map, w_map, maps, e, scheduler);
}

template <class T, class Form>
void launch(Precision precision, const LinearParams& p, const LinearConfig& config,
            cudaStream_t stream) {
  const WeightLayout layout(precision, p.n, p.k);
  const DataType type = activation_type(precision);
  const CUtensorMap x_map = tensor_map(type, p.x, p.rows, p.k, p.ldx, config.rows);
  const std::int64_t width = std::int64_t{layout.k_tile} * layout.num_k_tiles;
  const EpilogueParams e = epilogue_params(p, sizeof(T));
  const TileScheduler scheduler = tile_scheduler(e, p.k * static_cast<int>(bytes_of(type)), config);
  const CUtensorMap w_map = tensor_map(type, p.w, layout.rows, width, width, config.tile_n);
  launch_product<Form>(linear_kernel<T, Form>, scheduler, config, stream, x_map, w_map,
                       epilogue_maps(type, e), e, scheduler);
}

// Of the forms, launches the one of the config.
template <class T, class... Forms>
void launch_one(Precision precision, const LinearParams& params, const LinearConfig& config,
                cudaStream_t stream) {
  const bool found =
      ((Forms::is_of(config) && (launch<T, Forms>(precision, params, config, stream), true)) ||
       ...);
  DPIF_CHECK(found, "no kernel has tiles of ", config.rows, " x ", config.tile_n);
}

template <class T>
void launch_config(Precision precision, const LinearParams& params, const LinearConfig& config,
                   cudaStream_t stream) {
  launch_one<T, TileForm<64, 1, kShortTileRows>, TileForm<128, 1, kShortTileRows>, TileForm<64>,
             TileForm<112>, TileForm<128>, TileForm<160>, TileForm<208>, TileForm<256>,
             TileForm<128, 2>>(precision, params, config, stream);
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
