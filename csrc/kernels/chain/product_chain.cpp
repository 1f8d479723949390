#include "kernels/chain/product_chain.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "kernels/chain/chain_params.h"
#include "kernels/gemm/linear.h"
#include "kernels/gemm/sm90_linear.h"
#include "kernels/gemm/tile_config.h"

namespace dpiframe {
namespace {

constexpr unsigned kThreads = 384;

// Columns of each warpgroup of a tile's CTAs: an equal part of all, in whole groups of 16.
int own_columns(int n, int ctas) {
  return (n + 32 * ctas - 1) / (32 * ctas) * 16;
}

}  // namespace

ProductChain::ProductChain(Precision precision, std::vector<ChainMatrix> inputs,
                           std::vector<ChainLayer> layers, const std::string& cubin,
                           int shared_bytes, int ctas, std::vector<std::int64_t> rows)
    : precision_(precision),
      inputs_(std::move(inputs)),
      layers_(std::move(layers)),
      kernel_(cubin, "product_chain", kThreads, static_cast<std::size_t>(shared_bytes)),
      ctas_(ctas),
      rows_(std::move(rows)) {
  DPIF_CHECK(activation_type(precision) != DataType::kFloat, "a chain of products takes 16 bits");
  DPIF_CHECK(inputs_.size() <= kMaxChainInputs && layers_.size() <= kMaxChainLayers,
             "a chain takes up to ", kMaxChainInputs, " inputs and ", kMaxChainLayers,
             " products, got ", inputs_.size(), " and ", layers_.size());
}

bool ProductChain::takes(std::int64_t rows) const {
  return std::find(rows_.begin(), rows_.end(), rows) != rows_.end();
}

void ProductChain::run(std::int64_t rows, cudaStream_t stream) const {
  const DataType type = activation_type(precision_);
  ChainParams params{};
  params.rows = rows;
  params.num_tiles = static_cast<int>((rows + kChainRows - 1) / kChainRows);
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    params.inputs[i] =
        tensor_map(type, inputs_[i].data, rows, inputs_[i].columns, inputs_[i].stride, kChainRows);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const ChainLayer& layer = layers_[i];
    const WeightLayout layout(precision_, layer.n, layer.k);
    const std::int64_t width = std::int64_t{layout.k_tile} * layout.num_k_tiles;
    params.weights[i] =
        tensor_map(type, layer.weight, layout.rows, width, width, own_columns(layer.n, ctas_));
    params.vectors[i] = layer.vectors;
    params.outs[i] = {
        layer.out, layer.out_stride, layer.partial, layer.sums, layer.squares, layer.ld_partial, 0};
    if (layer.partial != nullptr || layer.sums != nullptr)
      params.outs[i].num_partials = head_partials(precision_, rows, layer.n, layer.k);
  }
  const int blocks =
      ctas_ == 1 ? std::min(params.num_tiles, num_multiprocessors()) : params.num_tiles * ctas_;
  kernel_.launch_early(static_cast<unsigned>(blocks), static_cast<unsigned>(ctas_), stream, params);
}

}  // namespace dpiframe
