// SPDX-License-Identifier: Apache-2.0
// A file of images, as the scan of a folder and the reader of images find it: valid images that are edited, or zeros.
//
//     byte 0     bit 0: begin with valid images; bit 1: write the checksums of their headers anew after the edits;
//                bit 2: the sections are holes
//     byte 1, 2  bytes of the file, in 64; 0: as the valid images have
//     then       edits: offset (2 bytes, times 1 << exponent), exponent and count of bytes (4 bits each), the bytes
#include <stateport/core/model/error.hpp>
#include <stateport/tiers/image.hpp>

#include "byte_source.hpp"
#include "file/image_directory.hpp"
#include "file/image_io.hpp"
#include "file/image_scan.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

using namespace stateport;

namespace {

constexpr std::size_t checksum_at = 24;
constexpr std::size_t checksum_bytes = 16;

StateSpec spec_of(std::int32_t layers) {
  return StateSpec::uniform(layers, {.window = 3, .dim = 8}, {.shape = {2, 4, 8}, .type = ElementType::fp32});
}

/// A file in memory in place of those of the folder: `bytes`, and zeros behind them. Only its size comes from the
/// system.
class MemoryFile final : public FileCalls {
 public:
  MemoryFile() : file_(::memfd_create("images", MFD_CLOEXEC)) {}
  int open(int, const char*, int) override { return ::fcntl(file_, F_DUPFD_CLOEXEC, 0); }
  ssize_t read_at(int, std::byte* bytes, std::size_t size, off_t offset) override {
    const auto at = static_cast<std::size_t>(offset);
    if (at >= size_) return 0;
    const std::size_t count = std::min(size, size_ - at);
    std::memset(bytes, 0, count);
    if (at < bytes_.size()) std::memcpy(bytes, bytes_.data() + at, std::min(count, bytes_.size() - at));
    return static_cast<ssize_t>(count);
  }
  off_t seek_data(int, off_t offset) override {
    auto at = static_cast<std::size_t>(offset);
    for (const FileRange& hole : holes_)
      if (at >= hole.begin) at = std::max(at, static_cast<std::size_t>(hole.end));
    if (at < size_ && at < bytes_.size()) return static_cast<off_t>(at);
    errno = ENXIO;
    return -1;
  }
  void set(std::vector<std::byte> bytes, std::size_t size, std::vector<FileRange> holes) {
    fuzz::expect(::ftruncate(file_, static_cast<off_t>(size)) == 0, "file in memory");
    bytes_ = std::move(bytes);
    size_ = size;
    holes_ = std::move(holes);
  }

 private:
  int file_;
  std::vector<std::byte> bytes_;
  std::size_t size_ = 0;
  std::vector<FileRange> holes_;  ///< ascending
};

/// Made once: a folder, a file, layouts, and a file of valid images.
struct World {
  World() : path(make_path()), folder(calls, path), io(folder, stopping) {
    std::filesystem::remove_all(path);  // it stays open
    const std::array keys = {ImageKey{.prefix = {{1, 2}}, .tokens = 16}, ImageKey{.prefix = {{3, 4}}, .tokens = 32},
                             ImageKey{.prefix = {{5, 6}}, .tokens = 48, .content = CacheContent::kv_block}};
    const std::array<const ImageLayout*, 3> written = {&layouts[0], &foreign, &layouts[1]};
    for (std::size_t i = 0; i < keys.size(); ++i) {
      begins.push_back(valid.size());
      headers.push_back(written[i]->header_bytes());
      valid.resize(valid.size() + written[i]->image_bytes(), std::byte{7});
      written[i]->seal(std::span(valid).subspan(begins.back()), keys[i]);
    }
  }
  static std::string make_path() {
    std::string name = (std::filesystem::temp_directory_path() / "fuzz-XXXXXX").string();
    fuzz::expect(::mkdtemp(name.data()) != nullptr, "temporary folder");
    return name;
  }

