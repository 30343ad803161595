// SPDX-License-Identifier: Apache-2.0
#include "file/image_folder.hpp"

#include <stateport/core/model/error.hpp>

#include "hash/random_bits.hpp"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>

namespace stateport {
namespace {

constexpr std::string_view marker_of_any_version = "stateport-images-";
constexpr const char* marker_name = "stateport-images-1";
constexpr std::string_view lock_suffix = ".lock";
constexpr std::string_view temporary_suffix = ".tmp";
constexpr std::string_view image_suffix = ".img";
constexpr std::size_t writer_digits = 16;

/// A folder that may not be used as it is is the caller's mistake; all else is the machine's failure.
[[noreturn]] void throw_system(const std::string& path, std::string_view call, int error) {
  static constexpr std::array callers = {EACCES, EPERM, EROFS, ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG};
  const char* reason = ::strerror(error);
  if (std::ranges::find(callers, error) != callers.end())
    throw InvalidArgument("folder", path, fmt::format("{}: {}", call, reason));
  throw BackendError(fmt::format("{} in {}", call, path), reason);
}

std::string random_writer() {
  return fmt::format("{:016x}", detail::random_bits());
}

/// The writer of a name that a writer gives, or nothing.
std::string_view writer_of(std::string_view name) {
  if (name.size() < writer_digits) return {};
  const std::string_view writer = name.substr(0, writer_digits);
  return writer.find_first_not_of("0123456789abcdef") == std::string_view::npos ? writer : std::string_view{};
}

bool is_numbered(std::string_view name, std::string_view suffix) {
  if (writer_of(name).empty() || !name.ends_with(suffix)) return false;
  const std::string_view number = name.substr(writer_digits, name.size() - writer_digits - suffix.size());
  return number.size() >= 2 && number[0] == '-' &&
         number.substr(1).find_first_not_of("0123456789") == std::string_view::npos;
}

bool is_lock(std::string_view name) {
  return name.size() == writer_digits + lock_suffix.size() && !writer_of(name).empty() && name.ends_with(lock_suffix);
}

}  // namespace

ImageFolder::ImageFolder(FileCalls& calls, const std::string& path, bool scrub)
    : calls_(calls), path_(path), scrub_(scrub) {
  const bool made = ::mkdir(path.c_str(), S_IRWXU) == 0;
  if (!made && errno != EEXIST) throw_system(path, "it cannot be made", errno);
  folder_ = FileHandle(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder_) throw_system(path, "it cannot be opened", errno);
  if (made) {
    const FileHandle above(::openat(folder_.get(), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!above || ::fsync(above.get()) != 0) throw_system(path, "the folder above it cannot be synchronised", errno);
  }
  require_ours();
  take_lock();
}

ImageFolder::~ImageFolder() {
  if (lock_) ::unlinkat(folder_.get(), lock_name_.c_str(), 0);
}

void ImageFolder::require_ours() {
  const Contents contents = list();
  require(contents.has_marker || !contents.has_other_marker, "folder", path_, "is of another version");
  require(contents.has_marker || contents.foreign_files == 0, "folder", path_,
          "holds other files, and is no folder of images");
  if (contents.has_marker) return;
  const FileHandle marker(open_in_folder(folder_.get(), marker_name, O_WRONLY | O_CREAT));
  if (!marker) throw_system(path_, "it cannot be written", errno);
}

void ImageFolder::take_lock() {
  constexpr int tries = 100;
  for (int i = 0; i < tries; ++i) {
    writer_ = random_writer();
    lock_name_ = writer_ + std::string(lock_suffix);
    lock_ = FileHandle(open_in_folder(folder_.get(), lock_name_.c_str(), O_RDWR | O_CREAT | O_EXCL));
    if (!lock_) throw_system(path_, "it cannot be written", errno);
    struct stat facts = {};
    // Between these two calls another writer may have taken the lock for a dead one's and removed it.
    if (::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0 && ::fstat(lock_.get(), &facts) == 0 && facts.st_nlink > 0) {
      punches_holes_ = calls_.punch_hole(lock_.get(), 0, 4096) == 0;
      return;
    }
    if (errno == ENOLCK || errno == ENOTSUP) throw_system(path_, "it has no file locks", errno);
    lock_ = FileHandle();
  }
  throw_system(path_, "no lock could be taken", EAGAIN);
}

bool ImageFolder::overwrite(int file, const FileRange& range) {
  constexpr std::size_t chunk_bytes = std::size_t{1} << 16;
  static constexpr std::array<std::byte, chunk_bytes> zeros = {};
  for (std::uint64_t at = range.begin; at < range.end;) {
    // A hole holds no bytes, and zeros in it would take room.
    const off_t data = calls_.seek_data(file, static_cast<off_t>(at));
    if (data < 0 && errno == ENXIO) break;
    at = std::max(at, data < 0 ? at : static_cast<std::uint64_t>(data));
    if (at >= range.end) break;
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(chunk_bytes, range.end - at));
    const ssize_t written = calls_.write_at(file, zeros.data(), size, static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += static_cast<std::uint64_t>(written);
  }
  return calls_.synchronize_data(file) == 0;
}

bool ImageFolder::overwrite(const std::string& name) {
  const FileHandle file(calls_.open(folder_.get(), name.c_str(), O_WRONLY));
  if (!file) return errno == ENOENT;
  struct stat facts = {};
  if (::fstat(file.get(), &facts) != 0 || facts.st_nlink > 1) return false;
  return overwrite(file.get(), {0, static_cast<std::uint64_t>(facts.st_size)});
}

int ImageFolder::remove(const std::string& name) {
  if (scrub_ && !overwrite(name)) ++unscrubbed_;
  return calls_.unlink(folder_.get(), name.c_str());
}

void ImageFolder::punch(int file, const FileRange& range) {
  if (scrub_ && !overwrite(file, range)) ++unscrubbed_;
  calls_.punch_hole(file, static_cast<off_t>(range.begin), static_cast<off_t>(range.end - range.begin));
}

std::string ImageFolder::temporary_name(std::uint64_t number) const {
  return fmt::format("{}-{}{}", writer_, number, temporary_suffix);
}

std::string ImageFolder::image_name(std::uint64_t number) const {
  return fmt::format("{}-{}{}", writer_, number, image_suffix);
}

ImageFolder::Contents ImageFolder::list() const {
  Contents contents;
  // A descriptor of its own, because the stream takes it and its position.
  FileHandle file(::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(file ? ::fdopendir(file.get()) : nullptr, ::closedir);
  if (!stream) throw_system(path_, "it cannot be listed", errno);
  static_cast<void>(file.release());
  errno = 0;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string name = entry->d_name;
    if (is_numbered(name, image_suffix)) {
      contents.image_files.push_back(name);
    } else if (is_numbered(name, temporary_suffix)) {
      contents.temporaries.push_back(name);
    } else if (is_lock(name)) {
      contents.locks.push_back(name);
    } else if (name == marker_name) {
      contents.has_marker = true;
    } else if (name.starts_with(marker_of_any_version)) {
      contents.has_other_marker = true;
    } else if (name != "." && name != "..") {
      ++contents.foreign_files;
    }
    errno = 0;
  }
  if (errno != 0) throw_system(path_, "it cannot be listed", errno);
  std::ranges::sort(contents.image_files);
  return contents;
}

bool ImageFolder::lives(std::string_view writer, FileHandle& lock) const {
  if (writer == writer_) return true;
  const std::string name = std::string(writer) + std::string(lock_suffix);
  lock = FileHandle(open_in_folder(folder_.get(), name.c_str(), O_RDWR));
  if (!lock) return errno != ENOENT;
  return ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0;
}

int ImageFolder::synchronize_holes(const std::string& name) {
  const FileHandle file(calls_.open(folder_.get(), name.c_str(), O_WRONLY));
  if (!file) return errno == ENOENT ? 0 : -1;
  return calls_.synchronize_data(file.get());
}

std::uint64_t ImageFolder::drop_dead(const Contents& contents) {
  std::uint64_t dropped = 0;
  for (const std::string& name : contents.temporaries) {
    FileHandle lock;
    if (!lives(writer_of(name), lock) && remove(name) == 0) ++dropped;
  }
  // After the temporaries: while a lock is there, its owner can be told.
  for (const std::string& name : contents.locks) {
    FileHandle lock;
    if (!lives(writer_of(name), lock) && lock) ::unlinkat(folder_.get(), name.c_str(), 0);
  }
  return dropped;
}

}  // namespace stateport
