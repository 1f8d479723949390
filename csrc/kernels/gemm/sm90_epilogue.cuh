// The epilogue of a product on Hopper: epilogue.cuh's steps for a tile.
//
// A warp owns 16 rows of a tile, a thread two of them (lane / 4 and 8 below). wgmma gives a thread
// pairs of columns; the rows of a prepared weight are in such an order (physical_row) that two
// pairs are the four columns 16 g + 4 (lane % 4) + {0..3} of group g, so threads exchange nothing.
// Groups that fill a TMA box of 128 bytes go through shared memory (tma_boxes.cuh), the others
// straight to device memory.
#pragma once

#include "kernels/gemm/epilogue.cuh"
#include "kernels/gemm/tma_boxes.cuh"

namespace dpiframe {

// A thread's two rows of one tile.
template <class T, int kTileN, bool kScaled>
class TileEpilogue {
 public:
  using Params = EpilogueParams;

  // `columns` starts at the tile's first, `first_column`.
  __device__ TileEpilogue(const EpilogueParams& e, const ColumnVectors& columns, WarpBoxes& boxes,
                          std::int64_t first_row, int first_column)
      : e_(e),
        columns_(columns),
        boxes_(boxes),
        first_row_(first_row),
        row_(first_row + threadIdx.x % 32 / 4),
        own_(threadIdx.x % 4 * 4),
        first_column_(first_column),
        num_boxes_(min(kBoxes, max(0, e.boxes_end - first_column) / (kBoxGroups * 16))) {}

  // Starts the loads of the first two boxes of x0 and xl.
  template <int kBlocks>
  __device__ void start() {
    start_reads();
  }

  // sums: wgmma's accumulators of each block of 64 rows, which are used up; `part`: the index of
  // this tile's partial head sum. The blocks run the same code, one after the other, so that the
  // second finds it in the instruction cache.
  template <int kBlocks>
  __device__ __forceinline__ void finish(float (&sums)[kBlocks][kTileN / 2], int part) {
#pragma unroll 1
    for (int b = 0; b < kBlocks; ++b) {
      finish_block(sums[0], part);
      if (b + 1 == kBlocks) break;
      first_row_ += 64;
      row_ += 64;
      start_reads();
#pragma unroll
      for (int i = 0; i < kTileN / 2; ++i) sums[0][i] = sums[kBlocks - 1][i];
    }
  }

 private:
  __device__ void start_reads() {
    if (!crosses()) return;
    for (int box = 0; box < 2 && box < num_boxes_; ++box) start_read(box);
  }

  __device__ __forceinline__ void finish_block(const float (&sums)[kTileN / 2], int part) {
    const LinearParams& p = e_.linear;
    dots_[0] = dots_[1] = 0.0f;
    const bool head = p.head_partial != nullptr;
    if (!e_.vectors)
      finish_singly(sums);
    else if (crosses())
      head ? finish_groups<true, true>(sums) : finish_groups<true, false>(sums);
    else
      head ? finish_groups<false, true>(sums) : finish_groups<false, false>(sums);
    if (!head) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float dot = dots_[r];
      dot += __shfl_xor_sync(0xffffffffu, dot, 1);
      dot += __shfl_xor_sync(0xffffffffu, dot, 2);
      const std::int64_t row = row_ + r * 8;
      if (threadIdx.x % 4 == 0 && row < p.rows) p.head_partial[part * p.ld_partial + row] = dot;
    }
  }

  static constexpr int kGroups = kTileN / 16;
  static constexpr int kBoxGroups = 8 / sizeof(T);
  static constexpr int kBoxes = kGroups / kBoxGroups;

