// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include <doctest/doctest.h>
#include <stateport/core/evict/checkpoint_tree.hpp>
#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"
#include "random.hpp"

using namespace stateport;
using stateport::test::for_each_seed;
using stateport::test::heap_allocations;
using stateport::test::Random;

namespace {

using Index = CheckpointNodes::Index;
using Prompt = std::vector<int>;

constexpr Index none = CheckpointNodes::none;

/// An owner that finds nodes by whole prefixes, slow and obvious, and believes only what the changes say.
class Owner {
 public:
  Owner(const Budget& budget, std::unique_ptr<BudgetPolicy> policy) : tree_(budget, std::move(policy), 256) {}

  /// Leaves states at the end, at the branch point and two blocks before the end. Answers the depth of the hit.
  std::int32_t serve(const Prompt& prompt, double now_s, const ReuseHint& hint = {}) {
    const auto blocks = static_cast<std::int32_t>(prompt.size());
    std::int32_t matched = 0;
    while (matched < blocks && kv_.contains(prefix(prompt, matched + 1))) ++matched;
    std::vector<PositionKey> keys;
    for (std::int32_t depth = 1; depth <= blocks; ++depth) keys.push_back(key(prefix(prompt, depth)));
    tree_.start({.now_s = now_s, .keys = keys, .usable_blocks = blocks, .matched_blocks = matched, .hint = hint});
    std::int32_t hit = 0;
    Index end = CheckpointNodes::root;
    Index cut = none;
    for (std::int32_t depth = 1; depth <= matched; ++depth) {
      const Index node = kv_.at(prefix(prompt, depth));
      if (depth == matched && tree_.nodes()[node].end_blocks > depth) cut = node;
      if (tree_.nodes()[node].end_blocks != depth) continue;
      end = node;
      tree_.matched(node);
      if (states_.contains(prefix(prompt, depth))) hit = depth;
    }
    if (cut != none) tree_.matched(cut);
    if (hit > 0) tree_.hit(kv_.at(prefix(prompt, hit)));
    if (cut != none) end = cut_node(prompt, cut, matched);
    if (matched > 0 && !tree_.nodes()[end].has_state) add_state(prompt, end, matched);
    for (const std::int32_t depth : {blocks - 2, blocks})
      if (depth > matched) end = add_leaf(prompt, end, depth);
    changes_.clear();
    tree_.finish(blocks == 0 ? none : kv_.at(prompt), changes_);
    for (const TreeChange& change : changes_) apply(change);
    check(tree_.nodes());
    return hit;
  }

  [[nodiscard]] const CheckpointTree& tree() const { return tree_; }
  [[nodiscard]] const std::vector<TreeChange>& changes() const { return changes_; }
  [[nodiscard]] bool has_state(const Prompt& prompt) const { return states_.contains(prompt); }
  [[nodiscard]] bool has_kv(const Prompt& prompt) const { return kv_.contains(prompt); }

 private:
  static Prompt prefix(const Prompt& prompt, std::int32_t depth) { return {prompt.begin(), prompt.begin() + depth}; }
  static PositionKey key(const Prompt& prompt) {
    PositionKey key = 1;
    for (const int block : prompt) key = key * 7 + static_cast<PositionKey>(block);
    return key;
  }
  Index cut_node(const Prompt& prompt, Index lower, std::int32_t at) {
    const Index upper = tree_.split(lower, at);
    for (std::int32_t depth = tree_.nodes()[upper].begin_blocks + 1; depth <= at; ++depth)
      kv_.at(prefix(prompt, depth)) = upper;
    ends_[upper] = prefix(prompt, at);
    return upper;
  }
  Index add_leaf(const Prompt& prompt, Index parent, std::int32_t depth) {
    const Index leaf = tree_.add_leaf(parent, depth, true);
    for (std::int32_t at = tree_.nodes()[leaf].begin_blocks + 1; at <= depth; ++at) kv_[prefix(prompt, at)] = leaf;
    ends_[leaf] = prefix(prompt, depth);
    states_[ends_[leaf]] = leaf;
    return leaf;
  }
  void add_state(const Prompt& prompt, Index node, std::int32_t depth) {
    tree_.add_state(node);
    states_[prefix(prompt, depth)] = node;
  }
  void apply(const TreeChange& change) {
    const Prompt end = ends_.at(change.node);
    REQUIRE(static_cast<std::int32_t>(end.size()) == change.end_blocks);
    REQUIRE(states_.erase(end) == (change.had_state ? 1U : 0U));
    if (change.kind == TreeChange::Kind::state) return;
    for (std::int32_t depth = change.begin_blocks + 1; depth <= change.end_blocks; ++depth) {
      REQUIRE(kv_.at(prefix(end, depth)) == change.node);
      if (change.kind == TreeChange::Kind::merged)
        kv_.at(prefix(end, depth)) = change.into;
      else
        kv_.erase(prefix(end, depth));
    }
    ends_.erase(change.node);
  }
  void check(const CheckpointNodes& nodes) const {
    tree_.check_invariants();
    REQUIRE(nodes.blocks() == static_cast<std::int64_t>(kv_.size()));
    REQUIRE(nodes.states() == static_cast<std::int64_t>(states_.size()));
    // The others spare the path of the request, however long it is.
    if (tree_.policy().name() == "hix") REQUIRE(tree_.used_bytes() <= tree_.budget().bytes);
    for (const auto& [prompt, node] : states_) {
      REQUIRE(nodes[node].has_state);
      REQUIRE(nodes[node].end_blocks == static_cast<std::int32_t>(prompt.size()));
    }
    for (const auto& [prompt, node] : kv_) {
      REQUIRE(nodes.contains(node));
      // KV of a block ⇒ KV of the block before it.
      REQUIRE((prompt.size() == 1 || kv_.contains(prefix(prompt, static_cast<std::int32_t>(prompt.size()) - 1))));
    }
  }

