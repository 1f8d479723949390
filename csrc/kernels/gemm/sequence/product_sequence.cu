#include <algorithm>
#include <utility>

#include "common/check.h"
#include "kernels/gemm/sequence/product_sequence.cuh"
#include "kernels/gemm/sequence/product_sequence.h"

namespace dpiframe {
namespace {

// Row tiles that all products take before the next ones: enough tiles of each for all
// multiprocessors to find one that waits for none, few enough for what they hand over to stay in
// L2.
constexpr int kTilesAtOnce = 400;

template <class T, int kTileN, int kBlocks>
__global__ void __launch_bounds__(kThreads, 1)
    sequence_kernel(const __grid_constant__ SequenceParams p) {
  product_sequence<T, kTileN, kBlocks>(p);
}

// All but the counters.
template <int kTileN>
SequenceParams sequence_params(Precision precision, const std::vector<SequenceProduct>& products,
                               const LinearConfig& config, std::int64_t rows) {
  const DataType type = activation_type(precision);
  SequenceParams p{};
  p.num_tasks = static_cast<int>(products.size());
  p.row_tiles = static_cast<int>((rows + kTileRows - 1) / kTileRows);
  int fewest = std::numeric_limits<int>::max();
  for (int i = 0; i < p.num_tasks; ++i) {
    SequenceTask& task = p.tasks[i];
    LinearParams params = products[i].params;
    params.rows = rows;
    task.epilogue = epilogue_params(params, bytes_of(type));
    const TileScheduler tiles = tile_scheduler<kTileN>(
        task.epilogue, params.k * static_cast<int>(bytes_of(type)), config);
    const WeightLayout layout(precision, params.n, params.k);
    const std::int64_t width = std::int64_t{layout.k_tile} * layout.num_k_tiles;
    task.x_map = tensor_map(type, params.x, rows, params.k, params.ldx, kTileRows);
    task.w_map = tensor_map(type, params.w, layout.rows, width, width, kTileN);
    task.maps = epilogue_maps(type, task.epilogue);
    task.tiles_n = tiles.tiles_n;
    task.num_k_tiles = tiles.num_k_tiles;
    task.last_steps = tiles.last_steps;
    for (const int before : products[i].after) {
      task.after |= 1u << before;
      p.tasks[before].is_awaited = true;
    }
    p.box_bytes = std::max(p.box_bytes, tiles.box_bytes);
    p.tiles_a_row += task.tiles_n;
    fewest = std::min(fewest, task.tiles_n);
  }
  p.num_stages = StageLayout<kTileN>::count(p.box_bytes);
  p.block_tiles = (kTilesAtOnce + fewest - 1) / fewest;
  p.num_tiles = p.row_tiles * p.tiles_a_row;
  return p;
}

template <class T, int kTileN, int kBlocks>
void launch(Precision precision, const std::vector<SequenceProduct>& products,
            const LinearConfig& config, std::int64_t rows, unsigned* counters,
            cudaStream_t stream) {
  SequenceParams p = sequence_params<kTileN>(precision, products, config, rows);
  p.next = counters;
  p.ended = counters + 1;
  p.stored = counters + 2;
  auto* kernel = sequence_kernel<T, kTileN, kBlocks>;
  // The queue is static; the boxes of a tile leave room for it.
  constexpr int kShared = kSharedLimit - static_cast<int>(sizeof(TileQueue::Memory)) - 128;
  DPIF_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  const auto blocks = static_cast<unsigned>(std::min(p.num_tiles, num_multiprocessors()));
  launch_early(kernel, blocks, kThreads, kShared, stream, p);
}

template <class T, class... Args>
void launch_config(const LinearConfig& config, const Args&... args) {
  switch (config.tile_n + (config.pingpong ? 1 : 0)) {
    case 64:
      return launch<T, 64, 1>(args...);
    case 256:
      return launch<T, 256, 1>(args...);
    case 129:
      return launch<T, 128, 2>(args...);
    case 145:
      return launch<T, 144, 2>(args...);
    default:
      DPIF_CHECK(false, "no sequence of products has tiles of ", config.tile_n, " columns");
  }
}

}  // namespace

ProductSequence::ProductSequence(Precision precision, std::vector<SequenceProduct> products,
                                 std::vector<std::int64_t> rows)
    : precision_(precision), products_(std::move(products)), rows_(std::move(rows)) {
  DPIF_CHECK(!products_.empty() && products_.size() <= kMostSequenceProducts,
             "a sequence has 1 to ", kMostSequenceProducts, " products, got ", products_.size());
  std::int64_t most = 0;
  for (const std::int64_t count : rows_) most = std::max(most, count);
  for (const SequenceProduct& product : products_) {
    DPIF_CHECK(sm90_supports(precision, product.params),
               "a sequence of products takes rows at multiples of 16 bytes");
    shapes_.push_back({product.params.n, product.params.k, product.after});
  }
  const std::size_t row_tiles = (most + kTileRows - 1) / kTileRows;
  counters_ = std::make_shared<DeviceBuffer>(
      DeviceBuffer::zeros(sizeof(unsigned) * (2 + products_.size() * row_tiles)));
}

bool ProductSequence::takes(std::int64_t rows) const {
  return std::find(rows_.begin(), rows_.end(), rows) != rows_.end();
}

int ProductSequence::num_partials(int product, std::int64_t rows) const {
  const int tile_n = config(rows).tile_n;
  return (shapes_.at(product).n + tile_n - 1) / tile_n;
}

LinearConfig ProductSequence::config(std::int64_t rows) const {
  return sequence_choice(precision_, rows, shapes_).config;
}

void ProductSequence::run(std::int64_t rows, cudaStream_t stream) const {
  auto* counters = static_cast<unsigned*>(counters_->get());
  const LinearConfig chosen = config(rows);
  if (precision_ == Precision::kFp16)
    launch_config<__half>(chosen, precision_, products_, chosen, rows, counters, stream);
  if (precision_ == Precision::kBf16)
    launch_config<__nv_bfloat16>(chosen, precision_, products_, chosen, rows, counters, stream);
}

}  // namespace dpiframe
