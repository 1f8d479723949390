// Join and take: which numbers go where is the same for every sample, and is listed once as runs of
// numbers that lie evenly. Take along: which of a row's numbers it picks, each sample's places say.
#include <algorithm>
#include <functional>
#include <limits>
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

class HostTakeAlong : public HostKernel {
 public:
  // Rows of x, `step` columns apart, of which one row of places picks; `x`, `places`: the columns
  // where the first of them begin.
  struct Rows {
    std::int64_t x;
    std::int64_t places;
    std::int64_t step;
    int count;
  };

  HostTakeAlong(const HostInput& x, const HostInput& places, const HostTarget& out)
      : x_(x), places_(places), out_(out) {}

  void add(std::int64_t x, std::int64_t places) {
    if (!rows_.empty() && rows_.back().places == places) {
      Rows& last = rows_.back();
      if (last.count == 1) last.step = x - last.x;
      if (x == last.x + last.count * last.step) {
        ++last.count;
        return;
      }
    }
    DPIF_CHECK(rows_.size() < kMostRuns, "a take along more than ", kMostRuns, " rows");
    rows_.push_back({x, places, 0, 1});
  }

  void run(const Tile& tile, float*) const override {
    for (int sample = 0; sample < tile.samples; ++sample) {
      const float* x = tile.at(x_) + sample * x_.sample_stride;
      const float* places = tile.at(places_) + sample * places_.sample_stride;
      float* out = tile.at(out_) + sample * out_.sample_stride;
      for (const Rows& rows : rows_) {
        pick(rows, x + rows.x, places + rows.places, out);
        out += rows.count * places_.operand.shape.back();
      }
    }
  }

 private:
  // out[row][i] = x[row][places[i]].
  void pick(const Rows& rows, const float* x, const float* places, float* out) const {
    const std::int64_t step = x_.operand.strides.back();
    const std::int64_t next = places_.operand.strides.back();
    const auto size = static_cast<float>(x_.operand.shape.back());
    const int width = places_.operand.shape.back();
    for (int i = 0; i < width; ++i) {
      const float place = places[i * next];
      if (!(place > -1.0f && place < size)) {
        for (int row = 0; row < rows.count; ++row)
          out[row * width + i] = std::numeric_limits<float>::quiet_NaN();
        continue;
      }
      const float* from = x + static_cast<int>(place) * step;
      if (width == 1 && rows.step == 1)
        std::copy_n(from, rows.count, out);
      else
        for (int row = 0; row < rows.count; ++row) out[row * width + i] = from[row * rows.step];
    }
  }

  HostInput x_;
  HostInput places_;
  HostTarget out_;
  std::vector<Rows> rows_;
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

Kernel host_take_along(const TakeAlongOp& op, const std::vector<HostInput>& xs,
                       const HostTarget& out) {
  const HostInput& x = xs[op.places_first ? 1 : 0];
  const HostInput& places = xs[op.places_first ? 0 : 1];
  std::vector<int> outer = x.operand.shape;
  std::vector<int> outer_places = places.operand.shape;
  DPIF_CHECK(!outer.empty() && !outer_places.empty(), "a take along an axis needs one");
  outer.pop_back();
  outer_places.pop_back();
  DPIF_CHECK(outer == outer_places, "places do not fit the axes before the last one");
  auto take = std::make_unique<HostTakeAlong>(x, places, out);
  walk_places(outer, {wide(x.operand.strides), wide(places.operand.strides)},
              [&](const std::int64_t* offsets) { take->add(offsets[0], offsets[1]); });
  return take;
}

}  // namespace dpiframe
