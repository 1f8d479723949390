#include "kernels/tensor/host/tensor_group.h"

#include <algorithm>
#include <atomic>

#include "common/check.h"
#include "kernels/tensor/axes.h"
#include "kernels/tensor/host/map.h"
#include "kernels/tensor/host/matmul.h"

namespace dpiframe {
namespace {

constexpr std::int64_t kTileBytes = 256 << 10;                // half of a small L2 cache
constexpr std::int64_t kMaxElements = std::int64_t{1} << 24;  // of one sample's tensor
constexpr std::int64_t kAlignment = 16;                       // floats: a cache line
constexpr int kSliceInner = 256;          // inner places of a fused product's slice, about
constexpr std::int64_t kFuseFrom = 4096;  // elements a sample from which a map is not written out

std::int64_t elements(const std::vector<int>& shape) {
  std::int64_t product = 1;
  for (const int size : shape) product *= size;
  return product;
}

// A product of a map's result, which is made a slice of its first axis at a time, and never whole.
class MapProduct : public HostKernel {
 public:
  MapProduct(std::unique_ptr<HostMap> map, std::unique_ptr<HostMap> last,
             std::unique_ptr<HostMatMul> product, int length, int slice, int inner)
      : map_(std::move(map)),
        last_(std::move(last)),
        product_(std::move(product)),
        length_(length),
        slice_(slice),
        inner_(inner) {}

  std::int64_t workspace() const override {
    const std::int64_t maps =
        std::max(map_->workspace(), last_ == nullptr ? 0 : last_->workspace());
    return std::max(maps, product_->workspace());
  }

  void run(const Tile& tile, float* workspace) const override {
    for (int first = 0; first < length_; first += slice_) {
      const int count = std::min(slice_, length_ - first);
      (count == slice_ ? *map_ : *last_).run_from(tile, first, workspace);
      product_->run_part(tile, first * inner_, count * inner_, first > 0, workspace);
    }
  }

 private:
  std::unique_ptr<HostMap> map_;
  std::unique_ptr<HostMap> last_;  // of what is left; null where nothing is
  std::unique_ptr<HostMatMul> product_;
  int length_;  // of the first axis
  int slice_;
  int inner_;  // inner places of the product in one place of the first axis
};

}  // namespace

struct TensorGroup::Worker {
  std::vector<float> scratch;
  std::vector<float> workspace;
  Tile tile;
};

TensorGroup::TensorGroup(std::vector<GroupBuffer> buffers, std::vector<HostStep> steps,
                         int num_threads, const std::string& loops)
    : buffers_(std::move(buffers)),
      steps_(std::move(steps)),
      loops_(host_loops(loops)),
      team_(num_threads) {
  for (const HostStep& step : steps_) check(step);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    if (i + 1 < steps_.size() && fuse(steps_[i], steps_[i + 1])) {
      ++i;
      ++num_fused_;
    } else {
      add(steps_[i]);
    }
  }
  place_scratch();
  for (const Kernel& kernel : kernels_) workspace_ = std::max(workspace_, kernel->workspace());
  for (int i = 0; i < team_.num_threads(); ++i) {
    workers_.push_back(std::make_unique<Worker>());
    workers_.back()->scratch.resize(scratch_ * tile_samples_ + kAlignment);
    workers_.back()->workspace.resize(workspace_);
    workers_.back()->tile.bases.resize(buffers_.size());
  }
}

TensorGroup::~TensorGroup() = default;

void TensorGroup::check(const HostStep& step) const {
  const int count = static_cast<int>(buffers_.size());
  DPIF_CHECK(!step.inputs.empty(), "a tensor operation needs an operand");
  DPIF_CHECK(step.out >= 0 && step.out < count && buffers_[step.out].constant == nullptr,
             "a step writes buffer ", step.out, " of ", count);
  for (const HostStep::Input& input : step.inputs) {
    const Operand& o = input.operand;
    DPIF_CHECK(input.buffer >= 0 && input.buffer < count, "a step reads buffer ", input.buffer,
               " of ", count);
    DPIF_CHECK(o.shape.size() == o.strides.size() && o.offset >= 0, "an operand has ",
               o.shape.size(), " axes, but ", o.strides.size(), " strides");
    std::int64_t size = 1;
    std::int64_t last = o.offset;
    for (std::size_t axis = 0; axis < o.shape.size(); ++axis) {
      DPIF_CHECK(o.shape[axis] >= 1 && o.strides[axis] >= 0, "an operand has ", o.shape[axis],
                 " elements with stride ", o.strides[axis]);
      size *= o.shape[axis];
      last += static_cast<std::int64_t>(o.shape[axis] - 1) * o.strides[axis];
      DPIF_CHECK(size <= kMaxElements, "an operand has too many elements");
    }
    DPIF_CHECK(last < buffers_[input.buffer].width, "an operand reads column ", last, " of ",
               buffers_[input.buffer].width);
  }
}

