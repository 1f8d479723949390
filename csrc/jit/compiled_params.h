// The one parameter of a kernel that is compiled at load for a step of a program.
//
//   extern "C" __global__ void name(const __grid_constant__ CompiledParams p)
//
// It is launched early (cuda/programmatic_launch.cuh): it must call await_predecessor() before it
// reads or writes a view.
#pragma once

namespace dpiframe {

constexpr int kMaxCompiledViews = 16;
constexpr int kMaxCompiledWeights = 128;

// Row r of a matrix of float32 or of the activation type begins `stride` elements a row on.
struct CompiledView {
  void* data;
  long long stride;
};

struct CompiledParams {
  long long rows;                         // samples
  CompiledView views[kMaxCompiledViews];  // those that are read, then those that are written
  const void* weights[kMaxCompiledWeights];
};

}  // namespace dpiframe
