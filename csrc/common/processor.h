// What the processor can do, asked once.
#pragma once

namespace dpiframe {

inline bool has_avx2() {
#ifdef __x86_64__
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
#else
  return false;
#endif
}

}  // namespace dpiframe
