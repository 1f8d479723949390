// What the CPU's kernels of the generic operations share: a tile of samples, where its buffers lie,
// and how a kernel walks the samples' tensors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/check.h"
#include "kernels/tensor/host/loops.h"
#include "kernels/tensor/operations.h"

namespace dpiframe {

constexpr int kTileSamples = 64;  // at most
constexpr int kChunk = 512;       // numbers that a chain of loops handles at once: 2 KiB of the L1

// How an operation reads a buffer, and the columns that it writes, row-major.
struct HostInput {
  int buffer;
  std::int64_t sample_stride;
  Operand operand;
};
struct HostTarget {
  int buffer;
  std::int64_t sample_stride;
  int column;
};

// Consecutive samples; bases[buffer] is the first one's row.
struct Tile {
  int samples;
  std::vector<float*> bases;

  const float* at(const HostInput& input) const {
    return bases[input.buffer] + input.operand.offset;
  }
  float* at(const HostTarget& target) const { return bases[target.buffer] + target.column; }
};

// One operation. It may be run by several threads at once, each with a workspace of its own.
class HostKernel {
 public:
  virtual ~HostKernel() = default;
  virtual std::int64_t workspace() const { return 0; }  // floats
  virtual void run(const Tile& tile, float* workspace) const = 0;
};

// The axes of a tile, [samples, *shape], merged where all operands allow it. sizes[0] is for one
// sample: a tile has so many times the samples.
struct TileAxes {
  std::vector<int> sizes;
  std::vector<std::vector<std::int64_t>> strides;  // [operand][axis]

  // Elements of a row, which is the innermost axis, and their stride. One axis alone is one row.
  int row_size(int samples) const { return sizes.size() == 1 ? samples * sizes[0] : sizes.back(); }
  std::int64_t stride(std::size_t operand) const { return strides[operand].back(); }

  // The step from a row to the next one of its run: along the axis before the innermost.
  int run_rows() const;
  std::int64_t row_step(std::size_t operand) const {
    return sizes.size() == 1 ? 0 : strides[operand][sizes.size() - 2];
  }
};

// `strides` of each operand: of the sample, then of each axis of the shape.
TileAxes tile_axes(const std::vector<int>& shape,
                   const std::vector<std::vector<std::int64_t>>& strides);

// Strides of an operand behind that of its sample.
std::vector<std::int64_t> with_sample(std::int64_t sample_stride, const std::vector<int>& strides);

// Calls use(offsets) at every place of the axes, in order; `offsets` are each operand's.
template <class Use>
void walk_places(const std::vector<int>& sizes,
                 const std::vector<std::vector<std::int64_t>>& strides, const Use& use) {
  constexpr std::size_t kMost = 64;
  const std::size_t axes = sizes.size();
  const std::size_t count = strides.size();
  DPIF_CHECK(axes <= kMost && count <= kMost, "a tensor operation has ", axes, " axes and ", count,
             " operands");
  int place[kMost] = {};
  std::int64_t offsets[kMost] = {};
  for (;;) {
    use(static_cast<const std::int64_t*>(offsets));
    std::size_t axis = axes;
    while (axis > 0 && ++place[axis - 1] == sizes[axis - 1]) {
      --axis;
      for (std::size_t i = 0; i < count; ++i) offsets[i] -= (sizes[axis] - 1) * strides[i][axis];
      place[axis] = 0;
    }
    if (axis == 0) return;
    for (std::size_t i = 0; i < count; ++i) offsets[i] += strides[i][axis - 1];
  }
}

// Calls use(offsets, rows) for all rows, in order, in runs of at most most_rows(): rows one after
// another along the axis before the innermost. `offsets` are each operand's to the first of them.
template <class MostRows, class Use>
void walk_rows(const TileAxes& axes, int samples, const MostRows& most_rows, const Use& use) {
  const std::size_t count = axes.strides.size();
  if (axes.sizes.size() == 1) {
    const std::vector<std::int64_t> start(count);
    use(start.data(), 1);
    return;
  }
  std::vector<int> sizes(axes.sizes.begin(), axes.sizes.end() - 1);
  sizes[0] *= samples;
  const int rows = sizes.back();
  sizes.pop_back();
  std::vector<std::int64_t> run(count);
  walk_places(sizes, axes.strides, [&](const std::int64_t* offsets) {
    for (int first = 0; first < rows;) {
      const int taken = std::min(rows - first, most_rows());
      for (std::size_t i = 0; i < count; ++i) run[i] = offsets[i] + first * axes.row_step(i);
      use(static_cast<const std::int64_t*>(run.data()), taken);
      first += taken;
    }
  });
}

// The operations. ValueError: one that has no kernel here.
using Kernel = std::unique_ptr<HostKernel>;
Kernel host_map(const MapOp& op, const std::vector<HostInput>& xs, const HostTarget& out,
                const HostLoops& loops);
Kernel host_reduce(const ReduceOp& op, const HostInput& x, const HostTarget& out,
                   const HostLoops& loops);
Kernel host_softmax(const SoftmaxOp& op, const HostInput& x, const HostTarget& out,
                    const HostLoops& loops);
Kernel host_layer_norm(const LayerNormOp& op, const std::vector<HostInput>& xs,
                       const std::vector<const float*>& constants, const HostTarget& out,
                       const HostLoops& loops);
Kernel host_join(const JoinOp& op, const std::vector<HostInput>& xs, const HostTarget& out,
                 const HostLoops& loops);
Kernel host_take(const TakeOp& op, const HostInput& x, const HostTarget& out,
                 const HostLoops& loops);
Kernel host_take_along(const TakeAlongOp& op, const std::vector<HostInput>& xs,
                       const HostTarget& out);
Kernel host_fm(const FmOp& op, const std::vector<HostInput>& xs, const HostTarget& out,
               const HostLoops& loops);

}  // namespace dpiframe
