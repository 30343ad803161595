// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>

namespace stateport::test {

/// Random integers in [low, high], both included. The sequence depends on the seed alone, on every platform.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  [[nodiscard]] std::int64_t between(std::int64_t low, std::int64_t high) {
    const auto width = static_cast<std::uint64_t>(high - low) + 1;
    return low + static_cast<std::int64_t>(width == 0 ? engine_() : engine_() % width);
  }
  [[nodiscard]] std::int32_t between32(std::int32_t low, std::int32_t high) {
    return static_cast<std::int32_t>(between(low, high));
  }
  [[nodiscard]] bool chance(int percent) { return between(0, 99) < percent; }
  [[nodiscard]] std::uint64_t bits() { return engine_(); }

 private:
  std::mt19937_64 engine_;
};

}  // namespace stateport::test
