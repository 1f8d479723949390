// Sum, mean, product, largest and smallest over axes. Sums are double, whatever their order.
#include <algorithm>
#include <limits>
#include <map>

#include "common/check.h"
#include "kernels/tensor/axes.h"
#include "kernels/tensor/host/tile.h"

namespace dpiframe {
namespace {

constexpr int kColumns = 4;  // from so many neighbours on, columns are summed side by side

class HostReduce : public HostKernel {
 public:
  HostReduce(const ReduceOp& op, const HostInput& x, const HostTarget& out, const HostLoops& loops)
      : x_(x), out_(out), loops_(loops) {
    static const std::map<std::string, Reduction> kReductions = {{"sum", Reduction::kSum},
                                                                 {"mean", Reduction::kSum},
                                                                 {"prod", Reduction::kProduct},
                                                                 {"max", Reduction::kMax},
                                                                 {"min", Reduction::kMin}};
    const auto found = kReductions.find(op.function);
    DPIF_CHECK(found != kReductions.end(), "there is no reduction ", op.function);
    reduction_ = found->second;
    std::vector<int> kept;
    std::vector<int> kept_strides;
    std::vector<int> sizes;
    std::vector<int> strides;
    for (int axis = 0; axis < static_cast<int>(x.operand.shape.size()); ++axis) {
      const bool within = std::find(op.axes.begin(), op.axes.end(), axis) != op.axes.end();
      (within ? sizes : kept).push_back(x.operand.shape[axis]);
      (within ? strides : kept_strides).push_back(x.operand.strides[axis]);
      if (within) elements_ *= x.operand.shape[axis];
    }
    divisor_ = op.function == "mean" ? static_cast<double>(elements_) : 1.0;
    axes_ = tile_axes(kept, {with_sample(x.sample_stride, kept_strides),
                             with_sample(out.sample_stride, row_major(kept))});
    const MergedAxes merged = merge_axes(sizes, {strides});
    inner_ = merged.sizes.back();
    stride_ = merged.strides[0].back();
    outer_sizes_.assign(merged.sizes.begin(), merged.sizes.end() - 1);
    outer_strides_ = {{merged.strides[0].begin(), merged.strides[0].end() - 1}};
  }

  void run(const Tile& tile, float*) const override {
    const float* x = tile.at(x_);
    float* out = tile.at(out_);
    const int size = axes_.row_size(tile.samples);
    const bool by_columns = axes_.stride(0) == 1 && size >= kColumns;
    walk_rows(
        axes_, tile.samples, [] { return 1; },
        [&](const std::int64_t* offsets, int) {
          if (by_columns)
            reduce_columns(x + offsets[0], size, out + offsets[1]);
          else
            for (int i = 0; i < size; ++i)
              out[offsets[1] + i * axes_.stride(1)] =
                  reduce_all(x + offsets[0] + i * axes_.stride(0));
        });
  }

 private:
  double start() const {
    if (reduction_ == Reduction::kSum) return 0.0;
    if (reduction_ == Reduction::kProduct) return 1.0;
    const double most = std::numeric_limits<double>::infinity();
    return reduction_ == Reduction::kMax ? -most : most;
  }

  void reduce_columns(const float* x, int size, float* out) const {
    double totals[kChunk];
    for (int begin = 0; begin < size; begin += kChunk) {
      const int taken = std::min(kChunk, size - begin);
      std::fill(totals, totals + taken, start());
      walk_places(outer_sizes_, outer_strides_, [&](const std::int64_t* offsets) {
        const float* row = x + begin + offsets[0];
        for (int i = 0; i < inner_; ++i, row += stride_)
          loops_.reduce_into(reduction_, row, taken, totals);
      });
      for (int i = 0; i < taken; ++i)
        out[(begin + i) * axes_.stride(1)] = static_cast<float>(totals[i] / divisor_);
    }
  }

  float reduce_all(const float* x) const {
    double total = start();
    if (outer_sizes_.empty())
      total = loops_.reduce_row(reduction_, x, stride_, inner_, total);
    else
      walk_places(outer_sizes_, outer_strides_, [&](const std::int64_t* offsets) {
        total = loops_.reduce_row(reduction_, x + offsets[0], stride_, inner_, total);
      });
    return static_cast<float>(total / divisor_);
  }

  HostInput x_;
  HostTarget out_;
  Reduction reduction_;
  std::int64_t elements_ = 1;
  double divisor_;
  TileAxes axes_;                 // that are kept: of x, of the result
  std::vector<int> outer_sizes_;  // that are reduced, but the innermost
  std::vector<std::vector<std::int64_t>> outer_strides_;
  int inner_;
  std::int64_t stride_;
  const HostLoops& loops_;
};

}  // namespace

Kernel host_reduce(const ReduceOp& op, const HostInput& x, const HostTarget& out,
                   const HostLoops& loops) {
  return std::make_unique<HostReduce>(op, x, out, loops);
}

}  // namespace dpiframe
