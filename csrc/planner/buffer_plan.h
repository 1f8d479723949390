// Offsets of all intermediates in one arena.
//
// Two buffers may lie over each other only where the plan proves that every access of one has ended
// before any access of the other starts, by stream order and events: what is launched later on
// another stream may well run earlier.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/plan.h"

namespace dpiframe {

struct BufferPlan {
  // By buffer or view; -1: external, or no step touches it.
  std::vector<std::int64_t> offsets;
  std::int64_t arena_bytes = 0;
  std::int64_t total_bytes = 0;  // of the same buffers without reuse

  std::string to_string() const;
};

// alignment is a power of two, in bytes.
BufferPlan plan_buffers(const Graph& graph, const Plan& plan, std::int64_t alignment);

}  // namespace dpiframe
