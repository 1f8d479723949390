// What the launcher of a product tells its epilogue.
#pragma once

#include <cstddef>
#include <cstdint>
#ifndef __CUDACC_RTC__
#include <algorithm>
#include <limits>
#endif

#include "kernels/gemm/linear.h"

namespace dpiframe {

struct EpilogueParams {
  LinearParams linear;
  const float* column_scale;  // [n] or null: multiplies the sums, before the bias
  bool vectors;               // four columns can be moved at once, but where a range of them ends
  int boxes_end;              // TMA boxes of 16 rows x 128 bytes are used before this column
  bool xl_is_x0;              // the first cross layer: read once
};

#ifndef __CUDACC_RTC__

inline bool are_quads(const void* pointer, std::int64_t stride, std::size_t element) {
  return reinterpret_cast<std::uintptr_t>(pointer) % (4 * element) == 0 && stride % 4 == 0;
}

inline EpilogueParams epilogue_params(const LinearParams& p, std::size_t element) {
  const bool cross = p.cross_begin < p.cross_end;
  const bool vectors = are_quads(p.out, p.ldo, element) &&
                       (!cross || (are_quads(p.x0, p.ldx0, element) &&
                                   are_quads(p.xl, p.ldxl, element) && p.cross_begin % 4 == 0));
  const auto is_box = [&](const void* pointer, std::int64_t stride) {
    return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0 && stride * element % 16 == 0;
  };
  const bool boxes =
      vectors && is_box(p.out, p.ldo) && (!cross || (is_box(p.x0, p.ldx0) && is_box(p.xl, p.ldxl)));
  // A TMA store clips a box at 16 bytes, not at an element.
  const int n_end = p.n * element % 16 == 0 ? std::numeric_limits<int>::max() : p.n;
  // Four columns that the cross range ends in are in no box.
  const int boxes_end = cross && p.cross_end % 4 != 0 ? std::min(n_end, p.cross_end) : n_end;
  const bool xl_is_x0 = cross && p.x0 == p.xl && p.ldx0 == p.ldxl;
  return {p, nullptr, vectors, boxes ? boxes_end : 0, xl_is_x0};
}

#endif

}  // namespace dpiframe
