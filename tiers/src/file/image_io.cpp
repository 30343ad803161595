// SPDX-License-Identifier: Apache-2.0
#include "file/image_io.hpp"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace stateport {
namespace {

constexpr std::align_val_t alignment{ImageLayout::alignment_bytes};
/// Large enough for the disk, small enough that checksums follow closely behind.
constexpr std::size_t chunk_bytes = std::size_t{2} << 20;
/// Images of at most this many bytes are copied, to be written together, and summed on the spot: for more, a copy costs
/// more than a call, and less is not worth waking a thread.
constexpr std::size_t small_image_bytes = chunk_bytes / 4;

bool aligned(const std::byte* bytes) noexcept {
  return reinterpret_cast<std::uintptr_t>(bytes) % ImageLayout::alignment_bytes == 0;
}

TransferStatus status_of(int error) noexcept {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return full ? TransferStatus::no_room : TransferStatus::failed;
}

constexpr bool fits(std::uint64_t free_bytes, std::uint64_t bytes, std::uint64_t floor_bytes) noexcept {
  return free_bytes >= floor_bytes && free_bytes - floor_bytes >= bytes;
}

/// Some file systems accept O_DIRECT and refuse the transfer.
bool becomes_buffered(OpenFile& file) noexcept {
  if (errno != EINVAL || !file.direct) return false;
  const int flags = ::fcntl(file.handle.get(), F_GETFL);
  if (flags < 0 || ::fcntl(file.handle.get(), F_SETFL, flags & ~O_DIRECT) != 0) return false;
  file.direct = false;
  return true;
}

}  // namespace

OpenFile open_direct(ImageFolder& folder, const std::string& name, int flags) {
  OpenFile file{FileHandle(folder.calls().open(folder.file(), name.c_str(), flags | O_DIRECT)), true};
  if (!file && errno == EINVAL) file = {FileHandle(folder.calls().open(folder.file(), name.c_str(), flags)), false};
  return file;
}

void ImageIo::FreeAligned::operator()(std::byte* bytes) const noexcept {
  ::operator delete[](bytes, alignment);
}

ImageIo::ImageIo(ImageFolder& folder, const std::atomic<bool>& stopping)
    : folder_(folder), stopping_(stopping), buffer_(new (alignment) std::byte[chunk_bytes]) {
  static_assert(128 + 96 * ImageLayout::tensors_max + ImageLayout::alignment_bytes <= chunk_bytes,
                "the buffer takes every header");
}

ImageIo::~ImageIo() {
  if (folder_.scrubs()) ::explicit_bzero(buffer_.get(), chunk_bytes);
}

TransferStatus ImageIo::write(std::uint64_t number, std::span<const ImageToWrite> images,
                              std::uint64_t free_floor_bytes) {
  FileCalls& calls = folder_.calls();
  std::uint64_t bytes = 0;
  for (const ImageToWrite& image : images) bytes += image.layout->image_bytes();
  const std::int64_t free_bytes = calls.free_bytes(folder_.file());
  if (free_bytes >= 0 && !fits(static_cast<std::uint64_t>(free_bytes), bytes, free_floor_bytes))
    return TransferStatus::no_room;

  std::string name = folder_.temporary_name(number);
  const std::string published = folder_.image_name(number);
  name.reserve(published.size());
  OpenFile file = open_direct(folder_, name, O_WRONLY | O_CREAT | O_EXCL);
  if (!file) return status_of(errno);
  const bool allocated =
      calls.allocate(file.handle.get(), static_cast<off_t>(bytes)) == 0 || errno == EOPNOTSUPP || errno == ENOSYS;
  bool done = allocated && write_images(file, images) && calls.synchronize_data(file.handle.get()) == 0;
  if (done) {
    done = calls.rename(folder_.file(), name.c_str(), published.c_str()) == 0;
    if (done) name = published;
    done = done && calls.synchronize_folder(folder_.file()) == 0;
  }
  if (done) return TransferStatus::done;
  const TransferStatus status = status_of(errno);
  folder_.remove(name);
  return status;
}

bool ImageIo::write_images(OpenFile& file, std::span<const ImageToWrite> images) try {
  file_bytes_ = buffered_bytes_ = 0;
  for (const ImageToWrite& image : images) {
    const bool small = image.layout->image_bytes() <= small_image_bytes;
    if (!(small ? append_small(file, image) : write_large(file, image))) return false;
  }
  return flush(file);
} catch (const std::bad_alloc&) {
  errno = ENOMEM;
  return false;
}

bool ImageIo::append_small(OpenFile& file, const ImageToWrite& image) {
  const ImageLayout& layout = *image.layout;
  if (buffered_bytes_ + layout.image_bytes() > chunk_bytes && !flush(file)) return false;
  std::byte* copy = buffer_.get() + buffered_bytes_;
  const std::size_t header_bytes = layout.header_bytes();
  std::memcpy(copy + header_bytes, image.image + header_bytes, layout.image_bytes() - header_bytes);
  layout.clear_padding({copy, layout.image_bytes()});
  small_sums_.start(layout, copy);
  small_sums_.advance(layout.image_bytes());
  layout.write_header({copy, header_bytes}, image.key, small_sums_.sums());
  buffered_bytes_ += layout.image_bytes();
  file_bytes_ += layout.image_bytes();
  return true;
}

bool ImageIo::write_large(OpenFile& file, const ImageToWrite& image) {
  if (!flush(file)) return false;
  const ImageLayout& layout = *image.layout;
  large_sums_.start(layout, image.image);
  large_sums_.advance(layout.image_bytes());
  const std::uint64_t begin = file_bytes_;
  const std::size_t header_bytes = layout.header_bytes();
  const bool written = write_sections(file, image, begin);
  const std::span<const Checksum> sums = large_sums_.finish();
  if (!written) return false;
  layout.write_header({buffer_.get(), header_bytes}, image.key, sums);
  file_bytes_ += layout.image_bytes();
  return write_all(file, buffer_.get(), header_bytes, begin);
}

