#include "kernels/tensor/host/matmul.h"

#include <algorithm>

#include "common/check.h"
#include "kernels/tensor/axes.h"

namespace dpiframe {
namespace {

constexpr int kMostRows = 1 << 22;  // of a tile: where each begins is listed
constexpr int kInnerBlock = 256;    // a panel of so many rows fills half of an L1 cache

// Sizes and strides of some axes of two operands.
struct Part {
  std::vector<int> sizes;
  std::vector<int> first;
  std::vector<int> second;

  void add(int size, int of_first, int of_second) {
    sizes.push_back(size);
    first.push_back(of_first);
    second.push_back(of_second);
  }
};

// The axes as one: its size and its strides.
struct OneAxis {
  OneAxis(const Part& part, const char* name) {
    const MergedAxes merged = merge_axes(part.sizes, {part.first, part.second});
    DPIF_CHECK(merged.sizes.size() == 1, "the ", name, " axes of a product must be one axis");
    size = merged.sizes[0];
    first = merged.strides[0][0];
    second = merged.strides[1][0];
  }
  int size;
  std::int64_t first;
  std::int64_t second;
};

std::vector<std::int64_t> wide(const std::vector<int>& strides) {
  return {strides.begin(), strides.end()};
}

}  // namespace

HostMatMul::HostMatMul(const MatMulOp& op, const HostInput& a, const HostInput& b,
                       const float* constant, const HostTarget& out, const HostLoops& loops)
    : a_(a), b_(b), out_(out), is_shared_(b.sample_stride == 0), loops_(loops) {
  const Operand& x = a.operand;
  const Operand& y = b.operand;
  const int rank_a = static_cast<int>(x.shape.size());
  const int rank_b = static_cast<int>(y.shape.size());
  DPIF_CHECK(op.batch >= 0 && op.rows >= 0 && op.inner >= 0 &&
                 rank_a == op.batch + op.rows + op.inner && rank_b >= op.batch + op.inner,
             "a product's operands have ", rank_a, " and ", rank_b, " axes");
  std::vector<int> shape(x.shape.begin(), x.shape.end() - op.inner);
  shape.insert(shape.end(), y.shape.begin() + op.batch + op.inner, y.shape.end());
  const std::vector<int> steps = row_major(shape);  // of the result

  std::vector<int> loop_sizes;
  std::vector<int> row_sizes;
  std::vector<int> loop_a, loop_b, loop_out, row_a, row_out;
  for (int axis = 0; axis < op.batch + op.rows; ++axis) {
    if (axis < op.batch) DPIF_CHECK(x.shape[axis] == y.shape[axis], "a product's batches differ");
    const int b_stride = axis < op.batch ? y.strides[axis] : 0;
    const bool is_loop = b_stride != 0 && x.shape[axis] > 1;
    (is_loop ? loop_sizes : row_sizes).push_back(x.shape[axis]);
    (is_loop ? loop_a : row_a).push_back(x.strides[axis]);
    (is_loop ? loop_out : row_out).push_back(steps[axis]);
    if (is_loop) loop_b.push_back(b_stride);
  }
  Part inner;
  for (int axis = 0; axis < op.inner; ++axis) {
    DPIF_CHECK(x.shape[op.batch + op.rows + axis] == y.shape[op.batch + axis],
               "a product's inner axes differ");
    inner.add(x.shape[op.batch + op.rows + axis], x.strides[op.batch + op.rows + axis],
              y.strides[op.batch + axis]);
  }
  Part columns;
  for (int axis = op.batch + op.inner; axis < rank_b; ++axis)
    columns.add(y.shape[axis], y.strides[axis], steps[axis - op.inner + op.rows]);
  const OneAxis inner_axis(inner, "inner");
  const OneAxis column_axis(columns, "column");
  inner_ = inner_axis.size;
  a_step_ = inner_axis.first;
  b_step_ = inner_axis.second;
  columns_ = column_axis.size;
  b_column_ = column_axis.first;

  walk_places(loop_sizes, {wide(loop_a), wide(loop_b), wide(loop_out)},
              [&](const std::int64_t* at) { starts_.push_back({at[0], at[1], at[2]}); });
  for (const int size : row_sizes) rows_ *= size;
  const int samples = is_shared_ ? kTileSamples : 1;
  DPIF_CHECK(rows_ <= kMostRows / samples, "a product of ", rows_, " rows a sample");
  for (int sample = 0; sample < samples; ++sample)
    walk_places(row_sizes, {wide(row_a), wide(row_out)}, [&](const std::int64_t* at) {
      a_rows_.push_back(sample * a.sample_stride + at[0]);
      out_rows_.push_back(sample * out.sample_stride + at[1]);
    });
  if (constant != nullptr) pack_constant(constant + y.offset);
}

void HostMatMul::pack_constant(const float* b) {
  const int panel = loops_.panel();
  const std::int64_t size = static_cast<std::int64_t>(panels()) * panel * inner_;
  packed_.assign(starts_.size() * size, 0.0f);
  float* out = packed_.data();
  for (const Start& start : starts_)
    for (int first = 0; first < columns_; first += panel)
      for (int k = 0; k < inner_; ++k, out += panel)
        for (int c = 0; c < std::min(panel, columns_ - first); ++c)
          out[c] = b[start.b + k * b_step_ + (first + c) * b_column_];
}

std::int64_t HostMatMul::workspace() const {
  return static_cast<std::int64_t>(std::min(inner_, kInnerBlock)) * loops_.panel();
}

void HostMatMul::run_part(const Tile& tile, int first, int count, bool accumulate,
                          float* workspace) const {
  const float* a = tile.at(a_);
  const float* b = tile.at(b_);
  float* out = tile.at(out_);
  const std::int64_t size = static_cast<std::int64_t>(panels()) * loops_.panel() * inner_;
  const int times = is_shared_ ? 1 : tile.samples;
  const int rows = is_shared_ ? rows_ * tile.samples : rows_;
  for (int sample = 0; sample < times; ++sample) {
    const float* packed = packed_.empty() ? nullptr : packed_.data();
    for (const Start& start : starts_) {
      multiply(a + sample * a_.sample_stride + start.a, b + sample * b_.sample_stride + start.b,
               packed, first, count, rows, out + sample * out_.sample_stride + start.out,
               accumulate, workspace);
      if (packed != nullptr) packed += size;
    }
  }
}

void HostMatMul::multiply(const float* a, const float* b, const float* packed, int first, int count,
                          int rows, float* out, bool accumulate, float* workspace) const {
  if (columns_ == 1 && a_step_ == 1 && b_step_ == 1 && count == inner_) {
    for (int r = 0; r < rows; ++r) {
      const float found = loops_.dot(a + a_rows_[r], b, inner_);
      float& to = out[out_rows_[r]];
      to = accumulate ? to + found : found;
    }
    return;
  }
  const int panel = loops_.panel();
  HostProduct product{nullptr, a_rows_.data(),   rows, a_step_, nullptr, panel, 0, 0,
                      nullptr, out_rows_.data(), false};
  for (int begin = 0; begin < count; begin += kInnerBlock) {
    product.inner = std::min(kInnerBlock, count - begin);
    product.a = a + begin * a_step_;
    product.accumulate = accumulate || begin > 0;
    for (int column = 0; column < columns_; column += panel) {
      product.columns = std::min(panel, columns_ - column);
      product.out = out + column;
      const std::int64_t k = first + begin;
      const float* source = b + k * b_step_ + column * b_column_;
      product.b_step = panel;
      if (packed != nullptr) {
        product.b = packed + (static_cast<std::int64_t>(column) * inner_ + k * panel);
      } else if (b_column_ == 1 && product.columns % loops_.lanes == 0) {
        product.b = source;
        product.b_step = b_step_;
      } else {
        product.b = workspace;
        if (b_column_ == 1) {
          loops_.copy_rows(source, b_step_, 1, product.inner, product.columns, workspace, panel);
        } else if (b_step_ == 1) {
          loops_.transpose(source, b_column_, product.columns, product.inner, workspace, panel);
        } else {
          loops_.copy_rows(source, b_step_, b_column_, product.inner, product.columns, workspace,
                           panel);
        }
      }
      loops_.multiply(product);
    }
  }
}

}  // namespace dpiframe
