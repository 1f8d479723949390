// Softmax and layer norm: rows, which are gathered where their numbers are not neighbours.
#include <algorithm>
#include <cmath>
#include <limits>

#include "common/check.h"
#include "kernels/tensor/axes.h"
#include "kernels/tensor/host/tile.h"

namespace dpiframe {
namespace {

// The axes of a tensor that make a row, and those that tell rows apart.
struct RowAxes {
  RowAxes(const HostInput& x, const std::vector<int>& out_strides, std::int64_t out_stride,
          const std::vector<int>& axes) {
    const Operand& o = x.operand;
    std::vector<int> kept, kept_x, kept_out, row, row_x, row_out;
    for (int axis = 0; axis < static_cast<int>(o.shape.size()); ++axis) {
      const bool within = std::find(axes.begin(), axes.end(), axis) != axes.end();
      (within ? row : kept).push_back(o.shape[axis]);
      (within ? row_x : kept_x).push_back(o.strides[axis]);
      (within ? row_out : kept_out).push_back(out_strides[axis]);
      if (within) size *= o.shape[axis];
    }
    rows =
        tile_axes(kept, {with_sample(x.sample_stride, kept_x), with_sample(out_stride, kept_out)});
    const MergedAxes merged = merge_axes(row, {row_x, row_out});
    sizes.assign(merged.sizes.begin(), merged.sizes.end() - 1);
    inner = merged.sizes.back();
    for (const auto& steps : merged.strides) {
      strides.push_back({steps.begin(), steps.end() - 1});
      inner_strides.push_back(steps.back());
    }
  }

  // Whether an operand's rows have no gaps.
  bool is_flat(int operand) const { return sizes.empty() && inner_strides[operand] == 1; }

  void gather(const HostLoops& loops, const float* x, float* row) const {
    walk_places(sizes, strides, [&](const std::int64_t* offsets) {
      loops.copy_rows(x + offsets[0], 0, inner_strides[0], 1, inner, row, 0);
      row += inner;
    });
  }

  void scatter(const float* row, float* out) const {
    walk_places(sizes, strides, [&](const std::int64_t* offsets) {
      for (int i = 0; i < inner; ++i) out[offsets[1] + i * inner_strides[1]] = *row++;
    });
  }

  // Calls use(x, x_step, out, out_step, rows) for runs of rows that lie evenly.
  template <class Use>
  void each(const Tile& tile, const float* x, float* out, const Use& use) const {
    const int places = rows.row_size(tile.samples);
    walk_rows(
        rows, tile.samples, [] { return 1; },
        [&](const std::int64_t* offsets, int) {
          use(x + offsets[0], rows.stride(0), out + offsets[1], rows.stride(1), places);
        });
  }

  TileAxes rows;
  std::vector<int> sizes;  // of a row, but the innermost axis
  std::vector<std::vector<std::int64_t>> strides;
  int inner = 1;
  std::vector<std::int64_t> inner_strides;
  int size = 1;
};

// Vectors' time: finding a row's maximum and sum across one, reading and writing a row with gaps.
constexpr int kAcross = 2;
constexpr int kGather = 2;
constexpr int kMostFlat = 4;       // vectors of a row without gaps that goes beside others
constexpr int kMostBeside = 4096;  // numbers of rows side by side: half of an L1 cache

class HostSoftmax : public HostKernel {
 public:
  HostSoftmax(const SoftmaxOp& op, const HostInput& x, const HostTarget& out,
              const HostLoops& loops)
      : x_(x),
        out_(out),
        axes_(x, row_major(x.operand.shape), out.sample_stride, op.axes),
        guarded_(op.guarded),
        loops_(loops) {}

  std::int64_t workspace() const override {
    return std::max(2, loops_.lanes) * static_cast<std::int64_t>(axes_.size);
  }

  void run(const Tile& tile, float* workspace) const override {
    float* result = workspace + axes_.size;
    const bool is_flat = axes_.is_flat(0) && axes_.is_flat(1);
    axes_.each(
        tile, tile.at(x_), tile.at(out_),
        [&](const float* x, std::int64_t x_step, float* out, std::int64_t out_step, int rows) {
          if (are_better_beside(rows, is_flat)) {
            for (int r = 0; r < rows; r += loops_.lanes)
              run_beside(x + r * x_step, x_step, std::min(loops_.lanes, rows - r),
                         out + r * out_step, out_step, workspace);
            return;
          }
          if (is_flat) {
            loops_.softmax_rows(x, x_step, rows, axes_.size, out, out_step);
            for (int r = 0; r < rows; ++r) guard(x + r * x_step, out + r * out_step);
            return;
          }
          for (int r = 0; r < rows; ++r) {
            axes_.gather(loops_, x + r * x_step, workspace);
            loops_.softmax_rows(workspace, 0, 1, axes_.size, result, 0);
            guard(workspace, result);
            axes_.scatter(result, out + r * out_step);
          }
        });
  }