bool ImageIo::flush(OpenFile& file) {
  if (buffered_bytes_ == 0) return true;
  const std::size_t bytes = buffered_bytes_;
  buffered_bytes_ = 0;
  return write_all(file, buffer_.get(), bytes, file_bytes_ - bytes);
}

bool ImageIo::write_sections(OpenFile& file, const ImageToWrite& image, std::uint64_t offset) {
  const std::size_t size = image.layout->image_bytes();
  for (std::size_t at = image.layout->header_bytes(); at < size;) {
    const std::size_t chunk = std::min(chunk_bytes, size - at);
    const std::byte* source = image.image + at;
    if ((file.direct && !aligned(source)) || folder_.scrubs())
      source = static_cast<const std::byte*>(std::memcpy(buffer_.get(), source, chunk));
    if (folder_.scrubs()) image.layout->clear_padding({buffer_.get(), chunk}, at);
    if (!write_all(file, source, chunk, offset + at)) return false;
    at += chunk;
  }
  return true;
}

bool ImageIo::write_all(OpenFile& file, const std::byte* bytes, std::size_t size, std::uint64_t offset) {
  while (size > 0) {
    if (stopping_) {
      errno = ECANCELED;
      return false;
    }
    const ssize_t written = folder_.calls().write_at(file.handle.get(), bytes, size, static_cast<off_t>(offset));
    if (written <= 0) {
      if (written < 0 && (errno == EINTR || becomes_buffered(file))) continue;
      if (written == 0) errno = EIO;
      return false;
    }
    bytes += written;
    size -= static_cast<std::size_t>(written);
    offset += static_cast<std::uint64_t>(written);
  }
  return true;
}

std::ptrdiff_t ImageIo::read_bytes(OpenFile& file, std::byte* bytes, std::size_t size, std::uint64_t offset) {
  if (!file.direct || aligned(bytes)) return read_all(file, bytes, size, offset);
  const std::ptrdiff_t read = read_all(file, buffer_.get(), size, offset);
  if (read > 0) std::memcpy(bytes, buffer_.get(), static_cast<std::size_t>(read));
  return read;
}

std::ptrdiff_t ImageIo::read_all(OpenFile& file, std::byte* bytes, std::size_t size, std::uint64_t offset) {
  std::size_t at = 0;
  while (at < size) {
    const ssize_t read =
        folder_.calls().read_at(file.handle.get(), bytes + at, size - at, static_cast<off_t>(offset + at));
    if (read < 0 && (errno == EINTR || becomes_buffered(file))) continue;
    if (read < 0) return -1;
    if (read == 0) break;
    at += static_cast<std::size_t>(read);
  }
  return static_cast<std::ptrdiff_t>(at);
}

TransferStatus ImageIo::read(const ImageToRead& source, std::byte* image) {
  OpenFile file = open_direct(folder_, source.file_name, O_RDONLY);
  if (!file) return errno == ENOENT ? TransferStatus::gone : TransferStatus::failed;
  return read_verified(file, source, image);
}

TransferStatus ImageIo::read_verified(OpenFile& file, const ImageToRead& source, std::byte* image) {
  const TransferStatus status = read_and_sum(file, source, image);
  if (status != TransferStatus::damaged) return status;
  // Another process may have removed this image of a file and kept others.
  const auto sections = static_cast<off_t>(source.offset + source.layout->header_bytes());
  const auto end = static_cast<off_t>(source.offset + source.layout->image_bytes());
  if (::lseek(file.handle.get(), 0, SEEK_END) < end) return status;
  const off_t data = folder_.calls().seek_data(file.handle.get(), sections);
  const bool hole = data >= end || (data < 0 && errno == ENXIO);
  return hole ? TransferStatus::gone : status;
}

TransferStatus ImageIo::read_and_sum(OpenFile& file, const ImageToRead& source, std::byte* image) {
  const ImageLayout& layout = *source.layout;
  const std::size_t size = layout.image_bytes();
  const bool small = size <= small_image_bytes;
  TransferStatus status = TransferStatus::done;
  bool header_read = false;
  std::size_t at = 0;
  while (at < size && status == TransferStatus::done) {
    const std::size_t chunk = std::min(chunk_bytes, size - at);
    const std::ptrdiff_t read = stopping_ ? -1 : read_bytes(file, image + at, chunk, source.offset + at);
    if (read < 0) status = TransferStatus::failed;
    if (read >= 0 && static_cast<std::size_t>(read) < chunk) status = TransferStatus::damaged;
    if (status != TransferStatus::done) break;
    at += chunk;
    if (!header_read) {
      header_read = true;
      status = layout.check_header({image, layout.header_bytes()}, source.key);
      small ? small_sums_.start(layout, image) : large_sums_.start(layout, image);
    }
    if (status == TransferStatus::done) small ? small_sums_.advance(at) : large_sums_.advance(at);
  }
  const std::span<const Checksum> sums = small ? small_sums_.sums() : large_sums_.finish();
  if (status != TransferStatus::done) return status;
  for (std::size_t i = 0; i < sums.size(); ++i)
    if (sums[i] != layout.section_checksum({image, layout.header_bytes()}, i)) return TransferStatus::damaged;
  return TransferStatus::done;
}

void ImageIo::punch(const std::string& file_name, std::span<const FileRange> ranges) {
  const FileHandle file(folder_.calls().open(folder_.file(), file_name.c_str(), O_WRONLY));
  if (!file) return;
  for (const FileRange& range : ranges) folder_.punch(file.get(), range);
}

}  // namespace stateport