namespace {

struct Resolve {
  const std::vector<GroupBuffer>& buffers;

  HostInput input(const HostStep::Input& x) const {
    const GroupBuffer& buffer = buffers[x.buffer];
    return {x.buffer, buffer.constant == nullptr ? buffer.width : 0, x.operand};
  }
  HostTarget target(const HostStep& step) const {
    return {step.out, buffers[step.out].width, step.out_column};
  }
  const float* constant(const HostStep::Input& x) const { return buffers[x.buffer].constant; }
};

// Columns that a step writes.
std::int64_t written(const HostStep& step) {
  const std::vector<int>& x = step.inputs[0].operand.shape;
  if (const auto* op = std::get_if<ReduceOp>(&step.op)) {
    std::int64_t size = elements(x);
    for (const int axis : op->axes) {
      DPIF_CHECK(axis >= 0 && axis < static_cast<int>(x.size()), "there is no axis ", axis);
      size /= x[axis];
    }
    return size;
  }
  if (const auto* op = std::get_if<MatMulOp>(&step.op)) {
    DPIF_CHECK(step.inputs.size() == 2 && op->inner >= 0 && op->batch >= 0 &&
                   static_cast<int>(x.size()) >= op->inner &&
                   static_cast<int>(step.inputs[1].operand.shape.size()) >= op->batch + op->inner,
               "a product has two operands");
    const std::vector<int>& y = step.inputs[1].operand.shape;
    return elements({x.begin(), x.end() - op->inner}) *
           elements({y.begin() + op->batch + op->inner, y.end()});
  }
  if (std::holds_alternative<FmOp>(step.op)) return 1;
  if (std::holds_alternative<JoinOp>(step.op)) {
    std::int64_t size = 0;
    for (const HostStep::Input& input : step.inputs) size += elements(input.operand.shape);
    return size;
  }
  if (const auto* op = std::get_if<TakeOp>(&step.op)) {
    const int axis = static_cast<int>(x.size()) - 1 - op->behind;
    DPIF_CHECK(axis >= 0 && axis < static_cast<int>(x.size()), "take needs an axis");
    return elements(x) / x[axis] * static_cast<std::int64_t>(op->index.size());
  }
  if (const auto* op = std::get_if<TakeAlongOp>(&step.op)) {
    DPIF_CHECK(step.inputs.size() == 2, "a take along an axis has two operands");
    return elements(step.inputs[op->places_first ? 0 : 1].operand.shape);
  }
  return elements(x);
}

struct Make {
  const HostStep& step;
  Resolve resolve;
  const HostLoops& loops;

  std::vector<HostInput> inputs() const {
    std::vector<HostInput> found;
    for (const HostStep::Input& x : step.inputs) found.push_back(resolve.input(x));
    return found;
  }
  HostInput only() const {
    DPIF_CHECK(step.inputs.size() == 1, "an operation of one operand has ", step.inputs.size());
    return resolve.input(step.inputs[0]);
  }
  HostTarget out() const { return resolve.target(step); }

