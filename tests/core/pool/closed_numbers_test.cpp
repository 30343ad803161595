// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>
#include <stateport/core/pool/kv_page_pool.hpp>
#include <stateport/core/pool/slot_pool.hpp>

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <type_traits>
#include <vector>

namespace stateport::test {
namespace {

/// The two pools by number. `unused` is never handed out.
struct ClosingSlots {
  static constexpr std::int32_t numbers = 12;
  static constexpr std::int32_t unused = -1;
  explicit ClosingSlots(SlotPool::Order order) : pool(numbers, order) {}
  SlotPool pool;

  std::optional<std::int32_t> take() {
    SlotId slot;
    return pool.allocate({&slot, 1}) ? std::optional(slot.value()) : std::nullopt;
  }
  void give(std::int32_t number) { pool.release(SlotId{number}); }
  [[nodiscard]] std::int64_t free() const { return pool.free_slots(); }
  [[nodiscard]] std::int64_t closed() const { return pool.closed_slots(); }
  [[nodiscard]] bool is_free(std::int32_t number) const { return pool.is_free(SlotId{number}); }
};

struct ClosingPages {
  static constexpr std::int32_t numbers = 12;
  static constexpr std::int32_t unused = 0;
  KvPagePool pool{11 * 3, 3};

  std::optional<std::int32_t> take() {
    KvIndex index = 0;
    return pool.allocate({&index, 1}) ? std::optional(index / 3) : std::nullopt;
  }
  void give(std::int32_t number) {
    const KvIndex index = number * 3;
    pool.release({&index, 1});
  }
  [[nodiscard]] std::int64_t free() const { return pool.available() / 3; }
  [[nodiscard]] std::int64_t closed() const { return pool.closed() / 3; }
  [[nodiscard]] bool is_free(std::int32_t number) const { return pool.is_free(number); }
};

/// Random calls against plain sets.
template <class Made>
void close_and_open(Random& random, Made&& pool) {
  using Pool = std::remove_cvref_t<Made>;
  std::set<std::int32_t> used;
  std::set<std::int32_t> closed;
  const auto all_of = [&](std::int32_t first, std::int32_t count, auto holds) {
    for (std::int32_t i = first; i < first + count; ++i)
      if (i != Pool::unused && !holds(i)) return false;
    return first >= 0 && count >= 0 && first + count <= Pool::numbers;
  };
  for (int step = 0; step < 300; ++step) {
    const std::int32_t first = random.between32(-1, Pool::numbers);
    const std::int32_t count = random.between32(-1, 4);
    switch (random.between(0, 5)) {
      case 0: {
        // Two ranges, all or nothing; they may overlap.
        const std::array ranges = {NumberRange{first, count},
                                   NumberRange{random.between32(-1, Pool::numbers), random.between32(0, 2)}};
        std::set<std::int32_t> named;
        bool good = true;
        for (const NumberRange& range : ranges)
          good = good && all_of(range.first, range.count,
                                [&](std::int32_t i) { return !closed.contains(i) && named.insert(i).second; });
        if (good) {
          pool.pool.close(ranges);
          closed.merge(named);
        } else {
          REQUIRE_THROWS_AS(pool.pool.close(ranges), InvalidArgument);
        }
        break;
      }
      case 1:
        if (all_of(first, count, [&](std::int32_t i) { return closed.contains(i); })) {
          pool.pool.open(first, count);
          for (std::int32_t i = first; i < first + count; ++i) closed.erase(i);
        } else {
          REQUIRE_THROWS_AS(pool.pool.open(first, count), InvalidArgument);
        }
        break;
      case 2:
        if (used.empty()) break;
        pool.give(*used.begin());
        used.erase(used.begin());
        break;
      case 3:
        if (!random.chance(5)) break;
        pool.pool.reset();
        used.clear();
        break;
      default:
        if (const std::optional<std::int32_t> taken = pool.take()) {
          REQUIRE(!closed.contains(*taken));
          REQUIRE(used.insert(*taken).second);
        }
    }
    const std::int64_t handed_out = Pool::numbers - (Pool::unused >= 0 ? 1 : 0);
    const auto both = std::ranges::count_if(used, [&](std::int32_t i) { return closed.contains(i); });
    REQUIRE(pool.closed() == std::ssize(closed) - both);
    REQUIRE(pool.free() == handed_out - std::ssize(used) - std::ssize(closed) + both);
    for (std::int32_t i = 0; i < Pool::numbers; ++i)
      REQUIRE(pool.is_free(i) == (i != Pool::unused && !used.contains(i)));
    pool.pool.check_invariants();
  }
}

}  // namespace

TEST_CASE("numbers that are closed are not handed out, and are free again once they are opened") {
  for_each_seed(300, [](Random& random, std::uint64_t) {
    close_and_open(random, ClosingSlots{SlotPool::Order::stack});
    close_and_open(random, ClosingSlots{SlotPool::Order::queue});
    close_and_open(random, ClosingPages{});
  });
}

}  // namespace stateport::test
