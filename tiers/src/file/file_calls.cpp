// SPDX-License-Identifier: Apache-2.0
#include "file/file_calls.hpp"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <utility>

namespace stateport {

int open_in_folder(int folder, const char* name, int flags) {
  constexpr mode_t read_and_write = 0666;
  struct stat facts = {};
  if ((flags & O_CREAT) != 0 && ::fstat(folder, &facts) != 0) return -1;
  // No file of ours is behind a link, and a pipe would wait for its other end.
  constexpr int safely = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  FileHandle file(::openat(folder, name, flags | safely, facts.st_mode & read_and_write));
  if (!file || ::fstat(file.get(), &facts) != 0) return -1;
  if (!S_ISREG(facts.st_mode)) {
    errno = EPERM;
    return -1;
  }
  return file.release();
}

int FileCalls::open(int folder, const char* name, int flags) {
  return open_in_folder(folder, name, flags);
}

ssize_t FileCalls::write_at(int file, const std::byte* bytes, std::size_t size, off_t offset) {
  return ::pwrite(file, bytes, size, offset);
}

ssize_t FileCalls::read_at(int file, std::byte* bytes, std::size_t size, off_t offset) {
  return ::pread(file, bytes, size, offset);
}

int FileCalls::allocate(int file, off_t bytes) {
  return ::fallocate(file, 0, 0, bytes);
}

int FileCalls::punch_hole(int file, off_t offset, off_t bytes) {
  return ::fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
}

int FileCalls::synchronize_data(int file) {
  return ::fdatasync(file);
}

int FileCalls::synchronize_folder(int folder) {
  return ::fsync(folder);
}

int FileCalls::rename(int folder, const char* from, const char* to) {
  return ::renameat(folder, from, folder, to);
}

int FileCalls::unlink(int folder, const char* name) {
  return ::unlinkat(folder, name, 0);
}

off_t FileCalls::seek_data(int file, off_t offset) {
  return ::lseek(file, offset, SEEK_DATA);
}

std::int64_t FileCalls::free_bytes(int folder) {
  struct statvfs facts = {};
  if (::fstatvfs(folder, &facts) != 0) return -1;
  return static_cast<std::int64_t>(facts.f_bavail) * static_cast<std::int64_t>(facts.f_frsize);
}

FileCalls& FileCalls::system() noexcept {
  static FileCalls calls;
  return calls;
}

FileHandle& FileHandle::operator=(FileHandle&& other) noexcept {
  std::swap(file_, other.file_);
  return *this;
}

FileHandle::~FileHandle() {
  if (file_ >= 0) ::close(file_);
}

}  // namespace stateport