  Kernel operator()(const MapOp& op) const { return host_map(op, inputs(), out(), loops); }
  Kernel operator()(const ReduceOp& op) const { return host_reduce(op, only(), out(), loops); }
  Kernel operator()(const SoftmaxOp& op) const { return host_softmax(op, only(), out(), loops); }
  Kernel operator()(const LayerNormOp& op) const {
    std::vector<const float*> constants;
    for (const HostStep::Input& x : step.inputs) constants.push_back(resolve.constant(x));
    return host_layer_norm(op, inputs(), constants, out(), loops);
  }
  Kernel operator()(const MatMulOp& op) const {
    return std::make_unique<HostMatMul>(op, resolve.input(step.inputs[0]),
                                        resolve.input(step.inputs[1]),
                                        resolve.constant(step.inputs[1]), out(), loops);
  }
  Kernel operator()(const JoinOp& op) const { return host_join(op, inputs(), out(), loops); }
  Kernel operator()(const TakeOp& op) const { return host_take(op, only(), out(), loops); }
  Kernel operator()(const TopKOp&) const { return none("top k"); }
  Kernel operator()(const TakeAlongOp& op) const { return host_take_along(op, inputs(), out()); }
  Kernel operator()(const FmOp& op) const { return host_fm(op, inputs(), out(), loops); }

  static Kernel none(const char* name) {
    throw std::invalid_argument(join_message("the CPU has no kernel for ", name));
  }
};

}  // namespace

void TensorGroup::add(const HostStep& step) {
  const std::int64_t size = written(step);
  DPIF_CHECK(step.out_column >= 0 && step.out_column + size <= buffers_[step.out].width,
             "a step writes columns ", step.out_column, " to ", step.out_column + size, " of ",
             buffers_[step.out].width);
  kernels_.push_back(std::visit(Make{step, {buffers_}, loops_}, step.op));
  uses_.push_back({step.out});
  for (const HostStep::Input& x : step.inputs) uses_.back().push_back(x.buffer);
}

bool TensorGroup::is_read_once(int buffer) const {
  int reads = 0;
  for (const HostStep& step : steps_)
    for (const HostStep::Input& x : step.inputs) reads += x.buffer == buffer ? 1 : 0;
  return reads == 1;
}

// A large map whose only reader is a product with a constant, over inner axes that the map's first
// axis leads.
bool TensorGroup::fuse(const HostStep& map, const HostStep& product) {
  const auto* map_op = std::get_if<MapOp>(&map.op);
  const auto* product_op = std::get_if<MatMulOp>(&product.op);
  if (map_op == nullptr || product_op == nullptr || product_op->batch != 0) return false;
  if (product.inputs.size() != 2 || product.inputs[0].buffer != map.out) return false;
  if (buffers_[product.inputs[1].buffer].constant == nullptr || !buffers_[map.out].is_scratch)
    return false;
  const std::vector<int>& shape = map.inputs[0].operand.shape;
  const std::int64_t size = elements(shape);
  const Operand& a = product.inputs[0].operand;
  if (size < kFuseFrom || size != buffers_[map.out].width || a.offset != 0 || shape[0] < 2)
    return false;
  if (!is_read_once(map.out)) return false;
  const int rows = product_op->rows;
  const MergedAxes inner = merge_axes({a.shape.begin() + rows, a.shape.end()},
                                      {{a.strides.begin() + rows, a.strides.end()}});
  const std::int64_t step = inner.strides[0][0];
  if (inner.sizes.size() != 1 || step * inner.sizes[0] != size) return false;
  std::int64_t last_row = 0;
  for (int axis = 0; axis < rows; ++axis)
    last_row += static_cast<std::int64_t>(a.shape[axis] - 1) * a.strides[axis];
  const std::int64_t rest = size / shape[0];
  if (last_row >= step || rest % step != 0) return false;

  const int inner_rest = static_cast<int>(rest / step);
  const int slice = std::clamp(kSliceInner / inner_rest, 1, shape[0]);
  const Resolve resolve{buffers_};
  buffers_[map.out].width = static_cast<int>(slice * rest);  // the slice takes the tensor's place
  const MapCode code = compile_expression(map_op->expression, static_cast<int>(map.inputs.size()));
  const auto sliced = [&](int length) {
    std::vector<HostInput> xs;
    for (const HostStep::Input& x : map.inputs) {
      xs.push_back(resolve.input(x));
      DPIF_CHECK(xs.back().operand.shape == shape, "a map needs operands of one shape");
      xs.back().operand.shape[0] = length;
    }
    std::vector<int> part = shape;
    part[0] = length;
    return std::make_unique<HostMap>(code, part, xs, resolve.target(map), row_major(part), loops_);
  };
  const int left = shape[0] % slice;
  auto matmul = std::make_unique<HostMatMul>(
      *product_op, resolve.input(product.inputs[0]), resolve.input(product.inputs[1]),
      resolve.constant(product.inputs[1]), resolve.target(product), loops_);
  DPIF_CHECK(product.out_column >= 0 &&
                 product.out_column + written(product) <= buffers_[product.out].width,
             "a step writes outside its buffer");
  kernels_.push_back(std::make_unique<MapProduct>(sliced(slice), left > 0 ? sliced(left) : nullptr,
                                                  std::move(matmul), shape[0], slice, inner_rest));
  uses_.push_back({map.out, product.out});
  for (const HostStep::Input& x : map.inputs) uses_.back().push_back(x.buffer);
  return true;
}

