#include "parquet/raw/encoded_pages.h"

#include <algorithm>

#include "parquet/encodings/rle_bit_packed.h"
#include "parquet/page_lister.h"
#include "parquet/raw/encoded_chunk.h"
#include "parquet/raw/read_encoded.h"
#include "parquet/unit_chunks.h"

namespace dpiframe::parquet {
namespace {

constexpr std::int64_t kLongPage = 512 << 10;  // 20,000 texts of eight bytes have 240 KB
constexpr auto kPadding = static_cast<std::int64_t>(kPagePadding);

// Lists chunks whose pages a GPU decodes to codes, the codes of their dictionaries behind all else
// that is there.
class CodePageLister final : public PageLister {
 public:
  CodePageLister(ColumnPages& found, std::span<std::uint8_t> bytes)
      : PageLister(found, bytes), room_(bytes) {}

  // Appends the pages of a chunk, or nothing. std::invalid_argument where one of them is not taken.
  void add_chunk(const UnitChunk& unit_chunk, RawKind kind, const ValueEncoder& encoder) {
    kind_ = kind, encoder_ = &encoder;
    const std::size_t pages = found_.pages.size();
    const std::int64_t compressed = found_.compressed_bytes;
    const std::int64_t uncompressed = found_.uncompressed_bytes;
    try {
      add(unit_chunk, most_of(kind));
    } catch (...) {
      found_.pages.resize(pages);
      found_.compressed_bytes = compressed, found_.uncompressed_bytes = uncompressed;
      throw;
    }
  }

  // Encodes a chunk here: pages of codes, of which many warps decode some each.
  void encode_chunk(const UnitChunk& unit_chunk, RawKind kind, const ValueEncoder& encoder) {
    constexpr std::int64_t kPageRows = 16 << 10;
    const std::span<Code> codes = take_codes(unit_chunk.rows);
    thread_local EncodedChunkReader reader;
    struct Trim {
      ~Trim() { reader.trim(); }
    } const at_the_end;
    const EncodedTarget target{&encoder, codes.data()};
    const ChunkForm form{.codec = unit_chunk.chunk->codec,
                         .optional = unit_chunk.optional,
                         .values = unit_chunk.rows,
                         .most_of_value = most_of(kind)};
    reader.read(bytes_.subspan(unit_chunk.at, unit_chunk.chunk->bytes), form, kind, {&target, 1},
                0);
    const auto* begin = reinterpret_cast<const std::uint8_t*>(codes.data());
    for (std::int64_t row = 0; row < unit_chunk.rows; row += kPageRows) {
      const std::int64_t rows = std::min(kPageRows, unit_chunk.rows - row);
      Page page = page_of_codes(begin - bytes_.data() + row * kCodeBytes, rows);
      page.kind = PageKind::kPlain;
      page.row = unit_chunk.row + row;
      page.column = static_cast<std::int32_t>(unit_chunk.name);
      found_.pages.push_back(page);
    }
    found_.check_memory();
  }

 private:
  static constexpr std::int64_t kCodeBytes = sizeof(Code);

  void add_dictionary(const PageHeader& header, std::int64_t at) override {
    thread_local ScratchBytes memory;
    struct Trim {
      ~Trim() { memory.trim(); }
    } const at_the_end;
    const Codec codec = chunk().chunk->codec;
    const Bytes values = uncompressed_page(codec, bytes_.subspan(at, header.bytes),
                                           header.uncompressed_bytes, memory);
    const std::span<Code> codes = take_codes(header.num_values);
    Code* const out = codes.data();
    const EncodedTarget target{encoder_, out};
    encode_plain(values, kind_, codes.size(), {&target, 1}, {&out, 1});
    Page page = page_of_codes(reinterpret_cast<const std::uint8_t*>(out) - bytes_.data(),
                              header.num_values);
    page.kind = PageKind::kDictionary;
    page.row = chunk().row;
    page.column = static_cast<std::int32_t>(chunk().name);
    dictionary_ = static_cast<std::int32_t>(found_.pages.size());
    found_.pages.push_back(page);
  }

  void add_data(const PageHeader& header, std::int64_t at, std::int64_t row) override {
    Page page = page_of(header, at, row, header.num_values);
    page.missing = encoder_->missing();
    if (header.type == PageType::kDataV2) {
      pass_levels_apart(header, page);
    } else if (chunk().optional) {
      DPIF_CHECK(header.levels == Encoding::kRle, "levels of encoding ",
                 static_cast<int>(header.levels));
      page.levels = true;
    }
    if (header.encoding == Encoding::kRleDictionary ||
        header.encoding == Encoding::kPlainDictionary) {
      page.kind = PageKind::kCodes;
      page.dictionary = dictionary_;
    } else {
      const HashParams* hash = kind_ == RawKind::kText ? encoder_->text_hash() : nullptr;
      DPIF_CHECK(hash != nullptr && header.encoding == Encoding::kPlain, "values of encoding ",
                 static_cast<int>(header.encoding), " are not encoded on a GPU");
      page.kind = PageKind::kTexts;
      page.seed = hash->seed;
      page.modulus = static_cast<std::uint32_t>(hash->modulus);
    }
    take(page, header.type == PageType::kData || header.compressed);
  }

  void pass_levels_apart(const PageHeader& header, Page& page) const {
    const auto all = static_cast<std::int32_t>(header.level_bytes);
    const auto repetition = static_cast<std::int32_t>(header.repetition_bytes);
    DPIF_CHECK(chunk().optional || all == repetition, "levels in a column that has none");
    page.levels_at = page.compressed_at + repetition;
    page.level_bytes = all - repetition;
    DPIF_CHECK(!chunk().optional || page.level_bytes > 0, "a page is cut off in its levels");
    page.compressed_at += all;
    page.compressed_bytes -= all;
    page.uncompressed_bytes -= all;
  }

