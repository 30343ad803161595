// SPDX-License-Identifier: Apache-2.0
#include "fleet/router.hpp"

#include "fleet/checkpoint_map.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

using namespace stateport;
using namespace stateport::replay;

namespace {

PrefixHash prefix(std::uint64_t number) {
  return {{number + 1, number + 1}};
}

CacheEvent event(CacheEvent::Kind kind, std::uint64_t number, CacheContent content, Medium medium = Medium::device) {
  return {.kind = kind, .content = content, .medium = medium, .prefix = prefix(number)};
}

void store(Router& router, std::size_t node, std::uint64_t number, CacheContent content) {
  router.hear(node, event(CacheEvent::Kind::stored, number, content));
}

/// KV of blocks [0, blocks) and a state after the last.
void store_prompt(Router& router, std::size_t node, std::uint64_t blocks) {
  for (std::uint64_t block = 0; block < blocks; ++block) store(router, node, block, CacheContent::kv_block);
  store(router, node, blocks - 1, CacheContent::state);
}

std::vector<PrefixHash> path(std::uint64_t blocks) {
  std::vector<PrefixHash> prefixes;
  for (std::uint64_t block = 0; block < blocks; ++block) prefixes.push_back(prefix(block));
  return prefixes;
}

}  // namespace

TEST_CASE("requests go round the nodes that are up") {
  const auto router = make_router(Route::round_robin, 4, 0);
  std::vector<NodeLoad> nodes(4);
  nodes[2].up = false;
  std::vector<std::size_t> picked;
  for (int i = 0; i < 6; ++i) picked.push_back(router->pick({}, nodes).node);
  CHECK(picked == std::vector<std::size_t>{0, 1, 3, 0, 1, 3});
}

TEST_CASE("a conversation stays on its node, and only those of a node that is down move") {
  const auto router = make_router(Route::session, 5, 0);
  std::vector<NodeLoad> nodes(5);
  std::vector<std::size_t> homes;
  for (std::uint64_t i = 0; i < 200; ++i)
    homes.push_back(router->pick({.conversation = i, .prefixes = {}}, nodes).node);
  for (std::size_t node = 0; node < 5; ++node) CHECK(std::ranges::count(homes, node) > 10);
  nodes[3].up = false;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const std::size_t now = router->pick({.conversation = i, .prefixes = {}}, nodes).node;
    CHECK((homes[i] == 3 ? now != 3 : now == homes[i]));
  }
}

TEST_CASE("a prompt goes to the deepest checkpoint that it can use") {
  const auto router = make_router(Route::prefix, 4, 1000);
  std::vector<NodeLoad> nodes(4);
  nodes[0].waiting_tokens = 5;
  store_prompt(*router, 1, 3);
  store_prompt(*router, 2, 5);
  for (std::uint64_t block = 0; block < 8; ++block) store(*router, 3, block, CacheContent::kv_block);  // no state
  const std::vector<PrefixHash> prompt = path(8);
  RoutePick pick = router->pick({.conversation = 0, .prefixes = prompt}, nodes);
  CHECK(pick.node == 2);
  CHECK(pick.hit_blocks == 5);

  nodes[2].waiting_tokens = 1001;  // too much beyond the least
  pick = router->pick({.conversation = 0, .prefixes = prompt}, nodes);
  CHECK(pick.node == 1);
  CHECK(pick.hit_blocks == 3);

  nodes[1].up = false;
  pick = router->pick({.conversation = 0, .prefixes = prompt}, nodes);
  CHECK(pick.node == 3);
  CHECK(pick.hit_blocks == 0);
}

TEST_CASE("ties and misses go to the node with the fewest waiting tokens, then to the one picked least recently") {
  const auto router = make_router(Route::prefix, 3, 1000);
  std::vector<NodeLoad> nodes(3);
  nodes[1].waiting_tokens = 1;
  std::vector<std::size_t> picked;
  for (int i = 0; i < 3; ++i) picked.push_back(router->pick({}, nodes).node);
  CHECK(picked == std::vector<std::size_t>{0, 2, 0});
  store_prompt(*router, 0, 4);
  store_prompt(*router, 1, 4);
  const std::vector<PrefixHash> prompt = path(6);
  CHECK(router->pick({.conversation = 0, .prefixes = prompt}, nodes).node == 0);
  nodes[0].waiting_tokens = 2;
  CHECK(router->pick({.conversation = 0, .prefixes = prompt}, nodes).node == 1);
}

TEST_CASE("a checkpoint that saves less than a quarter of a prompt counts as none") {
  const auto router = make_router(Route::prefix, 2, 1000);
  const std::vector<NodeLoad> nodes = {{.waiting_tokens = 1}, {}};
  store_prompt(*router, 0, 2);
  const std::vector<PrefixHash> prompt = path(8);
  CHECK(router->pick({.conversation = 0, .prefixes = prompt}, nodes).node == 0);
  const std::vector<PrefixHash> longer = path(12);
  const RoutePick pick = router->pick({.conversation = 0, .prefixes = longer}, nodes);
  CHECK(pick.node == 1);
  CHECK(pick.hit_blocks == 0);
}

TEST_CASE("a router's knowledge of caches agrees with sets of their contents") {
  using Place = std::tuple<std::uint32_t, std::uint64_t, CacheContent, Medium>;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    constexpr std::uint32_t nodes = 4;
    constexpr std::uint64_t blocks = 6;
    CheckpointMap map(nodes);
    std::set<Place> model;
    const auto has = [&](std::uint32_t node, std::uint64_t block, CacheContent content) {
      return std::ranges::any_of(std::vector{Medium::device, Medium::host, Medium::file}, [&](Medium medium) {
        return model.contains({node, block, content, medium});
      });
    };
    for (int step = 0; step < 120; ++step) {
      const auto node = static_cast<std::uint32_t>(random() % nodes);
      const std::uint64_t block = random() % blocks;
      const CacheContent content = random() % 2 == 0 ? CacheContent::kv_block : CacheContent::state;
      const Medium medium = std::vector{Medium::device, Medium::host, Medium::file, Medium::remote}[random() % 4];
      const std::uint64_t what = random() % 40;
      if (what == 0) {
        map.forget(node);
        std::erase_if(model, [&](const Place& place) { return std::get<0>(place) == node; });
      } else if (what == 1) {
        map.hear(node, {.kind = CacheEvent::Kind::cleared});
        std::erase_if(model, [&](const Place& place) { return std::get<0>(place) == node; });
      } else if (what < 28) {
        map.hear(node, event(CacheEvent::Kind::stored, block, content, medium));
        if (medium != Medium::remote) model.insert({node, block, content, medium});
      } else {
        map.hear(node, event(CacheEvent::Kind::removed, block, content, medium));
        model.erase({node, block, content, medium});
      }
      std::map<std::uint32_t, std::int32_t> expected;
      for (std::uint32_t each = 0; each < nodes; ++each)
        for (std::uint64_t depth = 0; depth < blocks && has(each, depth, CacheContent::kv_block); ++depth)
          if (has(each, depth, CacheContent::state)) expected[each] = static_cast<std::int32_t>(depth + 1);
      std::map<std::uint32_t, std::int32_t> found;
      for (const CheckpointMap::Reach& reach : map.reaches(path(blocks))) found[reach.node] = reach.blocks;
      REQUIRE(found == expected);
    }
    for (std::uint32_t node = 0; node < nodes; ++node) map.forget(node);
    REQUIRE(map.prefixes() == 0);
  }
}
