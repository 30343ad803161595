// SPDX-License-Identifier: Apache-2.0
// Events that a prefix tree reports to a learning policy: why a prefix was kept, and the heir of a removed one.
#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/tree/prefix_tree.hpp>

#include "tree_insert.hpp"

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

using namespace stateport;

namespace {

/// Records the events that the tree reports. Evicts the least recently used first.
class Witness final : public LearningPolicy {
 public:
  std::string_view name() const noexcept override { return "witness"; }
  VictimKey key(const VictimFacts& facts) const noexcept override { return VictimKey(0, facts.used_tick); }
  void kept(const KeptFacts& prefix) noexcept override { why.emplace_back(prefix.index, prefix.at); }
  void removed(std::uint32_t index, std::uint32_t heir) noexcept override { heirs.emplace_back(index, heir); }

  bool observes_prompts() const noexcept override { return true; }
  PromptPast looked_up(const PromptFacts& prompt) noexcept override {
    matched = prompt.matched_blocks;
    forks.assign(prompt.forks.begin(), prompt.forks.end());
    return {};
  }

  std::int32_t matched = -1;
  std::vector<std::int32_t> forks;
  std::vector<std::pair<std::uint32_t, KeptAt>> why;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> heirs;
};

/// Inserts `tokens` of a request that gets `request_tokens` long, with a state.
NodeId insert_part(PrefixTree& tree, const std::vector<Token>& tokens, bool chunked, std::int64_t request_tokens) {
  std::vector<KvIndex> kv(tokens.size());
  std::iota(kv.begin(), kv.end(), static_cast<KvIndex>(tree.sizes().total_tokens()));
  SlotId slot;
  REQUIRE(tree.allocate_slots({&slot, 1}));
  tree.tag_slot(slot, tree.state_tag(tokens));
  Freed freed;
  const InsertResult result = tree.insert(
      {.tokens = tokens, .kv = kv, .slot = slot, .chunked = chunked, .prompt = {.tokens = request_tokens}}, freed);
  if (result.state_exists) tree.release_slots({&slot, 1});
  return result.node;
}

}  // namespace

TEST_CASE("a policy hears whether a prefix ends a request, was known before, or lies before the end") {
  const auto witness = std::make_shared<Witness>();
  PrefixTree tree({.slots = 8, .policy = witness});
  using Why = std::vector<std::pair<std::uint32_t, KeptAt>>;
  const NodeId end = insert_part(tree, {1, 2, 3, 4}, false, 0);
  CHECK(std::exchange(witness->why, {}) == Why{{end.index, KeptAt::end}});
  const NodeId known = insert_part(tree, {1, 2}, true, 6);
  CHECK(std::exchange(witness->why, {}) == Why{{known.index, KeptAt::branch}});
  const NodeId fresh = insert_part(tree, {1, 2, 5}, true, 6);
  CHECK(std::exchange(witness->why, {}) == Why{{fresh.index, KeptAt::rung}});
  // Not a chunk, but the request is known to get longer.
  CHECK(insert_part(tree, {1, 2, 5}, false, 6) == fresh);
  CHECK(std::exchange(witness->why, {}) == Why{{fresh.index, KeptAt::branch}});
  CHECK(insert_part(tree, {1, 2, 5}, false, 3) == fresh);
  CHECK(std::exchange(witness->why, {}) == Why{{fresh.index, KeptAt::end}});
  tree.check_invariants();
}

TEST_CASE("a policy does not hear of a prefix that is kept because there is room") {
  const auto witness = std::make_shared<Witness>();
  PrefixTree tree({.slots = 8, .policy = witness});
  const std::vector<Token> tokens = {1, 2, 3, 4};
  const std::vector<KvIndex> kv = {0, 1, 2, 3};
  std::array<SlotId, 2> slots;
  REQUIRE(tree.allocate_slots(slots));
  Freed freed;
  const auto insert = [&](std::size_t length, bool spare) {
    const auto key = std::span(tokens).first(length);
    tree.tag_slot(slots[spare ? 0 : 1], tree.state_tag(key));
    return tree.insert({.tokens = key, .kv = kv, .slot = slots[spare ? 0 : 1], .chunked = true, .spare = spare}, freed);
  };
  static_cast<void>(insert(2, true));
  CHECK(witness->why.empty());
  CHECK(tree.sizes().total_states() == 1);
  static_cast<void>(insert(4, false));
  CHECK(witness->why.size() == 1);
  tree.check_invariants();
}

TEST_CASE("a node inherits from its last child alone, and the root from no node") {
  const auto witness = std::make_shared<Witness>();
  PrefixTree tree({.slots = 8, .policy = witness});
  const std::uint32_t parent = test::insert(tree, {1, 2}, 0).node.index;
  const std::uint32_t first = test::insert(tree, {1, 2, 3}, 10).node.index;
  const std::uint32_t second = test::insert(tree, {1, 2, 4}, 20).node.index;
  Freed freed;
  for (int leaf = 0; leaf < 3; ++leaf) {
    CHECK(tree.evict({.tokens = 1}, freed).states == 1);
    tree.check_invariants();
  }
  constexpr std::uint32_t nobody = LearningPolicy::no_heir;
  CHECK(witness->heirs ==
        std::vector<std::pair<std::uint32_t, std::uint32_t>>{{first, nobody}, {second, parent}, {parent, nobody}});
}

TEST_CASE("a policy hears how much of a prompt is cached and where cached prompts part") {
  const auto witness = std::make_shared<Witness>();
  PrefixTree tree({.slots = 8, .policy = witness, .position_tokens = 2});
  const auto look = [&](const std::vector<Token>& tokens) { static_cast<void>(tree.match(tokens)); };
  look({1, 2, 3, 4});
  CHECK(witness->matched == 0);
  test::insert(tree, {1, 2, 3, 4, 5, 6}, 0);
  test::insert(tree, {1, 2, 3, 4, 7, 8}, 10);
  test::insert(tree, {1, 2, 3, 4, 5, 6, 9, 9}, 20);
  test::insert(tree, {1, 2, 3, 4, 5, 6, 8, 8}, 30);
  test::insert(tree, {1, 2, 3, 4, 7, 8, 9, 9, 1, 1}, 40);
  test::insert(tree, {1, 2, 3, 4, 7, 8, 9, 5, 1, 1}, 60);  // parts inside a position
  using Depths = std::vector<std::int32_t>;
  look({1, 2, 3, 4, 5, 6, 9, 9, 9});
  CHECK(witness->matched == 4);
  CHECK(witness->forks == Depths{2, 3});
  look({1, 2, 3, 4, 5, 6, 7});
  CHECK(witness->matched == 3);
  CHECK(witness->forks == Depths{2, 3});
  look({1, 2, 3, 4, 7, 8, 9, 9, 1, 1});
  CHECK(witness->matched == 5);
  CHECK(witness->forks == Depths{2});
  look({1, 2, 3, 9});
  CHECK(witness->matched == 1);
  CHECK(witness->forks.empty());
}
