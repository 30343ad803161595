// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/image.hpp>

#include "file/image_folder.hpp"
#include "file/section_sums.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace stateport {

/// One image of a file that is to be written.
struct ImageToWrite {
  ImageKey key;
  const ImageLayout* layout = nullptr;
  const std::byte* image = nullptr;
};

/// Where an image lies.
struct ImageToRead {
  ImageKey key;
  const ImageLayout* layout = nullptr;
  std::string file_name;
  std::uint64_t offset = 0;
};

/// An open file of a folder.
struct OpenFile {
  FileHandle handle;
  bool direct = false;  ///< O_DIRECT: memory, sizes and offsets are multiples of 4 KiB
  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(handle); }
};
/// With O_DIRECT if the file system has it.
[[nodiscard]] OpenFile open_direct(ImageFolder& folder, const std::string& name, int flags);

/// Writes and reads image files, one at a time, with one thread for the bytes and one for their checksums.
class ImageIo {
 public:
  /// `stopping`: set when the work is to be given up; then the answer does not matter.
  ImageIo(ImageFolder& folder, const std::atomic<bool>& stopping);
  ImageIo(const ImageIo&) = delete;
  ImageIo& operator=(const ImageIo&) = delete;
  /// Leaves nothing of images in its buffer if the folder scrubs.
  ~ImageIo();

  /// Writes the images one after the other into the file of this number, durably. Answers done, no_room or failed; not
  /// done: nothing is left in the folder, unless the file system refuses that, too.
  [[nodiscard]] TransferStatus write(std::uint64_t number, std::span<const ImageToWrite> images,
                                     std::uint64_t free_floor_bytes);
  /// Reads an image into image_bytes() bytes and verifies it. Answers done, gone (also if its bytes were given back by
  /// a hole), damaged, foreign_layout, wrong_position or failed.
  [[nodiscard]] TransferStatus read(const ImageToRead& source, std::byte* image);
  /// Gives bytes of a file back. Failures only keep them in use.
  void punch(const std::string& file_name, std::span<const FileRange> ranges);

 private:
  /// Small images wait in the buffer, to be written together.
  [[nodiscard]] bool write_images(OpenFile& file, std::span<const ImageToWrite> images);
  [[nodiscard]] bool write_large(OpenFile& file, const ImageToWrite& image);
  [[nodiscard]] bool append_small(OpenFile& file, const ImageToWrite& image);
  [[nodiscard]] bool flush(OpenFile& file);
  /// All of an image but its header, which begins at `offset` of the file.
  [[nodiscard]] bool write_sections(OpenFile& file, const ImageToWrite& image, std::uint64_t offset);
  [[nodiscard]] bool write_all(OpenFile& file, const std::byte* bytes, std::size_t size, std::uint64_t offset);
  /// Returns the bytes that were there, or -1.
  [[nodiscard]] std::ptrdiff_t read_bytes(OpenFile& file, std::byte* bytes, std::size_t size, std::uint64_t offset);
  [[nodiscard]] std::ptrdiff_t read_all(OpenFile& file, std::byte* bytes, std::size_t size, std::uint64_t offset);
  [[nodiscard]] TransferStatus read_verified(OpenFile& file, const ImageToRead& source, std::byte* image);
  [[nodiscard]] TransferStatus read_and_sum(OpenFile& file, const ImageToRead& source, std::byte* image);

  struct FreeAligned {
    void operator()(std::byte* bytes) const noexcept;
  };

  ImageFolder& folder_;
  const std::atomic<bool>& stopping_;
  std::unique_ptr<std::byte[], FreeAligned> buffer_;
  std::uint64_t file_bytes_ = 0;    ///< written or buffered, of the file that is being written
  std::size_t buffered_bytes_ = 0;  ///< the last of them
  SectionSums small_sums_;
  SummingThread large_sums_;
};

}  // namespace stateport