  CheckpointTree tree_;
  std::map<Prompt, Index> kv_;  ///< the node that a block belongs to, by its prefix
  std::map<Prompt, Index> states_;
  std::map<Index, Prompt> ends_;
  std::vector<TreeChange> changes_;
};

constexpr std::int64_t state_bytes = 100;
constexpr std::int64_t block_bytes = 10;

Budget budget_of(std::int64_t bytes) {
  return {.bytes = bytes, .state_bytes = state_bytes, .kv_bytes_per_token = 1, .block_size_tokens = block_bytes};
}

enum class Which : std::uint8_t { node_lru, gdsf, hix_exact, hix };
constexpr Which all[] = {Which::node_lru, Which::gdsf, Which::hix_exact, Which::hix};

std::unique_ptr<BudgetPolicy> make(Which which, const Budget& budget, std::size_t positions = 64) {
  switch (which) {
    case Which::node_lru:
      return make_node_lru(256);
    case Which::gdsf:
      return make_gdsf(budget, {.linear = 5, .quadratic = 1}, 256);
    case Which::hix_exact:
      return make_hix(budget, {.positions = positions, .samples = 0, .reserve_nodes = 256});
    case Which::hix:
      break;
  }
  return make_hix(budget, {.positions = positions, .samples = 8, .reserve_nodes = 256});
}

ReuseHint random_hint(Random& random) {
  if (random.between(0, 1) == 0) return {};
  return {.last_turn = random.between(0, 4) == 0,
          .tool_call_pending = random.between(0, 4) == 0,
          .factor = static_cast<double>(random.between(1, 100)) / 10,
          .expected_idle_s = static_cast<double>(random.between(0, 1) * random.between(0, 100)),
          .session = static_cast<std::uint64_t>(random.between(0, 5))};
}

Prompt random_prompt(Random& random) {
  Prompt prompt(static_cast<std::size_t>(random.between(0, 8)));
  for (int& block : prompt) block = random.between32(1, 2);
  return prompt;
}

}  // namespace

TEST_CASE("under any policy the owner's books and the tree's agree after every request") {
  for_each_seed(60, [](Random& random, std::uint64_t) {
    for (const Which which : all) {
      const Budget budget = budget_of(random.between(1, 3000));
      Owner owner(budget, make(which, budget, static_cast<std::size_t>(random.between(1, 100))));
      double now_s = 0;
      for (int request = 0; request < 120; ++request) {
        now_s += static_cast<double>(random.between(0, 2000)) / 100;
        owner.serve(random_prompt(random), now_s, random_hint(random));
      }
    }
  });
}

TEST_CASE("the same requests give the same victims") {
  for_each_seed(10, [](Random& random, std::uint64_t) {
    for (const Which which : all) {
      const Budget budget = budget_of(1500);
      Owner a(budget, make(which, budget));
      Owner b(budget, make(which, budget));
      for (int request = 0; request < 200; ++request) {
        const Prompt prompt = random_prompt(random);
        REQUIRE(a.serve(prompt, request) == b.serve(prompt, request));
        REQUIRE(a.changes().size() == b.changes().size());
        for (std::size_t i = 0; i < a.changes().size(); ++i) REQUIRE(a.changes()[i].node == b.changes()[i].node);
      }
    }
  });
}