 private:
  // Whether rows side by side take fewer vectors than one by one, each of which has its maximum and
  // its sum to find across a vector. Longer ones are transposed for more than that saves.
  bool are_better_beside(int rows, bool is_flat) const {
    const auto vectors = [&](int numbers) { return (numbers + loops_.lanes - 1) / loops_.lanes; };
    const int alone = vectors(axes_.size) + (is_flat ? kAcross : kAcross + kGather);
    const int most = is_flat ? kMostFlat * loops_.lanes : kMostBeside / loops_.lanes;
    return axes_.sizes.empty() && axes_.size <= most && vectors(rows) * axes_.size <= rows * alone;
  }

  // At most loops_.lanes rows, through columns of the workspace.
  void run_beside(const float* x, std::int64_t x_step, int rows, float* out, std::int64_t out_step,
                  float* workspace) const {
    const int lanes = loops_.lanes;
    const std::int64_t from = axes_.inner_strides[0];
    const std::int64_t to = axes_.inner_strides[1];
    if (rows < lanes) std::fill_n(workspace, lanes * axes_.size, 0.0f);
    if (from == 1 && x_step != 1)
      loops_.transpose(x, x_step, rows, axes_.size, workspace, lanes);
    else
      loops_.copy_rows(x, from, x_step, axes_.size, rows, workspace, lanes);
    loops_.softmax_lanes(workspace, axes_.size, guarded_);
    if (out_step == 1)
      loops_.copy_rows(workspace, lanes, 1, axes_.size, rows, out, to);
    else if (to == 1)
      loops_.transpose(workspace, lanes, axes_.size, rows, out, out_step);
    else
      for (int i = 0; i < axes_.size; ++i)
        for (int r = 0; r < rows; ++r) out[r * out_step + i * to] = workspace[i * lanes + r];
  }

  // Zeros in a row where all of x is -infinity.
  void guard(const float* x, float* row) const {
    const auto is_nothing = [](float value) {
      return value == -std::numeric_limits<float>::infinity();
    };
    if (guarded_ && std::isnan(row[0]) && std::all_of(x, x + axes_.size, is_nothing))
      std::fill_n(row, axes_.size, 0.0f);
  }

  HostInput x_;
  HostTarget out_;
  RowAxes axes_;
  bool guarded_;
  const HostLoops& loops_;
};

std::vector<int> last_axes(int count, int rank) {
  DPIF_CHECK(count >= 1 && count <= rank, "a tensor of ", rank, " axes has no ", count);
  std::vector<int> axes;
  for (int axis = rank - count; axis < rank; ++axis) axes.push_back(axis);
  return axes;
}

class HostLayerNorm : public HostKernel {
 public:
  HostLayerNorm(const LayerNormOp& op, const std::vector<HostInput>& xs,
                const std::vector<const float*>& constants, const HostTarget& out,
                const HostLoops& loops)
      : x_(xs[0]),
        out_(out),
        axes_(x_, row_major(x_.operand.shape), out.sample_stride,
              last_axes(op.axes, static_cast<int>(x_.operand.shape.size()))),
        eps_(op.eps),
        loops_(loops) {
    for (std::size_t i = 1; i < xs.size(); ++i) {
      DPIF_CHECK(i < 3 && constants[i] != nullptr, "a layer norm's weight and bias are constants");
      const Operand& o = xs[i].operand;
      std::vector<std::int64_t> strides(o.strides.begin(), o.strides.end());
      walk_places(o.shape, {strides}, [&](const std::int64_t* offsets) {
        affine_[i - 1].push_back(constants[i][o.offset + offsets[0]]);
      });
      DPIF_CHECK(static_cast<int>(affine_[i - 1].size()) == axes_.size,
                 "a layer norm's weight and bias have ", axes_.size, " numbers");
    }
  }

  std::int64_t workspace() const override { return axes_.size; }

  void run(const Tile& tile, float* workspace) const override {
    const float* weight = affine_[0].empty() ? nullptr : affine_[0].data();
    const float* bias = affine_[1].empty() ? nullptr : affine_[1].data();
    axes_.each(
        tile, tile.at(x_), tile.at(out_),
        [&](const float* x, std::int64_t x_step, float* out, std::int64_t out_step, int rows) {
          if (axes_.is_flat(0))
            return loops_.normalize_rows(x, x_step, rows, axes_.size, eps_, weight, bias, out,
                                         out_step);
          for (int r = 0; r < rows; ++r) {
            axes_.gather(loops_, x + r * x_step, workspace);
            loops_.normalize_rows(workspace, 0, 1, axes_.size, eps_, weight, bias,
                                  out + r * out_step, 0);
          }
        });
  }

 private:
  HostInput x_;
  HostTarget out_;
  RowAxes axes_;
  double eps_;
  std::vector<float> affine_[2];
  const HostLoops& loops_;
};

}  // namespace

Kernel host_softmax(const SoftmaxOp& op, const HostInput& x, const HostTarget& out,
                    const HostLoops& loops) {
  return std::make_unique<HostSoftmax>(op, x, out, loops);
}

Kernel host_layer_norm(const LayerNormOp& op, const std::vector<HostInput>& xs,
                       const std::vector<const float*>& constants, const HostTarget& out,
                       const HostLoops& loops) {
  return std::make_unique<HostLayerNorm>(op, xs, constants, out, loops);
}

}  // namespace dpiframe
