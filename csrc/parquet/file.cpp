#include "parquet/file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <map>
#include <set>

#include "parquet/column_chunk.h"
#include "parquet/encodings/rle_bit_packed.h"

namespace dpiframe::parquet {
namespace {

constexpr std::string_view kMagic = "PAR1", kEncryptedMagic = "PARE";
constexpr std::int64_t kTail = 8;               // length of the footer, magic
constexpr std::int64_t kFooterGuess = 1 << 16;  // most footers come with the first read
// One read takes neighbouring chunks up to this size, with gaps between them up to that one: not
// few bytes for a network file system, not more than a core's cache holds until they are decoded.
constexpr std::int64_t kMostRead = 1 << 20;
constexpr std::int64_t kMostGap = 256 << 10;

Footer read_footer(const FileBytes& file) {
  DPIF_CHECK(file.size() > 0, "the file is empty (0 bytes)");
  DPIF_CHECK(file.size() >= kTail + 4, file.size(), " bytes are too few for a parquet file");
  std::array<std::uint8_t, 4> head;
  if (file.knows(0, std::ssize(head)))
    file.read(0, head);
  else
    std::ranges::copy(kMagic, head.begin());  // of a file of which the end alone was fetched
  std::vector<std::uint8_t> end(std::min(file.size(), kFooterGuess));
  if (!file.knows(file.size() - std::ssize(end), std::ssize(end))) end.resize(kTail);
  file.read(file.size() - std::ssize(end), end);
  const std::uint8_t* tail = end.data() + end.size() - kTail;
  const auto is = [](std::string_view magic, const std::uint8_t* bytes) {
    return std::memcmp(bytes, magic.data(), magic.size()) == 0;
  };
  DPIF_CHECK(!is(kEncryptedMagic, tail + 4), "its footer is encrypted, which is not supported");
  DPIF_CHECK(is(kMagic, tail + 4) && is(kMagic, head.data()),
             "it does not begin and end like parquet: truncated, or no parquet");
  std::uint32_t length = 0;
  std::memcpy(&length, tail, sizeof(length));
  DPIF_CHECK(length <= file.size() - kTail - 4, "a footer of ", length, " bytes does not fit ",
             file.size(), " bytes");
  if (length + kTail > std::ssize(end)) {
    end.resize(length + kTail);
    file.read(file.size() - std::ssize(end), end);
  }
  end.resize(end.size() - kTail);
  end.erase(end.begin(), end.end() - length);
  try {
    return parse_footer(std::move(end));
  } catch (const std::invalid_argument& error) {
    DPIF_CHECK(false, "its footer cannot be read: ", error.what());
    throw;
  }
}

Footer read_end(std::int64_t size, std::span<const std::uint8_t> end) {
  const std::int64_t some = std::min(size, std::ssize(end));
  std::vector<std::uint8_t> padded(end.begin(), end.end());
  padded.resize(padded.size() + kPagePadding);
  const KnownBytes bytes(size, padded, {{size - some, std::ssize(end) - some, some}});
  return read_footer(bytes);
}

// A chunk and where its numbers go.
struct ChunkTarget {
  const ColumnChunk* chunk;
  const Target* target;
  const Column* column;
  void* out;
  std::int64_t first_row;
};

// Memory of a thread, kept from one unit to the next.
struct Readers {
  ScratchBytes file, unconverted;
  ColumnChunkReader<std::int32_t> narrow;
  ColumnChunkReader<std::int64_t> wide;

