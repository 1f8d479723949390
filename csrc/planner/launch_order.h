// The order in which a policy launches the steps of a graph.
#pragma once

#include <vector>

#include "planner/plan.h"

namespace dpiframe {

// Steps on the longest path that ends at each step, the step not counted.
std::vector<int> levels(const Graph& graph);

// A topological order of the graph's steps; the same for the same graph.
std::vector<int> launch_order(const Graph& graph, Policy policy);

}  // namespace dpiframe
