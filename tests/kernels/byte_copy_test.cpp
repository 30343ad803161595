// SPDX-License-Identifier: Apache-2.0
// The GPU's copy of a byte range, its lanes run one after the other.
#include "byte_copy.hpp"

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

using namespace stateport;

namespace {

constexpr std::size_t capacity = 4096;

/// 16-byte aligned.
struct Memory {
  alignas(16) std::array<std::byte, capacity> bytes;
};

void fill(Memory& memory, test::Random& random) {
  for (std::byte& byte : memory.bytes) byte = static_cast<std::byte>(random.bits());
}

}  // namespace

TEST_CASE("a byte range of any alignment and length arrives whole, and nothing beside it changes") {
  test::for_each_seed(200, [](test::Random& random, std::uint64_t) {
    Memory src;
    Memory dst;
    fill(src, random);
    fill(dst, random);
    const std::array<std::uint32_t, 4> lane_counts{1, 3, 32, 256};
    for (const std::uint32_t lanes : lane_counts) {
      const auto from = static_cast<std::size_t>(random.between(0, 39));
      const auto to = static_cast<std::size_t>(random.between(0, 39));
      const auto bytes = static_cast<std::uint32_t>(random.between(0, random.chance(50) ? 40 : capacity - 40));
      CAPTURE(lanes);
      CAPTURE(from);
      CAPTURE(to);
      CAPTURE(bytes);
      // Ends with the range: the sanitizer sees a load beyond it.
      const std::vector<std::byte> exact(src.bytes.begin(),
                                         src.bytes.begin() + static_cast<std::ptrdiff_t>(from + bytes));
      Memory expected = dst;
      std::copy_n(src.bytes.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                  expected.bytes.begin() + static_cast<std::ptrdiff_t>(to));
      for (std::uint32_t lane = 0; lane < lanes; ++lane)
        kernels::copy_bytes_by_lanes(lane, lanes, dst.bytes.data() + to, exact.data() + from, bytes);
      REQUIRE(dst.bytes == expected.bytes);

      std::fill_n(expected.bytes.begin() + static_cast<std::ptrdiff_t>(to), bytes, std::byte{0});
      for (std::uint32_t lane = 0; lane < lanes; ++lane)
        kernels::zero_bytes_by_lanes(lane, lanes, dst.bytes.data() + to, bytes);
      REQUIRE(dst.bytes == expected.bytes);
    }
  });
}