  std::vector<ImageLayout> layouts = {
      ImageLayout(spec_of(1), {.model = ModelId(7)}),
      ImageLayout(spec_of(2), {.model = ModelId(7), .content = CacheContent::kv_block})};
  ImageLayout foreign{spec_of(1), {.model = ModelId(8)}};
  MemoryFile calls;
  std::string path;
  ImageFolder folder;
  std::atomic<bool> stopping = false;
  ImageIo io;
  std::vector<std::byte> valid;
  std::vector<std::size_t> begins;
  std::vector<std::size_t> headers;
};

/// Sets the checksum, as an attacker with knowledge of the format would.
void seal_header(std::span<std::byte> header) {
  const auto place = header.subspan(checksum_at, checksum_bytes);
  std::ranges::fill(place, std::byte{0});
  const Checksum sum = checksum(header);
  std::memcpy(place.data(), sum.words.data(), checksum_bytes);
}

void edit(fuzz::ByteSource& source, std::vector<std::byte>& bytes) {
  while (!source.empty()) {
    const std::size_t offset = source.take<std::uint16_t>();
    const std::uint8_t form = source.take();
    std::size_t at = offset << (form >> 4);
    for (const std::uint8_t byte : source.take_bytes(form % 16u + 1))
      if (at < bytes.size()) bytes[at++] = static_cast<std::byte>(byte);
  }
}

/// The check that needs no file: the first header, in memory that ends with it.
void read_from_memory(const World& world, std::span<const std::byte> bytes) {
  const auto copy = std::vector<std::byte>(bytes.begin(), bytes.end());
  const std::optional<ImageFacts> facts = read_image_facts(copy);
  const ImageKey key = facts ? facts->key : ImageKey{};
  for (const ImageLayout& layout : world.layouts) {
    const TransferStatus header = layout.check_header(copy, key);
    const TransferStatus whole = layout.check(copy, key);
    fuzz::expect(facts || header == TransferStatus::damaged, "a header without facts is damaged");
    fuzz::expect(header == TransferStatus::done || whole == header, "an image is no better than its header");
  }
}

World& made_world() {
  static World made;
  return made;
}

void check_found(World& world, const FoundFile& found) {
  ImageDirectory directory(world.folder.punches_holes());
  directory.reserve(1, found.images.size());
  const FileIndex file =
      directory.add_file({found.name, found.images.size()}, found.bytes, found.hole_bytes, found.foreign_images > 0);
  fuzz::expect(found.hole_bytes <= found.bytes, "holes lie in the file");
  for (const FoundImage& image : found.images) {
    fuzz::expect(image.offset + image.layout->image_bytes() <= found.bytes, "images lie in the file");
    fuzz::expect(image.layout->holds(image.key) && image.key.tokens >= 0, "images are those of their layout");
    directory.add_image(file, image.key, *image.layout, image.offset);
    std::vector<std::byte> bytes(image.layout->image_bytes());
    const TransferStatus status = world.io.read({image.key, image.layout, found.name, image.offset}, bytes.data());
    fuzz::expect(status != TransferStatus::done || image.layout->check(bytes, image.key) == TransferStatus::done,
                 "the bytes read are those of the image");
    fuzz::expect(status == TransferStatus::done || status == TransferStatus::damaged || status == TransferStatus::gone,
                 "headers that were found are found again");
  }
  while (const auto tidy = directory.begin_tidy(file)) directory.finish_tidy(*tidy);
  directory.check_invariants();
}

}  // namespace

/// The folder has another random name in each run, so its construction must not count as coverage of an input.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  static_cast<void>(made_world());
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::ByteSource source(data, size);
  const std::uint8_t choice = source.take();
  std::size_t file_bytes = std::size_t{64} * source.take<std::uint16_t>();
  World& world = made_world();
  if (file_bytes == 0) file_bytes = world.valid.size();
  std::vector<std::byte> bytes = choice % 2 == 1 ? world.valid : std::vector<std::byte>(world.valid.size());
  edit(source, bytes);
  std::vector<FileRange> holes;
  for (std::size_t i = 0; i < world.begins.size(); ++i) {
    if ((choice & 2) != 0) seal_header(std::span(bytes).subspan(world.begins[i], world.headers[i]));
    const std::size_t end = i + 1 < world.begins.size() ? world.begins[i + 1] : world.valid.size();
    if ((choice & 4) != 0) holes.push_back({world.begins[i] + world.headers[i], end});
  }
  bytes.resize(std::min(bytes.size(), file_bytes));
  read_from_memory(world, bytes);
  world.calls.set(std::move(bytes), file_bytes, std::move(holes));
  const std::string name = "0123456789abcdef-0.img";
  for (const FoundFile& found : scan_files(world.folder, std::span(&name, 1), world.layouts)) check_found(world, found);
  return 0;
}
