// The epilogue of a product that is compiled at load: an expression of its sums and of further
// operands, element by element. It may stand in for TileEpilogue.
//
// A warp owns 16 rows of each block of 64 rows. Its sums go through its part of shared memory, a
// chunk of 64 columns at a time, so that a thread then has eight neighbouring columns of a row:
// operands and results move 16 bytes at a time, whole lines a warp. And so the expression, which
// may be long, is a loop: unrolled for all of a tile's columns it would come from L2, over and
// over, as instructions.
//
// A step is what a warp computes at once: 32 threads' columns, four rows of a chunk. In pingpong a
// scheduler has one warp in the epilogue, so nothing hides a load but the steps before it: operands
// are loaded kAhead steps ahead, those of the first steps before the tile is multiplied, and their
// rows are fetched into L2 by then.
//
// An expression of two products of one x (a gate and what it opens) takes the sums of both: w's
// rows are those of the one and of the other, eight in turn. A tile then has half as many columns
// of out.
//
// `Map` is the expression:
//   static constexpr int kProducts;  1 or 2
//   static constexpr int kOperands;
//   static constexpr MapOperandKind kind(int operand);
//   static constexpr bool aligned(int operand);   rows start at multiples of 16 bytes
//   static constexpr bool kDot;     the results' dot with linear.head goes into head_partial
//   static constexpr bool kSummed;  the sums of the results and of their squares go into row_sums
//   static constexpr bool kNormed;  x ends in the mean of the row's moments, and 1 / deviation
//   static float of(const float (&x)[kProducts + kOperands + 2 * kNormed]);   of the products'
//                                                            elements and the operands'
#pragma once

#include "kernels/gemm/epilogue.cuh"
#include "kernels/gemm/mapped/map_epilogue_params.h"
#include "kernels/gemm/tma_boxes.cuh"
#include "ptx/global_memory.cuh"

namespace dpiframe {

template <class T, int kTileN, bool kScaled, class Map>
class MapEpilogue {
 public:
  using Params = MapEpilogueParams;

  // Of a warp's rows from `first_row` on, and of those 64 below for each further block. `columns`
  // starts at the tile's first, `first_column`; columns from `end` on are of another place.
  __device__ MapEpilogue(const Params& e, const ColumnVectors& columns, const WarpBoxes& boxes,
                         std::int64_t first_row, int first_column)
      : MapEpilogue(e, columns, boxes, first_row, first_column, e.columns, 0) {}
  __device__ MapEpilogue(const Params& e, const ColumnVectors& columns, const WarpBoxes& boxes,
                         std::int64_t first_row, int first_column, int end, int place)
      : e_(e),
        columns_(columns),
        staged_(static_cast<float4*>(boxes.memory())),
        first_row_(first_row),
        num_rows_(static_cast<int>(min(e.linear.rows - first_row, std::int64_t{kTileRows}))),
        first_column_(first_column / kProducts),
        limit_(min(end, first_column_ + kColumns)),
        place_(place) {}

  // Asks for the operands' rows, of which a lane has one, and loads those of the first steps; in
  // FP16x3 only finish() does, for its mainloop needs the registers.
  template <int kBlocks>
  __device__ __forceinline__ void start() {
    const int lane = threadIdx.x % 32;
    const std::int64_t row = first_row_ + lane / 16 * 64 + lane % 16;
    if (lane < 16 * kBlocks && row < e_.linear.rows) {
#pragma unroll
      for (int o = 0; o < Map::kOperands; ++o) {
        if (!Map::aligned(o)) continue;
        if (Map::kind(o) == MapOperandKind::kRows) prefetch<T>(o, row);
        if (Map::kind(o) == MapOperandKind::kFloatRows) prefetch<float>(o, row);
      }
    }
    if (Map::kNormed && lane < 16 * kBlocks && row < e_.linear.rows) start_moments(row);
    if (kScaled && Map::kNormed) finish_moments();
    if (!kScaled) load_first();
  }

