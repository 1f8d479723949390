// FM, in double: it is a small difference of two large sums.
#include <algorithm>

#include "common/check.h"
#include "kernels/tensor/host/tile.h"

namespace dpiframe {
namespace {

class HostFm : public HostKernel {
 public:
  HostFm(const FmOp& op, const std::vector<HostInput>& xs, const HostTarget& out,
         const HostLoops& loops)
      : dim_(op.dim), xs_(xs), out_(out), loops_(loops) {
    DPIF_CHECK(dim_ >= 1, "FM of rows of ", dim_);
    for (const HostInput& x : xs_) {
      const Operand& o = x.operand;
      DPIF_CHECK(
          o.shape.size() == 1 && o.shape[0] % dim_ == 0 && (o.strides[0] == 1 || o.shape[0] == 1),
          "FM needs whole rows of ", dim_, ", one after another");
    }
  }

  void run(const Tile& tile, float*) const override {
    float* out = tile.at(out_);
    for (int sample = 0; sample < tile.samples; ++sample)
      out[sample * out_.sample_stride] = static_cast<float>(of_sample(tile, sample));
  }

 private:
  double of_sample(const Tile& tile, int sample) const {
    double total = 0.0;
    for (int begin = 0; begin < dim_; begin += kColumns) {
      const int size = std::min(kColumns, dim_ - begin);
      double sums[kColumns] = {};
      double squares[kColumns] = {};
      for (const HostInput& x : xs_)
        loops_.add_rows(tile.at(x) + sample * x.sample_stride + begin, dim_,
                        x.operand.shape[0] / dim_, size, sums, squares);
      for (int i = 0; i < size; ++i) total += sums[i] * sums[i] - squares[i];
    }
    return 0.5 * total;
  }

  static constexpr int kColumns = 64;  // at a time

  int dim_;
  std::vector<HostInput> xs_;
  HostTarget out_;
  const HostLoops& loops_;
};

}  // namespace

Kernel host_fm(const FmOp& op, const std::vector<HostInput>& xs, const HostTarget& out,
               const HostLoops& loops) {
  return std::make_unique<HostFm>(op, xs, out, loops);
}

}  // namespace dpiframe
