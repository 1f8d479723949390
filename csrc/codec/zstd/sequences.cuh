// The sequences section of a block: RFC 8878, 3.1.1.3.2. A sequence copies literals, then a match.
#pragma once

#include "codec/zstd/fse.cuh"
#include "codec/zstd/workspace.cuh"

namespace dpiframe::zstd {

enum Code {
  kLiterals,
  kOffset,
  kMatch,
  kNumCodes
};  // in the order of their tables in a block's header

// Offset of each table in Workspace::tables; the largest accuracy log and the number of symbols.
struct CodeFacts {
  int at;
  int most_log;
  int symbols;
};

DPIF_HOST_DEVICE CodeFacts code_facts(int code) {
  if (code == kLiterals) return {0, 9, 36};
  if (code == kOffset) return {512, 8, 32};
  return {512 + 256, 9, 53};
}

// Extra bits of a symbol, whose value is added to the symbol's baseline.
DPIF_HOST_DEVICE int extra_bits(int code, int symbol) {
  static constexpr std::uint8_t kLiteralsBits[20] = {1, 1, 1, 1,  2,  2,  3,  3,  4,  6,
                                                     7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  static constexpr std::uint8_t kMatchBits[21] = {1, 1, 1, 1,  2,  2,  3,  3,  4,  4, 5,
                                                  7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  if (code == kOffset) return symbol;
  if (code == kLiterals) return symbol < 16 ? 0 : kLiteralsBits[symbol - 16];
  return symbol < 32 ? 0 : kMatchBits[symbol - 32];
}

DPIF_HOST_DEVICE int literals_base(int symbol) {
  static constexpr std::uint32_t kBases[20] = {16,   18,   20,   22,    24,    28,   32,
                                               40,   48,   64,   128,   256,   512,  1024,
                                               2048, 4096, 8192, 16384, 32768, 65536};
  return symbol < 16 ? symbol : static_cast<int>(kBases[symbol - 16]);
}

DPIF_HOST_DEVICE int match_base(int symbol) {
  static constexpr std::uint32_t kBases[21] = {35,   37,   39,   41,   43,    47,    51,
                                               59,   67,   83,   99,   131,   259,   515,
                                               1027, 2051, 4099, 8195, 16387, 32771, 65539};
  return symbol < 32 ? symbol + 3 : static_cast<int>(kBases[symbol - 32]);
}

// The distributions of the predefined tables.
DPIF_HOST_DEVICE int predefined_count(int code, int symbol) {
  static constexpr std::int8_t kLiteralsCounts[36] = {4, 3, 2, 2, 2, 2, 2, 2, 2,  2,  2,  2,
                                                      2, 1, 1, 1, 2, 2, 2, 2, 2,  2,  2,  2,
                                                      2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1};
  static constexpr std::int8_t kOffsetCounts[29] = {1, 1, 1, 1, 1, 1, 2, 2, 2, 1,  1,  1,  1,  1, 1,
                                                    1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1};
  static constexpr std::int8_t kMatchCounts[53] = {
      1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,  1,  1,  1, 1,
      1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1};
  if (code == kLiterals) return kLiteralsCounts[symbol];
  return code == kOffset ? kOffsetCounts[symbol] : kMatchCounts[symbol];
}

enum class TableMode { kPredefined, kRle, kFse, kRepeat };

// Consumes a table's description and builds it.
DPIF_HOST_DEVICE bool read_table(Input& block, int code, TableMode mode, Workspace& workspace,
                                 bool had) {
  const CodeFacts facts = code_facts(code);
  const auto extra = [code](int symbol) { return extra_bits(code, symbol); };
  std::uint32_t* table = workspace.tables + facts.at;
  FseShape shape{code == kOffset ? 5 : 6, code == kOffset ? 29 : facts.symbols};
  if (mode == TableMode::kRepeat) return had;
  if (mode == TableMode::kRle) {
    std::uint32_t symbol = 0;
    if (!block.read(1, symbol) || static_cast<int>(symbol) >= facts.symbols) return false;
    build_table_of_one(table, static_cast<int>(symbol), extra(static_cast<int>(symbol)));
    shape.log = 0;
  } else {
    if (mode == TableMode::kPredefined) {
      for (int i = lanes::index(); i < shape.symbols; i += lanes::kCount)
        workspace.counts[i] = static_cast<std::int16_t>(predefined_count(code, i));
      lanes::sync();
    } else if (!read_distribution(block, facts.most_log, facts.symbols, workspace.counts, shape)) {
      return false;
    }
    build_table(table, workspace.counts, shape, extra);
  }
  if (lanes::index() == 0) workspace.logs[code] = static_cast<std::uint8_t>(shape.log);
  lanes::sync();
  return true;
}

DPIF_HOST_DEVICE bool read_num_sequences(Input& block, int& num) {
  std::uint32_t first = 0, more = 0;
  if (!block.read(1, first)) return false;
  num = static_cast<int>(first);
  if (first < 128) return true;
  if (!block.read(first < 255 ? 1 : 2, more)) return false;
  num = static_cast<int>(first < 255 ? (first - 128) << 8 | more : more + 0x7f00);
  return true;
}

// Copies `literals` literals, then `match` bytes from `offset` bytes before.
struct Sequence {
  int literals = 0;
  int match = 0;
  std::uint32_t offset = 0;
};

// A sequence as it was read: its lengths are not computed yet.
struct RawSequence {
  FseEntry literals;
  FseEntry match;
  std::uint32_t extra;  // the extra bits of the match length, then those of the literals length
  std::uint32_t offset;

  DPIF_HOST_DEVICE Sequence unpack() const {
    const int bits = match.extra();
    return {literals_base(literals.symbol()) + first_bits(extra << bits, literals.extra()),
            match_base(match.symbol()) + first_bits(extra, bits), offset};
  }
};

// The three repeat offsets, the latest first; they outlive a block.
struct RepeatOffsets {
  std::uint32_t first = 1, second = 4, third = 8;

  // The offset that an offset value stands for; 0: invalid.
  DPIF_HOST_DEVICE std::uint32_t resolve(std::uint32_t number, bool no_literals) {
    if (number > 3) {
      third = second, second = first, first = number - 3;
      return first;
    }
    const std::uint32_t which = number + (no_literals ? 1 : 0);
    if (which == 1) return first;
    const std::uint32_t offset = which == 2 ? second : which == 3 ? third : first - 1;
    if (which != 2) third = second;
    second = first, first = offset;
    return offset;
  }
};

// All lanes read the same states, which form a chain: a sequence can be read only after the one
// before it. What the chain does not need is computed by the lane that keeps the sequence.
class SequenceReader {
 public:
  DPIF_HOST_DEVICE bool start(const Input& input, const Workspace& workspace) {
    tables_ = workspace.tables;
    if (!bits_.start(input)) return false;
    bits_.refill();
    const int literals = workspace.logs[kLiterals], offset = workspace.logs[kOffset];
    literals_ = bits_.peek(0, literals);
    offset_ = bits_.peek(literals, offset);
    match_ = bits_.peek(literals + offset, workspace.logs[kMatch]);
    bits_.skip(literals + offset + workspace.logs[kMatch]);
    return true;
  }

  // The next states depend only on the tables and on the number of bits read, so all bits of a
  // sequence are read at once where they are ready; else after a refill each.
  DPIF_HOST_DEVICE RawSequence next(RepeatOffsets& repeat_offsets, bool is_last) {
    const FseEntry literals{tables_[code_facts(kLiterals).at + literals_]};
    const FseEntry offset{tables_[code_facts(kOffset).at + offset_]};
    const FseEntry match{tables_[code_facts(kMatch).at + match_]};
    const int lengths = match.extra() + literals.extra();
    const int states = literals.bits() + match.bits() + offset.bits();
    const bool no_literals = literals.symbol() == 0;
    bits_.refill();
    const std::uint32_t number = (1u << offset.extra()) + bits_.peek(0, offset.extra());
    if (offset.extra() + lengths + states < bits_.ready() && !is_last) {
      const std::uint32_t extra = bits_.top(offset.extra());
      go_on(bits_.top(offset.extra() + lengths), literals, match, offset);
      bits_.skip(offset.extra() + lengths + states);
      return {literals, match, extra, repeat_offsets.resolve(number, no_literals)};
    }
    bits_.skip(offset.extra());
    bits_.refill();
    const std::uint32_t extra = bits_.top();
    bits_.skip(lengths);
    if (!is_last) {
      bits_.refill();
      go_on(bits_.top(), literals, match, offset);
      bits_.skip(states);
    }
    return {literals, match, extra, repeat_offsets.resolve(number, no_literals)};
  }

  DPIF_HOST_DEVICE bool at_end() const { return bits_.left() == 0; }

 private:
  // `bits` begin with those of the next states.
  DPIF_HOST_DEVICE void go_on(std::uint32_t bits, FseEntry literals, FseEntry match,
                              FseEntry offset) {
    literals_ = literals.base() + first_bits(bits, literals.bits());
    match_ = match.base() + first_bits(bits << literals.bits(), match.bits());
    offset_ = offset.base() + first_bits(bits << (literals.bits() + match.bits()), offset.bits());
  }

  BackwardBits bits_;
  const std::uint32_t* tables_;
  int literals_, offset_, match_;  // states
};

}  // namespace dpiframe::zstd