TEST_CASE("node LRU evicts the leaf that was matched longest ago, and never the path of the request") {
  const Budget budget = budget_of(3 * (state_bytes + block_bytes));
  Owner owner(budget, make(Which::node_lru, budget));
  owner.serve({1}, 0);
  owner.serve({2}, 1);
  owner.serve({3}, 2);
  owner.serve({1}, 3);
  owner.serve({4}, 4);
  CHECK(owner.has_state({1}));
  CHECK_FALSE(owner.has_kv({2}));
  CHECK(owner.has_state({3}));
  CHECK(owner.has_state({4}));
}

TEST_CASE("GDSF keeps what costs more to compute for its bytes, until the clock has passed it") {
  const Budget budget = budget_of(2 * state_bytes + 9 * block_bytes);
  Owner owner(budget, make(Which::gdsf, budget));
  owner.serve({1, 1}, 0);
  owner.serve({2}, 1);
  owner.serve({3}, 2);
  CHECK(owner.has_state({1, 1}));
  CHECK_FALSE(owner.has_kv({2}));
  for (int other = 4; other < 60; ++other) owner.serve({other}, other);
  CHECK_FALSE(owner.has_kv({1, 1}));
}

TEST_CASE("HIX learns that some chains go on after a minute and others never, and keeps the ones that do") {
  // Chains that begin with 1 are continued 60 s later, chains that begin with 2 are not. LRU cannot tell them apart.
  const auto hits = [](Which which) {
    const Budget budget = budget_of(20 * (state_bytes + block_bytes));
    Owner owner(budget, make(which, budget, 4096));
    int hits = 0;
    for (int second = 0; second < 3000; ++second) {
      // Only the first request of a pair is followed by a second one; its end becomes an inner node of generation 1.
      if (second % 4 == 0) owner.serve({1, second}, second);
      if (second % 4 == 1 && second > 60) hits += owner.serve({1, second - 61, 1}, second) == 2;
      owner.serve({2 + second}, second + 0.5);
    }
    return hits;
  };
  const int learned = hits(Which::hix_exact);
  CHECK(learned > 4 * hits(Which::node_lru));
  CHECK(hits(Which::hix) > learned / 2);
}

namespace {

/// Prompts of one block that nobody uses again, one key each, in a cache for three of them.
class Strangers {
 public:
  void serve(PositionKey key, double now_s, const ReuseHint& hint = {}) {
    tree_.start({.now_s = now_s, .keys = {&key, 1}, .usable_blocks = 1, .hint = hint});
    const Index end = tree_.add_leaf(CheckpointNodes::root, 1, true);
    cached_[end] = key;
    changes_.clear();
    tree_.finish(end, changes_);
    for (const TreeChange& change : changes_) cached_.erase(change.node);
    tree_.check_invariants();
  }
  [[nodiscard]] std::vector<PositionKey> cached() const {
    std::vector<PositionKey> keys;
    for (const auto& [node, key] : cached_) keys.push_back(key);
    std::ranges::sort(keys);
    return keys;
  }

 private:
  Budget budget_ = budget_of(3 * (state_bytes + block_bytes));
  CheckpointTree tree_{budget_, make(Which::hix_exact, budget_)};
  std::map<Index, PositionKey> cached_;
  std::vector<TreeChange> changes_;
};

using Keys = std::vector<PositionKey>;

}  // namespace

TEST_CASE("HIX gives up first what the caller says nobody will use again, and keeps longest what is expected") {
  for (const ReuseHint& expected : {ReuseHint{.tool_call_pending = true}, ReuseHint{.factor = 4}}) {
    Strangers strangers;
    strangers.serve(1, 0.01);
    strangers.serve(2, 0.02, {.last_turn = true});
    strangers.serve(3, 0.03, expected);
    strangers.serve(4, 0.04);
    CHECK(strangers.cached() == Keys{1, 3, 4});
    for (PositionKey key = 5; key < 20; ++key) {
      strangers.serve(key, static_cast<double>(key) / 100);
      CHECK(std::ranges::count(strangers.cached(), PositionKey{3}) == 1);
    }
  }
}

