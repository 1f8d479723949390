#include "kernels/tensor/host/map.h"

#include <algorithm>

#include "common/check.h"
#include "kernels/tensor/axes.h"

namespace dpiframe {
namespace {

constexpr std::size_t kMostOperands = 32;

// Whether the axes are walked as one array without gaps is.
bool is_flat(const TileAxes& axes, std::size_t operand) {
  std::int64_t step = 1;
  for (std::size_t axis = axes.sizes.size(); axis-- > 0; step *= axes.sizes[axis])
    if (axes.strides[operand][axis] != step && (axes.sizes[axis] != 1 || axis == 0)) return false;
  return true;
}

bool is_scalar(const TileAxes& axes, std::size_t operand) {
  const auto& strides = axes.strides[operand];
  return std::all_of(strides.begin(), strides.end(), [](std::int64_t s) { return s == 0; });
}

// Functions that no loop computes, one number after another.
void apply_each(Function function, const HostArgument* a, int size, float* out) {
  const auto value = [a](int argument, int i) {
    if (a[argument].data == nullptr) return Values<1>{};
    return Values<1>{{a[argument].data[a[argument].is_scalar ? 0 : i]}};
  };
  for (int i = 0; i < size; ++i)
    out[i] = apply(function, value(0, i), value(1, i), value(2, i)).of[0];
}

void scatter(const float* x, int size, float* out, std::int64_t stride) {
  for (int i = 0; i < size; ++i) out[i * stride] = x[i];
}

}  // namespace

HostMap::HostMap(const MapCode& code, const std::vector<int>& shape,
                 const std::vector<HostInput>& xs, const HostTarget& out,
                 const std::vector<int>& out_strides, const HostLoops& loops)
    : code_(code), xs_(xs), out_(out), loops_(loops) {
  DPIF_CHECK(!xs.empty() && xs.size() <= kMostOperands, "a map on the CPU has 1 to ", kMostOperands,
             " operands, got ", xs.size());
  std::vector<std::vector<std::int64_t>> strides;
  for (const HostInput& x : xs) {
    DPIF_CHECK(x.operand.shape == shape, "a map needs operands of one shape");
    strides.push_back(with_sample(x.sample_stride, x.operand.strides));
  }
  strides.push_back(with_sample(out.sample_stride, out_strides));
  axes_ = tile_axes(shape, strides);
  for (std::size_t i = 0; i < strides.size(); ++i)
    reads_.push_back(is_scalar(axes_, i) ? Read::kScalar
                     : is_flat(axes_, i) ? Read::kFlat
                                         : Read::kRows);
}

std::int64_t HostMap::workspace() const {
  return static_cast<std::int64_t>(kChunk) * (xs_.size() + code_.num_slots + 3);
}

void HostMap::evaluate(const HostArgument* operands, int size, float* workspace, float* out) const {
  const float* last = nullptr;
  for (const Instruction& instruction : code_.instructions) {
    HostArgument arguments[3] = {};
    for (int i = 0; i < 3; ++i) {
      const Argument& a = instruction.arguments[i];
      if (a.kind == ArgumentKind::kOperand) arguments[i] = operands[a.index];
      if (a.kind == ArgumentKind::kNumber) arguments[i] = {&a.number, true};
      if (a.kind == ArgumentKind::kSlot) arguments[i] = {workspace + (a.index + 1) * kChunk, false};
      if (a.kind == ArgumentKind::kLast) arguments[i] = {last, false};
    }
    float* to = workspace + (instruction.slot + 1) * kChunk;  // slot -1: the first chunk
    if (&instruction == &code_.instructions.back()) to = out;
    if (!loops_.apply(instruction.function, arguments, size, to))
      apply_each(instruction.function, arguments, size, to);
    last = to;
  }
}

void HostMap::run_from(const Tile& tile, int first, float* workspace) const {
  std::vector<const float*> bases;
  for (const HostInput& x : xs_)
    bases.push_back(tile.at(x) +
                    (first == 0 ? 0 : static_cast<std::int64_t>(first) * x.operand.strides[0]));
  const int size = axes_.row_size(tile.samples);
  if (axes_.sizes.size() == 1 || size > kChunk / 2)
    run_long_rows(tile, bases, tile.at(out_), workspace);
  else
    run_short_rows(tile, bases, tile.at(out_), workspace);
}

void HostMap::run_long_rows(const Tile& tile, const std::vector<const float*>& bases, float* to,
                            float* workspace) const {
  const std::size_t count = xs_.size();
  const int size = axes_.row_size(tile.samples);
  float* copies = workspace + (code_.num_slots + 1) * kChunk;
  std::vector<HostArgument> operands(count);
  walk_rows(
      axes_, tile.samples, [] { return 1; },
      [&](const std::int64_t* offsets, int) {
        for (int begin = 0; begin < size; begin += kChunk) {
          const int taken = std::min(kChunk, size - begin);
          for (std::size_t i = 0; i < count; ++i) {
            const std::int64_t stride = axes_.stride(i);
            const float* x = bases[i] + offsets[i] + begin * stride;
            operands[i] = {x, stride == 0};
            if (stride < 2) continue;
            loops_.copy_rows(x, 0, stride, 1, taken, copies + i * kChunk, 0);
            operands[i] = {copies + i * kChunk, false};
          }
          const std::int64_t stride = axes_.stride(count);
          float* out = to + offsets[count] + begin * stride;
          float* result = stride == 1 ? out : copies + count * kChunk;
          evaluate(operands.data(), taken, workspace, result);
          if (stride != 1) scatter(result, taken, out, stride);
        }
      });
}

// Rows of a chunk, where they go.
struct HostMap::Chunk {
  struct Run {
    std::int64_t out;
    int rows;
  };
  std::vector<Run> runs;
  int rows = 0;
};

void HostMap::run_short_rows(const Tile& tile, const std::vector<const float*>& bases, float* to,
                             float* workspace) const {
  const std::size_t count = xs_.size();
  const int size = axes_.row_size(tile.samples);
  int most = kChunk / size;
  if (axes_.run_rows() < most) most -= most % axes_.run_rows();  // whole runs
  float* copies = workspace + (code_.num_slots + 1) * kChunk;
  const bool is_flat = reads_[count] == Read::kFlat;
  std::vector<HostArgument> operands(count);
  for (std::size_t i = 0; i < count; ++i)
    operands[i] = {reads_[i] == Read::kRows ? copies + i * kChunk : bases[i],
                   reads_[i] == Read::kScalar};
  Chunk chunk;
  std::int64_t done = 0;
  const auto finish = [&] {
    const int taken = chunk.rows * size;
    float* result = is_flat ? to + done : copies + count * kChunk;
    evaluate(operands.data(), taken, workspace, result);
    for (const Chunk::Run& run : chunk.runs) {
      if (is_flat) break;
      float* out = to + run.out;
      for (int r = 0; r < run.rows; ++r, result += size, out += axes_.row_step(count)) {
        if (axes_.stride(count) == 1)
          loops_.copy_rows(result, 0, 1, 1, size, out, 0);
        else
          scatter(result, size, out, axes_.stride(count));
      }
    }
    for (std::size_t i = 0; i < count; ++i)
      if (reads_[i] == Read::kFlat) operands[i].data += taken;
    done += taken;
    chunk.runs.clear();
    chunk.rows = 0;
  };
  walk_rows(
      axes_, tile.samples, [&] { return most - chunk.rows; },
      [&](const std::int64_t* offsets, int rows) {
        for (std::size_t i = 0; i < count; ++i)
          if (reads_[i] == Read::kRows)
            loops_.copy_rows(bases[i] + offsets[i], axes_.row_step(i), axes_.stride(i), rows, size,
                             copies + i * kChunk + chunk.rows * size, size);
        chunk.runs.push_back({offsets[count], rows});
        chunk.rows += rows;
        if (chunk.rows == most) finish();
      });
  if (chunk.rows > 0) finish();
}

Kernel host_map(const MapOp& op, const std::vector<HostInput>& xs, const HostTarget& out,
                const HostLoops& loops) {
  const std::vector<int>& shape = xs.at(0).operand.shape;
  const MapCode code = compile_expression(op.expression, static_cast<int>(xs.size()));
  return std::make_unique<HostMap>(code, shape, xs, out, row_major(shape), loops);
}

}  // namespace dpiframe