  // A thread's sums of a group: four columns of both of its rows.
  struct Four {
    float of[2][4];
    __device__ __forceinline__ Four(const float (&sums)[kTileN / 2], int g)
        : of{{sums[8 * g], sums[8 * g + 1], sums[8 * g + 4], sums[8 * g + 5]},
             {sums[8 * g + 2], sums[8 * g + 3], sums[8 * g + 6], sums[8 * g + 7]}} {}
  };
  // Of a thread's four columns of a group, for both of its rows.
  struct Columns {
    float4 bias;
    float4 least;
    float4 scale;
    float4 head;
    bool crossed;
  };

  __device__ bool crosses() const {
    const LinearParams& p = e_.linear;
    return first_column_ < p.cross_end && first_column_ + kTileN > p.cross_begin;
  }
  __device__ int box_column(int box) const { return first_column_ + box * kBoxGroups * 16; }
  __device__ void start_read(int box) const {
    boxes_.start_read(box % 2, box_column(box) - e_.linear.cross_begin, first_row_, !e_.xl_is_x0);
  }

  // Boxes first, then the groups of columns that are in none: what runs for nearly every tile lies
  // in one piece. A jump over code that does not run costs a warp a wait for instructions.
  template <bool kCross, bool kHead>
  __device__ __forceinline__ void finish_groups(const float (&sums)[kTileN / 2]) {
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      if (box >= num_boxes_) break;
      if (kCross && box > 0 && box + 1 < num_boxes_) start_read(box + 1);
      if (kCross)
        boxes_.wait_read(box % 2);
      else
        boxes_.wait_free(box == 0);
      // A group's operands are read before the results of the one ahead are written, and so are
      // there in time.
      Boxed next = read_boxed<kCross, kHead>(box * kBoxGroups);
#pragma unroll
      for (int g = box * kBoxGroups; g < (box + 1) * kBoxGroups; ++g) {
        const Boxed now = next;
        if (g + 1 < (box + 1) * kBoxGroups) next = read_boxed<kCross, kHead>(g + 1);
        finish_boxed<kCross, kHead>(g, Four(sums, g), now);
      }
      if (e_.linear.out != nullptr) boxes_.store(box % 2, box_column(box), first_row_);
    }
    if (kGroups % kBoxGroups > 0 && first_column_ + kBoxes * kBoxGroups * 16 < e_.linear.n) {
#pragma unroll
      for (int g = kBoxes * kBoxGroups; g < kGroups; ++g)
        finish_direct<kCross, kHead>(g, Four(sums, g));
    }
    if (__builtin_expect(num_boxes_ == kBoxes, true)) return;
#pragma unroll
    for (int g = 0; g < kBoxes * kBoxGroups; ++g)
      if (g >= num_boxes_ * kBoxGroups) finish_direct<kCross, kHead>(g, Four(sums, g));
  }

  template <bool kCross, bool kHead>
  __device__ __forceinline__ Columns columns_of(int group) const {
    const int four = group * 4 + own_ / 4;
    const int column = first_column_ + group * 16 + own_;
    const LinearParams& p = e_.linear;
    return {columns_.bias[four], columns_.least[four], kScaled ? columns_.scale[four] : float4{},
            kHead ? columns_.head[four] : float4{},
            kCross && column >= p.cross_begin && column < p.cross_end};
  }

  // What the results of a group depend on beside its sums.
  struct Boxed {
    Columns columns;
    Quad<T> x0[2];
    Quad<T> xl[2];
  };
  __device__ __forceinline__ Quad<T>* place(int group, int r) const {
    const int bytes = (group % kBoxGroups * 16 + own_) * static_cast<int>(sizeof(T));
    return reinterpret_cast<Quad<T>*>(boxes_.place(group / kBoxGroups % 2, bytes, r));
  }
  template <bool kCross, bool kHead>
  __device__ __forceinline__ Boxed read_boxed(int group) const {
    Boxed boxed{columns_of<kCross, kHead>(group), {}, {}};
#pragma unroll
    for (int r = 0; kCross && r < 2; ++r) {
      const Quad<T>* from = place(group, r);
      boxed.x0[r] = *from;
      boxed.xl[r] = e_.xl_is_x0 ? *from : from[kBoxBytes / sizeof(Quad<T>)];
    }
    return boxed;
  }
  // In the warp's box: the result overwrites x0.
  template <bool kCross, bool kHead>
  __device__ __forceinline__ void finish_boxed(int group, const Four& four, const Boxed& boxed) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      *place(group, r) =
          finish_quad<kCross, kHead>(boxed.columns, r, four.of[r], boxed.x0[r], boxed.xl[r]);
  }

  // From and to device memory. x0 and xl of both rows are loaded before any is used. Four columns
  // that n or the cross range ends in are finished one by one.
  template <bool kCross, bool kHead>
  __device__ __forceinline__ void finish_direct(int group, const Four& four) {
    const LinearParams& p = e_.linear;
    const int column = first_column_ + group * 16 + own_;
    const auto ends = [column](int end) { return column < end && column + 4 > end; };
    if (ends(p.n) || (kCross && ends(p.cross_end))) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        dots_[r] += finish_each<T, kScaled>(
            p, columns_, row_ + r * 8, first_column_, group * 16 + own_,
            make_float4(four.of[r][0], four.of[r][1], four.of[r][2], four.of[r][3]));
      return;
    }
    const Columns columns = columns_of<kCross, kHead>(group);
    Quad<T> x0[2];
    Quad<T> xl[2];
