// Checks of what a caller passed in. A failed check becomes a ValueError in Python.
//
//   DPIF_CHECK(dim <= 512, "dim must be at most 512, got ", dim, " (field ", field, ")");
//
// The message carries the values, so that the caller need not guess.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace dpiframe {

template <class... Parts>
std::string join_message(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

}  // namespace dpiframe

#define DPIF_CHECK(condition, ...)                                        \
  do {                                                                    \
    if (!(condition)) [[unlikely]]                                        \
      throw std::invalid_argument(::dpiframe::join_message(__VA_ARGS__)); \
  } while (false)
