// SPDX-License-Identifier: Apache-2.0
// How much of the disk's speed is left to images that are checked and survive a crash? One image of 64 MiB at a time,
// written and read by a FileTier. Peers in the same run: a plain loop with the same flags and the same calls, without
// header and checksums; that loop with the checksum behind it, on one thread; the checksum alone.
//
// The files lie in the folder for temporary files; STATEPORT_PERF_FOLDER names another.
#include <stateport/tiers/checksum.hpp>
#include <stateport/tiers/file_tier.hpp>

#include "comparison.hpp"
#include "file_folder.hpp"

#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <new>
#include <random>
#include <span>
#include <stdexcept>
#include <string>

namespace stateport::perf {
namespace {

constexpr std::size_t plain_chunk_bytes = std::size_t{2} << 20;

void require_true(bool ok) {
  if (!ok) throw std::runtime_error("the file system refuses a call");
}

/// 32 layers with a conv state and nearly 2 MiB of recurrent state: 63.6 MiB.
ImageLayout layout_of_64_mib() {
  constexpr std::int32_t layers = 32;
  return ImageLayout(StateSpec::uniform(layers, {.window = 3, .dim = 512}, {.shape = {32, 128, 127}}), {});
}

class Memory {
 public:
  explicit Memory(std::size_t size)
      : bytes_(static_cast<std::byte*>(::operator new (size, std::align_val_t{4096}))), size_(size) {
    std::mt19937_64 random(size);
    for (std::byte& byte : bytes()) byte = static_cast<std::byte>(random());
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { ::operator delete (bytes_, std::align_val_t{4096}); }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {bytes_, size_}; }

 private:
  std::byte* bytes_;
  std::size_t size_;
};

/// The peer: a plain program whose file survives a crash.
class PlainFile {
 public:
  explicit PlainFile(const std::string& folder) {
    std::filesystem::create_directory(folder);
    folder_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY);
    require_true(folder_ >= 0);
  }
  PlainFile(const PlainFile&) = delete;
  PlainFile& operator=(const PlainFile&) = delete;
  ~PlainFile() { ::close(folder_); }

  void write(std::span<const std::byte> bytes) const {
    const int file = open_direct("image.tmp", O_WRONLY | O_CREAT | O_EXCL);
    require_true(::fallocate(file, 0, 0, static_cast<off_t>(bytes.size())) == 0);
    for (std::size_t at = 0; at < bytes.size(); at += plain_chunk_bytes) {
      const auto chunk = bytes.subspan(at, std::min(plain_chunk_bytes, bytes.size() - at));
      require_true(::pwrite(file, chunk.data(), chunk.size(), static_cast<off_t>(at)) ==
                   static_cast<ssize_t>(chunk.size()));
    }
    require_true(::fdatasync(file) == 0 && ::renameat(folder_, "image.tmp", folder_, "image") == 0);
    require_true(::fsync(folder_) == 0 && ::close(file) == 0);
  }
  void read(std::span<std::byte> bytes) const {
    const int file = open_direct("image", O_RDONLY);
    for (std::size_t at = 0; at < bytes.size(); at += plain_chunk_bytes) {
      const auto chunk = bytes.subspan(at, std::min(plain_chunk_bytes, bytes.size() - at));
      require_true(::pread(file, chunk.data(), chunk.size(), static_cast<off_t>(at)) ==
                   static_cast<ssize_t>(chunk.size()));
    }
    ::close(file);
  }
  void remove() const { require_true(::unlinkat(folder_, "image", 0) == 0 && ::fsync(folder_) == 0); }

 private:
  [[nodiscard]] int open_direct(const char* name, int flags) const {
    int file = ::openat(folder_, name, flags | O_DIRECT, 0666);
    if (file < 0 && errno == EINVAL) file = ::openat(folder_, name, flags, 0666);
    require_true(file >= 0);
    return file;
  }
  int folder_ = -1;
};

class Bench {
 public:
  Bench()
      : layout_(layout_of_64_mib()),
        tier_({.folder = folder_.path() + "/images", .capacity_bytes = std::uint64_t{1} << 30}, {layout_}),
        plain_(folder_.path() + "/plain"),
        memory_(layout_.image_bytes()) {}

  [[nodiscard]] std::size_t image_bytes() const noexcept { return layout_.image_bytes(); }
  [[nodiscard]] std::span<std::byte> memory() const { return memory_.bytes(); }
  [[nodiscard]] const PlainFile& plain() const noexcept { return plain_; }

  void write() {
    const FileImage image{key_, memory_.bytes().data()};
    require_true(tier_.write(1, {&image, 1}));
    wait();
  }
  void read() {
    require_true(tier_.read(2, key_, memory_.bytes()));
    wait();
  }
  void remove() {
    require_true(tier_.remove(key_));
    tier_.wait_idle();
  }
  void sum() const { benchmark::DoNotOptimize(checksum(memory_.bytes())); }

 private:
  void wait() {
    tier_.wait_idle();
    Completion answer;
    require_true(tier_.poll({&answer, 1}) == 1 && answer.status == TransferStatus::done);
  }

  FileFolder folder_;
  ImageLayout layout_;
  FileTier tier_;
  PlainFile plain_;
  Memory memory_;
  ImageKey key_{.prefix = {{1, 2}}, .tokens = 4096};
};

void write_image(benchmark::State& state) {
  Bench bench;
  // Removing a file is no part of writing it.
  const Timer timer = [&bench](const Contender& contender, int round) {
    const double time_ns = wall_time_ns(contender, round);
    if (contender.name == "ours") bench.remove();
    if (contender.name.starts_with("plain")) bench.plain().remove();
    return time_ns;
  };
  report(state,
         {{"ours", [&](int) { bench.write(); }},
          {"plain_loop", [&](int) { bench.plain().write(bench.memory()); }},
          {"plain_loop_and_checksum",
           [&](int) {
             bench.sum();
             bench.plain().write(bench.memory());
           }},
          {"checksum", [&](int) { bench.sum(); }}},
         static_cast<double>(bench.image_bytes()), 31, timer);
}

void read_image(benchmark::State& state) {
  Bench bench;
  bench.write();
  bench.plain().write(bench.memory());
  report(state,
         {{"ours", [&](int) { bench.read(); }},
          {"plain_loop", [&](int) { bench.plain().read(bench.memory()); }},
          {"plain_loop_and_checksum",
           [&](int) {
             bench.plain().read(bench.memory());
             bench.sum();
           }},
          {"checksum", [&](int) { bench.sum(); }}},
         static_cast<double>(bench.image_bytes()), 31);
}

BENCHMARK(write_image)->Iterations(1)->UseManualTime();
BENCHMARK(read_image)->Iterations(1)->UseManualTime();

}  // namespace
}  // namespace stateport::perf

BENCHMARK_MAIN();
