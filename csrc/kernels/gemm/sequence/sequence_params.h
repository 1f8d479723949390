// What a sequence of products tells its kernel.
#pragma once

#include "kernels/gemm/epilogue_params.h"
#include "kernels/gemm/sm90_linear.h"

namespace dpiframe {

constexpr int kMostSequenceProducts = 8;

struct SequenceTask {  // a product
  CUtensorMap x_map;
  CUtensorMap w_map;
  EpilogueMaps maps;
  EpilogueParams epilogue;
  int tiles_n;
  int num_k_tiles;
  int last_steps;   // wgmma steps of the last k tile
  unsigned after;   // a bit for each product before it whose results it reads
  bool is_awaited;  // a later product reads its results
};

struct SequenceParams {
  SequenceTask tasks[kMostSequenceProducts];
  int num_tasks;
  int num_stages;
  int box_bytes;    // a warp
  int row_tiles;    // of kTileRows
  int block_tiles;  // row tiles that all products take before the next ones
  int tiles_a_row;  // tiles of all products in a row of tiles
  int num_tiles;
  // All zero before and after a run: the next tile, CTAs that have ended, and for each product and
  // row tile how many warps have stored their part.
  unsigned* next;
  unsigned* ended;
  unsigned* stored;
};

}  // namespace dpiframe
