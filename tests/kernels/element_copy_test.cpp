// SPDX-License-Identifier: Apache-2.0
// The GPU's converting copy of a range, and its shift of ds rows, by lanes of any number.
#include "element_copy.hpp"

#include "gpu/shift_rows.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <vector>

using namespace stateport;

namespace {

/// `bytes` random bytes, `misalignment` bytes past a boundary of 16, and nothing behind them: a sanitizer sees an
/// access beyond the end.
class Range {
 public:
  Range(test::Random& random, std::size_t bytes, std::size_t misalignment)
      : memory_(new (std::align_val_t{16}) std::byte[misalignment + bytes]), begin_(memory_.get() + misalignment) {
    std::generate_n(begin_, bytes, [&] { return static_cast<std::byte>(random.bits()); });
  }
  [[nodiscard]] std::byte* data() const { return begin_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{16}); }
  };
  std::unique_ptr<std::byte[], Free> memory_;
  std::byte* begin_;
};

}  // namespace

TEST_CASE("a range converted by many lanes is the range converted element by element") {
  constexpr std::array<ElementType, 3> types{ElementType::fp32, ElementType::fp16, ElementType::bf16};
  test::for_each_seed(300, [&](test::Random& random, std::uint64_t) {
    const ElementType from = types[static_cast<std::size_t>(random.between(0, 2))];
    const ElementType to = types[static_cast<std::size_t>(random.between(0, 2))];
    const auto count = static_cast<std::uint32_t>(random.between(0, random.chance(50) ? 40 : 9000));
    const auto misalignment = [&] { return random.chance(60) ? 0 : static_cast<std::size_t>(random.between(1, 15)); };
    for (const std::uint32_t lanes : {1u, 3u, 32u, 256u}) {
      CAPTURE(count);
      CAPTURE(lanes);
      const Range src(random, count * element_bytes(from), misalignment());
      const Range dst(random, count * element_bytes(to), misalignment());
      std::vector<std::byte> expected(count * element_bytes(to));
      for (std::uint32_t i = 0; i < count; ++i)
        kernels::convert_range(0, 1, expected.data() + i * element_bytes(to), to, src.data() + i * element_bytes(from),
                               from, 1);
      for (std::uint32_t lane = 0; lane < lanes; ++lane)
        kernels::convert_range(lane, lanes, dst.data(), to, src.data(), from, count);
      REQUIRE(std::equal(expected.begin(), expected.end(), dst.data()));
    }
  });
}

TEST_CASE("rows are shifted by way of shared memory as they are one by one, by lanes that run at once") {
  test::for_each_seed(400, [](test::Random& random, std::uint64_t) {
    const auto lanes = static_cast<std::uint32_t>(random.between(1, 4));
    const std::uint32_t element_bytes = 1u << random.between(0, 3);
    const auto window = static_cast<std::uint32_t>(random.between(2, random.chance(80) ? 9 : 40));
    const auto shift = static_cast<std::uint32_t>(random.between(1, window - 1));
    const auto rows = static_cast<std::uint32_t>(random.between(0, 90));
    const auto stage_bytes = static_cast<std::uint32_t>(random.between(1, random.chance(50) ? 100 : 2000));
    const bool in_place = random.chance(60);
    const std::size_t misaligned = random.chance(70) ? 0 : static_cast<std::size_t>(random.between(1, 15));
    CAPTURE(lanes);
    CAPTURE(element_bytes);
    CAPTURE(window);
    CAPTURE(shift);
    CAPTURE(rows);
    CAPTURE(stage_bytes);
    CAPTURE(in_place);
    CAPTURE(misaligned);
    const std::uint32_t row_bytes = window * element_bytes;
    const Range src(random, std::size_t{row_bytes} * rows, misaligned);
    const Range other(random, std::size_t{row_bytes} * rows, static_cast<std::size_t>(random.between(0, 15)));
    std::byte* const dst = in_place ? src.data() : other.data();
    std::vector<std::byte> expected(dst, dst + std::size_t{row_bytes} * rows);
    for (std::uint32_t r = 0; r < rows; ++r)
      std::memcpy(expected.data() + r * row_bytes, src.data() + r * row_bytes + shift * element_bytes,
                  row_bytes - shift * element_bytes);
    std::vector<kernels::Word16> stage(stage_bytes / sizeof(kernels::Word16) + 1);
    std::barrier all(static_cast<std::ptrdiff_t>(lanes));
    std::vector<std::thread> threads;
    for (std::uint32_t lane = 0; lane < lanes; ++lane)
      threads.emplace_back([&, lane] {
        const kernels::ShiftedRows range{.dst = dst,
                                         .src = src.data(),
                                         .rows = rows,
                                         .window = window,
                                         .shift = shift,
                                         .element_bytes = element_bytes};
        kernels::shift_rows(lane, lanes, range, reinterpret_cast<std::byte*>(stage.data()), stage_bytes,
                            [&] { all.arrive_and_wait(); });
      });
    for (std::thread& thread : threads) thread.join();
    REQUIRE(std::equal(expected.begin(), expected.end(), dst));
  });
}