  void trim() { file.trim(), unconverted.trim(), narrow.trim(), wide.trim(); }
};

template <class Number>
void decode(ColumnChunkReader<Number>& reader, Bytes bytes, const ChunkTarget& chunk, void* out,
            std::int64_t rows) {
  reader.read(bytes, chunk.chunk->codec, chunk.column->optional,
              {static_cast<Number*>(out), static_cast<std::size_t>(rows)}, chunk.target->nulls,
              chunk.first_row);
}

void decode(Readers& readers, Bytes bytes, const ChunkTarget& chunk, void* out, std::int64_t rows) {
  if (bytes_of(chunk.column->type) == sizeof(std::int32_t))
    decode(readers.narrow, bytes, chunk, out, rows);
  else
    decode(readers.wide, bytes, chunk, out, rows);
}

// Whether a feature's numbers go to the target as they are.
bool is_as_stored(const Target& target, const Column& column) {
  if (target.nulls == nullptr) return true;
  return target.as_float ? column.type == PhysicalType::kFloat
                         : target.number_bytes == bytes_of(column.type);
}

template <class To, class From>
void convert(const void* from, std::int64_t rows, void* to) {
  const auto* numbers = static_cast<const From*>(from);
  for (std::int64_t i = 0; i < rows; ++i) static_cast<To*>(to)[i] = static_cast<To>(numbers[i]);
}

template <class To>
void convert(const Column& column, const void* from, std::int64_t rows, void* to) {
  if (column.type == PhysicalType::kInt32)
    return is_uint32(column) ? convert<To, std::uint32_t>(from, rows, to)
                             : convert<To, std::int32_t>(from, rows, to);
  if (column.type == PhysicalType::kDouble) return convert<To, double>(from, rows, to);
  return column.is_signed ? convert<To, std::int64_t>(from, rows, to)
                          : convert<To, std::uint64_t>(from, rows, to);
}

// Decodes chunks that lie in `bytes`, which begins at `begin` in the file.
void decode_all(Readers& readers, Bytes bytes, std::int64_t begin,
                std::span<const ChunkTarget> chunks, std::int64_t rows) {
  for (const ChunkTarget& target : chunks) {
    const Bytes chunk = bytes.subspan(target.chunk->begin - begin, target.chunk->bytes);
    try {
      if (is_as_stored(*target.target, *target.column)) {
        decode(readers, chunk, target, target.out, rows);
        continue;
      }
      void* numbers = readers.unconverted.take(rows * bytes_of(target.column->type)).data();
      decode(readers, chunk, target, numbers, rows);
      if (target.target->as_float)
        convert<float>(*target.column, numbers, rows, target.out);
      else
        convert<std::int64_t>(*target.column, numbers, rows, target.out);
    } catch (const std::invalid_argument& error) {
      DPIF_CHECK(false, "column ", target.target->name, ": ", error.what());
    }
  }
}

// Reads the chunks of one row group.
void read_group(const FileBytes& file, std::vector<ChunkTarget> chunks, std::int64_t rows) {
  thread_local Readers readers;
  struct Trim {
    ~Trim() { readers.trim(); }
  } const at_the_end;  // also where a page is refused
  std::ranges::sort(chunks, {}, [](const ChunkTarget& target) { return target.chunk->begin; });
  for (auto next = chunks.begin(); next != chunks.end();) {
    const auto first = next;
    const std::int64_t begin = first->chunk->begin;
    if (const std::uint8_t* found = file.find(begin, first->chunk->bytes)) {
      decode_all(readers, {found, static_cast<std::size_t>(first->chunk->bytes)}, begin,
                 {first, ++next}, rows);
      continue;
    }
    std::int64_t end = begin;
    for (; next != chunks.end(); ++next) {
      const ColumnChunk& chunk = *next->chunk;
      DPIF_CHECK(chunk.bytes <= file.size() - chunk.begin, "column ", next->target->name,
                 " lies behind the end of the file");
      const std::int64_t grown = std::max(end, chunk.begin + chunk.bytes);
      if (next != first && (grown - begin > kMostRead || chunk.begin - end > kMostGap)) break;
      end = grown;
    }
    const auto bytes = readers.file.take(end - begin + kPagePadding).first(end - begin);
    file.read(begin, bytes);
    decode_all(readers, bytes, begin, {first, next}, rows);
  }
}

// Those of a damaged footer may ask for many times the bytes of the file.
void check_apart(std::vector<FileRange> ranges) {
  std::ranges::sort(ranges, {}, &FileRange::begin);
  for (std::size_t i = 1; i < ranges.size(); ++i)
    DPIF_CHECK(ranges[i].begin - ranges[i - 1].begin >= ranges[i - 1].bytes,
               "two column chunks share the byte at ", ranges[i].begin);
}

}  // namespace

int bytes_of(PhysicalType type) {
  return type == PhysicalType::kInt32 || type == PhysicalType::kFloat ? 4 : 8;
}

bool is_uint32(const Column& column) {
  return column.type == PhysicalType::kInt32 && column.integer_bits == 32 && !column.is_signed;
}

File::File(std::shared_ptr<const FileBytes> bytes, std::shared_ptr<const Footer> footer)
    : bytes_(std::move(bytes)), footer_(std::move(footer)) {}

File::File(const std::string& path)
    : bytes_(std::make_shared<OpenFile>(path)),
      footer_(std::make_shared<Footer>(read_footer(*bytes_))) {}

File::File(std::int64_t size, std::span<const std::uint8_t> end)
    : bytes_(std::make_shared<KnownBytes>(size, Bytes(), std::vector<KnownRange>())),
      footer_(std::make_shared<Footer>(read_end(size, end))) {}

File File::over(std::span<const std::uint8_t> memory, std::vector<KnownRange> ranges) const {
  return {std::make_shared<KnownBytes>(bytes_->size(), memory, std::move(ranges)), footer_};
}

std::vector<std::int64_t> File::group_rows() const {
  std::vector<std::int64_t> rows;
  for (const RowGroup& group : footer_->groups) rows.push_back(group.rows);
  return rows;
}

std::int64_t File::rows(std::size_t first, std::size_t stop) const {
  DPIF_CHECK(first <= stop && stop <= footer_->groups.size(), "row groups ", first, " to ", stop,
             " of a file with ", footer_->groups.size());
  std::int64_t rows = 0;
  for (std::size_t g = first; g < stop; ++g) rows += footer_->groups[g].rows;
  return rows;
}

std::optional<PhysicalType> File::readable(std::string_view name, std::size_t first,
                                           std::size_t stop) const {
  const Column* column = feature(name, first, stop);
  if (column == nullptr || !column->plain || has_nulls(*column, first, stop)) return {};
  return column->type;
}

bool File::has_nulls(const Column& column, std::size_t first, std::size_t stop) const {
  for (std::size_t g = first; g < stop; ++g)
    if (footer_->groups[g].chunks[column.leaf].has_nulls) return true;
  return false;
}

const Column* File::feature(std::string_view name, std::size_t first, std::size_t stop) const {
  (void)rows(first, stop);
  const auto found = footer_->columns.find(name);
  if (found == footer_->columns.end() || !found->second.number) return nullptr;
  const Column& column = found->second;
  for (std::size_t g = first; g < stop; ++g) {
    const std::int64_t rows = footer_->groups[g].rows;
    const ColumnChunk& chunk = footer_->groups[g].chunks[column.leaf];
    if (chunk.type != column.type || chunk.values != rows || (rows > 0 && !chunk.readable))
      return nullptr;
  }
  return &column;
}

std::vector<std::string> File::encrypted() const {
  std::map<std::size_t, std::string_view> first_leaves;
  for (const auto& [name, column] : footer_->columns) first_leaves.emplace(column.leaf, name);
  std::set<std::string> found;
  for (const RowGroup& group : footer_->groups)
    for (std::size_t leaf = 0; leaf < group.chunks.size(); ++leaf)
      if (group.chunks[leaf].encrypted)
        found.emplace(std::prev(first_leaves.upper_bound(leaf))->second);
  return {found.begin(), found.end()};
}

std::vector<FileRange> File::chunk_ranges(const std::vector<std::string>& names, std::size_t first,
                                          std::size_t stop) const {
  (void)rows(first, stop);
  std::vector<std::size_t> begins;  // first leaf of each column
  for (const auto& [name, column] : footer_->columns) begins.push_back(column.leaf);
  std::ranges::sort(begins);
  std::vector<FileRange> found;
  for (std::size_t g = first; g < stop; ++g) {
    const std::vector<ColumnChunk>& chunks = footer_->groups[g].chunks;
    const std::ptrdiff_t begin = std::ssize(found);
    for (const std::string& name : names) {
      const auto column = footer_->columns.find(name);
      DPIF_CHECK(column != footer_->columns.end(), "there is no column ", name);
      const std::size_t leaf = column->second.leaf;
      const auto after = std::ranges::upper_bound(begins, leaf);
      const std::size_t end = after == begins.end() ? chunks.size() : *after;
      for (std::size_t i = leaf; i < end; ++i) {
        DPIF_CHECK(chunks[i].begin >= 0 && chunks[i].bytes >= 0 &&
                       chunks[i].begin <= bytes_->size() &&
                       chunks[i].bytes <= bytes_->size() - chunks[i].begin,
                   "row group ", g, ", column ", name, ": it lies outside of the file");
        found.push_back({chunks[i].begin, chunks[i].bytes});
      }
    }
    std::ranges::sort(found.begin() + begin, found.end(), {}, &FileRange::begin);
  }
  check_apart(found);
  return found;
}

bool File::can_read(const Target& target, std::size_t first, std::size_t stop) const {
  if (target.nulls == nullptr) {
    const auto type = readable(target.name, first, stop);
    return type.has_value() && bytes_of(*type) == target.number_bytes;
  }
  const Column* column = feature(target.name, first, stop);
  if (column == nullptr) return false;
  if (target.as_float) return target.number_bytes == sizeof(float);
  const bool is_integer =
      column->type == PhysicalType::kInt32 || column->type == PhysicalType::kInt64;
  const int least = is_uint32(*column) ? 8 : bytes_of(column->type);
  return is_integer && target.number_bytes >= least;
}

void File::read(const std::vector<Target>& targets, std::size_t first, std::size_t stop) const {
  for (const Target& target : targets) {
    DPIF_CHECK(can_read(target, first, stop), "column ", target.name, " cannot be read as ",
               target.as_float ? "float" : "numbers", " of ", target.number_bytes, " bytes");
  }
  std::int64_t row = 0;
  for (std::size_t g = first; g < stop; ++g) {
    const RowGroup& group = footer_->groups[g];
    std::vector<ChunkTarget> chunks;
    for (const Target& target : targets) {
      const Column& column = footer_->columns.find(target.name)->second;
      void* out = static_cast<char*>(target.out) + row * target.number_bytes;
      chunks.push_back({&group.chunks[column.leaf], &target, &column, out, row});
    }
    try {
      if (group.rows > 0) read_group(*bytes_, std::move(chunks), group.rows);
    } catch (const std::invalid_argument& error) {
      DPIF_CHECK(false, "row group ", g, ", ", error.what());
    }
    row += group.rows;
  }
}

Bytes File::chunk_bytes(const ColumnChunk& chunk, ScratchBytes& memory) const {
  const auto size = static_cast<std::size_t>(chunk.bytes);
  DPIF_CHECK(chunk.begin <= bytes_->size() && chunk.bytes <= bytes_->size() - chunk.begin,
             "it lies behind the end of the file");
  if (const std::uint8_t* known = bytes_->find(chunk.begin, chunk.bytes)) return {known, size};
  const auto bytes = memory.take(size + kPagePadding).first(size);
  bytes_->read(chunk.begin, bytes);
  return bytes;
}

}  // namespace dpiframe::parquet
