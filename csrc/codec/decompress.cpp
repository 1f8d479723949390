#include "codec/decompress.h"

#include <dlfcn.h>

#include <cstring>
#include <memory>

#include "codec/gzip/gunzip.h"
#include "codec/lz/decompress_cpu.h"
#include "codec/zstd/decompress_cpu.h"
#include "common/check.h"

namespace dpiframe {
namespace {

// The few functions of libzstd's stable interface (zstd.h) that are needed.
struct Zstd {
  using Context = void;
  Context* (*create_context)();
  std::size_t (*free_context)(Context*);
  std::size_t (*decompress)(Context*, void* out, std::size_t room, const void* compressed,
                            std::size_t size);

  static const Zstd* get() {
    static const Zstd zstd = load();
    return zstd.decompress != nullptr ? &zstd : nullptr;
  }

 private:
  static Zstd load() {
    void* library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);  // stays for ever
    if (library == nullptr) return {};
    Zstd zstd{};
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    const bool whole = find(zstd.create_context, "ZSTD_createDCtx") &&
                       find(zstd.free_context, "ZSTD_freeDCtx") &&
                       find(zstd.decompress, "ZSTD_decompressDCtx");
    return whole ? zstd : Zstd{};
  }
};

void decompress_zstd(Bytes compressed, std::span<std::uint8_t> out) {
  const Zstd* zstd = Zstd::get();
  if (zstd == nullptr) return unzstd(compressed, out);
  thread_local const std::unique_ptr<Zstd::Context, std::size_t (*)(Zstd::Context*)> context(
      zstd->create_context(), zstd->free_context);
  const std::size_t got =
      zstd->decompress(context.get(), out.data(), out.size(), compressed.data(), compressed.size());
  DPIF_CHECK(got == out.size(), "a zstd page does not decompress to its ", out.size(), " bytes");
}

}  // namespace

bool can_decompress(Codec codec) {
  switch (codec) {
    case Codec::kNone:
    case Codec::kSnappy:
    case Codec::kGzip:
    case Codec::kZstd:
    case Codec::kLz4Raw:
      return true;
  }
  return false;
}

std::int64_t most_decompressed(Codec codec, std::int64_t compressed_bytes) {
  switch (codec) {
    case Codec::kNone:
      return compressed_bytes;
    case Codec::kSnappy:
      return compressed_bytes * 22;  // three bytes copy 64 at most
    case Codec::kGzip:
      return compressed_bytes * 1032;  // two bits copy 258 bytes at most
    case Codec::kLz4Raw:
      return compressed_bytes * 255;  // a byte of a length adds 255 at most
    case Codec::kZstd:
      return compressed_bytes * (32 << 10);  // a block takes four bytes and gives 128 KiB at most
  }
  return 0;
}

void decompress(Codec codec, Bytes compressed, std::span<std::uint8_t> out) {
  if (codec == Codec::kZstd) return decompress_zstd(compressed, out);
  if (codec == Codec::kSnappy) return unsnappy(compressed, out);
  if (codec == Codec::kGzip) return gunzip(compressed, out);
  if (codec == Codec::kLz4Raw) return unlz4(compressed, out);
  DPIF_CHECK(codec == Codec::kNone && compressed.size() == out.size(), "a page of ",
             compressed.size(), " bytes that is not compressed should have ", out.size());
  if (!out.empty()) std::memcpy(out.data(), compressed.data(), out.size());
}

}  // namespace dpiframe
