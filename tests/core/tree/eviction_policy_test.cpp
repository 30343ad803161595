// SPDX-License-Identifier: Apache-2.0
// When a prefix tree asks its policy for keys.
#include <stateport/core/evict/eviction_policy.hpp>

#include <stateport/core/model/error.hpp>
#include <stateport/core/tree/prefix_tree.hpp>

#include "random.hpp"
#include "tree_insert.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <vector>

using namespace stateport;
using test::insert;
using test::Random;

namespace {

/// Counts the keys that a tree asks for to choose victims.
class CountingPolicy : public EvictionPolicy {
 public:
  std::string_view name() const noexcept override { return "counting lru"; }
  VictimKey key(const VictimFacts& facts) const noexcept override {
    ++asked;
    return {0, facts.used_tick};
  }
  mutable std::int64_t asked = 0;
};

/// Leaves with a state first: a key that becomes smaller when a state comes.
class StatesFirst : public EvictionPolicy {
 public:
  std::string_view name() const noexcept override { return "states first"; }
  VictimKey key(const VictimFacts& facts) const noexcept override { return {facts.has_state ? 0 : 1, facts.used_tick}; }
  VictimTraits traits() const noexcept override { return {.key_may_shrink = true}; }
};

/// Looks at every fact that may change: a candidate that is not ranked again when it should be is found sooner or
/// later.
class Arbitrary : public EvictionPolicy {
 public:
  std::string_view name() const noexcept override { return "arbitrary"; }
  VictimKey key(const VictimFacts& facts) const noexcept override {
    const std::uint64_t mixed = (facts.hits * 31 + static_cast<std::uint64_t>(facts.tokens) * 7 +
                                 static_cast<std::uint64_t>(facts.priority) * 3 + (facts.has_state ? 1U : 0U)) *
                                0x9E3779B97F4A7C15U;
    return {static_cast<std::int32_t>(mixed >> 62), facts.hits % 2 == 0 ? facts.used_tick : ~facts.used_tick};
  }
  VictimTraits traits() const noexcept override { return {.key_may_shrink = true}; }
};

/// A tree under random calls that is asked for victims now and then.
class Chosen {
 public:
  explicit Chosen(Random& random)
      : random_(random), tree_({.slots = 6, .policy = policy_, .on_victim = [this](const Victim& victim) {
                                  if (!victim.kv.empty()) gone_.push_back(victim.node);
                                  return false;
                                }}) {}

  void step() {
    const std::int64_t dice = random_.between(0, 9);
    if (dice < 4)
      insert_some();
    else if (dice < 6)
      tree_.match(some_key());
    else if (dice == 6)
      lock_or_touch_some();
    else if (dice == 7 && !locks_.empty())
      locks_.pop_front();
    else if (dice == 8)
      tree_.evict({.states = 1}, freed_);
    else
      evict_one();
    tree_.check_invariants();
  }

 private:
  std::vector<Token> some_key() {
    std::vector<Token> key(static_cast<std::size_t>(random_.between(1, 8)));
    for (Token& token : key) token = random_.between32(0, 1);
    return key;
  }

  void insert_some() {
    const std::vector<Token> key = some_key();
    std::vector<KvIndex> kv(key.size());
    std::iota(kv.begin(), kv.end(), next_kv_);
    next_kv_ += 8;
    SlotId slot;
    if (random_.chance(60) && tree_.allocate_slots({&slot, 1})) tree_.tag_slot(slot, tree_.state_tag(key));
    const auto result = tree_.insert(
        {.tokens = key, .kv = kv, .slot = slot, .priority = random_.between32(0, 2), .chunked = random_.chance(30)},
        freed_);
    if (slot.valid() && result.state_exists) tree_.release_slots({&slot, 1});
  }

  void lock_or_touch_some() {
    const std::vector<NodeInfo> nodes = tree_.nodes();
    if (nodes.empty()) return;
    const NodeId node = nodes[static_cast<std::size_t>(random_.between(0, std::ssize(nodes) - 1))].id;
    if (random_.chance(50))
      tree_.touch(node);
    else
      locks_.push_back(tree_.lock(node));
  }

