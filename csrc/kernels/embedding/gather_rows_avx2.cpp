// Compiled with -mavx2, and called only where the processor has it. 64-byte registers gained
// nothing over these: the lookup waits for memory.
#ifdef __x86_64__
#include "kernels/embedding/gather_rows_cpu.h"

namespace dpiframe {
namespace {

constexpr int kMaxWidth = 8;
#include "kernels/embedding/gather_rows_loops.h"

}  // namespace

GatherRows gather_rows_for_avx2(std::int64_t dim, bool in_fm) {
  return in_fm ? gather_rows_for_dim<true>(dim) : gather_rows_for_dim<false>(dim);
}

}  // namespace dpiframe
#endif
