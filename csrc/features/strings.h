// Strings as Arrow lays them out, their bytes end to end, and where each begins; or as views.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "common/check.h"

namespace dpiframe {

template <class Offset>
struct Strings {
  const Offset* offsets;  // [size + 1] into data [num_bytes]
  const std::uint8_t* data;
  std::int64_t num_bytes;
  std::int64_t size;

  std::string_view operator[](std::int64_t i) const {
    return {reinterpret_cast<const char*>(data) + offsets[i],
            static_cast<std::size_t>(offsets[i + 1] - offsets[i])};
  }

  // Throws where offsets decrease or leave the data.
  void check() const {
    bool ordered = offsets[0] >= 0 && offsets[size] <= num_bytes;
    for (std::int64_t i = 0; i < size; ++i) ordered &= offsets[i] <= offsets[i + 1];
    DPIF_CHECK(ordered, "offsets must rise from >= 0 to <= ", num_bytes,
               " (the bytes of data), got ", offsets[0], " to ", offsets[size], " for ", size,
               " values");
  }
};

struct StringViews {
  std::span<const std::string_view> views;
  std::int64_t size = std::ssize(views);

  std::string_view operator[](std::int64_t i) const { return views[i]; }
  void check() const {}
};

}  // namespace dpiframe
