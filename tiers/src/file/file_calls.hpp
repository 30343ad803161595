// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace stateport {

/// Bytes [begin, end) of a file.
struct FileRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Opens `name` in the open `folder`, closed on exec. A new file may be read and written by users who may read and
/// write the folder, as far as the process's mask allows. -1 and errno as of openat; EPERM for a file that is not
/// regular, ELOOP for a link.
[[nodiscard]] int open_in_folder(int folder, const char* name, int flags);

/// The calls to the operating system that a file tier makes on images. Return values and errno are those of the system.
/// Tests put failures in their place. Thread-safe.
class FileCalls {
 public:
  virtual ~FileCalls() = default;

  /// open_in_folder().
  virtual int open(int folder, const char* name, int flags);
  virtual ssize_t write_at(int file, const std::byte* bytes, std::size_t size, off_t offset);
  virtual ssize_t read_at(int file, std::byte* bytes, std::size_t size, off_t offset);
  /// Makes room on the disk.
  virtual int allocate(int file, off_t bytes);
  /// Gives the bytes back; the size of the file stays.
  virtual int punch_hole(int file, off_t offset, off_t bytes);
  /// Of the bytes of a file.
  virtual int synchronize_data(int file);
  virtual int synchronize_folder(int folder);
  virtual int rename(int folder, const char* from, const char* to);
  virtual int unlink(int folder, const char* name);
  /// Where data begins at or after `offset`: -1 with ENXIO if none does.
  virtual off_t seek_data(int file, off_t offset);
  /// For users without privileges. -1: unknown.
  virtual std::int64_t free_bytes(int folder);

  /// Those of the system.
  [[nodiscard]] static FileCalls& system() noexcept;
};

/// Closes a file at the end of its life.
class FileHandle {
 public:
  explicit FileHandle(int file = -1) noexcept : file_(file) {}
  FileHandle(FileHandle&& other) noexcept : file_(other.file_) { other.file_ = -1; }
  FileHandle& operator=(FileHandle&& other) noexcept;
  ~FileHandle();
  [[nodiscard]] int get() const noexcept { return file_; }
  /// The caller's from here on.
  [[nodiscard]] int release() noexcept { return std::exchange(file_, -1); }
  [[nodiscard]] explicit operator bool() const noexcept { return file_ >= 0; }

 private:
  int file_;
};

}  // namespace stateport
