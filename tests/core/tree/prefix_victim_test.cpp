// SPDX-License-Identifier: Apache-2.0
// Victims of a prefix tree: reported before their eviction, kept, foreseen, and states that are dropped on purpose.
#include <stateport/core/model/error.hpp>
#include <stateport/core/tree/prefix_tree.hpp>

#include "heap_counter.hpp"
#include "random.hpp"
#include "tree_insert.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

using namespace stateport;
using test::insert;
using test::Random;

namespace {

constexpr EvictionOrder victim_orders[] = {EvictionOrder::hix, EvictionOrder::gdsf, EvictionOrder::lru,
                                           EvictionOrder::lfu, EvictionOrder::fifo, EvictionOrder::slru,
                                           EvictionOrder::mru, EvictionOrder::filo, EvictionOrder::priority};

/// A state saves the tokens after the longest shorter prefix with a state; the fewest go first.
class Saved final : public LearningPolicy {
 public:
  std::string_view name() const noexcept override { return "saved"; }
  VictimTraits traits() const noexcept override { return {.draws = 100}; }
  VictimKey key(const VictimFacts& facts) const noexcept override {
    return VictimKey::from(static_cast<double>(facts.end_tokens - facts.fallback_tokens), 0);
  }
};

/// A victim as the listener received it, with copies of its spans.
struct ToldVictim {
  explicit ToldVictim(const Victim& victim)
      : node(victim.node),
        end_tokens(victim.end_tokens),
        slot(victim.slot),
        tag(victim.tag),
        tokens(victim.tokens.begin(), victim.tokens.end()),
        kv(victim.kv.begin(), victim.kv.end()) {}
  NodeId node;
  std::int64_t end_tokens;
  SlotId slot;
  StateTag tag;
  std::vector<Token> tokens;
  std::vector<KvIndex> kv;
  friend bool operator==(const ToldVictim&, const ToldVictim&) = default;
};

/// A tree under random calls. Its listener must receive the content that the tree had before the call.
class Watched {
 public:
  Watched(EvictionOrder order, std::int32_t samples, std::int32_t kept_percent, std::uint64_t seed)
      : kept_percent_(kept_percent),
        random_(seed),
        tree({.slots = 12,
              .max_states_per_path = 3,
              .eviction = order,
              .eviction_options = {.positions = 64, .samples = samples},
              .memory = {.state_bytes = 3},
              .position_tokens = 2,
              .on_victim = [this](const Victim& victim) { return hear(victim); }}) {}

  /// One random call; equal trees make equal calls.
  void step() {
    before_ = tree.nodes();
    for (const NodeInfo& node : before_) seen_.emplace_back(copy_of(node));
    reported.clear();
    const std::int64_t dice = random_.between(0, 9);
    if (dice < 4)
      insert_some();
    else if (dice < 6)
      check_match(some_key());
    else if (dice == 6 && !before_.empty())
      locks_.push_back(tree.lock(before_[index_below(before_.size())].id));
    else if (dice == 7 && !locks_.empty())
      locks_.pop_front();
    else if (dice == 8)
      drop_some();
    else
      evict_some();
    seen_.clear();
    tree.check_invariants();
    for (const NodeInfo& node : tree.nodes()) check_node(node);
  }

  std::vector<ToldVictim> reported;
  std::vector<SlotId> kept;