  void evict_one() {
    const NodeInfo* best = nullptr;
    VictimKey smallest;
    const std::vector<NodeInfo> nodes = tree_.nodes();
    for (const NodeInfo& node : nodes) {
      if (!node.evictable_leaf()) continue;
      const VictimKey key = policy_->key({.index = node.id.index,
                                          .used_tick = node.tick,
                                          .created_tick = node.created_tick,
                                          .hits = node.hits,
                                          .priority = node.priority,
                                          .tokens = std::ssize(node.tokens),
                                          .has_state = node.slot.valid()});
      if (best == nullptr || key < smallest) best = &node, smallest = key;
    }
    gone_.clear();
    const EvictResult evicted = tree_.evict({.tokens = 1}, freed_);
    REQUIRE((evicted.tokens > 0) == (best != nullptr));
    if (best != nullptr) REQUIRE(gone_ == std::vector{best->id});
  }

  Random& random_;
  std::shared_ptr<EvictionPolicy> policy_ = std::make_shared<Arbitrary>();
  std::vector<NodeId> gone_;
  PrefixTree tree_;
  std::deque<PrefixLock> locks_;
  Freed freed_;
  KvIndex next_kv_ = 0;
};

}  // namespace

TEST_CASE("the victim has the smallest key of all candidates, whatever a policy looks at") {
  test::for_each_seed(1000, [](Random& random, std::uint64_t) {
    Chosen tree(random);
    for (int step = 0; step < 100; ++step) tree.step();
  });
}

TEST_CASE("victim choice does not look at locked nodes") {
  constexpr KvIndex leaves = 20000;
  const auto policy = std::make_shared<CountingPolicy>();
  PrefixTree tree({.policy = policy, .reserve_nodes = leaves});
  std::vector<PrefixLock> locks;
  for (KvIndex leaf = 0; leaf < leaves; ++leaf) {
    const NodeId node = insert(tree, {leaf}, leaf, false).node;
    if (leaf % 100 != 99) locks.push_back(tree.lock(node));
  }
  Freed freed;
  policy->asked = 0;
  CHECK(tree.evict({.tokens = leaves}, freed).tokens == leaves / 100);
  CHECK(policy->asked <= leaves / 100);
  CHECK(tree.sizes().protected_tokens == leaves - leaves / 100);
  insert(tree, {-1}, leaves, false);
  policy->asked = 0;
  CHECK(tree.evict({.tokens = 1}, freed).tokens == 1);
  CHECK(policy->asked == 1);
  locks.clear();
  tree.check_invariants();
}

TEST_CASE("a leaf is ranked again when it gets or loses its state") {
  PrefixTree tree({.slots = 2, .policy = std::make_shared<StatesFirst>()});
  insert(tree, {1}, 0, false);
  const NodeId with_state = insert(tree, {2, 3}, 10).node;
  insert(tree, {4}, 20, false);
  const NodeId revived = insert(tree, {4}, 30).node;
  Freed freed;
  CHECK(tree.evict({.tokens = 1}, freed) == EvictResult{2, 1});
  CHECK_FALSE(tree.contains(with_state));
  CHECK(tree.evict({.tokens = 1}, freed) == EvictResult{1, 1});
  CHECK_FALSE(tree.contains(revived));
  const PrefixLock lock = tree.lock(insert(tree, {5, 6}, 40).node);
  const NodeId below = insert(tree, {5, 6, 7}, 50).node;
  CHECK(tree.evict({.tokens = 1}, freed) == EvictResult{1, 1});
  CHECK_FALSE(tree.contains(below));
  tree.check_invariants();
}

TEST_CASE("every eviction order has a name and a policy of that name") {
  for (int order = 0; order <= static_cast<int>(EvictionOrder::hix); ++order)
    CHECK(make_eviction_policy(static_cast<EvictionOrder>(order))->name() == name(static_cast<EvictionOrder>(order)));
  CHECK_THROWS_AS(make_eviction_policy(static_cast<EvictionOrder>(9)), InvalidArgument);
}
