// The pages of a unit unpacked and decoded on this thread, each as one lane of a GPU would do it.
#include <memory>

#include "codec/decompress.h"
#include "parquet/dictionary_values.h"
#include "parquet/gpu/decode_page.cuh"
#include "parquet/stored_chunks.h"

namespace dpiframe::parquet {
namespace {

void unpack(const StoredPage& page, Bytes bytes, std::uint8_t* unpacked) {
  const auto size = static_cast<std::size_t>(page.unpacked_bytes);
  decompress(Codec::kZstd, bytes.subspan(page.packed_at, page.packed_bytes),
             {unpacked + page.unpacked_at, size});
}

template <class Number>
void decode(const StoredColumns& stored, const pages::Unit& unit, Number* out) {
  pages::Scratch scratch;
  for (const StoredPage& page : stored.pages) {
    if (page.kind == PageKind::kDictionary) continue;
    DPIF_CHECK(pages::decode_page(unit, page, stored.rows, scratch, out), "a page of column ",
               page.column, " is corrupt or holds nulls");
  }
}

}  // namespace

void decode_stored(const StoredColumns& stored, std::span<const std::uint8_t> bytes, void* out) {
  constexpr auto kPadding = static_cast<std::int64_t>(kPagePadding);
  DPIF_CHECK(static_cast<std::int64_t>(bytes.size()) - kPadding >= stored.packed_bytes,
             "memory of ", bytes.size(), " bytes for columns of ", stored.packed_bytes,
             " and a padding of ", kPadding);
  DPIF_CHECK(pages::misalignment(bytes.data()) == 0, "memory must begin at a multiple of 4");
  const auto unpacked = std::make_unique_for_overwrite<std::uint8_t[]>(stored.unpacked_bytes);
  for (const StoredPage& page : stored.pages)
    if (page.compressed) unpack(page, bytes, unpacked.get());
  const pages::Unit unit{stored.pages.data(), bytes.data(), unpacked.get()};
  if (stored.number_bytes == sizeof(std::int32_t))
    decode(stored, unit, static_cast<std::int32_t*>(out));
  else
    decode(stored, unit, static_cast<std::int64_t*>(out));
}

}  // namespace dpiframe::parquet