 private:
  struct Copy {
    NodeInfo info;
    std::vector<Token> tokens;
    std::vector<KvIndex> kv;
  };
  static Copy copy_of(const NodeInfo& node) {
    return {node, {node.tokens.begin(), node.tokens.end()}, {node.kv.begin(), node.kv.end()}};
  }
  std::size_t index_below(std::size_t count) {
    return static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(count) - 1));
  }
  std::vector<Token> some_key() {
    std::vector<Token> key(static_cast<std::size_t>(random_.between(1, 8)));
    for (Token& token : key) token = random_.between32(0, 1);
    return key;
  }

  bool hear(const Victim& victim) {
    reported.emplace_back(victim);
    const bool keep = victim.slot.valid() && random_.chance(kept_percent_);
    if (keep) kept.push_back(victim.slot);
    return keep;
  }

  void insert_some() {
    if (tree.slots().free_slots() == 0) return;
    insert(tree, some_key(), next_kv_, random_.chance(70));
    next_kv_ += 8;
  }
  void check_match(const std::vector<Token>& key) {
    const PrefixMatch hit = tree.match(key);
    CHECK(hit.kv_node.is_root() == (hit.walked_tokens == 0));
    if (!hit.kv_node.is_root()) REQUIRE(tree.node(hit.kv_node).end_tokens == hit.walked_tokens);
  }
  void drop_some() {
    const auto node =
        std::ranges::find_if(before_, [](const NodeInfo& info) { return info.slot.valid() && info.state_lock == 0; });
    if (node == before_.end()) return;
    const NodeId id = node->id;
    Freed freed;
    tree.drop_state(id, freed);
    REQUIRE(reported.size() == 1);
    check_told(reported.front(), freed);
    REQUIRE(reported.front().kv.empty());
    REQUIRE(!tree.node(id).slot.valid());
  }
  void evict_some() {
    Freed freed;
    const std::int64_t amount = random_.between(1, 4);
    const std::int64_t kind = random_.between(0, 2);
    const auto kept_before = std::ssize(kept);
    tree.evict(
        {.tokens = kind == 0 ? amount : 0, .states = kind == 1 ? amount : 0, .bytes = kind == 2 ? 3 * amount : 0},
        freed);
    std::vector<KvIndex> gone;
    for (const ToldVictim& victim : reported) {
      check_told(victim, freed);
      gone.insert(gone.end(), victim.kv.begin(), victim.kv.end());
    }
    REQUIRE(gone == freed.kv);
    REQUIRE(std::ranges::count_if(reported, [](const ToldVictim& victim) { return victim.slot.valid(); }) ==
            std::ssize(freed.slots) + std::ssize(kept) - kept_before);
  }
  /// The first report of a node describes its content before the call.
  void check_told(const ToldVictim& victim, const Freed& freed) {
    const auto held = std::ranges::find(seen_, victim.node, [](const Copy& copy) { return copy.info.id; });
    REQUIRE(held != seen_.end());
    REQUIRE(victim.end_tokens == held->info.end_tokens);
    const bool whole = !victim.kv.empty();
    if (whole) REQUIRE((victim.kv == held->kv && victim.tokens == held->tokens && !tree.contains(victim.node)));
    if (!victim.slot.valid()) return;
    REQUIRE(victim.slot == held->info.slot);
    REQUIRE(victim.tag.token_count == victim.end_tokens);
    const bool was_kept = std::ranges::count(kept, victim.slot) > 0;
    REQUIRE(was_kept != (std::ranges::count(freed.slots, victim.slot) > 0));
    if (was_kept) REQUIRE(tree.slots().owner(victim.slot) == SlotPool::caller);
  }
  void check_node(const NodeInfo& node) {
    const NodeInfo alone = tree.node(node.id);
    REQUIRE((alone.id == node.id && alone.parent == node.parent && alone.end_tokens == node.end_tokens));
    REQUIRE((alone.tokens.data() == node.tokens.data() && alone.tokens.size() == node.tokens.size()));
    REQUIRE((alone.slot == node.slot && alone.tick == node.tick && alone.children == node.children));
  }

  std::int32_t kept_percent_;
  Random random_;
  std::vector<NodeInfo> before_;
  std::vector<Copy> seen_;
  std::deque<PrefixLock> locks_;
  KvIndex next_kv_ = 0;

 public:
  PrefixTree tree;
};

}  // namespace

TEST_CASE("a listener receives the content of each victim before its eviction, and may keep its slot") {
  test::for_each_seed(300, [](Random& random, std::uint64_t seed) {
    const EvictionOrder order = victim_orders[random.between(0, 8)];
    const std::int32_t drawn = random.between32(0, 3);
    Watched watched(order, drawn == 0 ? -1 : drawn, 20, seed);
    for (int step = 0; step < 60; ++step) {
      watched.step();
      if (watched.kept.size() > 6) break;  // no test code gives slots back here
    }
    watched.tree.release_slots(watched.kept);
    watched.tree.check_invariants();
  });
}

TEST_CASE("a peek names the next victim of each kind, and a tree that is peeked at stays like its twin") {
  test::for_each_seed(300, [](Random& random, std::uint64_t seed) {
    const EvictionOrder order = victim_orders[random.between(0, 8)];
    const std::int32_t drawn = random.between32(0, 3);
    const std::int32_t samples = drawn == 0 ? -1 : drawn;
    Watched peeked(order, samples, 0, seed);
    Watched twin(order, samples, 0, seed);
    for (int step = 0; step < 60; ++step) {
      const auto kind = static_cast<VictimKind>(random.between(0, 2));
      std::vector<Victim> next(static_cast<std::size_t>(random.between(0, 6)));
      next.resize(peeked.tree.peek_victims(kind, next));
      peeked.tree.check_invariants();
      if (!next.empty() && random.chance(30)) {
        const ToldVictim first(next.front());
        for (Watched* watched : {&peeked, &twin}) {
          watched->reported.clear();
          Freed freed;
          const std::int64_t one = 1;
          watched->tree.evict({.tokens = kind == VictimKind::tokens ? one : 0,
                               .states = kind == VictimKind::states ? one : 0,
                               .bytes = kind == VictimKind::bytes ? one : 0},
                              freed);
          REQUIRE(!watched->reported.empty());
          REQUIRE(watched->reported.front() == first);
        }
      }
      peeked.step();
      twin.step();
      REQUIRE(peeked.reported == twin.reported);
    }
  });
}

