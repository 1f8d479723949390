// Parquet files: what the reader of columns gives, the pages give when they are decoded as a GPU
// would; or both refuse the file. Lists and raw columns are alike in the file and in fetched
// chunks. Footer and statistics are read on the way.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "fuzz_case.h"
#include "parquet/column_pages.h"
#include "parquet/encodings/rle_bit_packed.h"
#include "parquet/file.h"
#include "parquet/lists/read_list.h"
#include "parquet/metadata/statistics.h"
#include "parquet/raw/read_encoded.h"

using namespace dpiframe;
using fuzz::Record;
using parquet::File;

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t room);

namespace {

constexpr std::int64_t kMostRows = 100'000;  // a footer that claims more is not read
constexpr std::size_t kMostColumns = 8;
constexpr std::size_t kRoom = 64 << 10;  // for pages that are unpacked ahead

// A file without a name, written anew for each case.
class MemoryFile {
 public:
  const std::string& hold(const void* data, std::size_t size) {
    fuzz::require(ftruncate(descriptor_, 0) == 0 &&
                      pwrite(descriptor_, data, size, 0) == static_cast<ssize_t>(size),
                  "the case cannot be written");
    return path_;
  }

 private:
  int descriptor_ = memfd_create("case", MFD_CLOEXEC);
  std::string path_ = "/proc/self/fd/" + std::to_string(descriptor_);
};

// Columns of numbers of one size, each in memory of its own, so that ASan sees its ends.
using Columns = std::vector<std::vector<std::uint8_t>>;

std::optional<std::string> read_columns(const File& file, const std::vector<std::string>& names,
                                        int number_bytes, std::size_t first, std::size_t stop,
                                        Columns& out) {
  std::vector<parquet::Target> targets;
  for (const std::string& name : names) {
    out.emplace_back(file.rows(first, stop) * number_bytes, 0xab);
    targets.push_back({name, number_bytes, out.back().data()});
  }
  return fuzz::refusal([&] { file.read(targets, first, stop); });
}

// `room`: bytes behind the chunks, into which pages are unpacked before all are decoded.
std::optional<std::string> read_pages(const File& file, const std::vector<std::string>& names,
                                      std::size_t first, std::size_t stop, std::size_t room,
                                      std::vector<std::uint8_t>& out) {
  return fuzz::refusal([&] {
    std::vector<std::uint8_t> bytes(parquet::pages_bytes(file, names, first, stop) + room);
    auto pages = parquet::read_pages(file, names, first, stop, bytes);
    const auto read = pages.compressed_bytes;
    const auto memory = std::span(bytes).first(bytes.size() - parquet::kPagePadding);
    if (room > 0) parquet::unpack_pages(pages, memory, 0);
    if (pages.compressed_bytes > read) Record::get().count("pages unpacked ahead");
    parquet::decode_pages_on_cpu(pages, bytes, out.data());
  });
}

// The file with these columns' chunks fetched to memory; nothing where they share bytes or lie
// outside of the file.
std::optional<File> fetched(const File& file, const std::vector<std::string>& names,
                            std::size_t first, std::size_t stop,
                            std::vector<std::uint8_t>& memory) {
  std::optional<File> found;
  (void)fuzz::refusal([&] {
    std::vector<parquet::KnownRange> ranges;
    std::int64_t at = 0;
    for (const auto& [begin, bytes] : file.chunk_ranges(names, first, stop)) {
      ranges.push_back({begin, at, bytes});
      at += bytes;
    }
    memory.resize(at + parquet::kPagePadding);
    for (const auto& range : ranges)
      file.bytes().read(range.begin, std::span(memory).subspan(range.at, range.bytes));
    found = file.over(memory, std::move(ranges));
  });
  return found;
}

// Pages are refused for more reasons than columns are; our zstd refuses more damaged frames than
// libzstd (fuzz_frames.cpp).
bool is_for_columns_alone(const std::string& refusal) {
  for (const char* reason : {"codec 2 ", "it shares bytes with", "pages that unpack to", "pages in",
                             "can be unpacked on a GPU", "a zstd page does not decompress"})
    if (refusal.find(reason) != std::string::npos) return true;
  return false;
}

void read(const File& file, int number_bytes, std::size_t first, std::size_t stop) {
  std::vector<std::string> names;
  for (const auto& [name, column] : file.footer().columns) {
    const auto type = file.readable(name, first, stop);
    if (type.has_value() && parquet::bytes_of(*type) == number_bytes && names.size() < kMostColumns)
      names.emplace_back(name);
  }
  const std::int64_t rows = file.rows(first, stop);
  if (names.empty() || rows > kMostRows) return Record::get().count("no column, or too many rows");
  Columns columns;
  const auto refused = read_columns(file, names, number_bytes, first, stop, columns);
  std::vector<std::uint8_t> memory;
  if (const auto known = fetched(file, names, first, stop, memory)) {
    Columns again;
    const auto also_refused = read_columns(*known, names, number_bytes, first, stop, again);
    fuzz::require(refused.has_value() == also_refused.has_value() &&
                      (refused.has_value() || columns == again),
                  "fetched chunks give other numbers than the file");
  }
  std::vector<std::uint8_t> matrix(names.size() * rows * number_bytes);
  const auto pages_refused = read_pages(file, names, first, stop, 0, matrix);
  std::vector<std::uint8_t> again(matrix.size());
  const auto also_refused = read_pages(file, names, first, stop, kRoom, again);
  fuzz::require(pages_refused.has_value() == also_refused.has_value() &&
                    (pages_refused.has_value() || matrix == again),
                "pages unpacked ahead give other numbers");
  if (pages_refused.has_value() && is_for_columns_alone(*pages_refused))
    return Record::get().count(refused.has_value() ? "refused" : "columns read, pages not tried");
  if (refused.has_value() != pages_refused.has_value())
    fuzz::fail("columns: " + refused.value_or("read") +
               "; pages: " + pages_refused.value_or("read"));
  if (refused.has_value()) return Record::get().count("refused");
  for (std::size_t c = 0; c < columns.size(); ++c)
    fuzz::require(std::ranges::equal(columns[c], std::span(matrix).subspan(c * columns[c].size(),
                                                                           columns[c].size())),
                  "pages give other numbers than columns");
  Record::get().count("read");
}

// The numbers of a column of lists or of raw values, and whether it is read.
struct OtherColumn {
  bool read;
  std::vector<std::vector<std::int32_t>> numbers;  // [places] of [rows]

