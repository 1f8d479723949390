#include "parquet/raw/spread.h"

#include <algorithm>

#include "common/processor.h"
#include "parquet/encodings/rle_runs.h"

namespace dpiframe::parquet {
void spread_codes(Bytes levels, std::int64_t count, const std::int32_t* codes, std::int32_t missing,
                  std::int32_t* out) {
  for_each_run(
      levels, 1, count,
      [&](std::uint32_t level, std::int64_t size) {
        if (level == 0) {
          std::fill_n(out, size, missing);
        } else {
          std::copy_n(codes, size, out);
          codes += size;
        }
        out += size;
      },
      [&](const PackedIndices& packed) {
        std::int64_t i = 0;
#ifdef __x86_64__
        if (has_avx2()) {
          codes += spread_avx2(packed.bits, packed.count / 8, codes, missing, out);
          i = packed.count / 8 * 8;
        }
#endif
        for (; i < packed.count; ++i) {
          const bool there = packed.bits[i / 8] >> i % 8 & 1;
          out[i] = there ? *codes : missing;
          codes += there;
        }
        out += packed.count;
      });
}

}  // namespace dpiframe::parquet
