// The pages of a unit uncompressed and decoded on this thread, each as one lane of a GPU would do
// it: also those of zstd, for which readers have libzstd.
#include <memory>

#include "codec/decompress.h"
#include "codec/zstd/decompress_cpu.h"
#include "parquet/column_pages.h"
#include "parquet/encodings/rle_bit_packed.h"
#include "parquet/gpu/decode_codes.cuh"

namespace dpiframe::parquet {
namespace {

void decompress_page(const Page& page, Bytes bytes, std::uint8_t* uncompressed) {
  const Bytes stored = bytes.subspan(page.compressed_at, page.compressed_bytes);
  const std::span out(uncompressed + page.uncompressed_at,
                      static_cast<std::size_t>(page.uncompressed_bytes));
  if (page.codec == Codec::kZstd)
    unzstd(stored, out);
  else
    decompress(page.codec, stored, out);
}

template <class Number>
bool decode_one(const pages::Unit& views, const Page& page, std::int64_t rows,
                pages::CodesScratch& scratch, Number* out) {
  if constexpr (sizeof(Number) == sizeof(std::int32_t))
    if (pages::is_raw(page.kind)) return pages::decode_codes(views, page, rows, scratch, out);
  if (pages::is_rare(page.kind))
    return pages::decode_page<true>(views, page, rows, scratch.values, out);
  return pages::decode_page<false>(views, page, rows, scratch.values, out);
}

template <class Number>
void decode(const ColumnPages& unit, const pages::Unit& views, Number* out) {
  pages::CodesScratch scratch;
  for (const Page& page : unit.pages) {
    if (page.kind == PageKind::kDictionary) continue;
    DPIF_CHECK(decode_one(views, page, unit.rows, scratch, out), "a page of column ", page.column,
               " is corrupt or holds nulls");
  }
}

}  // namespace

void decode_pages_on_cpu(const ColumnPages& unit, std::span<const std::uint8_t> bytes, void* out) {
  constexpr auto kPadding = static_cast<std::int64_t>(kPagePadding);
  DPIF_CHECK(static_cast<std::int64_t>(bytes.size()) - kPadding >= unit.compressed_bytes,
             "memory of ", bytes.size(), " bytes for columns of ", unit.compressed_bytes,
             " and a padding of ", kPadding);
  DPIF_CHECK(pages::misalignment(bytes.data()) == 0, "memory must begin at a multiple of 4");
  const auto uncompressed = std::make_unique_for_overwrite<std::uint8_t[]>(unit.uncompressed_bytes);
  for (const Page& page : unit.pages)
    if (page.codec != Codec::kNone) decompress_page(page, bytes, uncompressed.get());
  const pages::Unit views{unit.pages.data(), bytes.data(), uncompressed.get()};
  if (unit.number_bytes == sizeof(std::int32_t))
    decode(unit, views, static_cast<std::int32_t*>(out));
  else
    decode(unit, views, static_cast<std::int64_t*>(out));
}

}  // namespace dpiframe::parquet
