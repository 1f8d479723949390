// When and on which stream each step of a graph runs, and which events keep the streams in order.
//
// Policies:
//   serial         program order on one stream.
//   depth_first    follows one branch to its end before it launches the next.
//   breadth_first  launches all steps that are equally far from the start before any that is
//                  farther, siblings on different streams, so that parallel branches start
//                  together. This is the breadth-first stream scheduling of arXiv 2606.21101.
//
// Steps on one stream run in launch order. A wait is planned only where neither that order nor an
// earlier wait implies it. Whoever runs a plan makes every stream wait for the work before the plan
// (fork), and the first stream for all others at the end (join).
#pragma once

#include <string>
#include <vector>

#include "planner/graph.h"

namespace dpiframe {

enum class Policy { kSerial, kDepthFirst, kBreadthFirst };

Policy parse_policy(const std::string& name);

struct PlannedStep {
  int step;                // in the graph
  int stream;              // in [0, num_streams)
  std::vector<int> waits;  // events to wait for before the step
  int record = -1;         // event to record after the step; -1: none
};

class Plan {
 public:
  Plan(const Graph& graph, int num_streams, Policy policy);

  const std::vector<PlannedStep>& steps() const { return steps_; }  // in launch order
  int num_events() const { return num_events_; }
  int num_streams() const { return num_streams_; }
  // Whether graph step `a` has ended before `b` starts, in every run of this plan.
  bool ordered(int a, int b) const { return known_[b][stream_[a]] > position_[a]; }
  std::string to_string() const;

 private:
  void assign_streams(const Graph& graph, const std::vector<int>& order, Policy policy);
  void add_events(const Graph& graph);

  int num_streams_;
  int num_events_ = 0;
  std::string policy_name_;
  std::vector<std::string> names_;       // by graph step
  std::vector<PlannedStep> steps_;       // in launch order
  std::vector<int> stream_;              // by graph step
  std::vector<int> position_;            // by graph step: its index on its stream
  std::vector<std::vector<int>> known_;  // [step][stream]: steps there that ended before this one
};

}  // namespace dpiframe
