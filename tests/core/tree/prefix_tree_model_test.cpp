// SPDX-License-Identifier: Apache-2.0
// Random operations on PrefixTree and on PrefixModel, compared after every step. The letters are those of the
// properties that a prefix tree must have: P pools, T tree, S states, L locks, E eviction, R recency.
#include "prefix_tree_model.hpp"

#include <stateport/core/model/error.hpp>

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <numeric>
#include <set>
#include <string>
#include <vector>

using namespace stateport;
using stateport::test::PrefixModel;
using stateport::test::Random;

namespace {

constexpr std::uint64_t seeds = 10000;
constexpr int steps = 200;
constexpr int kv_indices = 4096;

constexpr std::array<Namespace, 3> name_spaces{Namespace{}, Namespace{"", std::nullopt}, Namespace{"a", "s"}};

/// A comparison that is made millions of times: cheaper than REQUIRE when it holds.
void agree(bool ok, const char* what) {
  if (!ok) FAIL("tree and model differ: " << what);
}

/// The tree, the model, and the locks, KV and slots of an engine.
class Comparison {
 public:
  Comparison(Random& random, EvictionOrder order)
      : random_(random), config_(random_config(random, order)), tree_(options(config_)), model_(config_) {
    for (KvIndex index = 0; index < kv_indices; ++index) free_kv_.push_back(index);
  }

  void step() {
    const std::int64_t dice = random_.between(0, 99);
    if (dice < 35)
      insert();
    else if (dice < 55)
      match();
    else if (dice < 62)
      match_with_live_slot();
    else if (dice < 76)
      lock();
    else if (dice < 86)
      unlock();
    else if (dice < 95)
      evict();
    else if (dice < 98)
      touch();
    else if (dice == 98)
      give_back_slots();
    else if (random_.chance(10))
      reset();
    else if (random_.chance(50))
      forget();
    compare();
  }

  /// L2: when the last lock is gone nothing is protected.
  void finish() {
    while (!locks_.empty()) unlock();
    compare();
    REQUIRE(tree_.sizes().protected_tokens == 0);
    REQUIRE(tree_.sizes().protected_states == 0);
    REQUIRE(std::ranges::all_of(tree_.nodes(), [](const NodeInfo& node) { return node.full_lock == 0; }));
  }

 private:
  struct HeldLock {
    PrefixLock tree;
    PrefixModel::Lock model;
  };
  struct Hit {
    NodeId tree;
    int model = 0;
  };

  static PrefixModel::Config random_config(Random& random, EvictionOrder order) {
    const std::size_t page = random.chance(50) ? 1 : static_cast<std::size_t>(random.between(2, 4));
    const std::int64_t chunk = random.between(1, 4);
    return {.page = page,
            .grid = std::lcm(chunk, static_cast<std::int64_t>(page)),
            .slots = random.between32(0, 7),
            .cap = random.chance(25) ? random.between32(0, 2) : -1,
            .order = order};
  }
  static PrefixTree::Options options(const PrefixModel::Config& config) {
    return {.page_size = static_cast<std::int32_t>(config.page),
            .slots = config.slots,
            .chunk_size = static_cast<std::int32_t>(config.grid),
            .max_states_per_path = config.cap,
            .eviction = config.order,
            .kv_indices = kv_indices,
            .reserve_nodes = 0};
  }

