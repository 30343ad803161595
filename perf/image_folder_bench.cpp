// SPDX-License-Identifier: Apache-2.0
// How long does a tier take to open a folder of 10,000 images? In files of one image each, and of 16 images each. Peer
// in the same run: listing the folder and asking for the size of each file, on one thread. `cold`: the kernel's cache
// of the files' bytes is emptied before each run; that of names and inodes stays.
//
// The files lie in the folder for temporary files; STATEPORT_PERF_FOLDER names another.
#include <stateport/tiers/file_tier.hpp>

#include "comparison.hpp"
#include "file_folder.hpp"

#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace stateport::perf {
namespace {

constexpr std::uint64_t images = 10'000;

void require_true(bool ok) {
  if (!ok) throw std::runtime_error("the workload is broken");
}

class Folder {
 public:
  /// Writes the files as a tier does, but for synchronising each, which would take minutes.
  explicit Folder(std::uint64_t images_per_file) {
    static_cast<void>(open());
    std::vector<std::byte> image(layout_.image_bytes());
    std::ofstream file;
    for (std::uint64_t i = 0; i < images; ++i) {
      if (i % images_per_file == 0) {
        file.close();
        file.open(path() + "/0123456789abcdef-" + std::to_string(i / images_per_file) + ".img", std::ios::binary);
      }
      layout_.seal(image, {.prefix = {{i, i}}, .tokens = 16});
      file.write(reinterpret_cast<const char*>(image.data()), static_cast<std::streamsize>(image.size()));
    }
    file.close();
    ::sync();
    require_true(open().findings().images == images);
  }

  [[nodiscard]] FileTier open() const {
    return FileTier({.folder = path(), .capacity_bytes = std::uint64_t{1} << 32}, {layout_});
  }
  void list() const {
    std::uintmax_t bytes = 0;
    for (const auto& file : std::filesystem::directory_iterator(path())) bytes += file.file_size();
    require_true(bytes == images * layout_.image_bytes());
  }
  void forget_bytes() const {
    for (const auto& entry : std::filesystem::directory_iterator(path())) {
      const int file = ::open(entry.path().c_str(), O_RDONLY);
      require_true(file >= 0 && ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0);
      ::close(file);
    }
  }

 private:
  [[nodiscard]] std::string path() const { return folder_.path() + "/images"; }
  FileFolder folder_;
  ImageLayout layout_{StateSpec::uniform(1, {}, {.shape = {16, 1, 1}}), {}};
};

void open_folder(benchmark::State& state) {
  const Folder folder(static_cast<std::uint64_t>(state.range(0)));
  const bool cold = state.range(1) != 0;
  const Timer timer = [&](const Contender& contender, int round) {
    if (cold) folder.forget_bytes();
    return wall_time_ns(contender, round);
  };
  report(state,
         {{"ours", [&](int) { require_true(folder.open().findings().images == images); }},
          {"list", [&](int) { folder.list(); }}},
         0, 11, timer);
}

BENCHMARK(open_folder)
    ->ArgNames({"images_per_file", "cold"})
    ->ArgsProduct({{1, 16}, {0, 1}})
    ->Iterations(1)
    ->UseManualTime();

}  // namespace
}  // namespace stateport::perf

BENCHMARK_MAIN();
