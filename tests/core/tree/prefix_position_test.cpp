// SPDX-License-Identifier: Apache-2.0
// The positions of prompts that a prefix tree reports to a learning policy.
#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/core/tree/prefix_tree.hpp>

#include "heap_counter.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace stateport;
using test::Random;

namespace {

/// Records the keys that the tree reports. Evicts the least recently used first.
class KeyWitness final : public LearningPolicy {
 public:
  explicit KeyWitness(bool observes) : observes_(observes) {}

  std::string_view name() const noexcept override { return "key witness"; }
  VictimKey key(const VictimFacts& facts) const noexcept override { return VictimKey(0, facts.used_tick); }
  bool observes_prompts() const noexcept override { return observes_; }
  PromptPast looked_up(const PromptFacts& prompt) noexcept override {
    keys.assign(prompt.keys.begin(), prompt.keys.end());
    blocks = prompt.blocks;
    ++reported;
    return {};
  }
  void kept(const KeptFacts& prefix) noexcept override {
    end = prefix;
    ++reported;
  }
  void chosen(const VictimFacts& facts) noexcept override { victim = facts; }

  std::vector<PositionKey> keys;  ///< of the last lookup
  std::int32_t blocks = 0;
  KeptFacts end;       ///< of the last insert
  VictimFacts victim;  ///< the last one
  int reported = 0;

 private:
  bool observes_;
};

/// Which key a prefix has: two prefixes have one key if they are the same prefix of the same namespace.
class KeyBook {
 public:
  void check(const std::string& salt, std::span<const Token> prefix, PositionKey key) {
    const Name name(salt, std::vector<Token>(prefix.begin(), prefix.end()));
    REQUIRE(keys_.try_emplace(name, key).first->second == key);
    REQUIRE(names_.try_emplace(key, name).first->second == name);
  }

 private:
  using Name = std::pair<std::string, std::vector<Token>>;
  std::map<Name, PositionKey> keys_;
  std::map<PositionKey, Name> names_;
};

struct Request {
  std::vector<Token> prompt;
  std::string salt;
  [[nodiscard]] Namespace name_space() const { return {.extra_key = std::nullopt, .salt = salt}; }
};

Request random_request(Random& random) {
  Request request{.prompt = std::vector<Token>(static_cast<std::size_t>(random.between(0, 30))),
                  .salt = random.chance(50) ? "a" : "b"};
  for (Token& token : request.prompt) token = random.chance(90) ? 1 : 2;
  return request;
}

/// A tree that serves random prompts, and the positions that its policy must have received.
class ToldTree {
 public:
  explicit ToldTree(Random& random)
      : page_(random.between32(1, 4)),
        position_tokens_(random.between32(1, 9)),
        step_((position_tokens_ + page_ - 1) / page_ * page_),
        tree({.page_size = page_,
              .policy = witness,
              .position_tokens = position_tokens_,
              .hash_seed = random.chance(50) ? 0u : 77u}) {}

  void look_up(const Request& request) {
    static_cast<void>(tree.match(request.prompt, request.name_space()));
    REQUIRE(witness->blocks == static_cast<std::int32_t>(request.prompt.size()) / step_);
    REQUIRE(witness->keys.size() <= static_cast<std::size_t>(witness->blocks));
    if (request.prompt.size() <= longest_) REQUIRE(witness->keys.size() == static_cast<std::size_t>(witness->blocks));
    for (std::size_t i = 0; i < witness->keys.size(); ++i)
      book_.check(request.salt, prefix(request, static_cast<std::int32_t>(i) + 1), witness->keys[i]);
  }
  void insert(const Request& request) {
    std::vector<KvIndex> kv(request.prompt.size());
    for (KvIndex& index : kv) index = next_kv_++;
    const int before = witness->reported;
    tree.insert({.tokens = request.prompt, .kv = kv, .name_space = request.name_space()}, freed);
    const auto pages = static_cast<std::int32_t>(request.prompt.size()) / page_;
    if (pages == 0) return;
    REQUIRE(witness->reported == before + 1);
    longest_ = std::max(longest_, static_cast<std::size_t>(pages * page_));
    REQUIRE(witness->end.depth_blocks == pages * page_ / step_);
    if (witness->end.depth_blocks > 0)
      book_.check(request.salt, prefix(request, witness->end.depth_blocks), witness->end.key);
  }

 private:
  [[nodiscard]] std::span<const Token> prefix(const Request& request, std::int32_t positions) const {
    return std::span(request.prompt).first(static_cast<std::size_t>(positions * step_));
  }

  std::int32_t page_;
  std::int32_t position_tokens_;
  std::int32_t step_;
  KeyBook book_;
  KvIndex next_kv_ = 0;
  std::size_t longest_ = 0;  ///< that was kept: keys of longer prompts may be left out

 public:
  std::shared_ptr<KeyWitness> witness = std::make_shared<KeyWitness>(true);
  Freed freed;
  PrefixTree tree;
};

}  // namespace

TEST_CASE("a prefix has one key, whether the tree holds all of it, some of it or nothing") {
  test::for_each_seed(2000, [](Random& random, std::uint64_t) {
    ToldTree reported(random);
    for (int step = 0; step < 60; ++step) {
      const Request request = random_request(random);
      const auto kind = random.between(0, 19);
      reported.freed.clear();
      if (kind == 0)
        reported.tree.reset(reported.freed);
      else if (kind <= 5)
        reported.tree.evict({.tokens = random.between(1, 40)}, reported.freed);
      else if (kind <= 12)
        reported.insert(request);
      else
        reported.look_up(request);
      reported.tree.check_invariants();
    }
  });
}

