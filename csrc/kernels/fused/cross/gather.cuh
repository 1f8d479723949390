// How the kernel with cross layers loads its ids and rows.
//
// All ids are on their way before any row is asked for, and whether an id is good is worked out
// without branches, so that loads are put behind one another. The kernel of forward_hopper.cu is no
// faster by this.
#pragma once

#include <cstddef>

#include "kernels/fused/mlp/gather.cuh"

namespace dpiframe {

#ifdef DPIF_HOPPER

struct CrossGather : ForwardGather {
  // Not by __ldg: behind the barrier that follows, next to its use, each would wait for the last.
  __device__ static uint2 read_pair(const char* place) {
    uint2 pair;
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];"
                 : "=r"(pair.x), "=r"(pair.y)
                 : "l"(place)
                 : "memory");
    return pair;
  }
  __device__ static unsigned read_one(const char* place) {
    unsigned one;
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(one) : "l"(place) : "memory");
    return one;
  }

  // Of fields first, first + 2, ..; the last in place of those beyond.
  __device__ void read_ids(int first, ForwardIds& ids) const {
    const bool is_int64 = inputs.ids_are_int64 != 0;
    const char* base = static_cast<const char*>(inputs.ids) + (sample.b << (is_int64 ? 3 : 2));
    const std::int64_t stride = inputs.ids_stride << (is_int64 ? 3 : 2);
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const char* id = base + a.ids_rows[min(first + 2 * u, end - 1)] * stride;
      if (is_int64)
        ids[u] = read_pair(id);
      else
        ids[u] = {read_one(id), 0};
    }
  }

  __device__ bool is_row(const uint2& id, std::uint32_t rows) const {
    const bool is_int64 = inputs.ids_are_int64 != 0;
    const std::uint32_t high = is_int64 ? id.y : static_cast<std::uint32_t>(int(id.x) >> 31);
    return (high == 0) & (id.x < rows);
  }

  __device__ static std::uint64_t join(std::uint32_t low, std::uint32_t high) {
    return std::uint64_t{high} << 32 | low;
  }

  // Their rows to x0. Returns the thread's share of the wide sum.
  __device__ float gather(int first, const ForwardIds& ids) const {
    uint4 pieces[kInFlight] = {};
    float wides[kInFlight] = {};
    std::uint32_t targets[kInFlight];
    bool any_bad = false;
    const std::uint32_t fields_at = shared_address(fields);
    static_assert(offsetof(ForwardField, wide) == 8 && offsetof(ForwardField, rows) == 16 &&
                  offsetof(ForwardField, pieces) == 28);
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int f = first + 2 * u;
      const std::uint32_t field = fields_at + (min(f, end - 1) - begin) * sizeof(ForwardField);
      const uint4 places = load_words(field);        // table, wide
      const uint4 numbers = load_words(field + 16);  // rows, row_bytes, place, pieces
      const std::uint32_t row = ids[u].x;
      const bool present = (f < end) & sample.in_batch;
      const bool good = present & is_row(ids[u], numbers.x);
      const bool has_piece = sample.half < static_cast<int>(numbers.w);
      const std::uint64_t table = join(places.x, places.y);
      const std::uint64_t wide = join(places.z, places.w);
      const std::uint64_t place = table + std::uint64_t{row} * numbers.y + 16 * sample.half;
      if (good & has_piece) pieces[u] = __ldg(reinterpret_cast<const uint4*>(place));
      if (good & (wide != 0) & (sample.half == u % 2))
        wides[u] = __ldg(reinterpret_cast<const float*>(wide) + row);
      targets[u] = (f < end) & has_piece ? x + numbers.z : 0;
      any_bad = any_bad | (present & !good);
    }
    return put(first, pieces, wides, targets, any_bad);
  }
};

#endif  // DPIF_HOPPER

}  // namespace dpiframe
