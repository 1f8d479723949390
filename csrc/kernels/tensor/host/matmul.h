// Products on the CPU, in blocks whose operands stay in the caches (Goto and van de Geijn, 2008).
//
// Columns of b are taken in panels of two vectors. A panel of a constant is laid out once; one that
// differs between samples is used where it lies, or copied if its columns are no neighbours. Where
// b is the same for all samples, the rows of all samples of a tile are rows of one product.
#pragma once

#include "kernels/tensor/host/tile.h"

namespace dpiframe {

class HostMatMul : public HostKernel {
 public:
  // `constants` of a and of b, null where they are none. ValueError: axes that need a copy first.
  HostMatMul(const MatMulOp& op, const HostInput& a, const HostInput& b, const float* constant,
             const HostTarget& out, const HostLoops& loops);

  std::int64_t workspace() const override;
  void run(const Tile& tile, float* workspace) const override {
    run_part(tile, 0, inner_, false, workspace);
  }

  // The products of inner places [first, first + count), of which `a` holds these alone; added to
  // the result if `accumulate`.
  void run_part(const Tile& tile, int first, int count, bool accumulate, float* workspace) const;

 private:
  // Where one product of a sample (or of all samples) begins.
  struct Start {
    std::int64_t a;
    std::int64_t b;
    std::int64_t out;
  };

  void pack_constant(const float* b);
  int panels() const { return (columns_ + loops_.panel() - 1) / loops_.panel(); }
  void multiply(const float* a, const float* b, const float* packed, int first, int count, int rows,
                float* out, bool accumulate, float* workspace) const;

  HostInput a_;
  HostInput b_;
  HostTarget out_;
  bool is_shared_;                    // b is the same for all samples
  std::vector<Start> starts_;         // of each product
  std::vector<std::int64_t> a_rows_;  // of kTileSamples samples if b is shared, else of one
  std::vector<std::int64_t> out_rows_;
  int rows_ = 1;  // of one sample
  int inner_ = 1;
  int columns_ = 1;
  std::int64_t a_step_;
  std::int64_t b_step_;
  std::int64_t b_column_;      // from a column to the next one
  std::vector<float> packed_;  // of each product, panel by panel
  const HostLoops& loops_;
};

}  // namespace dpiframe