TEST_CASE("HIX counts the wait against a prompt that is not expected before, and forgets about it afterwards") {
  // Of equals the first one goes.
  for (const double now_s : {0.03, 100.0}) {
    Strangers strangers;
    strangers.serve(1, 0.01);
    strangers.serve(2, 0.01, {.expected_idle_s = 50});
    strangers.serve(3, now_s);
    strangers.serve(4, now_s);
    CHECK(strangers.cached() == (now_s < 50 ? Keys{1, 3, 4} : Keys{2, 3, 4}));
  }
}

TEST_CASE("HIX gives up the end of a prompt that its session did not continue") {
  Strangers strangers;
  strangers.serve(1, 0.01);
  strangers.serve(2, 0.02, {.session = 7});
  strangers.serve(3, 0.03, {.session = 8});
  SUBCASE("a session that did not come back has the same rank as unknown ones") {
    strangers.serve(4, 0.04, {.session = 9});
    CHECK(strangers.cached() == Keys{2, 3, 4});
  }
  SUBCASE("one that did leaves its earlier end, not its last one") {
    strangers.serve(4, 0.04, {.session = 7});
    CHECK(strangers.cached() == Keys{1, 3, 4});
    strangers.serve(5, 0.05);
    CHECK(strangers.cached() == Keys{3, 4, 5});
  }
}

TEST_CASE("HIX does not take one session for another, though only so many are told apart") {
  for (std::uint64_t other = 1; other <= 4096; ++other) {
    Strangers strangers;
    strangers.serve(1, 0.01);
    strangers.serve(2, 0.02, {.session = 1'000'000});
    strangers.serve(3, 0.03, {.session = other});
    strangers.serve(4, 0.04);
    REQUIRE(strangers.cached() == Keys{2, 3, 4});
  }
}

TEST_CASE("a hint that makes no sense is refused, and nothing has changed") {
  const Budget budget = budget_of(3 * (state_bytes + block_bytes));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<ReuseHint> bad;
  for (const double factor : {0.0, -1.0, nan}) bad.push_back({.factor = factor});
  for (const double idle_s : {-1.0, nan}) bad.push_back({.expected_idle_s = idle_s});
  for (const ReuseHint& hint : bad) {
    CheckpointTree tree(budget, make(Which::hix_exact, budget));
    CHECK_THROWS_AS(tree.start({.hint = hint}), InvalidArgument);
    tree.check_invariants();
  }
  CheckpointTree tree(budget, make(Which::hix_exact, budget));
  tree.start({.hint = {.factor = 1e300, .expected_idle_s = std::numeric_limits<double>::infinity()}});
  tree.check_invariants();
}

TEST_CASE("a tree whose nodes were reserved allocates nothing when warm") {
  for (const Which which : all) {
    const Budget budget = budget_of(1500);
    CheckpointTree tree(budget, make(which, budget), 256);
    std::vector<TreeChange> changes;
    changes.reserve(64);
    std::array<PositionKey, 2> keys{};
    const auto serve = [&](PositionKey request) {
      keys = {2 * request, 2 * request + 1};
      tree.start({.now_s = static_cast<double>(request), .keys = keys, .usable_blocks = 2});
      const Index inner = tree.add_leaf(CheckpointNodes::root, 1, true);
      const Index end = tree.add_leaf(inner, 2, true);
      changes.clear();
      tree.finish(end, changes);
    };
    for (PositionKey request = 0; request < 500; ++request) serve(request);
    const std::uint64_t before = heap_allocations();
    for (PositionKey request = 500; request < 1000; ++request) serve(request);
    CHECK(heap_allocations() == before);
  }
}

TEST_CASE("budgets and policies that make no sense are refused") {
  const Budget good = budget_of(1);
  CHECK_THROWS_AS(CheckpointTree(good, nullptr), InvalidArgument);
  for (const Budget& bad : {Budget{.bytes = 0, .state_bytes = 1, .kv_bytes_per_token = 1},
                            Budget{.bytes = 1, .state_bytes = 0, .kv_bytes_per_token = 1},
                            Budget{.bytes = 1, .state_bytes = 1, .kv_bytes_per_token = 0},
                            Budget{.bytes = 1, .state_bytes = 1, .kv_bytes_per_token = 1, .block_size_tokens = 0}}) {
    CHECK_THROWS_AS(CheckpointTree(bad, make_node_lru()), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(make_hix(bad)), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(make_gdsf(bad, {})), InvalidArgument);
  }
  CHECK_THROWS_AS(static_cast<void>(make_hix(good, {.positions = 0})), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(make_hix(good, {.samples = -1})), InvalidArgument);
}