  template <int kBlocks>
  __device__ __forceinline__ void finish(const float (&sums)[kBlocks][kTileN / 2],
                                         int tile_in_row) {
    if (kScaled) load_first();
    if (!kScaled && Map::kNormed) finish_moments();
    const int chunks = (limit_ - first_column_ + kChunkColumns - 1) / kChunkColumns;
    int block = 0;
    int chunk = 0;
    Part part = part_of(0, 0);
#pragma unroll 1
    while (block < kBlocks) {
      const Constants constants = load_constants(part);
      __syncwarp();
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
#pragma unroll
        for (int c = 0; c < kChunks; ++c)
          if (block == b && chunk == c) stage(sums[b], c);
      __syncwarp();
      const bool tail = chunk == kChunks - 1;
      if (++chunk == chunks) {
        chunk = 0;
        ++block;
      }
      Part next = part_of(block, chunk);
      if (block == kBlocks) next.rows = 0;
      if (tail)
        compute_chunk<kTailShift>(part, next, constants);
      else
        compute_chunk<kShift>(part, next, constants);
      if (kSums > 0 && chunk == 0) store_sums(part.top, tile_in_row);
      part = next;
    }
  }

 private:
  static constexpr int kProducts = Map::kProducts;
  static constexpr int kColumns = kTileN / kProducts;         // of out
  static constexpr int kSums = Map::kDot + 2 * Map::kSummed;  // of a row of results
  static constexpr int kEach = 8;                             // columns a thread
  static constexpr int kChunk = 64;                           // sums of a row in shared memory
  static constexpr int kChunkColumns = kChunk / kProducts;
  static constexpr int kQuads = 2 * kProducts;  // four sums each, of a thread's columns
  static constexpr int kChunks = (kTileN + kChunk - 1) / kChunk;
  static constexpr int kSteps = 4;     // of a chunk
  static constexpr int kRowParts = 4;  // of a row's sums, and of its squares, in registers
  static constexpr int kTail = kTileN - (kChunks - 1) * kChunk;
  // Threads that share a row, as a power of two: fewer where the last chunk is narrow, which then
  // has fewer steps.
  static constexpr int kShift = 4 - kProducts;
  static constexpr int kTailShift = kShift - (kTail <= 16 ? 2 : kTail <= 32 ? 1 : 0);
  static constexpr int shift_of(int chunk) { return chunk == kChunks - 1 ? kTailShift : kShift; }

  // Registers that hold a thread's part of an operand.
  static constexpr int words(MapOperandKind kind) {
    if (kind == MapOperandKind::kColumns) return 0;
    if (kind == MapOperandKind::kScalar || kind == MapOperandKind::kFloatScalar) return 1;
    return kind == MapOperandKind::kRows ? 2 * static_cast<int>(sizeof(T)) : kEach;
  }
  static constexpr int all_words() {
    int sum = 0;
    for (int o = 0; o < Map::kOperands; ++o) sum += words(Map::kind(o));
    return sum;
  }
  // Steps whose operands are in flight: as many as 32 registers hold. Beside few operands there are
  // registers for the next step's sums, too.
  static constexpr bool kFewOperands = all_words() <= 8 && kProducts == 1;
  static constexpr int kAhead = kFewOperands ? kSteps : all_words() <= 16 ? 2 : 1;

  // A thread's elements of an operand, as they lie in memory.
  struct Raw {
    std::uint32_t words[kEach];
  };
  struct Operands {
    Raw of[Map::kOperands + 1];
  };
  // What is the same in all rows of a chunk.
  struct Constants {
    float bias[kEach * kProducts];
    float scale[kEach * kProducts];
    Operands columns;
  };

  // A thread's part of a chunk: kEach columns of a row in each step.
  struct Part {
    int top;     // the chunk's first row, from the warp's on
    int row;     // of the first step, from the chunk's on
    int step;    // rows from one step to the next
    int rows;    // of the chunk that are there
    int column;  // from the tile's first on
    int count;   // columns that are there, at most kEach
  };

