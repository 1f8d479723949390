// What the launcher of a product tells an epilogue that is an expression.
#pragma once

#include "kernels/gemm/epilogue_params.h"

namespace dpiframe {

constexpr int kMaxMapOperands = 12;

enum class MapOperandKind {
  kRows,         // [rows, columns] of the activation type
  kFloatRows,    // [rows, columns] of float32
  kScalar,       // [rows, 1], the same for all columns
  kFloatScalar,  // likewise, of float32
  kColumns,      // float32 [columns], the same for all rows
};

struct MapOperand {
  const void* data;
  std::int64_t stride;  // elements from one row to the next
  int place_step = 0;   // of a scalar: elements from one place's to the next one's
};

// Sums over the columns of a row of results, and over their squares, a part for each tile of a row:
// part p of row r is [p * ld_partial + r].
struct RowSums {
  float* sums;
  float* squares;
};

// The rows that x comes from, of which mean and variance are wanted.
struct RowMoments {
  RowSums parts;
  int num_parts;
  float columns;
  float eps;
};

struct MapEpilogueParams : EpilogueParams {
  int columns;  // of out and of the operands: n, or half as many where n are those of two products
  MapOperand operands[kMaxMapOperands];
  RowSums row_sums;    // written, under Map::kSummed
  RowMoments moments;  // read, under Map::kNormed
};

}  // namespace dpiframe
