#include "planner/plan.h"

#include <algorithm>
#include <tuple>

#include "common/check.h"
#include "planner/launch_order.h"

namespace dpiframe {
namespace {

constexpr int kMaxStreams = 64;

std::string policy_name(Policy policy) {
  switch (policy) {
    case Policy::kSerial:
      return "serial";
    case Policy::kDepthFirst:
      return "depth_first";
    case Policy::kBreadthFirst:
      return "breadth_first";
  }
  return "";
}

}  // namespace

Policy parse_policy(const std::string& name) {
  for (const Policy policy : {Policy::kSerial, Policy::kDepthFirst, Policy::kBreadthFirst})
    if (policy_name(policy) == name) return policy;
  DPIF_CHECK(false, "policy must be serial, depth_first or breadth_first, got ", name);
  return Policy::kSerial;
}

Plan::Plan(const Graph& graph, int num_streams, Policy policy)
    : num_streams_(num_streams), policy_name_(policy_name(policy)) {
  DPIF_CHECK(num_streams >= 1 && num_streams <= kMaxStreams, "num_streams must be in [1, ",
             kMaxStreams, "], got ", num_streams);
  for (const Step& step : graph.steps()) names_.push_back(step.name);
  stream_.resize(graph.num_steps());
  position_.resize(graph.num_steps());
  known_.resize(graph.num_steps());
  assign_streams(graph, launch_order(graph, policy), policy);
  add_events(graph);
}

// Each step goes to the stream on which it can start first by the costs; among equals to one where
// a predecessor ran (no event needed), then to the lowest. Breadth first, siblings fill the other
// streams before any stream gets a second one.
void Plan::assign_streams(const Graph& graph, const std::vector<int>& order, Policy policy) {
  const int num_usable = policy == Policy::kSerial ? 1 : num_streams_;
  const std::vector<int> level = levels(graph);
  std::vector<double> free_at(num_usable, 0.0);
  std::vector<int> length(num_usable, 0);
  std::vector<double> end(graph.num_steps(), 0.0);
  std::vector<bool> taken(num_usable, false);  // by a sibling, breadth first
  int current_level = 0;
  for (const int step : order) {
    const bool all_taken = std::all_of(taken.begin(), taken.end(), [](bool is) { return is; });
    if (level[step] != current_level || all_taken) taken.assign(num_usable, false);
    current_level = level[step];
    double ready = 0.0;
    std::vector<bool> has_predecessor(num_usable, false);
    for (const int earlier : graph.steps()[step].predecessors) {
      ready = std::max(ready, end[earlier]);
      has_predecessor[stream_[earlier]] = true;
    }
    int best = -1;
    const auto rank = [&](int stream) {
      return std::tuple(std::max(free_at[stream], ready), !has_predecessor[stream], stream);
    };
    for (int stream = 0; stream < num_usable; ++stream)
      if (!taken[stream] && (best < 0 || rank(stream) < rank(best))) best = stream;
    if (policy == Policy::kBreadthFirst) taken[best] = true;
    stream_[step] = best;
    position_[step] = length[best]++;
    end[step] = free_at[best] = std::max(free_at[best], ready) + graph.steps()[step].cost;
    steps_.push_back({step, best, {}, -1});
  }
}

// known_ is a vector clock: a wait for a step's event inherits what that step knew. Visiting the
// predecessors from the last launched to the first adds no wait that another one implies.
void Plan::add_events(const Graph& graph) {
  std::vector<std::vector<int>> clock(num_streams_, std::vector<int>(num_streams_, 0));
  std::vector<int> place(graph.num_steps());  // in launch order
  for (int p = 0; p < static_cast<int>(steps_.size()); ++p) {
    PlannedStep& planned = steps_[p];
    place[planned.step] = p;
    std::vector<int>& known = clock[planned.stream];
    std::vector<int> earlier = graph.steps()[planned.step].predecessors;
    std::sort(earlier.begin(), earlier.end(), [&](int a, int b) { return place[a] > place[b]; });
    for (const int step : earlier) {
      if (known[stream_[step]] > position_[step]) continue;
      PlannedStep& source = steps_[place[step]];
      if (source.record < 0) source.record = num_events_++;
      planned.waits.push_back(source.record);
      for (int s = 0; s < num_streams_; ++s) known[s] = std::max(known[s], known_[step][s]);
      known[stream_[step]] = std::max(known[stream_[step]], position_[step] + 1);
    }
    known_[planned.step] = known;
    known[planned.stream] = position_[planned.step] + 1;
  }
}

std::string Plan::to_string() const {
  std::string text = join_message(policy_name_, ", ", steps_.size(), " steps, ", num_streams_,
                                  " streams, ", num_events_, " events");
  for (const PlannedStep& planned : steps_) {
    text += join_message("\n  stream ", planned.stream, "  ", names_[planned.step]);
    for (const int event : planned.waits) text += join_message("  waits e", event);
    if (planned.record >= 0) text += join_message("  records e", planned.record);
  }
  return text;
}

}  // namespace dpiframe
