// Finds values among distinct known ones: a table of their positions, open addressing.
//
// The values stay where they are, which must outlive the index; it takes 8 to 16 bytes a value
// more.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "common/check.h"
#include "features/strings.h"
#include "features/xxh64.h"

namespace dpiframe {

struct Integers {
  const std::int64_t* values;
  std::int64_t size;

  std::int64_t operator[](std::int64_t i) const { return values[i]; }
};

inline std::uint64_t value_hash(std::string_view value) {
  return xxh64(value.data(), static_cast<std::int64_t>(value.size()), 0);
}

inline std::uint64_t value_hash(std::int64_t value) {
  return xxh64_word(static_cast<std::uint64_t>(value), 0);
}

template <class Values>
class ValueIndex {
 public:
  // Throws where two values are equal.
  explicit ValueIndex(const Values& values) : values_(values) {
    DPIF_CHECK(values.size <= std::numeric_limits<std::int32_t>::max(),
               "at most 2^31 - 1 values, got ", values.size);
    slots_.resize(std::bit_ceil(2 * static_cast<std::uint64_t>(values.size) + 1));
    mask_ = slots_.size() - 1;
    std::int64_t distinct = 0;
    for (std::int64_t i = 0; i < values.size; ++i) {
      std::uint32_t& slot = slots_[slot_of(values[i], value_hash(values[i]))];
      distinct += slot == kFree;
      if (slot == kFree) slot = static_cast<std::uint32_t>(i + 1);
    }
    DPIF_CHECK(distinct == values.size, "values must differ, got ", distinct, " of ", values.size);
  }

  // Asks for the memory that `find` of a value with this hash reads first.
  void prefetch(std::uint64_t hash) const { __builtin_prefetch(&slots_[hash & mask_]); }

  // The position of a value, -1 for one that is not known.
  template <class Value>
  std::int64_t find(const Value& value, std::uint64_t hash) const {
    return static_cast<std::int64_t>(slots_[slot_of(value, hash)]) - 1;
  }

 private:
  static constexpr std::uint32_t kFree = 0;  // other slots hold a position + 1

  // Where the value is, or the free slot where it would be; half of the slots are free at least.
  template <class Value>
  std::uint64_t slot_of(const Value& value, std::uint64_t hash) const {
    std::uint64_t slot = hash & mask_;
    while (slots_[slot] != kFree && values_[slots_[slot] - 1] != value) slot = (slot + 1) & mask_;
    return slot;
  }

  Values values_;
  std::vector<std::uint32_t> slots_;
  std::uint64_t mask_;
};

}  // namespace dpiframe
