// How a product is cut into tiles, and how a prepared weight lies in memory: pure functions of the
// shapes, shared by the kernels and by what prepares for them.
#pragma once

#include <cstddef>
#include <cstdint>
#ifndef __CUDACC_RTC__
#include <vector>
#endif

#include "common/host_device.h"
#include "common/precision.h"

namespace dpiframe {

constexpr int kTileRows = 128;
constexpr int kShortTileRows = 64;

// A tile is `rows` x tile_n of the output: kTileRows, which two warpgroups share (cooperative) or
// of which each has its own and runs the epilogue while the other multiplies (pingpong), or
// kShortTileRows of one warpgroup, where there are few tiles: two CTAs a multiprocessor, so that
// the kernel behind is there when this one ends (not pingpong). `split`: CTAs that share a tile,
// each with a part of k (split k), of tiles that are not pingpong alone. A CTA finishes one warp of
// rows at least, so short tiles are split in 4 at most.
struct LinearConfig {
  int tile_n;
  bool pingpong;
  int split = 1;
  int rows = kTileRows;

  // Whether one kernel has both.
  DPIF_HOST_DEVICE constexpr bool is_kernel_of(const LinearConfig& other) const {
    return tile_n == other.tile_n && pingpong == other.pingpong && rows == other.rows;
  }
};

constexpr int kMostSplit = 8;  // CTAs of a cluster on any GPU, and consumer warps of a CTA

// `places`: so many products of other columns of x and of out are one (mapped_linear.h).
LinearConfig linear_config(Precision precision, std::int64_t rows, int n, int k, int places = 1);
// What the model of its time says that it takes, alone on an H200.
double linear_microseconds(Precision precision, std::int64_t rows, int n, int k);

#ifndef __CUDACC_RTC__
// All that there are for a precision, not split.
std::vector<LinearConfig> all_linear_configs(Precision precision);
#endif

// A prepared weight: rows of `num_k_tiles` k tiles of 128 bytes, zero beyond k and n, in the order
// of physical_row. For fp32 a k tile holds 32 columns as two float16, all large parts first, after
// each row's power of two; after the rows come the inverses of these powers [n], then w itself [n,
// k] for GPUs without wgmma.
struct WeightLayout {
  WeightLayout(Precision precision, int n, int k);

  int k_tile;                // columns a k tile
  int num_k_tiles;           // k tiles a row
  int rows;                  // n and those that fill the last group of 16
  std::size_t scale_offset;  // bytes; fp32 only
  std::size_t plain_offset;  // bytes; fp32 only
  std::size_t bytes;
};

// Where row `row` of w lies: the 4 t + 2 j + i of each 16 at 8 j + 2 t + i, for a thread t of
// wgmma's sums has columns 2 t + i of both 8.
DPIF_HOST_DEVICE constexpr int physical_row(int row) {
  return row / 16 * 16 + row % 4 / 2 * 8 + row % 16 / 4 * 2 + row % 2;
}

}  // namespace dpiframe
