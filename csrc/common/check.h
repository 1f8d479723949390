// Checks of what a caller passed in. A failed check becomes a ValueError in Python.
//
//   DPIF_CHECK(dim <= 512, "dim must be at most 512, got ", dim, " (field ", field, ")");
//
// The message carries the values, so that the caller need not guess.
#pragma once

#include <concepts>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>

namespace dpiframe {

// No iostreams: where a toolchain links libstdc++ statically, their locale meets the one of the
// libstdc++ that Python's other modules loaded, and writing a number crashes.
inline void append_part(std::string& text, std::string_view part) {
  // A zero byte, as of a column's name in a damaged file, would end what() there.
  for (const char c : part) c == '\0' ? text += "\\0" : text += c;
}

template <std::integral Number>
void append_part(std::string& text, Number number) {
  text += std::to_string(number);
}

inline void append_part(std::string& text, double number) {
  char digits[32];
  std::snprintf(digits, sizeof(digits), "%g", number);
  text += digits;
}

template <class... Parts>
std::string join_message(const Parts&... parts) {
  std::string text;
  (append_part(text, parts), ...);
  return text;
}

}  // namespace dpiframe

#define DPIF_CHECK(condition, ...)                                        \
  do {                                                                    \
    if (!(condition)) [[unlikely]]                                        \
      throw std::invalid_argument(::dpiframe::join_message(__VA_ARGS__)); \
  } while (false)
