// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "file/file_calls.hpp"

#include <errno.h>
#include <fcntl.h>

#include <functional>
#include <mutex>
#include <string>
#include <utility>

namespace stateport::test {

enum class Call {
  open,
  write_at,
  read_at,
  allocate,
  punch_hole,
  synchronize_data,
  synchronize_folder,
  rename,
  unlink,
  seek_data,
  free_bytes
};

/// The calls of the system, of which `script` is asked before each: 0 lets it go on, another number is the errno by
/// which it fails. One call at a time asks.
class ScriptedCalls : public FileCalls {
 public:
  using Script = std::function<int(Call)>;
  explicit ScriptedCalls(Script script = {}) : script_(std::move(script)) {}
  void set(Script script) {
    const std::lock_guard lock(mutex_);
    script_ = std::move(script);
  }

  int open(int folder, const char* name, int flags) override {
    return allowed(Call::open) ? FileCalls::open(folder, name, flags) : -1;
  }
  ssize_t write_at(int file, const std::byte* bytes, std::size_t size, off_t offset) override {
    return allowed(Call::write_at) ? FileCalls::write_at(file, bytes, size, offset) : -1;
  }
  ssize_t read_at(int file, std::byte* bytes, std::size_t size, off_t offset) override {
    return allowed(Call::read_at) ? FileCalls::read_at(file, bytes, size, offset) : -1;
  }
  int allocate(int file, off_t bytes) override {
    return allowed(Call::allocate) ? FileCalls::allocate(file, bytes) : -1;
  }
  int punch_hole(int file, off_t offset, off_t bytes) override {
    return allowed(Call::punch_hole) ? FileCalls::punch_hole(file, offset, bytes) : -1;
  }
  int synchronize_data(int file) override {
    return allowed(Call::synchronize_data) ? FileCalls::synchronize_data(file) : -1;
  }
  int synchronize_folder(int folder) override {
    return allowed(Call::synchronize_folder) ? FileCalls::synchronize_folder(folder) : -1;
  }
  int rename(int folder, const char* from, const char* to) override {
    return allowed(Call::rename) ? FileCalls::rename(folder, from, to) : -1;
  }
  int unlink(int folder, const char* name) override {
    return allowed(Call::unlink) ? FileCalls::unlink(folder, name) : -1;
  }
  off_t seek_data(int file, off_t offset) override {
    return allowed(Call::seek_data) ? FileCalls::seek_data(file, offset) : -1;
  }
  std::int64_t free_bytes(int folder) override {
    return allowed(Call::free_bytes) ? FileCalls::free_bytes(folder) : -1;
  }

 protected:
  [[nodiscard]] bool allowed(Call call) {
    const std::lock_guard lock(mutex_);
    const int error = script_ ? script_(call) : 0;
    errno = error;
    return error == 0;
  }

 private:
  std::mutex mutex_;
  Script script_;
};

}  // namespace stateport::test