  bool operator==(const OtherColumn&) const = default;
};

OtherColumn read_other(const File& file, const std::string& name, std::size_t first,
                       std::size_t stop) {
  constexpr std::size_t kPlaces = 3;
  const bool is_list = parquet::list_elements(file, name, first, stop).has_value();
  const std::vector<std::int32_t> empty(file.rows(first, stop), 7);
  OtherColumn column{false, std::vector(is_list ? kPlaces : 2, empty)};
  std::vector<float*> places;
  for (auto& numbers : column.numbers) places.push_back(reinterpret_cast<float*>(numbers.data()));
  const HashEncoder hash({7, 1000});
  const BucketEncoder bucket(-3, {2, 3, 4}, {100});
  const DenseEncoder dense({.log1p = true, .mean = 1, .std = 2, .fill = 0.5});
  const auto refused = fuzz::refusal([&] {
    if (is_list)
      return (void)parquet::read_list<float>(file, name, first, stop,
                                             {places, name.size() % 2 > 0, true, -1});
    const auto kind = file.footer().columns.find(name)->second.type;
    const bool is_text = kind == parquet::PhysicalType::kByteArray;
    const std::vector<parquet::EncodedTarget> targets{
        {is_text ? static_cast<const ValueEncoder*>(&hash) : &bucket, column.numbers[0].data()},
        {is_text ? static_cast<const ValueEncoder*>(&hash) : &dense, column.numbers[1].data()}};
    parquet::read_encoded(file, name, first, stop, targets);
  });
  column.read = !refused.has_value();
  if (!column.read) column.numbers.clear();
  return column;
}

void read_others(const File& file, std::size_t first, std::size_t stop) {
  if (file.rows(first, stop) > kMostRows) return;
  std::size_t tried = 0;
  for (const auto& [view, column] : file.footer().columns) {
    const std::string name(view);
    if (!parquet::list_elements(file, name, first, stop).has_value() &&
        !parquet::raw_kind(file, name, first, stop).has_value())
      continue;
    if (++tried > kMostColumns) return;
    const OtherColumn found = read_other(file, name, first, stop);
    Record::get().count(found.read ? "other column read" : "other column refused");
    std::vector<std::uint8_t> memory;
    if (const auto known = fetched(file, {name}, first, stop, memory))
      fuzz::require(read_other(*known, name, first, stop) == found,
                    "fetched chunks give another column than the file");
  }
}

void look_at(const File& file) {
  parquet::Limits limits;
  for (const auto& [name, column] : file.footer().columns)
    if (limits.size() < kMostColumns) limits.push_back({std::string(name), {{0.0, 100.0}}});
  (void)fuzz::refusal([&] { (void)parquet::statistics_problems(file.footer(), limits); });
  static MemoryFile schema;
  const std::string empty = parquet::empty_file(file.footer());
  const auto refused =
      fuzz::refusal([&] { const File again(schema.hold(empty.data(), empty.size())); });
  if (refused.has_value()) fuzz::fail("the schema alone: " + *refused);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static MemoryFile memory;
  const fuzz::Case fuzz_case(static_cast<std::int64_t>(size));
  const std::string& path = memory.hold(data, size);
  std::optional<File> file;
  if (fuzz::refusal([&] { file.emplace(path); }).has_value()) {
    Record::get().count("not opened");
    return 0;
  }
  look_at(*file);
  const std::size_t groups = file->footer().groups.size();
  read_others(*file, 0, groups);
  for (const int number_bytes : {4, 8}) {
    read(*file, number_bytes, 0, groups);
    if (groups > 1) read(*file, number_bytes, groups / 2, groups);
  }
  return 0;
}

// Most changes are made to the pages or to the footer alone, whose length is then put right: else
// nearly all of them would leave a file that does not open.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t room, unsigned int seed) {
  constexpr std::size_t kTail = 8;
  std::uint32_t length = 0;
  if (size >= kTail) std::memcpy(&length, data + size - kTail, sizeof(length));
  if (size < kTail || length > size - kTail || seed % 16 == 0)
    return LLVMFuzzerMutate(data, size, room);
  std::vector<std::uint8_t> pages(data, data + size - kTail - length);
  std::vector<std::uint8_t> footer(data + size - kTail - length, data + size - kTail);
  std::vector<std::uint8_t>& part = (seed >> 4) % 2 == 0 ? pages : footer;
  const std::size_t before = part.size();
  part.resize(before + room - size);
  part.resize(LLVMFuzzerMutate(part.data(), before, part.size()));
  length = static_cast<std::uint32_t>(footer.size());
  std::copy(footer.begin(), footer.end(), std::copy(pages.begin(), pages.end(), data));
  std::uint8_t* tail = data + pages.size() + footer.size();
  std::memcpy(tail, &length, sizeof(length));
  std::memcpy(tail + sizeof(length), "PAR1", 4);
  return pages.size() + footer.size() + kTail;
}
