// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace stateport::soak {

/// Memory of this process, after its heap gave back unused pages. -1: not known on this system.
struct ProcessMemory {
  std::int64_t resident_bytes = -1;
  std::int64_t heap_bytes = -1;  ///< in use, of all arenas
  std::int64_t descriptors = -1;
  std::int64_t threads = -1;
};
[[nodiscard]] ProcessMemory process_memory();

/// For the start of a program: all threads allocate from one arena. glibc else has up to eight arenas a core. Memory
/// that one thread frees for another stays in the other's arena. Where threads end and start anew, resident memory then
/// grows until each arena has held the highest use so far, although nothing is kept.
void use_one_arena();

/// Samples of a run, and whether memory stayed flat. The first tenth is warm-up.
class MemorySamples {
 public:
  /// How much more than in the second quarter the median of the last one may be.
  struct Limits {
    double heap_growth = 0;               ///< part of the second quarter's
    std::int64_t heap_min_bytes = 0;      ///< less is no growth
    double resident_growth = 0;           ///< the same of resident memory, which has stacks, too
    std::int64_t resident_min_bytes = 0;  ///< the same
    std::int64_t counts = 0;              ///< descriptors, threads
  };
  /// Caches of a new engine grow for some 10,000 requests.
  static constexpr std::int64_t long_requests = 200'000;
  static constexpr Limits of_long_runs = {.heap_growth = 0.01,
                                          .heap_min_bytes = 256 * 1024,
                                          .resident_growth = 0.05,
                                          .resident_min_bytes = 4 * 1024 * 1024,
                                          .counts = 2};
  static constexpr Limits of_short_runs = {.heap_growth = 0.3,
                                           .heap_min_bytes = 2 * 1024 * 1024,
                                           .resident_growth = 0.6,
                                           .resident_min_bytes = 48 * 1024 * 1024,
                                           .counts = 12};
  static constexpr std::size_t samples_min = 40;

  explicit MemorySamples(std::size_t capacity) { samples_.reserve(capacity); }
  /// `files`: in the folders of tiers.
  void add(const ProcessMemory& memory, std::int64_t files);
  [[nodiscard]] bool enough() const noexcept { return samples_.size() >= samples_min; }
  /// Values that have grown, a line each; empty if all stayed flat. Where the size of the heap is not known, a
  /// sanitizer's share of the resident memory is not known, either.
  [[nodiscard]] std::vector<std::string> growth(const Limits& limits) const;
  /// A line for each of the quarters: medians.
  [[nodiscard]] std::vector<std::string> quarters() const;

 private:
  struct Sample {
    ProcessMemory memory;
    std::int64_t files = 0;
  };
  template <class Value>
  [[nodiscard]] std::int64_t median(int quarter, Value&& value) const;

  std::vector<Sample> samples_;
};

}  // namespace stateport::soak