#pragma unroll
    for (int r = 0; kCross && r < 2; ++r) {
      const std::int64_t row = row_ + r * 8;
      if (!columns.crossed || row >= p.rows || column >= p.n) continue;
      x0[r] = *quad(static_cast<const T*>(p.x0) + row * p.ldx0 + column - p.cross_begin);
      xl[r] = e_.xl_is_x0
                  ? x0[r]
                  : *quad(static_cast<const T*>(p.xl) + row * p.ldxl + column - p.cross_begin);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::int64_t row = row_ + r * 8;
      const Quad<T> result = finish_quad<kCross, kHead>(columns, r, four.of[r], x0[r], xl[r]);
      if (p.out == nullptr || column >= p.n || row >= p.rows) continue;
      *const_cast<Quad<T>*>(quad(static_cast<T*>(p.out) + row * p.ldo + column)) = result;
    }
  }
  __device__ static const Quad<T>* quad(const T* first) {
    return reinterpret_cast<const Quad<T>*>(first);
  }

  // Four columns of one of the two rows; adds their part to the row's dot.
  template <bool kCross, bool kHead>
  __device__ __forceinline__ Quad<T> finish_quad(const Columns& columns, int r,
                                                 const float (&sums)[4], const Quad<T>& x0,
                                                 const Quad<T>& xl) {
    float values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float sum = kScaled ? fmaf(sums[i], at(columns.scale, i), at(columns.bias, i))
                                : sums[i] + at(columns.bias, i);
      values[i] = at_least(sum, at(columns.least, i));
      if (kCross && columns.crossed)
        values[i] = fmaf(to_float(x0.values[i]), values[i], to_float(xl.values[i]));
      if (kHead) dots_[r] = fmaf(values[i], at(columns.head, i), dots_[r]);
    }
    return to_quad<T>(values);
  }

  // At any alignment, one element at a time.
  __device__ __forceinline__ void finish_singly(const float (&sums)[kTileN / 2]) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float4 four{sums[8 * g + 2 * r], sums[8 * g + 2 * r + 1], sums[8 * g + 4 + 2 * r],
                          sums[8 * g + 5 + 2 * r]};
        dots_[r] += finish_each<T, kScaled>(e_.linear, columns_, row_ + r * 8, first_column_,
                                            g * 16 + own_, four);
      }
  }

  const EpilogueParams& e_;
  const ColumnVectors& columns_;
  WarpBoxes& boxes_;
  std::int64_t first_row_;
  std::int64_t row_;
  int own_;  // the thread's first column in each group of 16
  int first_column_;
  int num_boxes_;
  float dots_[2];
};

}  // namespace dpiframe
