// Product whose epilogue is any expression, by kernels that are compiled at load:
//
//   out = expression(x w^T + bias, operands...), element by element
//   out = expression(x w^T + bias, x v^T + bias, operands...), w's and v's rows eight in turn
//   head_partial summed over its parts = out . head; out may be null then
//
// Products of other columns of x, each with weights of its own, are one where they make equal parts
// of out's columns one behind the other (`Places`): w's rows are those of all.
//
// A kernel is one instantiation of linear_tiles (or fp16x3_tiles) with a MapEpilogue, for one tile
// configuration; its name is `mapped_linear`. Hopper only.
#pragma once

#include <string>
#include <vector>

#include "cuda/loaded_kernel.h"
#include "kernels/gemm/linear.h"
#include "kernels/gemm/mapped/map_epilogue_params.h"
#include "kernels/gemm/tile_config.h"

namespace dpiframe {

// What a product makes of rows of its results, and reads of those of the product before it, of n
// and k.
struct ProductRows {
  RowSums made;
  RowMoments read;
  int read_n = 0;
  int read_k = 0;
};

// So many products that are one: n and out's columns are those of all, k is that of each, whose x
// lies `x_step` elements behind that of the one before.
struct Places {
  int count = 1;
  std::int64_t x_step = 0;
};

class MappedLinear {
 public:
  // columns: of out. cubins: of each configuration that the batches' sizes need (linear_config).
  // The current device and the alignment of x must allow it (sm90_supports); std::invalid_argument
  // where not.
  MappedLinear(Precision precision, const LinearParams& params, int columns,
               const std::vector<MapOperand>& operands, const ProductRows& product_rows,
               const std::vector<std::pair<LinearConfig, std::string>>& cubins,
               const Places& places = {});

  // Enqueues the product of so many rows; never synchronises, may be captured in a graph.
  void run(std::int64_t rows, cudaStream_t stream) const;

 private:
  Precision precision_;
  LinearParams params_;
  int columns_;
  std::vector<MapOperand> operands_;
  ProductRows product_rows_;
  Places places_;
  std::vector<std::pair<LinearConfig, LoadedKernel>> kernels_;
};

}  // namespace dpiframe
