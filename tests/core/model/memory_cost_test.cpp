// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/cost.hpp>
#include <stateport/core/tree/prefix_tree.hpp>

#include "../tree/tree_insert.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace stateport {
namespace {

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();

TEST_CASE("memory that exceeds 64 bits costs the largest number") {
  CHECK(MemoryCost{.state_bytes = 10, .kv_bytes_per_token = 3}.of(7, 2) == 41);
  CHECK(MemoryCost{.state_bytes = largest, .kv_bytes_per_token = 1}.of(0, 1) == largest);
  CHECK(MemoryCost{.state_bytes = largest - 7, .kv_bytes_per_token = 1}.of(7, 1) == largest);
  CHECK(MemoryCost{.state_bytes = largest - 7, .kv_bytes_per_token = 1}.of(8, 1) == largest);
  CHECK(MemoryCost{.state_bytes = largest / 2 + 1, .kv_bytes_per_token = 1}.of(0, 4) == largest);
  CHECK(MemoryCost{.state_bytes = 1, .kv_bytes_per_token = largest / 2 + 1}.of(4, 0) == largest);
}

TEST_CASE("evict for bytes ends when the states that are gone cost more than 64 bits hold") {
  for (const EvictionOrder order : {EvictionOrder::lru, EvictionOrder::gdsf, EvictionOrder::hix}) {
    CAPTURE(static_cast<int>(order));
    PrefixTree tree({.slots = 8, .eviction = order, .memory = {.state_bytes = largest / 2 + 1}, .position_tokens = 2});
    for (Token first = 0; first < 5; ++first) test::insert(tree, {first, 1, 2, 3}, 4 * first);
    Freed freed;
    CHECK(tree.evict({.bytes = largest}, freed) == EvictResult{.tokens = 8, .states = 2});
    tree.check_invariants();
    CHECK(tree.sizes().total_states() == 3);
  }
}

}  // namespace
}  // namespace stateport
