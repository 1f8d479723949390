#include <algorithm>

#include "common/check.h"
#include "kernels/gemm/mapped/mapped_linear.h"
#include "kernels/gemm/pipeline.cuh"
#include "kernels/gemm/sm90_linear.h"

namespace dpiframe {
namespace {

void launch(const LoadedKernel& kernel, Precision precision, const MapEpilogueParams& e,
            const LinearConfig& config, const Places& places, cudaStream_t stream) {
  const LinearParams& p = e.linear;
  const WeightLayout layout(precision, p.n, p.k);
  const DataType type = activation_type(precision);
  const bool fp16x3 = precision == Precision::kFp32;
  const CUtensorMap x_map = places.count == 1
                                ? tensor_map(type, p.x, p.rows, p.k, p.ldx, config.rows)
                                : tensor_map_of_places(type, p.x, p.rows, p.k, p.ldx, config.rows,
                                                       places.count, places.x_step);
  const std::int64_t width = std::int64_t{fp16x3 ? 64 : layout.k_tile} * layout.num_k_tiles;
  const TileScheduler scheduler =
      tile_scheduler(e, p.k * static_cast<int>(bytes_of(type)), config, places.count);
  const CUtensorMap w_map =
      tensor_map(fp16x3 ? DataType::kHalf : type, p.w, layout.rows, width, width, config.tile_n);
  kernel.launch(num_ctas(scheduler, config), static_cast<unsigned>(scheduler.split),
                scheduler.shared_bytes, is_placed_early(scheduler), stream, x_map, w_map,
                epilogue_maps(type, e), e, scheduler);
}

}  // namespace

MappedLinear::MappedLinear(Precision precision, const LinearParams& params, int columns,
                           const std::vector<MapOperand>& operands, const ProductRows& product_rows,
                           const std::vector<std::pair<LinearConfig, std::string>>& cubins,
                           const Places& places)
    : precision_(precision),
      params_(params),
      columns_(columns),
      operands_(operands),
      product_rows_(product_rows),
      places_(places) {
  DPIF_CHECK(columns == params.n || (columns <= params.n / 2 && params.n % 16 == 0),
             "a product of ", params.n, " columns, or two of half as many, can't write ", columns);
  DPIF_CHECK(places.count >= 1 && params.n % places.count == 0, "a product of ", params.n,
             " columns has no ", places.count, " equal places");
  DPIF_CHECK(places.count == 1 ||
                 (columns == params.n && params.n / places.count % 16 == 0 &&
                  params.head_partial == nullptr && product_rows.read_n == 0 &&
                  product_rows.made.sums == nullptr && bytes_of(activation_type(precision)) == 2 &&
                  params.k % 8 == 0 && places.x_step % 8 == 0),
             "products that are one are of 16 bits, of whole groups of 16 columns and k of 8, and "
             "make nothing but their results");
  DPIF_CHECK(product_rows.read_n == 0 || precision != Precision::kFp32,
             "products of norms are for 16 bits");
  DPIF_CHECK(operands.size() <= kMaxMapOperands, "an epilogue takes up to ", kMaxMapOperands,
             " operands, got ", operands.size());
  DPIF_CHECK(
      sm90_supports(precision, params),
      "a product with a compiled epilogue needs a Hopper GPU and an operand at a multiple of "
      "16 bytes");
  for (const auto& [config, cubin] : cubins)
    kernels_.emplace_back(
        config, LoadedKernel(cubin, "mapped_linear", cta_threads(config.rows), kSharedLimit));
}

void MappedLinear::run(std::int64_t rows, cudaStream_t stream) const {
  if (rows == 0) return;
  const LinearConfig config =
      linear_config(precision_, rows, params_.n / places_.count, params_.k, places_.count);
  const auto found = std::find_if(kernels_.begin(), kernels_.end(), [&](const auto& each) {
    return each.first.is_kernel_of(config);
  });
  DPIF_CHECK(found != kernels_.end(), "no kernel was compiled for tiles of ", config.tile_n,
             " columns and ", config.rows, " rows");
  const std::size_t element = bytes_of(activation_type(precision_));
  MapEpilogueParams e{};
  e.linear = params_;
  e.linear.rows = rows;
  e.columns = columns_;
  const WeightLayout layout(precision_, params_.n, params_.k);
  if (precision_ == Precision::kFp32)
    e.column_scale =
        reinterpret_cast<const float*>(static_cast<const char*>(params_.w) + layout.scale_offset);
  e.vectors =
      reinterpret_cast<std::uintptr_t>(params_.out) % 16 == 0 && params_.ldo * element % 16 == 0;
  std::copy(operands_.begin(), operands_.end(), e.operands);
  e.row_sums = product_rows_.made;
  e.moments = product_rows_.read;
  if (product_rows_.read_n > 0)
    e.moments.num_parts =
        head_partials(precision_, rows, product_rows_.read_n, product_rows_.read_k);
  launch(found->second, precision_, e, config, places_, stream);
}

}  // namespace dpiframe
