// A program as the planner sees it: steps in program order that read and write buffers.
//
// The edges are the hazards: a later step depends on an earlier one where both access overlapping
// bytes of one buffer and at least one of them writes (RAW, WAR, WAW).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dpiframe {

// Bytes [offset, offset + bytes) of buffer `root`; a buffer that is no view is its own root.
struct Buffer {
  std::string name;
  std::int64_t bytes;
  std::int64_t offset;
  int root;
  bool external;  // the caller's memory: holds values before the first step and after the last
};

struct Step {
  std::string name;
  std::vector<int> reads;
  std::vector<int> writes;
  double cost;                    // in any unit; only ratios matter
  std::vector<int> predecessors;  // ascending
};

class Graph {
 public:
  int add_buffer(const std::string& name, std::int64_t bytes, bool external);
  // A part of another buffer (or of a view of one).
  int add_view(int parent, std::int64_t offset, std::int64_t bytes);
  // The step comes after all steps added so far. What it reads must be external or written before.
  int add_step(const std::string& name, const std::vector<int>& reads,
               const std::vector<int>& writes, double cost);

  const std::vector<Buffer>& buffers() const { return buffers_; }
  const std::vector<Step>& steps() const { return steps_; }
  int num_steps() const { return static_cast<int>(steps_.size()); }
  // (earlier, later), ascending.
  std::vector<std::pair<int, int>> edges() const;

 private:
  bool overlap(int a, int b) const;
  bool overlap(const std::vector<int>& a, const std::vector<int>& b) const;
  void check_buffers(const std::string& step, const std::vector<int>& buffers) const;

  std::vector<Buffer> buffers_;
  std::vector<Step> steps_;
};

}  // namespace dpiframe
