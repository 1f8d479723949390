#include "planner/launch_order.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace dpiframe {
namespace {

std::vector<std::vector<int>> successors(const Graph& graph) {
  std::vector<std::vector<int>> successors(graph.num_steps());
  for (const auto& [earlier, later] : graph.edges()) successors[earlier].push_back(later);
  return successors;
}

// Cost of the most expensive path from each step to the end, the step included: its urgency.
std::vector<double> remaining_costs(const Graph& graph) {
  std::vector<double> remaining(graph.num_steps(), 0.0);
  for (int step = graph.num_steps() - 1; step >= 0; --step) {
    remaining[step] += graph.steps()[step].cost;
    for (const int earlier : graph.steps()[step].predecessors)
      remaining[earlier] = std::max(remaining[earlier], remaining[step]);
  }
  return remaining;
}

// A stack: steps that a step makes ready are launched before those that were ready earlier.
std::vector<int> depth_first(const Graph& graph) {
  const std::vector<std::vector<int>> next = successors(graph);
  const std::vector<double> remaining = remaining_costs(graph);
  std::vector<int> num_missing(graph.num_steps());
  std::vector<int> stack;
  std::vector<int> order;
  const auto push_ready = [&](std::vector<int> ready) {
    std::sort(ready.begin(), ready.end(), [&](int a, int b) {
      return std::tuple(remaining[a], -a) < std::tuple(remaining[b], -b);
    });
    stack.insert(stack.end(), ready.begin(), ready.end());
  };
  std::vector<int> ready;
  for (int step = 0; step < graph.num_steps(); ++step) {
    num_missing[step] = static_cast<int>(graph.steps()[step].predecessors.size());
    if (num_missing[step] == 0) ready.push_back(step);
  }
  push_ready(std::move(ready));
  while (!stack.empty()) {
    const int step = stack.back();
    stack.pop_back();
    order.push_back(step);
    std::vector<int> now_ready;
    for (const int later : next[step])
      if (--num_missing[later] == 0) now_ready.push_back(later);
    push_ready(std::move(now_ready));
  }
  return order;
}

std::vector<int> breadth_first(const Graph& graph) {
  const std::vector<int> level = levels(graph);
  const std::vector<double> remaining = remaining_costs(graph);
  std::vector<int> order(graph.num_steps());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    return std::tuple(level[a], -remaining[a], a) < std::tuple(level[b], -remaining[b], b);
  });
  return order;
}

}  // namespace

std::vector<int> levels(const Graph& graph) {
  std::vector<int> level(graph.num_steps(), 0);
  for (int step = 0; step < graph.num_steps(); ++step)
    for (const int earlier : graph.steps()[step].predecessors)
      level[step] = std::max(level[step], level[earlier] + 1);
  return level;
}

std::vector<int> launch_order(const Graph& graph, Policy policy) {
  if (policy == Policy::kDepthFirst) return depth_first(graph);
  if (policy == Policy::kBreadthFirst) return breadth_first(graph);
  std::vector<int> order(graph.num_steps());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

}  // namespace dpiframe
