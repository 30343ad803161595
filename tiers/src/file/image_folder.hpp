// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "file/file_calls.hpp"

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stateport {

/// A folder of image files, opened by one writer. In it lie
///
///     stateport-images-1       the marker: a folder of images, and its version
///     <writer>.lock            locked (flock) as long as the writer lives
///     <writer>-<number>.tmp    being written
///     <writer>-<number>.img    images, one after the other
///
/// A writer is 16 random hexadecimal digits. Another name is a foreign file.
class ImageFolder {
 public:
  /// Makes folder and marker where they are missing, and a lock. Throws InvalidArgument for a folder that is not ours
  /// or may not be used, BackendError for failures of the machine. `scrub`: FileTierOptions::scrub.
  ImageFolder(FileCalls& calls, const std::string& path, bool scrub = false);
  ImageFolder(const ImageFolder&) = delete;
  ImageFolder& operator=(const ImageFolder&) = delete;
  /// Removes the lock.
  ~ImageFolder();

  [[nodiscard]] int file() const noexcept { return folder_.get(); }
  [[nodiscard]] FileCalls& calls() const noexcept { return calls_; }
  /// Whether the file system gives back bytes from the middle of a file.
  [[nodiscard]] bool punches_holes() const noexcept { return punches_holes_; }

  [[nodiscard]] bool scrubs() const noexcept { return scrub_; }
  /// How often bytes were given back that were to be scrubbed and could not be.
  [[nodiscard]] std::uint64_t unscrubbed() const noexcept { return unscrubbed_.load(std::memory_order_relaxed); }
  /// Removes a file. As unlink().
  int remove(const std::string& name);
  /// Gives bytes of an open file back. Failures only keep them in use.
  void punch(int file, const FileRange& range);
  /// The holes of a file survive a crash of the machine from now on. 0 also if the file has gone; else -1 and errno.
  int synchronize_holes(const std::string& name);

  [[nodiscard]] std::string temporary_name(std::uint64_t number) const;
  [[nodiscard]] std::string image_name(std::uint64_t number) const;

  struct Contents {
    std::vector<std::string> image_files;  ///< sorted
    std::vector<std::string> temporaries;
    std::vector<std::string> locks;
    std::uint64_t foreign_files = 0;
    bool has_marker = false;
    bool has_other_marker = false;  ///< of another version
  };
  [[nodiscard]] Contents list() const;
  /// Removes the temporaries and locks of writers that died. Returns the number of temporaries.
  std::uint64_t drop_dead(const Contents& contents);

 private:
  void require_ours();
  void take_lock();
  /// Writes zeros over bytes of an open file, down to the disk, where there is no hole. False: some may be as they
  /// were.
  [[nodiscard]] bool overwrite(int file, const FileRange& range);
  /// The same of a whole file that has no other name.
  [[nodiscard]] bool overwrite(const std::string& name);
  /// Whether this writer lives. The lock of a dead one is held when this returns, and `lock` holds it.
  [[nodiscard]] bool lives(std::string_view writer, FileHandle& lock) const;

  FileCalls& calls_;
  std::string path_;
  FileHandle folder_;
  std::string writer_;
  std::string lock_name_;
  FileHandle lock_;
  bool punches_holes_ = false;
  bool scrub_;
  std::atomic<std::uint64_t> unscrubbed_ = 0;
};

}  // namespace stateport
