// The tiles that the 16-bit kernels with cross layers are compiled for.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/check.h"
#include "common/precision.h"
#include "kernels/fused/cross/smem_layout.h"

namespace dpiframe {

template <class T, int kCrossTile, int kDeepTile>
struct CrossTiles {};

// kernel_of(CrossTiles): what is compiled for them.
template <class T, class KernelOf>
const void* select_cross_kernel(const FusedCrossTiling& tiling, const KernelOf& kernel_of) {
  const bool is_narrow = tiling.cross_tile == 104;
  switch (tiling.deep_tile) {
    case 104:
      return is_narrow ? kernel_of(CrossTiles<T, 104, 104>{})
                       : kernel_of(CrossTiles<T, 160, 104>{});
    case 128:
      return is_narrow ? kernel_of(CrossTiles<T, 104, 128>{})
                       : kernel_of(CrossTiles<T, 160, 128>{});
    default:
      DPIF_CHECK(false, "no kernel has quarters of ", tiling.deep_tile, " columns");
  }
}
// type: half or bfloat16.
template <class KernelOf>
const void* select_cross_kernel(DataType type, const FusedCrossTiling& tiling,
                                const KernelOf& kernel_of) {
  return type == DataType::kHalf ? select_cross_kernel<__half>(tiling, kernel_of)
                                 : select_cross_kernel<__nv_bfloat16>(tiling, kernel_of);
}

}  // namespace dpiframe