  template <class U>
  __device__ __forceinline__ void prefetch(int o, std::int64_t row) const {
    constexpr int kLine = 128;
    const MapOperand& operand = e_.operands[o];
    const int last = (limit_ - first_column_) * static_cast<int>(sizeof(U)) - 1;
    const char* from = reinterpret_cast<const char*>(static_cast<const U*>(operand.data) +
                                                     row * operand.stride + first_column_);
#pragma unroll
    for (int byte = 0; byte < kColumns * static_cast<int>(sizeof(U)) + kLine; byte += kLine)
      prefetch_l2(from + min(byte, last));
  }

  // The place of four columns of one of 16 rows, swizzled so that neither the eight threads that
  // write two rows at once nor the eight that read one row meet a bank twice.
  __device__ __forceinline__ float4* place(int row, int four) const {
    return staged_ + row * (kChunk / 4) + (four ^ (four >> 3) ^ (row % 2 * 4));
  }

  // A thread's sums of a chunk: its columns of group g are 16 g + 4 (lane % 4) + {0..3}, in rows
  // lane / 4 and 8 below (sm90_epilogue.cuh).
  __device__ __forceinline__ void stage(const float (&sums)[kTileN / 2], int chunk) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kChunk / 16; ++i) {
      const int g = chunk * (kChunk / 16) + i;
      if (g >= kTileN / 16) break;
#pragma unroll
      for (int r = 0; r < 2; ++r)
        *place(lane / 4 + r * 8, i * 4 + lane % 4) =
            make_float4(sums[8 * g + 2 * r], sums[8 * g + 2 * r + 1], sums[8 * g + 2 * r + 4],
                        sums[8 * g + 2 * r + 5]);
    }
  }

  __device__ __forceinline__ Part part_of(int block, int chunk) const {
    const int lane = threadIdx.x % 32;
    const int shift = shift_of(chunk);
    Part part;
    part.top = block * 64;
    part.row = lane >> shift;
    part.step = 32 >> shift;
    part.column = chunk * kChunkColumns + lane % (1 << shift) * kEach;
    part.count = min(kEach, limit_ - first_column_ - part.column);
    part.rows = part.count > 0 ? min(16, num_rows_ - part.top) : 0;
    return part;
  }
  // Where the operands' elements of a part's first step are.
  __device__ __forceinline__ void seek(const Part& part) {
#pragma unroll
    for (int o = 0; o < Map::kOperands; ++o) {
      const MapOperand& operand = e_.operands[o];
      const bool is_scalar =
          Map::kind(o) == MapOperandKind::kScalar || Map::kind(o) == MapOperandKind::kFloatScalar;
      from_[o] = address(static_cast<const char*>(operand.data), element_bytes(o), operand.stride,
                         part.top + part.row,
                         is_scalar ? place_ * operand.place_step : first_column_ + part.column);
    }
  }
  static constexpr int element_bytes(int o) {
    const MapOperandKind kind = Map::kind(o);
    return kind == MapOperandKind::kRows || kind == MapOperandKind::kScalar ? sizeof(T) : 4;
  }
  // Of a row: 32 bits are enough.
  __device__ __forceinline__ static int row_bytes(std::int64_t stride, int element) {
    return static_cast<int>(stride) * element;
  }
  template <class Bytes>
  __device__ __forceinline__ Bytes* address(Bytes* data, int element, std::int64_t stride, int row,
                                            int column) const {
    return data + first_row_ * stride * element + std::int64_t{row} * row_bytes(stride, element) +
           std::int64_t{column} * element;
  }

  // The part's steps; meanwhile the operands of later ones are loaded, into the registers of those
  // that are used up.
  template <int kOwnShift>
  __device__ __forceinline__ void compute_chunk(const Part& part, const Part& next,
                                                const Constants& constants) {
    constexpr int kOwnSteps = kOwnShift == 0 ? 1 : (16 << kOwnShift) / 32;
    // Steps are whole pairs of rows apart: their places differ by so many float4.
    constexpr int kApart = (32 >> kOwnShift) * (kChunk / 4);
    const int four = part.column % kChunkColumns * kProducts / 4;
    const float4* places[kQuads];
    float4 sums[kQuads];
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      places[i] = place(part.row % 16, four + i);
      sums[i] = *places[i];
    }
    char* out = address(static_cast<char*>(e_.linear.out), sizeof(T), e_.linear.ldo,
                        part.top + part.row, first_column_ + part.column);
    Part loaded = part;
