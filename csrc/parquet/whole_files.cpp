#include "parquet/whole_files.h"

#include <sys/stat.h>

#include <utility>

#include "common/check.h"
#include "parquet/encodings/rle_bit_packed.h"

namespace dpiframe::parquet {
namespace {

void check_planned(const PlannedFile& planned, std::int64_t size, std::int64_t mtime_ns) {
  DPIF_CHECK(size == planned.size && mtime_ns == planned.mtime_ns, planned.path,
             " changed after planning");
}

void check_unchanged(const PlannedFile& planned) {
  struct stat now;
  DPIF_CHECK(stat(planned.path.c_str(), &now) == 0, planned.path, " is gone");
  check_planned(planned, now.st_size,
                now.st_mtim.tv_sec * std::int64_t{1'000'000'000} + now.st_mtim.tv_nsec);
}

void go_on(Target& target, std::int64_t rows) {
  target.out = static_cast<char*>(target.out) + rows * target.number_bytes;
}

}  // namespace

WholeFiles read_whole_files(std::span<const PlannedFile> files, std::vector<PlainColumn> plain,
                            std::vector<Target> features, const std::vector<std::string>& ids,
                            std::span<std::uint8_t> bytes,
                            std::optional<std::int64_t> unpack_above) {
  WholeFiles found;
  std::int64_t at = 0;
  for (const PlannedFile& planned : files) {
    const File file(planned.path);
    check_planned(planned, file.bytes().size(), file.bytes().mtime_ns());
    const std::size_t groups = file.footer().groups.size();
    DPIF_CHECK(file.rows(0, groups) == planned.rows, planned.path, " has other rows than planned");
    std::vector<Target> targets = features;
    for (const PlainColumn& column : plain) {
      DPIF_CHECK(file.readable(column.target.name, 0, groups) == column.type, planned.path,
                 ": column ", column.target.name, " is of another type");
      targets.push_back(column.target);
    }
    file.read(targets, 0, groups);
    for (Target& target : features) go_on(target, planned.rows);
    for (PlainColumn& column : plain) go_on(column.target, planned.rows);
    const std::int64_t size = pages_bytes(file, ids, 0, groups);
    DPIF_CHECK(size <= std::ssize(bytes) - at, "memory of ", bytes.size(), " bytes for pages of ",
               at + size);
    ColumnPages pages = read_pages(file, ids, 0, groups, bytes.subspan(at, size));
    check_unchanged(planned);
    if (at == 0)
      found.pages = std::move(pages);
    else
      found.pages.append(pages, at);
    at += size;
    for (const std::int64_t rows : file.group_rows()) found.group_rows.push_back(rows);
  }
  if (unpack_above && !files.empty())
    unpack_pages(found.pages, bytes.first(bytes.size() - kPagePadding), *unpack_above);
  return found;
}

}  // namespace dpiframe::parquet
