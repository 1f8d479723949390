#include "kernels/tensor/host/tile.h"

namespace dpiframe {

int TileAxes::run_rows() const {
  return sizes.size() < 3 ? kTileSamples : sizes[sizes.size() - 2];
}

std::vector<std::int64_t> with_sample(std::int64_t sample_stride, const std::vector<int>& strides) {
  std::vector<std::int64_t> all = {sample_stride};
  all.insert(all.end(), strides.begin(), strides.end());
  return all;
}

TileAxes tile_axes(const std::vector<int>& shape,
                   const std::vector<std::vector<std::int64_t>>& strides) {
  TileAxes merged;
  merged.sizes.push_back(1);
  for (const auto& steps : strides) merged.strides.push_back({steps[0]});
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 1) continue;
    bool one = true;
    for (std::size_t i = 0; i < strides.size(); ++i)
      one = one && merged.strides[i].back() == shape[axis] * strides[i][axis + 1];
    if (one)
      merged.sizes.back() *= shape[axis];
    else
      merged.sizes.push_back(shape[axis]);
    for (std::size_t i = 0; i < strides.size(); ++i) {
      if (one) merged.strides[i].pop_back();
      merged.strides[i].push_back(strides[i][axis + 1]);
    }
  }
  return merged;
}

}  // namespace dpiframe
