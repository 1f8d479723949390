#include "kernels/tensor/expression.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>

#include "common/check.h"

namespace dpiframe {
namespace {

constexpr int kMaxDepth = 1000;

struct Named {
  Function function;
  int arity;
};

// As ARITY of dpiframe_core/program/expression.py.
const std::map<std::string, Named> kFunctions = {
    {"neg", {Function::kNeg, 1}},         {"abs", {Function::kAbs, 1}},
    {"sign", {Function::kSign, 1}},       {"floor", {Function::kFloor, 1}},
    {"ceil", {Function::kCeil, 1}},       {"round", {Function::kRound, 1}},
    {"exp", {Function::kExp, 1}},         {"exp2", {Function::kExp2, 1}},
    {"expm1", {Function::kExpm1, 1}},     {"log", {Function::kLog, 1}},
    {"log2", {Function::kLog2, 1}},       {"log10", {Function::kLog10, 1}},
    {"log1p", {Function::kLog1p, 1}},     {"sqrt", {Function::kSqrt, 1}},
    {"rsqrt", {Function::kRsqrt, 1}},     {"reciprocal", {Function::kReciprocal, 1}},
    {"sigmoid", {Function::kSigmoid, 1}}, {"tanh", {Function::kTanh, 1}},
    {"relu", {Function::kRelu, 1}},       {"erf", {Function::kErf, 1}},
    {"sin", {Function::kSin, 1}},         {"cos", {Function::kCos, 1}},
    {"tan", {Function::kTan, 1}},         {"asin", {Function::kAsin, 1}},
    {"acos", {Function::kAcos, 1}},       {"atan", {Function::kAtan, 1}},
    {"sinh", {Function::kSinh, 1}},       {"cosh", {Function::kCosh, 1}},
    {"not", {Function::kNot, 1}},         {"isfinite", {Function::kIsfinite, 1}},
    {"add", {Function::kAdd, 2}},         {"sub", {Function::kSub, 2}},
    {"mul", {Function::kMul, 2}},         {"div", {Function::kDiv, 2}},
    {"pow", {Function::kPow, 2}},         {"min", {Function::kMin, 2}},
    {"max", {Function::kMax, 2}},         {"atan2", {Function::kAtan2, 2}},
    {"mod", {Function::kMod, 2}},         {"eq", {Function::kEq, 2}},
    {"ne", {Function::kNe, 2}},           {"lt", {Function::kLt, 2}},
    {"le", {Function::kLe, 2}},           {"gt", {Function::kGt, 2}},
    {"ge", {Function::kGe, 2}},           {"and", {Function::kAnd, 2}},
    {"or", {Function::kOr, 2}},           {"where", {Function::kWhere, 3}},
};

struct Node {
  Argument leaf;  // of kind kNone: a function
  Function function = Function::kSame;
  std::vector<int> parts;  // arguments, as places in the list of nodes
  int slots = 0;           // that computing it takes
  int depth = 0;
};

class Compiler {
 public:
  Compiler(const std::vector<ExpressionToken>& postfix, int num_operands) {
    std::vector<int> open;  // values that no function has taken yet
    for (const ExpressionToken& token : postfix) {
      nodes_.push_back(node(token, num_operands, open));
      open.push_back(static_cast<int>(nodes_.size()) - 1);
    }
    DPIF_CHECK(open.size() == 1, "an expression leaves one value, got ", open.size());
    const Node& root = nodes_[open[0]];
    DPIF_CHECK(root.slots <= kMaxSlots, "an expression needs ", root.slots,
               " intermediate results at once, more than ", kMaxSlots);
    code_.num_slots = root.slots;
    if (root.leaf.kind == ArgumentKind::kNone)
      emit(open[0], 0);
    else
      code_.instructions.push_back({Function::kSame, -1, {root.leaf, {}, {}}});
  }

  MapCode take() { return std::move(code_); }

