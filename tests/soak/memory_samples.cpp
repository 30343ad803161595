// SPDX-License-Identifier: Apache-2.0
#include "memory_samples.hpp"

#include <fmt/format.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

namespace stateport::soak {

namespace {

std::int64_t entries(const char* folder) {
  std::error_code error;
  const std::filesystem::directory_iterator begin(folder, error);
  return error ? -1 : std::distance(begin, std::filesystem::directory_iterator());
}

}  // namespace

ProcessMemory process_memory() {
#if defined(__GLIBC__)
  ::malloc_trim(0);  // gives back holes between live blocks, which would look like growth
#endif
  ProcessMemory memory;
  std::int64_t pages = 0, resident_pages = 0;
  if (std::ifstream("/proc/self/statm") >> pages >> resident_pages)
    memory.resident_bytes = resident_pages * ::sysconf(_SC_PAGESIZE);
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
  const auto heap = ::mallinfo2();
  const auto bytes = static_cast<std::int64_t>(heap.uordblks + heap.hblkhd);
  if (bytes > 0) memory.heap_bytes = bytes;  // a sanitizer's heap is another one
#endif
  memory.descriptors = entries("/proc/self/fd");
  memory.threads = entries("/proc/self/task");
  return memory;
}

void use_one_arena() {
#if defined(__GLIBC__)
  ::mallopt(M_ARENA_MAX, 1);
#endif
}

void MemorySamples::add(const ProcessMemory& memory, std::int64_t files) {
  if (samples_.size() < samples_.capacity()) samples_.push_back({memory, files});
}

/// Of a quarter of the samples behind the warm-up.
template <class Value>
std::int64_t MemorySamples::median(int quarter, Value&& value) const {
  const std::size_t warm = samples_.size() / 10;
  const std::size_t count = samples_.size() - warm;
  const auto first = warm + count * static_cast<std::size_t>(quarter) / 4;
  const auto last = warm + count * static_cast<std::size_t>(quarter + 1) / 4;
  std::vector<std::int64_t> values;
  for (std::size_t i = first; i < last; ++i) values.push_back(value(samples_[i]));
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

std::vector<std::string> MemorySamples::growth(const Limits& limits) const {
  std::vector<std::string> lines;
  const auto check = [&](const char* what, auto&& value, auto&& allowed) {
    const std::int64_t early = median(1, value);
    const std::int64_t late = median(3, value);
    if (late > early + allowed(early))
      lines.push_back(fmt::format("{} grew: median {} in the second quarter, {} in the last", what, early, late));
  };
  const auto part_or = [](double part, std::int64_t bytes_min) {
    return [=](std::int64_t early) {
      return std::max(bytes_min, static_cast<std::int64_t>(part * static_cast<double>(early)));
    };
  };
  check(
      "heap in use", [](const Sample& sample) { return sample.memory.heap_bytes; },
      part_or(limits.heap_growth, limits.heap_min_bytes));
  check(
      "resident memory",
      [](const Sample& sample) { return sample.memory.heap_bytes < 0 ? -1 : sample.memory.resident_bytes; },
      part_or(limits.resident_growth, limits.resident_min_bytes));
  const auto few = [&](std::int64_t) { return limits.counts; };
  check(
      "open descriptors", [](const Sample& sample) { return sample.memory.descriptors; }, few);
  check(
      "threads", [](const Sample& sample) { return sample.memory.threads; }, few);
  return lines;
}

std::vector<std::string> MemorySamples::quarters() const {
  std::vector<std::string> lines;
  constexpr double mebi = 1 << 20;
  for (int quarter = 0; quarter < 4; ++quarter)
    lines.push_back(fmt::format(
        "quarter {}: heap {:.2f} MiB, resident {:.1f} MiB, {} descriptors, {} threads, {} files", quarter + 1,
        static_cast<double>(median(quarter, [](const Sample& sample) { return sample.memory.heap_bytes; })) / mebi,
        static_cast<double>(median(quarter, [](const Sample& sample) { return sample.memory.resident_bytes; })) / mebi,
        median(quarter, [](const Sample& sample) { return sample.memory.descriptors; }),
        median(quarter, [](const Sample& sample) { return sample.memory.threads; }),
        median(quarter, [](const Sample& sample) { return sample.files; })));
  return lines;
}

}  // namespace stateport::soak