// Scratch buffers whose lives do not meet share memory: each goes to the lowest place that is free
// from its first use to its last.
void TensorGroup::place_scratch() {
  struct Placed {
    std::int64_t begin;
    std::int64_t end;
    int last;
  };
  std::vector<int> last(buffers_.size(), -1);
  for (std::size_t i = 0; i < uses_.size(); ++i)
    for (const int buffer : uses_[i]) last[buffer] = static_cast<int>(i);
  offsets_.assign(buffers_.size(), -1);
  std::vector<Placed> placed;
  std::int64_t outside = 0;  // floats of a sample that come and go
  for (std::size_t i = 0; i < uses_.size(); ++i) {
    std::erase_if(placed, [&](const Placed& p) { return p.last < static_cast<int>(i); });
    for (const int buffer : uses_[i]) {
      if (!buffers_[buffer].is_scratch || offsets_[buffer] >= 0) continue;
      const std::int64_t size = (buffers_[buffer].width + kAlignment - 1) / kAlignment * kAlignment;
      std::sort(placed.begin(), placed.end(),
                [](const Placed& a, const Placed& b) { return a.begin < b.begin; });
      std::int64_t begin = 0;
      for (const Placed& p : placed) {
        if (begin + size <= p.begin) break;
        begin = std::max(begin, p.end);
      }
      offsets_[buffer] = begin;
      placed.push_back({begin, begin + size, last[buffer]});
      scratch_ = std::max(scratch_, begin + size);
    }
  }
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    if (!buffers_[i].is_scratch && buffers_[i].constant == nullptr && last[i] >= 0)
      outside += buffers_[i].width;
  // Of what comes and goes, a part is enough: it is not needed again.
  const std::int64_t bytes = 4 * std::max<std::int64_t>(1, scratch_ + outside / 8);
  tile_samples_ = static_cast<int>(std::clamp<std::int64_t>(kTileBytes / bytes, 1, kTileSamples));
}

void TensorGroup::run(const std::vector<float*>& matrices, std::int64_t rows) {
  DPIF_CHECK(matrices.size() == buffers_.size(), "a group of ", buffers_.size(),
             " buffers was given ", matrices.size());
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    DPIF_CHECK(matrices[i] != nullptr || buffers_[i].is_scratch || buffers_[i].constant != nullptr,
               "buffer ", i, " of a group is missing");
  const std::int64_t threads = team_.num_threads();
  const std::int64_t tile =
      std::clamp<std::int64_t>((rows + threads - 1) / threads, 1, tile_samples_);
  const std::int64_t tiles = (rows + tile - 1) / tile;
  std::atomic<std::int64_t> next = 0;
  team_.run(static_cast<int>(std::min(tiles, threads)), [&](int w) {
    for (std::int64_t i = next++; i < tiles; i = next++)
      run_tile(matrices, i * tile, static_cast<int>(std::min(tile, rows - i * tile)), *workers_[w]);
  });
}

void TensorGroup::run_tile(const std::vector<float*>& matrices, std::int64_t first, int samples,
                           Worker& worker) const {
  Tile& tile = worker.tile;
  tile.samples = samples;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const GroupBuffer& buffer = buffers_[i];
    if (buffer.constant != nullptr)
      tile.bases[i] = const_cast<float*>(buffer.constant);
    else if (buffer.is_scratch)
      tile.bases[i] = worker.scratch.data() + offsets_[i] * tile_samples_;
    else
      tile.bases[i] = matrices[i] + first * buffer.width;
  }
  for (const Kernel& kernel : kernels_) kernel->run(tile, worker.workspace.data());
}

}  // namespace dpiframe