TEST_CASE("a peek names several victims in the order in which they go") {
  for (const EvictionOrder order : victim_orders) {
    CAPTURE(name(order));
    std::vector<NodeId> gone;
    PrefixTree tree({.slots = 4, .eviction = order, .on_victim = [&](const Victim& victim) {
                       gone.push_back(victim.node);
                       return false;
                     }});
    for (Token token = 0; token < 4; ++token) insert(tree, {token, 9}, 10 * token);
    for (const VictimKind kind : {VictimKind::tokens, VictimKind::states, VictimKind::bytes}) {
      std::vector<Victim> next(10);
      REQUIRE(tree.peek_victims(kind, next) == 4);
      std::vector<NodeId> foretold;
      for (const Victim& victim : std::span(next).first(2)) foretold.push_back(victim.node);
      Freed freed;
      gone.clear();
      tree.evict({.tokens = kind == VictimKind::tokens ? 4 : 0,
                  .states = kind == VictimKind::states ? 2 : 0,
                  .bytes = kind == VictimKind::bytes ? 2 * (4096 + 2) : 0},
                 freed);
      CHECK(gone == foretold);
      for (Token token = 0; token < 4; ++token)
        if (!tree.match(std::vector<Token>{token, 9}).slot.valid()) insert(tree, {token, 9}, 100 + 10 * token);
    }
  }
}

TEST_CASE("each of several victims is ranked as if those before it were gone") {
  PrefixTree tree({.slots = 4, .policy = std::make_shared<Saved>()});
  const auto slot_at = [&](const std::vector<Token>& key, KvIndex kv) {
    return tree.node(insert(tree, key, kv).node).slot;
  };
  const SlotId first = slot_at({1, 2}, 0);
  slot_at({1, 2, 3, 4}, 10);
  const SlotId last = slot_at({1, 2, 3, 4, 5, 6}, 20);
  slot_at({9, 9, 9}, 30);
  // All of one chain save 2 tokens. Without the first, the one after it saves 4.
  Freed freed;
  CHECK(tree.evict({.states = 2}, freed) == EvictResult{2, 2});
  CHECK(freed.slots == std::vector{first, last});
  tree.check_invariants();
}

TEST_CASE("a slot that a listener keeps is not free: an eviction goes on until its demand is met") {
  std::vector<SlotId> kept;
  PrefixTree tree({.slots = 3, .eviction = EvictionOrder::lru, .on_victim = [&](const Victim& victim) {
                     if (kept.size() == 1) return false;
                     kept.push_back(victim.slot);
                     return true;
                   }});
  for (Token token = 0; token < 3; ++token) insert(tree, {token}, token);
  Freed freed;
  CHECK(tree.evict({.states = 1}, freed) == EvictResult{2, 1});
  REQUIRE(kept.size() == 1);
  CHECK(freed.slots.size() == 1);
  CHECK(freed.slots.front() != kept.front());
  CHECK(tree.slots().tag(kept.front()) == tree.state_tag(std::vector<Token>{0}));
  tree.check_invariants();
  tree.release_slots(kept);
  CHECK(tree.slots().free_slots() == 2);
}

TEST_CASE("an eviction that runs out of memory behind a slot that its listener kept returns") {
  std::uint64_t failures = 0;
  for (bool done = false; !done; ++failures) {
    CAPTURE(failures);
    std::vector<SlotId> kept;
    kept.reserve(2);
    PrefixTree tree({.slots = 2, .on_victim = [&](const Victim& victim) {
                       kept.push_back(victim.slot);
                       return true;
                     }});
    insert(tree, {1, 2}, 0);
    insert(tree, {1, 2, 3, 4}, 0);
    const std::string before = tree.pretty_print();
    Freed freed;
    EvictResult evicted;
    bool threw = false;
    test::fail_heap_allocation(failures + 1);
    try {
      evicted = tree.evict({.states = 2}, freed);
    } catch (const std::bad_alloc&) {
      threw = true;
    }
    test::fail_heap_allocation(0);
    tree.check_invariants();
    CHECK(threw == (tree.pretty_print() == before));
    CHECK(threw == kept.empty());
    CHECK((evicted.states == 0 && freed.slots.empty() && std::ssize(freed.kv) == evicted.tokens));
    done = kept.size() == 2;
  }
  CHECK(failures >= 3);
}

TEST_CASE("only an unlocked state can be dropped, and its node keeps its KV") {
  PrefixTree tree({.slots = 2});
  const NodeId node = insert(tree, {1, 2}, 0).node;
  Freed freed;
  {
    const PrefixLock lock = tree.lock(node);
    CHECK_THROWS_AS(tree.drop_state(node, freed), InvalidArgument);
  }
  CHECK_THROWS_AS(tree.drop_state({}, freed), InvalidArgument);
  CHECK(freed.slots.empty());
  tree.drop_state(node, freed);
  CHECK(freed.slots == std::vector{SlotId{0}});
  CHECK(freed.kv.empty());
  CHECK(tree.match(std::vector<Token>{1, 2}).lost == LostHit::evicted);
  CHECK_THROWS_AS(tree.drop_state(node, freed), InvalidArgument);
  CHECK(tree.evict({.tokens = 1}, freed) == EvictResult{2, 0});
  CHECK_THROWS_AS(tree.node(node), InvalidArgument);
  CHECK_THROWS_AS(tree.drop_state(node, freed), InvalidArgument);
  tree.check_invariants();
}