  /// Few tokens and keys that continue earlier ones: paths share, split and end in the middle of edges.
  std::vector<Token> random_key() {
    std::vector<Token> key;
    if (!last_keys_.empty() && random_.chance(60)) {
      key = last_keys_[static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(last_keys_.size()) - 1))];
      if (random_.chance(60))
        key.resize(static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(key.size()))));
    }
    for (std::int64_t more = random_.between(0, 6); more > 0; --more) key.push_back(random_.between32(0, 2));
    if (key.size() > 40) key.resize(40);
    last_keys_.push_back(key);
    if (last_keys_.size() > 12) last_keys_.pop_front();
    return key;
  }
  int random_name() { return random_.chance(80) ? 0 : random_.between32(1, 2); }

  void check_match(const PrefixMatch& got, std::vector<KvIndex> kv, const PrefixModel::Match& expected,
                   const std::vector<Token>& key, int name_space) {
    kv.resize(static_cast<std::size_t>(got.tokens));
    const PrefixModel::Match as_model{expected.node,          got.tokens,           kv, got.slot.value(),
                                      got.branching_position, got.live_slot.value()};
    REQUIRE(as_model == expected);  // S2, S4
    REQUIRE(got.node.is_root() == (expected.node == 0));
    if (got.node.is_root()) return;
    const PrefixModel::State state{name_space, {key.begin(), key.begin() + got.tokens}};
    REQUIRE(model_.states[got.slot.index()] == state);  // S1
    REQUIRE(tree_.check_restore(got) == TagCheck::match);
    check_child_before_parent(expected.node);
    hits_.push_back({got.node, expected.node});
    if (hits_.size() > 8) hits_.pop_front();
  }

  /// R2. The model's ticks are compared with the tree's in compare().
  void check_child_before_parent(int node) const {
    for (int at = node; model_.node(at).parent != 0; at = model_.node(at).parent)
      agree(model_.node(at).tick > model_.node(model_.node(at).parent).tick, "a child before its parent");
  }

  void match() { match_key(random_key(), random_name()); }

  PrefixMatch match_key(const std::vector<Token>& key, int name_space) {
    std::vector<KvIndex> kv(key.size());
    // The model would notice a change that this one makes.
    const PrefixMatch seen = tree_.peek(key, name_spaces[static_cast<std::size_t>(name_space)]);
    const PrefixMatch got = tree_.match(key, name_spaces[static_cast<std::size_t>(name_space)], kv);
    REQUIRE(seen.node == got.node);
    REQUIRE(seen.tokens == got.tokens);
    REQUIRE(seen.slot == got.slot);
    REQUIRE(seen.walked_tokens == got.walked_tokens);
    REQUIRE(seen.branching_position == got.branching_position);
    REQUIRE(seen.lost == got.lost);
    check_match(got, kv, model_.match(key, name_space), key, name_space);
    if (random_.chance(20)) {  // S3
      const PrefixMatch again = tree_.match(key, name_spaces[static_cast<std::size_t>(name_space)]);
      REQUIRE(again.node == got.node);
      model_.match(key, name_space);
    }
    return got;
  }

  void match_with_live_slot() {
    const std::vector<Token> key = random_key();
    const int name_space = random_name();
    std::vector<KvIndex> kv(key.size());
    Freed freed;
    PrefixModel::Out out;
    const PrefixMatch got =
        tree_.match_with_live_slot(key, name_spaces[static_cast<std::size_t>(name_space)], kv, {}, freed);
    const PrefixModel::Match expected = model_.match_with_live_slot(key, name_space, out);
    check_freed(freed, out);
    check_match(got, kv, expected, key, name_space);
    if (got.live_slot.valid()) held_slots_.push_back(got.live_slot);
  }

  void insert() {
    const std::vector<Token> key = random_key();
    const int name_space = random_name();
    const Namespace& name = name_spaces[static_cast<std::size_t>(name_space)];
    const std::size_t cut = key.size() / config_.page * config_.page;
    std::size_t prev = 0;
    HeldLock held;
    if (random_.chance(50)) {  // as a request does: match, lock, compute the rest, insert
      const PrefixMatch hit = match_key(key, name_space);
      prev = static_cast<std::size_t>(hit.tokens);
      if (!hit.node.is_root()) held = {tree_.lock(hit.node), model_.lock(hits_.back().model)};
    }
    if (free_kv_.size() < key.size()) return release(held);
    std::vector<KvIndex> kv(key.size(), -1);  // the tree owns the KV before prev and ignores these entries
    for (std::size_t i = prev; i < key.size(); ++i) kv[i] = take_kv();
    const SlotId slot = slot_with_state(name_space, key, cut, name);
    const std::int32_t priority = random_.between32(0, 2);
    const bool chunked = random_.chance(30);
    Freed freed;
    PrefixModel::Out out;
    const InsertResult got = tree_.insert({.tokens = key,
                                           .kv = kv,
                                           .slot = slot,
                                           .name_space = name,
                                           .name_tag = static_cast<std::uint64_t>(name_space),
                                           .prev_tokens = static_cast<std::int64_t>(prev),
                                           .priority = priority,
                                           .chunked = chunked},
                                          freed);
    const auto [prefix, exists, end] = model_.insert(key, kv, slot.value(), name_space, prev, priority, chunked, out);
    REQUIRE(got.prefix_tokens == prefix);
    REQUIRE(got.state_exists == exists);
    check_freed(freed, out);
    for (std::size_t i = std::max(cut, prev); i < key.size(); ++i) free_kv_.push_back(kv[i]);
    if (slot.valid() && exists) held_slots_.push_back(slot);
    if (end != 0) check_child_before_parent(end);
    release(held);
    if (cut > 0 && model_.node(end).slot >= 0 && random_.chance(50)) {  // S5
      const PrefixMatch hit = match_key(key, name_space);
      REQUIRE(hit.tokens == static_cast<std::int64_t>(cut));
    }
  }

  void release(HeldLock& held) {
    if (held.model.node != 0) model_.unlock(held.model);
    held.tree.release();
  }

  KvIndex take_kv() {
    const KvIndex index = free_kv_.front();
    free_kv_.pop_front();
    return index;
  }

  /// A slot that holds the state of the key's whole pages, or none.
  SlotId slot_with_state(int name_space, const std::vector<Token>& key, std::size_t cut, const Namespace& name) {
    if (random_.chance(15)) return {};
    SlotId slot;
    if (!tree_.allocate_slots({&slot, 1})) {
      REQUIRE(model_.free_slots.empty());
      return {};
    }
    REQUIRE(model_.take_slot() == slot.value());
    model_.states[slot.index()] = {name_space, {key.begin(), key.begin() + static_cast<std::ptrdiff_t>(cut)}};
    tree_.tag_slot(slot, tree_.state_tag(std::span(key).first(cut), name));
    return slot;
  }

  void evict() {
    const EvictDemand demand{random_.chance(30) ? 0 : random_.between(0, 12),
                             random_.chance(40) ? 0 : random_.between(0, 3)};
    Freed freed;
    PrefixModel::Out out;
    const EvictResult got = tree_.evict(demand, freed);
    const auto [tokens, states] = model_.evict(demand.tokens, demand.states, out);
    REQUIRE(got == EvictResult{tokens, states});
    check_freed(freed, out);                                         // E2
    REQUIRE((got.tokens >= demand.tokens || !model_.next_leaf()));   // E1
    REQUIRE((got.states >= demand.states || !model_.next_state()));  // E1
    for (const HeldLock& held : locks_)                              // L3; a node that a reset removed stays removed
      REQUIRE(tree_.contains(held.tree.node()) == !forgotten_.contains(held.model.node));
  }

  void touch() {
    std::vector<NodeId> nodes;
    for (const Hit& hit : hits_) {
      if (!tree_.contains(hit.tree) || random_.chance(50)) continue;
      nodes.push_back(hit.tree);
      model_.touch(hit.model);
    }
    if (nodes.size() == 1)
      tree_.touch(nodes.front());
    else
      tree_.touch(nodes);
  }

  void lock() {
    if (hits_.empty()) return;
    const Hit hit = hits_[static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(hits_.size()) - 1))];
    REQUIRE(tree_.contains(hit.tree) == model_.node(hit.model).alive);
    if (!tree_.contains(hit.tree)) {
      CHECK_THROWS_AS(static_cast<void>(tree_.lock(hit.tree)), InvalidArgument);
      return;
    }
    locks_.push_back({tree_.lock(hit.tree), model_.lock(hit.model)});
  }

  void unlock() {
    if (locks_.empty()) return;
    std::swap(locks_[static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(locks_.size()) - 1))],
              locks_.back());
    release(locks_.back());
    locks_.pop_back();
  }

  void give_back_slots() {
    tree_.release_slots(held_slots_);
    for (const SlotId slot : held_slots_) model_.free_slot(slot.value());
    held_slots_.clear();
  }

  /// Slots that become free in one call do so in any order.
  void forget() {
    const int name_space = random_name();
    Freed freed;
    PrefixModel::Out out;
    const EvictResult got =
        tree_.forget([&](std::uint64_t tag) { return tag == static_cast<std::uint64_t>(name_space); }, freed);
    model_.forget(name_space, out);
    REQUIRE(got == EvictResult{std::ssize(out.kv), std::ssize(out.slots)});
    std::ranges::sort(out.kv);
    free_kv_.insert(free_kv_.end(), freed.kv.begin(), freed.kv.end());
    std::ranges::sort(freed.kv);
    REQUIRE(freed.kv == out.kv);
    model_.free_slots.resize(model_.free_slots.size() - out.slots.size());
    for (const SlotId slot : freed.slots) {
      REQUIRE(std::erase(out.slots, slot.value()) == 1);
      model_.free_slot(slot.value());
    }
    REQUIRE(out.slots.empty());
  }

  void reset() {
    Freed freed;
    tree_.reset(freed);
    std::set<int> slots;
    std::set<KvIndex> kv;
    for (const int i : model_.live()) {
      kv.insert(model_.node(i).kv.begin(), model_.node(i).kv.end());
      if (model_.node(i).slot >= 0) slots.insert(model_.node(i).slot);
    }
    model_.reset();
    for (const HeldLock& held : locks_) forgotten_.insert(held.model.node);
    REQUIRE(freed.kv.size() == kv.size());
    REQUIRE(freed.slots.size() == slots.size());
    for (const KvIndex index : freed.kv) REQUIRE(kv.contains(index));
    for (const SlotId slot : freed.slots) REQUIRE(slots.contains(slot.value()));
    free_kv_.insert(free_kv_.end(), freed.kv.begin(), freed.kv.end());
    held_slots_.insert(held_slots_.end(), freed.slots.begin(), freed.slots.end());
  }

  void check_freed(const Freed& freed, const PrefixModel::Out& out) {
    REQUIRE(freed.kv == out.kv);
    REQUIRE(std::ranges::equal(freed.slots, out.slots, {}, &SlotId::value));
    free_kv_.insert(free_kv_.end(), freed.kv.begin(), freed.kv.end());
  }

  /// A node is known by its first KV index: the tree's and the model's lists are both sorted by it.
  void compare() {
    tree_.check_invariants();  // P2, P3, T1, T2, L1, E4, R1 and more
    std::vector<NodeInfo> ours = tree_.nodes();
    std::vector<int> theirs = model_.live();
    agree(ours.size() == theirs.size(), "number of nodes");
    std::ranges::sort(ours, {}, [](const NodeInfo& node) { return node.kv.front(); });
    std::ranges::sort(theirs, {}, [&](int node) { return model_.node(node).kv.front(); });
    for (std::size_t i = 0; i < ours.size(); ++i) compare_node(ours[i], model_.node(theirs[i]));
    compare_order(ours, theirs, &NodeInfo::tick, &PrefixModel::Node::tick);
    compare_order(ours, theirs, &NodeInfo::created_tick, &PrefixModel::Node::created);
    const PrefixModel::Sizes sizes = model_.sizes();
    REQUIRE(tree_.sizes() ==
            TreeSizes{sizes.evictable_tokens, sizes.protected_tokens, sizes.evictable_states, sizes.protected_states});
    // P1
    REQUIRE(static_cast<std::int64_t>(free_kv_.size()) + tree_.sizes().total_tokens() == kv_indices);
    REQUIRE(tree_.slots().free_slots() + tree_.sizes().total_states() + static_cast<std::int64_t>(held_slots_.size()) ==
            config_.slots);
    REQUIRE(tree_.slots().free_slots() == static_cast<std::int32_t>(model_.free_slots.size()));
  }

  void compare_node(const NodeInfo& ours, const PrefixModel::Node& theirs) const {
    agree(std::ranges::equal(ours.tokens, theirs.tokens), "tokens");
    agree(std::ranges::equal(ours.kv, theirs.kv), "KV indices");
    agree(ours.slot.value() == theirs.slot, "slot");
    agree(ours.full_lock == static_cast<std::uint32_t>(theirs.full_lock), "full lock");
    agree(ours.state_lock == theirs.state_lock, "state lock");
    agree(ours.hits == theirs.hits, "hits");
    agree(ours.priority == theirs.priority, "priority");
    agree(ours.name_space == name_spaces[static_cast<std::size_t>(theirs.name_space)], "namespace");
    agree(ours.parent.is_root() == (theirs.parent == 0), "parent");
  }

  /// The clocks run alike, but for the tick that a cut node gets in vain: only the order counts.
  void compare_order(const std::vector<NodeInfo>& ours, const std::vector<int>& theirs, std::uint64_t NodeInfo::*tick,
                     std::uint64_t PrefixModel::Node::*model_tick) const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ticks;
    for (std::size_t i = 0; i < ours.size(); ++i) ticks.emplace_back(ours[i].*tick, model_.node(theirs[i]).*model_tick);
    std::ranges::sort(ticks);
    for (std::size_t i = 1; i < ticks.size(); ++i) {
      agree(ticks[i - 1].second <= ticks[i].second, "recency");
      agree((ticks[i - 1].first == ticks[i].first) == (ticks[i - 1].second == ticks[i].second), "equal recency");
    }
  }

  Random& random_;
  PrefixModel::Config config_;
  PrefixTree tree_;
  PrefixModel model_;
  std::deque<KvIndex> free_kv_;
  std::vector<SlotId> held_slots_;
  std::vector<HeldLock> locks_;
  std::set<int> forgotten_;  ///< nodes that were locked when the tree was reset
  std::deque<Hit> hits_;
  std::deque<std::vector<Token>> last_keys_;
};

void compare_with_model(Random& random, EvictionOrder order) {
  Comparison comparison(random, order);
  for (int step = 0; step < steps; ++step) {
    CAPTURE(step);
    comparison.step();
  }
  comparison.finish();
}

}  // namespace

TEST_CASE("random operations on a prefix tree agree with a plain model") {
  test::for_each_seed(seeds, [](Random& random, std::uint64_t) { compare_with_model(random, EvictionOrder::lru); });
}

TEST_CASE("every eviction order agrees with a plain model") {
  using enum EvictionOrder;
  constexpr std::array orders{lfu, fifo, slru, priority, mru, filo};
  test::for_each_seed(
      seeds / 8, [&](Random& random, std::uint64_t seed) { compare_with_model(random, orders[seed % orders.size()]); });
}