TEST_CASE("another seed gives every position another key and every state another tag, in every namespace") {
  const std::vector<Token> prompt = {1, 2, 3, 4, 5, 6};
  const std::array<Namespace, 3> names = {Namespace{}, Namespace{.salt = "one"}, Namespace{.extra_key = "adapter"}};
  std::vector<PositionKey> keys;
  std::vector<PrefixHash> tags;
  for (const std::uint64_t seed : {0u, 1u, 2u})
    for (const Namespace& name : names) {
      const auto witness = std::make_shared<KeyWitness>(true);
      PrefixTree tree({.policy = witness, .position_tokens = 2, .hash_seed = seed});
      const std::vector<KvIndex> kv = {0, 1, 2, 3, 4, 5};
      Freed freed;
      tree.insert({.tokens = prompt, .kv = kv, .name_space = name}, freed);
      static_cast<void>(tree.match(prompt, name));
      REQUIRE(witness->keys.size() == 3);
      CHECK(witness->end.key == witness->keys.back());
      keys.insert(keys.end(), witness->keys.begin(), witness->keys.end());
      tags.push_back(tree.state_tag(prompt, name).prefix);
      tree.check_invariants();
    }
  std::ranges::sort(keys);
  CHECK(std::ranges::adjacent_find(keys) == keys.end());
  for (std::size_t i = 0; i < tags.size(); ++i) CHECK(std::ranges::count(tags, tags[i]) == 1);
}

TEST_CASE("a policy that does not observe prompts receives kept prefixes without keys") {
  const auto witness = std::make_shared<KeyWitness>(false);
  PrefixTree tree({.policy = witness, .position_tokens = 1});
  const std::vector<Token> tokens = {1, 2, 3};
  const std::vector<KvIndex> kv = {0, 1, 2};
  Freed freed;
  tree.insert({.tokens = tokens, .kv = kv}, freed);
  CHECK(tree.match(tokens).walked_tokens == 3);
  CHECK(witness->reported == 1);  // of the insert
  CHECK(witness->blocks == 0);
  CHECK(witness->end.depth_blocks == 0);
  tree.check_invariants();
}

TEST_CASE("inserts into a tree that knows its KV indices allocate nothing, for keys of positions either") {
  constexpr std::int32_t indices = 1000;
  PrefixTree tree({.position_tokens = 1, .kv_indices = indices});
  std::vector<Token> tokens(indices);
  std::iota(tokens.begin(), tokens.end(), 0);
  Freed freed;
  freed.kv.reserve(indices);
  const std::uint64_t before = test::heap_allocations();
  for (int round = 0; round < 3; ++round) {
    std::int64_t held = 0;
    for (const std::int64_t count : {std::int64_t{10}, std::int64_t{500}, std::int64_t{indices}}) {
      const auto prefix = std::span(tokens).first(static_cast<std::size_t>(count));
      tree.insert({.tokens = prefix, .kv = tokens, .prev_tokens = std::exchange(held, count)}, freed);
    }
    CHECK(tree.evict({.tokens = indices}, freed).tokens == indices);
    freed.clear();
  }
  CHECK(test::heap_allocations() == before);
}

TEST_CASE("a lookup without the last token reports the length of the whole prompt") {
  const auto witness = std::make_shared<KeyWitness>(true);
  PrefixTree tree({.policy = witness, .position_tokens = 2});
  const std::vector<Token> usable = {1, 2, 3, 4, 5};
  tree.match(usable, {}, {}, Lookup::request, 6);
  CHECK(witness->blocks == 3);
  CHECK(witness->keys.size() <= 2);
  tree.match(usable, {}, {}, Lookup::request, 1);
  CHECK(witness->blocks == 2);
  CHECK_THROWS_AS(tree.match(usable, {}, {}, Lookup::request, -1), InvalidArgument);
}

TEST_CASE("a state is found above a long chain of nodes that lost theirs") {
  const auto witness = std::make_shared<KeyWitness>(false);
  constexpr std::int32_t turns = 200;
  PrefixTree tree({.slots = turns, .policy = witness});
  const std::vector<Token> tokens(turns, 7);
  std::vector<KvIndex> kv(turns);
  std::iota(kv.begin(), kv.end(), 0);
  Freed freed;
  for (std::size_t turn = 1; turn <= turns; ++turn) {
    const auto prefix = std::span(tokens).first(turn);
    SlotId slot;
    REQUIRE(tree.allocate_slots({&slot, 1}));
    tree.tag_slot(slot, tree.state_tag(prefix));
    tree.insert({.tokens = prefix, .kv = kv, .slot = slot, .prev_tokens = static_cast<std::int64_t>(turn) - 1}, freed);
  }
  REQUIRE(tree.match(std::span(tokens).first(1)).tokens == 1);  // the state of the first turn becomes the most recent
  REQUIRE(tree.evict({.states = turns - 2}, freed).tokens == 0);
  tree.evict({.states = 1}, freed);
  CHECK(witness->victim.end_tokens == turns);
  CHECK(witness->victim.fallback_tokens == 1);
  CHECK(witness->victim.chain_tokens == turns);
  tree.check_invariants();
}
