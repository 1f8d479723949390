// The epilogue of csrc/kernels/gemm/sm90_epilogue.cuh on the host, a warp's 16 rows at a time.
#pragma once

#include "warp.h"

using std::max;
// Of at_least() alone, the only one that is not volatile.
#define asm(...) result = value < least ? least : value
#include "kernels/gemm/epilogue_columns.cuh"
#undef asm
#include "kernels/gemm/sm90_epilogue.cuh"

namespace dpiframe {

// All rows and tiles; sums [rows, tiles * kTileN].
template <class T, int kTileN>
void finish_tiles(const LinearParams& p, const float* sums) {
  const EpilogueParams e = epilogue_params(p, sizeof(T));
  const int tiles = (p.n + kTileN - 1) / kTileN;
  alignas(16) float vectors[ColumnVectors::kVectors * kTileN] = {};
  alignas(1024) unsigned char memory[2 * kSlotBytes];
  for (int tile = 0; tile < tiles; ++tile) {
    for (int i = 0; i < kTileN; ++i) {
      const int c = tile * kTileN + i;
      const bool in_head = p.head_partial != nullptr && c >= p.head_begin && c < p.head_end;
      vectors[i] = c < p.n ? p.bias[c] : 0;
      vectors[2 * kTileN + i] = in_head ? p.head[c - p.head_begin] : 0;
      vectors[3 * kTileN + i] = c >= p.relu_begin && c < p.relu_end ? 0 : -INFINITY;
    }
    for (int row = 0; row < p.rows; row += 16) {
      std::memset(memory, 0xff, sizeof(memory));
      std::vector<std::thread> lanes;
      for (unsigned lane = 0; lane < 32; ++lane)
        lanes.emplace_back([&, lane] {
          threadIdx.x = lane;
          float own[1][kTileN / 2];
          for (int i = 0; i < kTileN / 2; ++i) {
            const int r = row + lane / 4 + i / 2 % 2 * 8;
            const int c = i / 8 * 16 + lane % 4 * 4 + i / 4 % 2 * 2 + i % 2;
            own[0][i] = r < p.rows ? sums[(r * tiles + tile) * kTileN + c] : 1;
          }
          const ColumnVectors columns(vectors, kTileN);
          WarpBoxes boxes(p, sizeof(T), memory);
          TileEpilogue<T, kTileN, false> epilogue(e, columns, boxes, row, tile * kTileN);
          epilogue.template start<1>();
          epilogue.finish(own, tile);
        });
      for (auto& lane : lanes) lane.join();
    }
  }
}

}  // namespace dpiframe