 private:
  // The token as a node, which takes the values that are its arguments from `open`.
  Node node(const ExpressionToken& token, int num_operands, std::vector<int>& open) const {
    Node made;
    if (const double* number = std::get_if<double>(&token)) {
      made.leaf.kind = ArgumentKind::kNumber;
      made.leaf.number = static_cast<float>(*number);
      return made;
    }
    const std::string& name = std::get<std::string>(token);
    const auto found = kFunctions.find(name);
    if (found == kFunctions.end()) {
      made.leaf.kind = ArgumentKind::kOperand;
      made.leaf.index = operand(name, num_operands);
      return made;
    }
    const auto [function, arity] = found->second;
    DPIF_CHECK(open.size() >= static_cast<std::size_t>(arity), "function ", name, " takes ", arity,
               " values, got ", open.size());
    made.function = function;
    made.parts.assign(open.end() - arity, open.end());
    open.resize(open.size() - arity);
    shorten(made);
    const std::vector<int> computed = computed_parts(made);
    for (std::size_t i = 0; i < computed.size(); ++i)
      made.slots = std::max(made.slots, nodes_[computed[i]].slots + static_cast<int>(i));
    for (const int part : made.parts) made.depth = std::max(made.depth, nodes_[part].depth + 1);
    DPIF_CHECK(made.depth <= kMaxDepth, "an expression is nested more than ", kMaxDepth, " deep");
    return made;
  }

  static int operand(const std::string& name, int num_operands) {
    const std::size_t digits = name.find_first_not_of("0123456789", 1);
    DPIF_CHECK(
        name.size() >= 2 && name.size() <= 6 && name[0] == 'x' && digits == std::string::npos,
        "an expression has no function ", name);
    const int index = std::stoi(name.substr(1));
    DPIF_CHECK(index < num_operands, "an expression over ", num_operands, " operands names ", name);
    return index;
  }

  // x ** 2 and x ** 0.5 take no logarithm.
  void shorten(Node& made) const {
    if (made.function != Function::kPow) return;
    const Argument& exponent = nodes_[made.parts[1]].leaf;
    if (exponent.kind != ArgumentKind::kNumber) return;
    if (exponent.number != 2.0f && exponent.number != 0.5f) return;
    made.function = exponent.number == 2.0f ? Function::kSquare : Function::kSqrt;
    made.parts.pop_back();
  }

  // The parts that are no leaves, those that need most slots first.
  std::vector<int> computed_parts(const Node& made) const {
    std::vector<int> found;
    for (const int part : made.parts)
      if (nodes_[part].leaf.kind == ArgumentKind::kNone) found.push_back(part);
    std::stable_sort(found.begin(), found.end(),
                     [this](int a, int b) { return nodes_[a].slots > nodes_[b].slots; });
    return found;
  }

  // Appends instructions whose last leaves the node's value; they use slots from `first` on.
  void emit(int place, int first) {
    const Node& made = nodes_[place];
    const std::vector<int> computed = computed_parts(made);
    std::map<int, Argument> where;
    for (std::size_t i = 0; i < computed.size(); ++i) {
      const int slot = first + static_cast<int>(i);
      emit(computed[i], slot);
      Argument& argument = where[computed[i]];
      argument.kind = i + 1 == computed.size() ? ArgumentKind::kLast : ArgumentKind::kSlot;
      argument.index = slot;
      if (argument.kind == ArgumentKind::kSlot) code_.instructions.back().slot = slot;
    }
    Instruction instruction{made.function, -1, {}};
    for (std::size_t i = 0; i < made.parts.size(); ++i) {
      const Argument& leaf = nodes_[made.parts[i]].leaf;
      instruction.arguments[i] = leaf.kind == ArgumentKind::kNone ? where.at(made.parts[i]) : leaf;
    }
    code_.instructions.push_back(instruction);
  }

  std::vector<Node> nodes_;
  MapCode code_;
};

}  // namespace

MapCode compile_expression(const std::vector<ExpressionToken>& postfix, int num_operands) {
  return Compiler(postfix, num_operands).take();
}

std::vector<float> map_on_host(const MapCode& code, const std::vector<const float*>& xs,
                               std::int64_t size) {
  std::vector<float> out(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) {
    std::array<Values<1>, kMaxSlots> slots{};
    Values<1> last{};
    const auto value = [&](const Argument& argument) {
      if (argument.kind == ArgumentKind::kOperand) return Values<1>{{xs[argument.index][i]}};
      if (argument.kind == ArgumentKind::kNumber) return Values<1>{{argument.number}};
      return argument.kind == ArgumentKind::kSlot ? slots[argument.index] : last;
    };
    for (const Instruction& instruction : code.instructions) {
      const auto& [a, b, c] = instruction.arguments;
      last = apply(instruction.function, value(a), value(b), value(c));
      if (instruction.slot >= 0) slots[instruction.slot] = last;
    }
    out[i] = last.of[0];
  }
  return out;
}

}  // namespace dpiframe
