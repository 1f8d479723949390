#include "parquet/metadata/compact_reader.h"

namespace dpiframe::parquet {

void CompactReader::skip(Type type) {
  switch (type) {
    case kTrue:
    case kFalse:
      return;
    case kByte:
      return skip_bytes(1);
    case kI16:
    case kI32:
    case kI64:
      (void)varint();
      return;
    case kDouble:
      return skip_bytes(8);
    case kBinary:
      (void)binary();
      return;
    case kList:
    case kSet:
      return list([&](Type entry) { skip_entry(entry); });
    case kMap:
      return skip_map();
    case kStruct:
      return fields([&](std::int64_t, Type field) { skip(field); });
    case kUuid:
      return skip_bytes(16);
    default:
      DPIF_CHECK(false, "a header holds a value of unknown type ", static_cast<int>(type));
  }
}

// A bool takes a byte in a list or a map (in a struct it is part of the field's type), so that each
// entry takes one at least, and the time to skip them is linear in their bytes.
void CompactReader::skip_entry(Type type) {
  type == kTrue || type == kFalse ? skip_bytes(1) : skip(type);
}

void CompactReader::skip_map() {
  const Nested nested(*this);
  const std::uint64_t size = varint();
  if (size == 0) return;
  DPIF_CHECK(size <= bytes_.size() - at_, "cut off in a map of a header");
  const std::uint8_t types = byte();
  for (std::uint64_t i = 0; i < size; ++i) {
    skip_entry(static_cast<Type>(types >> 4));
    skip_entry(static_cast<Type>(types & 0xf));
  }
}

}  // namespace dpiframe::parquet
