#include "kernels/embedding/gather_rows_cpu.h"

#include "common/processor.h"

namespace dpiframe {
namespace {

constexpr int kMaxWidth = 4;  // 16 bytes: what every x86-64 and 64-bit Arm has
#include "kernels/embedding/gather_rows_loops.h"

}  // namespace

const char* gather_rows_simd() {
  return has_avx2() ? "avx2" : "baseline";
}

GatherRows gather_rows_for(std::int64_t dim, bool in_fm) {
#ifdef __x86_64__
  if (has_avx2()) return gather_rows_for_avx2(dim, in_fm);
#endif
  return in_fm ? gather_rows_for_dim<true>(dim) : gather_rows_for_dim<false>(dim);
}

}  // namespace dpiframe
