// Join and take: which numbers go where is the same for every sample, and is listed once as runs of
// numbers that lie evenly.
#include <functional>
#include <numeric>
#include <utility>

#include "common/check.h"
#include "kernels/tensor/host/tile.h"

namespace dpiframe {
namespace {

constexpr std::size_t kMostRuns = std::size_t{1} << 20;

class Runs {
 public:
  void add(std::int64_t from, std::int64_t to) {
    if (!runs_.empty()) {
      HostRun& run = runs_.back();
      const bool next = to == run.to + run.size;
      if (next && run.size == 1) run.stride = from - run.from;
      if (next && run.stride >= 0 && from == run.from + run.size * run.stride) {
        ++run.size;
        return;
      }
    }
    DPIF_CHECK(runs_.size() < kMostRuns, "a move of more than ", kMostRuns, " parts");
    runs_.push_back({from, to, 1, 1});
  }

  void copy(const HostLoops& loops, const float* x, float* out) const {
    loops.copy_runs(runs_.data(), static_cast<int>(runs_.size()), x, out);
  }

 private:
  std::vector<HostRun> runs_;
};

class HostMove : public HostKernel {
 public:
  HostMove(const HostTarget& out, const HostLoops& loops) : out_(out), loops_(loops) {}

  Runs& of(const HostInput& x) {
    xs_.push_back(x);
    return runs_.emplace_back();
  }

  void run(const Tile& tile, float*) const override {
    for (int sample = 0; sample < tile.samples; ++sample)
      for (std::size_t i = 0; i < xs_.size(); ++i)
        runs_[i].copy(loops_, tile.at(xs_[i]) + sample * xs_[i].sample_stride,
                      tile.at(out_) + sample * out_.sample_stride);
  }

 private:
  HostTarget out_;
  std::vector<HostInput> xs_;
  std::vector<Runs> runs_;
  const HostLoops& loops_;
};

std::vector<std::int64_t> wide(const std::vector<int>& strides) {
  return {strides.begin(), strides.end()};
}

int elements(const Operand& o) {
  return std::accumulate(o.shape.begin(), o.shape.end(), 1, std::multiplies<>());
}

}  // namespace

Kernel host_join(const JoinOp& op, const std::vector<HostInput>& xs, const HostTarget& out,
                 const HostLoops& loops) {
  auto move = std::make_unique<HostMove>(out, loops);
  int width = 0;
  for (const HostInput& x : xs) {
    DPIF_CHECK(op.outer >= 1 && elements(x.operand) % op.outer == 0, "operands have no ", op.outer,
               " rows");
    width += elements(x.operand) / op.outer;
  }
  std::int64_t begin = 0;
  for (const HostInput& x : xs) {
    const int part = elements(x.operand) / op.outer;
    Runs& runs = move->of(x);
    std::int64_t place = 0;
    walk_places(x.operand.shape, {wide(x.operand.strides)}, [&](const std::int64_t* offsets) {
      runs.add(offsets[0], place / part * width + begin + place % part);
      ++place;
    });
    begin += part;
  }
  return move;
}

Kernel host_take(const TakeOp& op, const HostInput& x, const HostTarget& out,
                 const HostLoops& loops) {
  auto move = std::make_unique<HostMove>(out, loops);
  const std::vector<int>& shape = x.operand.shape;
  const int axis = static_cast<int>(shape.size()) - 1 - op.behind;
  DPIF_CHECK(axis >= 0 && axis < static_cast<int>(shape.size()), "take needs an axis");
  std::vector<int> sizes = shape;
  sizes[axis] = static_cast<int>(op.index.size());
  std::vector<std::int64_t> strides = wide(x.operand.strides);
  const std::int64_t step = std::exchange(strides[axis], 0);
  std::vector<std::int64_t> places(sizes.size());
  places[axis] = 1;
  for (const int place : op.index)
    DPIF_CHECK(place >= 0 && place < shape[axis], "place ", place, " is outside an axis of ",
               shape[axis]);
  Runs& runs = move->of(x);
  std::int64_t to = 0;
  walk_places(sizes, {strides, places}, [&](const std::int64_t* offsets) {
    runs.add(offsets[0] + op.index[offsets[1]] * step, to++);
  });
  return move;
}

}  // namespace dpiframe
