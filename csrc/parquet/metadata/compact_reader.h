// Reads Thrift's compact protocol, in which parquet writes its footer and page headers.
// Whatever the bytes are, nothing outside them is read: what does not fit is an error.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/bytes.h"
#include "common/check.h"

namespace dpiframe::parquet {

class CompactReader {
 public:
  enum Type : int {
    kStop,
    kTrue,
    kFalse,
    kByte,
    kI16,
    kI32,
    kI64,
    kDouble,
    kBinary,
    kList,
    kSet,
    kMap,
    kStruct,
    kUuid
  };

  explicit CompactReader(Bytes bytes, std::size_t at = 0) : bytes_(bytes), at_(at) {}

  std::size_t at() const { return at_; }
  // The bytes read since `from`.
  Bytes since(std::size_t from) const { return bytes_.subspan(from, at_ - from); }

  std::uint8_t byte() {
    DPIF_CHECK(at_ < bytes_.size(), "cut off in a header");
    return bytes_[at_++];
  }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::uint8_t next = byte();
      value |= std::uint64_t{next & 0x7fu} << shift;
      if (next < 0x80) return value;
    }
    DPIF_CHECK(false, "a number in a header does not end");
    return 0;
  }

  std::int64_t integer() {
    const std::uint64_t value = varint();
    return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1);
  }

  std::string_view binary() {
    const std::uint64_t size = varint();
    DPIF_CHECK(size <= bytes_.size() - at_, "cut off in a text of a header");
    const auto* data = reinterpret_cast<const char*>(bytes_.data() + at_);
    at_ += size;
    return {data, size};
  }

  // Calls visit(id, type) for each field of a struct; visit takes the value or skips it. Whether a
  // bool is true is in its type.
  template <class Visit>
  void fields(Visit visit) {
    const Nested nested(*this);
    std::int64_t id = 0;
    while (const std::uint8_t head = byte()) {
      id = head >> 4 != 0 ? id + (head >> 4) : integer();
      DPIF_CHECK(id >= INT16_MIN && id <= INT16_MAX, "a header has a field ", id);
      visit(id, static_cast<Type>(head & 0xf));
    }
  }

  // The number of entries of the list that comes next. It may be a lie up to the bytes left.
  std::uint64_t list_size() const {
    CompactReader ahead(bytes_, at_);
    return ahead.read_list_head().size;
  }

  // Calls visit(type) for each entry of a list.
  template <class Visit>
  void list(Visit visit) {
    const Nested nested(*this);
    const ListHead head = read_list_head();
    for (std::uint64_t i = 0; i < head.size; ++i) visit(head.type);
  }

  void skip(Type type);

 private:
  static constexpr int kDeepest = 32;

  struct Nested {
    explicit Nested(CompactReader& reader) : reader(reader) {
      DPIF_CHECK(++reader.depth_ <= kDeepest, "a header nests too deep");
    }
    ~Nested() { --reader.depth_; }
    CompactReader& reader;
  };

  struct ListHead {
    Type type;
    std::uint64_t size;
  };
  ListHead read_list_head() {
    const std::uint8_t head = byte();
    const std::uint64_t size = head >> 4 == 0xf ? varint() : head >> 4;
    // An entry has a byte at least, so that a size made up does not keep us here for ever.
    DPIF_CHECK(size <= bytes_.size() - at_, "cut off in a list of a header");
    return {static_cast<Type>(head & 0xf), size};
  }

  void skip_bytes(std::size_t count) {
    DPIF_CHECK(count <= bytes_.size() - at_, "cut off in a header");
    at_ += count;
  }
  void skip_entry(Type type);
  void skip_map();

  Bytes bytes_;
  std::size_t at_;
  int depth_ = 0;
};

}  // namespace dpiframe::parquet
