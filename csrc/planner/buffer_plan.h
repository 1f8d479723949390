// Offsets of all intermediates in one arena.
//
// Two buffers may share bytes only where stream order and events prove that every access of one
// ends before any access of the other starts: a step that is launched later on another stream may
// run earlier.
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
