// SPDX-License-Identifier: Apache-2.0
#include "file/image_scan.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <optional>
#include <system_error>
#include <thread>

namespace stateport {
namespace {

/// The disk is slow, not the cores: more threads than cores.
constexpr std::size_t scan_threads_max = 8;
/// A thread costs about as much as it takes to read this many headers.
constexpr std::size_t files_per_thread = 64;

/// Reads the headers of one file after the other.
class HeaderReader {
 public:
  HeaderReader(ImageFolder& folder, std::span<const ImageLayout> layouts) : folder_(folder), layouts_(layouts) {}

  [[nodiscard]] FoundFile scan(const std::string& name) {
    FoundFile found{.name = name};
    const FileHandle file(folder_.calls().open(folder_.file(), name.c_str(), O_RDONLY));
    struct stat facts = {};
    found.readable = file && ::fstat(file.get(), &facts) == 0;
    if (!found.readable) return found;
    found.bytes = static_cast<std::uint64_t>(facts.st_size);
    found.damaged = found.bytes == 0;
    // Reading ahead would read the sections.
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_RANDOM);
    for (std::uint64_t offset = 0; offset < found.bytes && found.readable && !found.damaged;)
      offset += take_image(file.get(), offset, found);
    return found;
  }

 private:
  /// Returns the bytes of the image at `offset`.
  std::uint64_t take_image(int file, std::uint64_t offset, FoundFile& found) {
    const std::optional<ImageFacts> facts = read_header(file, offset, found);
    found.damaged = !facts || facts->image_bytes > found.bytes - offset;
    if (found.damaged || !found.readable) return 0;
    const auto layout = std::ranges::find_if(layouts_, [&](const ImageLayout& candidate) {
      return candidate.check_header(header_, facts->key) == TransferStatus::done;
    });
    if (layout == layouts_.end()) {
      ++found.foreign_images;
    } else if (is_hole(file, offset, *facts)) {
      found.hole_bytes += facts->image_bytes - facts->header_bytes;
    } else {
      found.images.push_back({facts->key, &*layout, offset});
    }
    return facts->image_bytes;
  }

  [[nodiscard]] std::optional<ImageFacts> read_header(int file, std::uint64_t offset, FoundFile& found) {
    header_.resize(ImageLayout::alignment_bytes);
    if (!read(file, 0, offset, found)) return {};
    const std::optional<std::size_t> header_bytes = image_header_bytes(header_);
    if (!header_bytes || *header_bytes > found.bytes - offset) return {};
    const std::size_t have = std::min(header_.size(), *header_bytes);
    header_.resize(*header_bytes);
    if (!read(file, have, offset, found)) return {};
    return read_image_facts(header_);
  }

  /// Fills header_ from `at` on. False: the file is shorter, or cannot be read.
  [[nodiscard]] bool read(int file, std::size_t at, std::uint64_t offset, FoundFile& found) {
    while (at < header_.size()) {
      const ssize_t read =
          folder_.calls().read_at(file, header_.data() + at, header_.size() - at, static_cast<off_t>(offset + at));
      if (read < 0 && errno == EINTR) continue;
      found.readable = read >= 0;
      if (read <= 0) return false;
      at += static_cast<std::size_t>(read);
    }
    return true;
  }

  [[nodiscard]] bool is_hole(int file, std::uint64_t offset, const ImageFacts& facts) const {
    const auto end = static_cast<off_t>(offset + facts.image_bytes);
    const off_t data = folder_.calls().seek_data(file, static_cast<off_t>(offset + facts.header_bytes));
    return data >= end || (data < 0 && errno == ENXIO);
  }

  ImageFolder& folder_;
  std::span<const ImageLayout> layouts_;
  std::vector<std::byte> header_;
};

}  // namespace

std::vector<FoundFile> scan_files(ImageFolder& folder, std::span<const std::string> names,
                                  std::span<const ImageLayout> layouts) {
  std::vector<FoundFile> found(names.size());
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> out_of_memory = false;
  const auto scan = [&] {
    try {
      HeaderReader reader(folder, layouts);
      for (std::size_t i = next++; i < names.size() && !out_of_memory; i = next++) found[i] = reader.scan(names[i]);
    } catch (const std::bad_alloc&) {
      out_of_memory = true;
    }
  };
  std::vector<std::thread> threads(std::min(scan_threads_max, names.size() / files_per_thread));
  try {
    for (std::thread& thread : threads) thread = std::thread(scan);
  } catch (const std::system_error&) {
    // Those that were started, and this one, do it all.
  } catch (const std::bad_alloc&) {
    // The same.
  }
  scan();
  for (std::thread& thread : threads)
    if (thread.joinable()) thread.join();
  if (out_of_memory) throw std::bad_alloc();
  return found;
}

}  // namespace stateport
