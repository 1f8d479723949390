#include "planner/buffer_plan.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "common/check.h"

namespace dpiframe {
namespace {

struct Range {
  std::int64_t begin;
  std::int64_t end;
};

// Steps that touch each root buffer, itself or through a view.
std::vector<std::vector<int>> accesses(const Graph& graph) {
  std::vector<std::vector<int>> users(graph.buffers().size());
  for (int step = 0; step < graph.num_steps(); ++step)
    for (const auto* buffers : {&graph.steps()[step].reads, &graph.steps()[step].writes})
      for (const int buffer : *buffers) users[graph.buffers()[buffer].root].push_back(step);
  return users;
}

bool all_before(const Plan& plan, const std::vector<int>& first, const std::vector<int>& second) {
  for (const int a : first)
    for (const int b : second)
      if (!plan.ordered(a, b)) return false;
  return true;
}

// The smallest gap between taken ranges that holds `bytes`, else the end of the last one.
std::int64_t best_fit(std::vector<Range> taken, std::int64_t bytes) {
  std::sort(taken.begin(), taken.end(), [](Range a, Range b) { return a.begin < b.begin; });
  std::int64_t best = -1;
  std::int64_t best_gap = 0;
  std::int64_t end = 0;
  for (const Range range : taken) {
    const std::int64_t gap = range.begin - end;
    if (gap >= bytes && (best < 0 || gap < best_gap)) {
      best = end;
      best_gap = gap;
    }
    end = std::max(end, range.end);
  }
  return best >= 0 ? best : end;
}

}  // namespace

BufferPlan plan_buffers(const Graph& graph, const Plan& plan, std::int64_t alignment) {
  DPIF_CHECK(alignment > 0 && std::has_single_bit(static_cast<std::uint64_t>(alignment)),
             "alignment must be a power of two, got ", alignment);
  DPIF_CHECK(plan.steps().size() == graph.steps().size(), "the plan has ", plan.steps().size(),
             " steps, the graph ", graph.num_steps());
  const std::vector<Buffer>& buffers = graph.buffers();
  const std::vector<std::vector<int>> users = accesses(graph);
  std::vector<int> order(buffers.size());
  std::iota(order.begin(), order.end(), 0);
  // Largest first: small ones then fill the gaps.
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return buffers[a].bytes > buffers[b].bytes; });
  BufferPlan result;
  result.offsets.assign(buffers.size(), -1);
  std::vector<int> placed;
  const auto padded = [&](int buffer) {
    return (buffers[buffer].bytes + alignment - 1) / alignment * alignment;
  };
  for (const int buffer : order) {
    if (buffers[buffer].root != buffer || buffers[buffer].external || users[buffer].empty())
      continue;
    std::vector<Range> taken;
    for (const int other : placed)
      if (!all_before(plan, users[other], users[buffer]) &&
          !all_before(plan, users[buffer], users[other]))
        taken.push_back({result.offsets[other], result.offsets[other] + padded(other)});
    result.offsets[buffer] = best_fit(std::move(taken), padded(buffer));
    result.arena_bytes = std::max(result.arena_bytes, result.offsets[buffer] + padded(buffer));
    result.total_bytes += padded(buffer);
    placed.push_back(buffer);
  }
  for (std::size_t b = 0; b < buffers.size(); ++b)
    if (const std::int64_t root = result.offsets[buffers[b].root]; root >= 0)
      result.offsets[b] = root + buffers[b].offset;
  return result;
}

std::string BufferPlan::to_string() const {
  return join_message("arena of ", arena_bytes, " bytes for ", total_bytes, " bytes of buffers");
}

}  // namespace dpiframe
