// A chain of generic operations on the CPU, run tile by tile: a thread takes a few samples through
// all of them, so that what only these operations need never leaves its cache.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/thread_team.h"
#include "kernels/tensor/host/tile.h"

namespace dpiframe {

struct HostStep {
  struct Input {
    int buffer;
    Operand operand;
  };
  TensorOp op;
  std::vector<Input> inputs;
  int out;  // buffer
  int out_column;
};

// Which buffers a group is given and which are its own.
struct GroupBuffer {
  int width;
  const float* constant;  // [width], which must outlive the group; null: none
  bool is_scratch;        // written and read by steps of the group alone
};

class TensorGroup {
 public:
  // `loops`: the name of an instruction set; empty: the best. ValueError: a step that has no kernel
  // here, or that reads outside its buffer.
  TensorGroup(std::vector<GroupBuffer> buffers, std::vector<HostStep> steps, int num_threads,
              const std::string& loops = "");
  ~TensorGroup();

  // Runs the steps for rows of matrices [rows, width] without gaps, one for each buffer that is
  // neither a constant nor scratch (null for those).
  void run(const std::vector<float*>& matrices, std::int64_t rows);

  int tile_samples() const { return tile_samples_; }
  std::int64_t scratch_floats() const { return scratch_; }  // of one sample
  int num_fused() const { return num_fused_; }

 private:
  struct Worker;

  void check(const HostStep& step) const;
  void add(const HostStep& step);
  bool fuse(const HostStep& map, const HostStep& product);
  bool is_read_once(int buffer) const;
  void place_scratch();
  void run_tile(const std::vector<float*>& matrices, std::int64_t first, int samples,
                Worker& worker) const;

  std::vector<GroupBuffer> buffers_;
  std::vector<HostStep> steps_;
  std::vector<Kernel> kernels_;
  std::vector<std::vector<int>> uses_;  // buffers of each kernel
  std::vector<std::int64_t> offsets_;   // of scratch buffers, in floats of one sample
  std::int64_t scratch_ = 0;
  std::int64_t workspace_ = 0;
  int tile_samples_ = 1;
  int num_fused_ = 0;
  const HostLoops& loops_;
  ThreadTeam team_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace dpiframe
