// Expressions over numbers, element by element, as a list of instructions that a kernel walks.
//
// The host turns an expression in postfix order into instructions, each of which applies a function
// to up to three arguments: elements of operands, numbers, the result of the instruction before, or
// a result that was kept in a slot. Of a function's arguments the one that needs most slots is
// computed first (Sethi and Ullman, 1970), so that slots grow with the logarithm of the expression.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "kernels/tensor/functions.h"

namespace dpiframe {

// A number, the name of an operand ("x0", "x1", ...), or that of a function, which takes the values
// before it.
using ExpressionToken = std::variant<double, std::string>;

constexpr int kMaxSlots = 20;

enum class ArgumentKind : std::int32_t { kNone, kOperand, kNumber, kSlot, kLast };

struct Argument {
  ArgumentKind kind = ArgumentKind::kNone;
  union {
    std::int32_t index = 0;  // of an operand, of a slot
    float number;
  };
};

struct Instruction {
  Function function = Function::kSame;
  std::int32_t slot = -1;  // where the result is kept, too; -1: nowhere
  Argument arguments[3];
};

struct MapCode {
  std::vector<Instruction> instructions;
  int num_slots = 0;
};

// ValueError: no expression, or one over other operands than the `num_operands` there are.
MapCode compile_expression(const std::vector<ExpressionToken>& postfix, int num_operands);

// The expression on the host, for tests: out[i] of xs[operand][i].
std::vector<float> map_on_host(const MapCode& code, const std::vector<const float*>& xs,
                               std::int64_t size);

}  // namespace dpiframe