  // Takes memory behind all that is there.
  std::span<Code> take_codes(std::int64_t count) {
    const std::int64_t at = aligned_page(found_.compressed_bytes);
    const std::int64_t left = std::ssize(room_) - kPadding - at;
    DPIF_CHECK(count <= left / kCodeBytes, "memory of ", room_.size(), " bytes for ", count,
               " codes behind ", at);
    found_.compressed_bytes = at + count * kCodeBytes;
    return {reinterpret_cast<Code*>(room_.data() + at), static_cast<std::size_t>(count)};
  }

  static Page page_of_codes(std::int64_t at, std::int64_t count) {
    DPIF_CHECK(count * kCodeBytes <= kMaxPageSize, "a dictionary of ", count, " values");
    Page page{};
    page.compressed_at = at;
    page.compressed_bytes = page.uncompressed_bytes = static_cast<std::int32_t>(count * kCodeBytes);
    page.values = static_cast<std::int32_t>(count);
    page.dictionary = -1;
    return page;
  }

  std::span<std::uint8_t> room_;
  RawKind kind_{};
  const ValueEncoder* encoder_ = nullptr;
};

// Bytes of the codes of a chunk's dictionary, of which a value takes four bytes at least, or of its
// rows where pages may be of another kind.
std::int64_t most_codes_bytes(const UnitChunk& unit_chunk, RawKind kind,
                              const ValueEncoder& encoder) {
  constexpr std::int64_t kCodeBytes = sizeof(Code);
  const ColumnChunk& chunk = *unit_chunk.chunk;
  DPIF_CHECK(unit_chunk.rows <= INT64_MAX / 2 / kCodeBytes, "a row group of ", unit_chunk.rows,
             " rows");
  const std::int64_t of_rows = kCodeBytes * unit_chunk.rows;
  const bool hashed = kind == RawKind::kText && encoder.text_hash() != nullptr;
  if (chunk.lists_others || !(hashed || chunk.counts_only_indices)) return of_rows;
  return chunk.lists_indices ? std::clamp<std::int64_t>(chunk.uncompressed_bytes, 0, of_rows) : 0;
}

std::vector<RawKind> kinds_of(const File& file, const std::vector<std::string>& names,
                              std::span<const ValueEncoder* const> encoders, std::size_t first,
                              std::size_t stop) {
  DPIF_CHECK(!names.empty(), "no columns");
  DPIF_CHECK(encoders.size() == names.size(), names.size(), " names, but ", encoders.size(),
             " encoders");
  std::vector<RawKind> kinds;
  for (const std::string& name : names) {
    const std::optional<RawKind> kind = raw_kind(file, name, first, stop);
    DPIF_CHECK(kind.has_value(), "column ", name, " holds no raw values that can be read here");
    kinds.push_back(*kind);
  }
  return kinds;
}

}  // namespace

std::int64_t encoded_pages_bytes(const File& file, const std::vector<std::string>& names,
                                 std::span<const ValueEncoder* const> encoders, std::size_t first,
                                 std::size_t stop) {
  const std::vector<RawKind> kinds = kinds_of(file, names, encoders, first, stop);
  const std::vector<UnitChunk> chunks = unit_chunks(file, names, first, stop);
  std::int64_t bytes = bytes_of(chunks) + kPadding;
  for (const UnitChunk& unit_chunk : chunks) {
    const std::int64_t codes =
        most_codes_bytes(unit_chunk, kinds[unit_chunk.name], *encoders[unit_chunk.name]);
    DPIF_CHECK(codes <= INT64_MAX / 2 - bytes, place_of(unit_chunk, names), "too many bytes");
    bytes += aligned_page(codes) + aligned_page(1);
  }
  return bytes;
}

ColumnPages read_encoded_pages(const File& file, const std::vector<std::string>& names,
                               std::span<const ValueEncoder* const> encoders, std::size_t first,
                               std::size_t stop, std::span<std::uint8_t> bytes,
                               std::optional<std::int64_t> unpack_above) {
  const std::vector<RawKind> kinds = kinds_of(file, names, encoders, first, stop);
  ColumnPages found;
  found.rows = file.rows(first, stop);
  found.columns = static_cast<int>(names.size());
  found.number_bytes = sizeof(Code);
  const std::vector<UnitChunk> chunks = unit_chunks(file, names, first, stop);
  found.compressed_bytes = bytes_of(chunks);
  DPIF_CHECK(found.compressed_bytes <= std::ssize(bytes) - kPadding, "memory of ", bytes.size(),
             " bytes for columns of ", found.compressed_bytes, " and a padding of ", kPadding);
  DPIF_CHECK(reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(Code) == 0,
             "memory must begin at a multiple of ", alignof(Code));
  read_chunks(file.bytes(), chunks, bytes);
  CodePageLister list(found, bytes);
  for (const UnitChunk& unit_chunk : chunks) {
    const RawKind kind = kinds[unit_chunk.name];
    const ValueEncoder& encoder = *encoders[unit_chunk.name];
    try {
      list.add_chunk(unit_chunk, kind, encoder);
      continue;
    } catch (const std::invalid_argument&) {  // what a GPU does not take, or nobody
    }
    try {
      list.encode_chunk(unit_chunk, kind, encoder);
    } catch (const std::invalid_argument& error) {
      DPIF_CHECK(false, place_of(unit_chunk, names), error.what());
    }
  }
  unpack_pages(found, bytes.first(bytes.size() - kPagePadding),
               unpack_above.value_or(long_page(found, kLongPage)));
  return found;
}

}  // namespace dpiframe::parquet
