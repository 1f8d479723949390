// WarpBoxes of csrc/kernels/gemm/tma_boxes.cuh for a warp on the host: copies in place of TMA's.
// Boxes beyond a matrix are read as zeros; a store clips at 16 bytes, as on a GPU.
#pragma once

#include <cstring>

#include "kernels/gemm/epilogue_params.h"
#include "kernels/gemm/sm90_linear.h"

namespace dpiframe {

constexpr int kBoxBytes = 16 * 128;
constexpr int kSlotBytes = 2 * kBoxBytes;

class WarpBoxes {
 public:
  WarpBoxes(const LinearParams& p, int element, unsigned char* memory)
      : p_(p), element_(element), memory_(memory) {}

  void start_read(int slot, int column, std::int64_t row, bool both) const {
    __syncwarp();
    if (threadIdx.x == 0) {
      read(slot, p_.x0, p_.ldx0, column, row);
      if (both) read(slot, p_.xl, p_.ldxl, column, row, kBoxBytes);
    }
    __syncwarp();
  }
  void wait_read(int) const { __syncwarp(); }
  void wait_free(bool) const { __syncwarp(); }
  void store(int slot, int column, std::int64_t row) const {
    __syncwarp();
    const int end = (p_.n * element_ + 15) / 16 * 16 / element_;
    if (threadIdx.x == 0)
      each(slot, column, row, [&](unsigned char* here, int c, std::int64_t r) {
        if (c < end && r < p_.rows)
          std::memcpy(static_cast<unsigned char*>(p_.out) + (r * p_.ldo + c) * element_, here,
                      element_);
      });
    __syncwarp();
  }
  unsigned char* place(int slot, int bytes, int below) const {
    return at(slot, threadIdx.x % 32 / 4 + below * 8, bytes);
  }

 private:
  // Under the 128-byte swizzle.
  unsigned char* at(int slot, int row, int bytes) const {
    return memory_ + slot * kSlotBytes + row * 128 + (bytes ^ row % 8 * 16);
  }
  template <class Do>
  void each(int slot, int column, std::int64_t row, const Do& act) const {
    for (int r = 0; r < 16; ++r)
      for (int byte = 0; byte < 128; byte += element_)
        act(at(slot, r, byte), column + byte / element_, row + r);
  }
  void read(int slot, const void* from, std::int64_t stride, int column, std::int64_t row,
            int offset = 0) const {
    const int width = p_.cross_end - p_.cross_begin;
    each(slot, column, row, [&](unsigned char* here, int c, std::int64_t r) {
      std::memset(here + offset, 0, element_);
      if (c >= 0 && c < width && r < p_.rows)
        std::memcpy(here + offset,
                    static_cast<const unsigned char*>(from) + (r * stride + c) * element_,
                    element_);
    });
  }

  const LinearParams& p_;
  int element_;
  unsigned char* memory_;
};

}  // namespace dpiframe
