// Maps on the CPU: chunk by chunk, each instruction of the expression is a loop over a chunk, whose
// intermediate results stay in the L1 cache.
#pragma once

#include "kernels/tensor/host/tile.h"

namespace dpiframe {

class HostMap : public HostKernel {
 public:
  // Writes element [i, j, ...] to column out.column + i out_strides[0] + ...
  HostMap(const MapCode& code, const std::vector<int>& shape, const std::vector<HostInput>& xs,
          const HostTarget& out, const std::vector<int>& out_strides, const HostLoops& loops);

  std::int64_t workspace() const override;
  void run(const Tile& tile, float* workspace) const override { run_from(tile, 0, workspace); }

  // With all operands but the result moved by so many steps along the shape's first axis.
  void run_from(const Tile& tile, int first, float* workspace) const;

 private:
  // How an operand is read.
  enum class Read {
    kScalar,  // one number for all
    kFlat,    // its elements lie as the result's would: no copy
    kRows,    // copied to the workspace, row by row
  };
  struct Chunk;

  void evaluate(const HostArgument* operands, int size, float* workspace, float* out) const;
  void run_long_rows(const Tile& tile, const std::vector<const float*>& bases, float* to,
                     float* workspace) const;
  void run_short_rows(const Tile& tile, const std::vector<const float*>& bases, float* to,
                      float* workspace) const;

  MapCode code_;
  std::vector<HostInput> xs_;
  std::vector<Read> reads_;  // of the operands, then of the result
  HostTarget out_;
  TileAxes axes_;  // of the operands, then of the result
  const HostLoops& loops_;
};

}  // namespace dpiframe