#pragma unroll(kAhead > 1 ? kSteps : 1)
    for (int step = 0; step < kSteps; ++step) {
      Operands& operands = ahead_[step % kAhead];
      if (step < kOwnSteps) {
        float4 own[kQuads];
#pragma unroll
        for (int i = 0; i < kQuads; ++i) own[i] = sums[i];
        const int later = min(step + 1, kOwnSteps - 1) * kApart;
        const auto read = [&] {
#pragma unroll
          for (int i = 0; i < kQuads; ++i) sums[i] = places[i][later];
        };
        if (kFewOperands) read();
        compute<kOwnShift>(part, step, constants, operands, own, out);
        if (!kFewOperands) read();
      }
      if (step + kAhead == kSteps) {
        loaded = next;
        seek(next);
      }
      load(loaded, (step + kAhead) % kSteps, operands);
    }
  }

  template <int kOwnShift>
  __device__ __forceinline__ void compute(const Part& part, int step, const Constants& constants,
                                          const Operands& operands, const float4 (&sums)[kQuads],
                                          char* out) {
    // Lane 16 b + r has the moments of row r of block b.
    const int row = part.top / 4 + (part.row + step * part.step) % 16;
    const float mean = Map::kNormed ? __shfl_sync(0xffffffffu, mean_, row) : 0.0f;
    const float scale = Map::kNormed ? __shfl_sync(0xffffffffu, scale_, row) : 0.0f;
    float values[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      float x[kProducts + Map::kOperands + 2 * Map::kNormed];
#pragma unroll
      for (int p = 0; p < kProducts; ++p) {
        const int c = p * kEach + i;
        const float sum = at(sums[c / 4], c % 4);
        x[p] = kScaled ? fmaf(sum, constants.scale[c], constants.bias[c]) : sum + constants.bias[c];
      }
#pragma unroll
      for (int o = 0; o < Map::kOperands; ++o) {
        const bool column = Map::kind(o) == MapOperandKind::kColumns;
        x[kProducts + o] = element(o, column ? constants.columns.of[o] : operands.of[o], i);
      }
      if constexpr (Map::kNormed) {
        x[kProducts + Map::kOperands] = mean;
        x[kProducts + Map::kOperands + 1] = scale;
      }
      values[i] = Map::of(x);
    }
    if constexpr (kSums > 0) add_sums<kOwnShift>(part, step, values);
    const int rows = step * part.step;
    if (part.row + rows < part.rows && (!Map::kDot || e_.linear.out != nullptr))
      store(reinterpret_cast<T*>(out + std::int64_t{rows} * row_bytes(e_.linear.ldo, sizeof(T))),
            part.count, values);
  }

  // A step's rows, each shared by 2^kOwnShift threads, are summed up; lane r gets the sums of the
  // r-th of 16 rows.
  template <int kOwnShift>
  __device__ __forceinline__ void add_sums(const Part& part, int step,
                                           const float (&values)[kEach]) {
    constexpr int kRows = 32 >> kOwnShift;
    float sums[kSums + 1] = {};
    if (part.count > 0) {
      Raw head{};
      if (Map::kDot)
        head = load_row(e_.linear.head + first_column_ + part.column, part.count, true);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (i >= part.count) continue;
        if (Map::kDot) sums[0] = fmaf(values[i], __uint_as_float(head.words[i]), sums[0]);
        if constexpr (Map::kSummed) {
          sums[Map::kDot] += values[i];
          sums[Map::kDot + 1] = fmaf(values[i], values[i], sums[Map::kDot + 1]);
        }
      }
    }
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
#pragma unroll
      for (int lanes = 1; lanes < 1 << kOwnShift; lanes *= 2)
        sums[s] += __shfl_xor_sync(0xffffffffu, sums[s], lanes);
      const float own = __shfl_sync(0xffffffffu, sums[s], lane % kRows << kOwnShift);
      if (lane / kRows == step) sums_[s] += own;
    }
  }
  __device__ __forceinline__ void store_sums(int top, int tile_in_row) {
    const LinearParams& p = e_.linear;
    const int row = top + static_cast<int>(threadIdx.x % 32);
    if (row < min(top + 16, num_rows_)) {
      const std::int64_t place = tile_in_row * p.ld_partial + first_row_ + row;
      if (Map::kDot) p.head_partial[place] = sums_[0];
      if constexpr (Map::kSummed) {
        e_.row_sums.sums[place] = sums_[Map::kDot];
        e_.row_sums.squares[place] = sums_[Map::kDot + 1];
      }
    }
#pragma unroll
    for (float& sum : sums_) sum = 0.0f;
  }
  // Starts the loads of one row's sums, for the lane that asks: they are on their way while the
  // tile is multiplied. Whatever does not fit in kRowParts registers is summed up at once.
  __device__ __forceinline__ void start_moments(std::int64_t row) {
    const RowMoments& m = e_.moments;
#pragma unroll
    for (int i = 0; i < kRowParts; ++i) {
      if (i >= m.num_parts) break;
      row_parts_[i] = m.parts.sums[i * e_.linear.ld_partial + row];
      row_parts_[kRowParts + i] = m.parts.squares[i * e_.linear.ld_partial + row];
    }
    for (int i = kRowParts; i < m.num_parts; ++i) {
      mean_ += m.parts.sums[i * e_.linear.ld_partial + row];
      scale_ += m.parts.squares[i * e_.linear.ld_partial + row];
    }
  }
  // Mean and scale of the row, of what start_moments() asked for.
  __device__ __forceinline__ void finish_moments() {
    const RowMoments& m = e_.moments;
#pragma unroll
    for (int i = 0; i < kRowParts; ++i) {
      mean_ += row_parts_[i];
      scale_ += row_parts_[kRowParts + i];
    }
    mean_ /= m.columns;
    const float variance = scale_ / m.columns - mean_ * mean_;
    // A variance below 0 is rounding; NaN stays NaN.
    scale_ = 1.0f / sqrtf((variance < 0.0f ? 0.0f : variance) + m.eps);
  }

  __device__ __forceinline__ Constants load_constants(const Part& part) const {
    Constants constants{};
    if (part.count <= 0) return constants;
#pragma unroll
    for (int o = 0; o < Map::kOperands; ++o) {
      if (Map::kind(o) == MapOperandKind::kColumns)
        constants.columns.of[o] =
            load_row(static_cast<const float*>(e_.operands[o].data) + first_column_ + part.column,
                     part.count, true);
    }
#pragma unroll
    for (int i = 0; i < kEach * kProducts; ++i) {
      const int four = part.column * kProducts / 4 + i / 4;
      constants.bias[i] = at(columns_.bias[four], i % 4);
      if (kScaled) constants.scale[i] = at(columns_.scale[four], i % 4);
    }
    return constants;
  }

  __device__ __forceinline__ void load_first() {
    const Part part = part_of(0, 0);
    seek(part);
#pragma unroll
    for (int u = 0; u < kAhead; ++u) load(part, u, ahead_[u]);
  }
  // The operands of a step of the part that was sought, where its row is there.
  __device__ __forceinline__ void load(const Part& part, int step, Operands& operands) const {
    const int rows = step * part.step;
    if (part.row + rows >= part.rows) return;
#pragma unroll
    for (int o = 0; o < Map::kOperands; ++o) {
      const char* from =
          from_[o] + std::int64_t{rows} * row_bytes(e_.operands[o].stride, element_bytes(o));
      if (Map::kind(o) == MapOperandKind::kRows)
        operands.of[o] = load_row(reinterpret_cast<const T*>(from), part.count, Map::aligned(o));
      if (Map::kind(o) == MapOperandKind::kFloatRows)
        operands.of[o] =
            load_row(reinterpret_cast<const float*>(from), part.count, Map::aligned(o));
      if (Map::kind(o) == MapOperandKind::kScalar)
        operands.of[o].words[0] = __float_as_uint(to_float(*reinterpret_cast<const T*>(from)));
      if (Map::kind(o) == MapOperandKind::kFloatScalar)
        operands.of[o].words[0] = __float_as_uint(*reinterpret_cast<const float*>(from));
    }
  }
  // Aligned rows are padded to whole vectors: what lies behind the last column may be read.
  template <class U>
  __device__ __forceinline__ Raw load_row(const U* elements, int count, bool aligned) const {
    Raw raw{};
    if (aligned) {
      const auto* vectors = reinterpret_cast<const uint4*>(elements);
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof(U)) / 2; ++i) {
        const uint4 words = vectors[i];
        raw.words[4 * i] = words.x;
        raw.words[4 * i + 1] = words.y;
        raw.words[4 * i + 2] = words.z;
        raw.words[4 * i + 3] = words.w;
      }
      return raw;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i >= count) continue;
      if constexpr (sizeof(U) == 4)
        raw.words[i] = __float_as_uint(elements[i]);
      else
        raw.words[i / 2] |= std::uint32_t{reinterpret_cast<const unsigned short*>(elements)[i]}
                            << (16 * (i % 2));
    }
    return raw;
  }
  __device__ __forceinline__ static float element(int o, const Raw& raw, int i) {
    switch (Map::kind(o)) {
      case MapOperandKind::kRows:
        if constexpr (sizeof(T) == 4) {
          return __uint_as_float(raw.words[i]);
        } else {
          const auto bits = static_cast<unsigned short>(raw.words[i / 2] >> (16 * (i % 2)));
          return to_float(*reinterpret_cast<const T*>(&bits));
        }
      case MapOperandKind::kFloatRows:
      case MapOperandKind::kColumns:
        return __uint_as_float(raw.words[i]);
      default:
        return __uint_as_float(raw.words[0]);
    }
  }

  __device__ __forceinline__ void store(T* target, int count, const float (&values)[kEach]) const {
    if (e_.vectors && count == kEach) {
      alignas(16) T packed[kEach];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float four[4] = {values[4 * half], values[4 * half + 1], values[4 * half + 2],
                               values[4 * half + 3]};
        *reinterpret_cast<Quad<T>*>(packed + 4 * half) = to_quad<T>(four);
      }
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof(packed)) / 16; ++i)
        reinterpret_cast<uint4*>(target)[i] = reinterpret_cast<const uint4*>(packed)[i];
      return;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (i < count) target[i] = from_float<T>(values[i]);
  }

  const Params& e_;
  const ColumnVectors& columns_;
  float4* staged_;  // 16 rows of a chunk
  std::int64_t first_row_;
  int num_rows_;  // from first_row_ on; 0 or less where the tile lies below all rows
  int first_column_;
  int limit_;                   // the first column that is not the tile's
  int place_;                   // of several products that are one
  float sums_[kSums + 1] = {};  // of the row of a block that this lane has
  // Of the row that this lane has; until finish_moments(), sums of further values and squares.
  float mean_ = 0.0f;
  float scale_ = 0.0f;
  float row_parts_[2 * kRowParts]{};        // parts of the sum of its values, then of their squares
  Operands ahead_[kAhead]{};                // of the next steps
  const char* from_[Map::kOperands + 1]{};  // where those of a part's first step are
};

}  // namespace dpiframe
