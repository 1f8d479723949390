#include "planner/graph.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"

namespace dpiframe {

int Graph::add_buffer(const std::string& name, std::int64_t bytes, bool external) {
  DPIF_CHECK(bytes >= 0, "bytes must not be negative, got ", bytes, " (buffer ", name, ")");
  const int index = static_cast<int>(buffers_.size());
  buffers_.push_back({name, bytes, 0, index, external});
  return index;
}

int Graph::add_view(int parent, std::int64_t offset, std::int64_t bytes) {
  check_buffers("a view", {parent});
  const Buffer whole = buffers_[parent];
  DPIF_CHECK(offset >= 0 && bytes >= 0 && offset <= whole.bytes && bytes <= whole.bytes - offset,
             "a view must lie within its ", whole.bytes, " bytes, got offset ", offset, " and ",
             bytes, " bytes (buffer ", whole.name, ")");
  const std::string name = join_message(whole.name, "[", offset, ":", offset + bytes, "]");
  buffers_.push_back({name, bytes, whole.offset + offset, whole.root, whole.external});
  return static_cast<int>(buffers_.size()) - 1;
}

int Graph::add_step(const std::string& name, const std::vector<int>& reads,
                    const std::vector<int>& writes, double cost) {
  DPIF_CHECK(std::isfinite(cost) && cost >= 0, "cost must be finite and not negative, got ", cost,
             " (step ", name, ")");
  check_buffers(name, reads);
  check_buffers(name, writes);
  Step step{name, reads, writes, cost, {}};
  for (int earlier = 0; earlier < num_steps(); ++earlier) {
    const Step& other = steps_[earlier];
    if (overlap(other.writes, reads) || overlap(other.reads, writes) ||
        overlap(other.writes, writes))
      step.predecessors.push_back(earlier);
  }
  for (const int buffer : reads) {
    const bool written =
        std::any_of(step.predecessors.begin(), step.predecessors.end(),
                    [&](int earlier) { return overlap(steps_[earlier].writes, {buffer}); });
    DPIF_CHECK(written || buffers_[buffer].external || buffers_[buffer].bytes == 0, "step ", name,
               " reads buffer ", buffers_[buffer].name,
               ", which no earlier step writes; declare it external or write it first");
  }
  steps_.push_back(std::move(step));
  return num_steps() - 1;
}

std::vector<std::pair<int, int>> Graph::edges() const {
  std::vector<std::pair<int, int>> edges;
  for (int step = 0; step < num_steps(); ++step)
    for (const int earlier : steps_[step].predecessors) edges.emplace_back(earlier, step);
  std::sort(edges.begin(), edges.end());
  return edges;
}

bool Graph::overlap(int a, int b) const {
  const Buffer& x = buffers_[a];
  const Buffer& y = buffers_[b];
  return x.root == y.root && x.offset < y.offset + y.bytes && y.offset < x.offset + x.bytes &&
         x.bytes > 0 && y.bytes > 0;
}

bool Graph::overlap(const std::vector<int>& a, const std::vector<int>& b) const {
  for (const int x : a)
    for (const int y : b)
      if (overlap(x, y)) return true;
  return false;
}

void Graph::check_buffers(const std::string& step, const std::vector<int>& buffers) const {
  for (const int buffer : buffers)
    DPIF_CHECK(buffer >= 0 && buffer < static_cast<int>(buffers_.size()), step, " names buffer ",
               buffer, ", the graph has ", buffers_.size());
}

}  // namespace dpiframe
