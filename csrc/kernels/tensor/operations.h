// Generic operations over per-sample tensors as plain data: what
// dpiframe_core/program/tensor_ops.py describes, with its names, fields and formulas.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "kernels/tensor/expression.h"

namespace dpiframe {

// Element [i, j, ...] of a sample is column offset + i strides[0] + j strides[1] + ...
struct Operand {
  std::vector<int> shape;
  std::vector<int> strides;
  int offset;
};

struct MapOp {
  std::vector<ExpressionToken> expression;  // in postfix order
};
struct ReduceOp {
  std::string function;  // sum, mean, prod, max, min
  std::vector<int> axes;
};
struct SoftmaxOp {
  std::vector<int> axes;
  bool guarded = false;  // 0 where all of a row is -infinity
};
struct LayerNormOp {
  int axes;
  double eps;
};
struct MatMulOp {
  int batch;  // axes of each kind
  int rows;
  int inner;
};
struct JoinOp {
  int outer;
};
struct TakeOp {
  std::vector<int> index;
  int behind;  // axes behind the one that is picked from
};
struct TopKOp {
  int k;
  bool largest;
  bool places;
};
struct TakeAlongOp {
  bool places_first;  // operands are places, x
};
// Of all rows of the operands, `dim` wide: 1/2 sum_d ((sum_r v)^2 - sum_r v^2), as FM has it.
struct FmOp {
  int dim;
};

using TensorOp = std::variant<MapOp, ReduceOp, SoftmaxOp, LayerNormOp, MatMulOp, JoinOp, TakeOp,
                              TopKOp, TakeAlongOp, FmOp>;

}  // namespace dpiframe
