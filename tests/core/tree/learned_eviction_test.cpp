// SPDX-License-Identifier: Apache-2.0
// A prefix tree with the policies that have memory.
#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/core/tree/prefix_tree.hpp>

#include "heap_counter.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>
#include <vector>

using namespace stateport;
using test::Random;

namespace {

constexpr std::int64_t state_bytes = 6;

PrefixTree::Options options_of(EvictionOrder order, std::int32_t samples) {
  return {.slots = 12,
          .eviction = order,
          .eviction_options = {.positions = 40, .samples = samples},
          .memory = {.state_bytes = state_bytes},
          .position_tokens = 2};
}

/// A tree under random requests. Its answers are compared with its nodes.
class Served {
 public:
  explicit Served(const PrefixTree::Options& options) : tree(options) {}

  void request(const std::vector<Token>& prompt, double now_s, std::size_t checkpoint, const ReuseHint& hint) {
    tree.set_time(now_s);
    const PrefixMatch hit = tree.match(prompt);
    PrefixLock lock = tree.lock(hit.node);
    insert(prompt, checkpoint, hit, {});
    insert(prompt, prompt.size(), hit, hint);
    last = hit;
  }

  /// Frees the demand, or everything evictable if that is less, and nothing that is locked.
  EvictResult evict(EvictDemand demand) {
    const std::vector<NodeInfo> before = tree.nodes();
    const auto locked = std::ranges::count_if(before, [](const NodeInfo& node) { return node.full_lock > 0; });
    const auto pinned = std::ranges::count_if(before, [](const NodeInfo& node) { return node.state_lock > 0; });
    freed.clear();
    const EvictResult result = tree.evict(demand, freed);
    REQUIRE(result.tokens == static_cast<std::int64_t>(freed.kv.size()));
    REQUIRE(result.states == static_cast<std::int64_t>(freed.slots.size()));
    const std::vector<NodeInfo> after = tree.nodes();
    REQUIRE(std::ranges::count_if(after, [](const NodeInfo& node) { return node.full_lock > 0; }) == locked);
    REQUIRE(std::ranges::count_if(after, [](const NodeInfo& node) { return node.state_lock > 0; }) == pinned);
    const bool leaf = std::ranges::any_of(after, &NodeInfo::evictable_leaf);
    const bool state =
        std::ranges::any_of(after, [](const NodeInfo& node) { return node.slot.valid() && node.state_lock == 0; });
    REQUIRE((result.tokens >= demand.tokens || !leaf));
    REQUIRE((result.states >= demand.states || !state));
    REQUIRE((result.tokens + result.states * state_bytes >= demand.bytes || !(leaf || state)));
    return result;
  }

  PrefixTree tree;
  Freed freed;
  PrefixMatch last;
  std::deque<PrefixLock> locks;

 private:
  void insert(const std::vector<Token>& prompt, std::size_t tokens, const PrefixMatch& hit, const ReuseHint& hint) {
    const auto prefix = std::span(prompt).first(tokens);
    std::vector<KvIndex> kv(tokens);
    std::iota(kv.begin(), kv.end(), next_kv_);
    next_kv_ += static_cast<KvIndex>(tokens);
    SlotId slot;
    if (tree.allocate_slots({&slot, 1})) tree.tag_slot(slot, tree.state_tag(prefix));
    freed.clear();
    const InsertResult result =
        tree.insert({.tokens = prefix,
                     .kv = kv,
                     .slot = slot,
                     .chunked = tokens < prompt.size(),
                     .prompt = {.tokens = static_cast<std::int64_t>(prompt.size()), .past = hit.past, .hint = hint}},
                    freed);
    if (slot.valid() && result.state_exists) tree.release_slots({&slot, 1});
  }

  KvIndex next_kv_ = 0;
};

std::vector<Token> drawn_prompt(Random& random) {
  std::vector<Token> prompt(static_cast<std::size_t>(random.between(1, 14)));
  for (Token& token : prompt) token = random.chance(85) ? 1 : 2;
  return prompt;
}

void serve_at_random(Random& random, EvictionOrder order) {
  const auto drawn = static_cast<std::int32_t>(random.between(0, 4));
  const std::int32_t samples = drawn == 0 ? -1 : drawn;
  Served served(options_of(order, samples));
  Served twin(options_of(order, samples));
  double now_s = 0;
  for (int step = 0; step < 60; ++step) {
    const auto kind = random.between(0, 5);
    if (kind <= 2) {
      const std::vector<Token> prompt = drawn_prompt(random);
      now_s += static_cast<double>(random.between(0, 40));
      const auto checkpoint = static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(prompt.size())));
      const ReuseHint hint{.last_turn = random.chance(10), .session = static_cast<std::uint64_t>(random.between(0, 3))};
      served.request(prompt, now_s, checkpoint, hint);
      twin.request(prompt, now_s, checkpoint, hint);
      REQUIRE(served.last.node == twin.last.node);
      if (random.chance(30)) {
        served.locks.push_back(served.tree.lock(served.last.node));
        twin.locks.push_back(twin.tree.lock(twin.last.node));
      }
    } else if (kind == 3 && !served.locks.empty()) {
      served.locks.pop_front();
      twin.locks.pop_front();
    } else if (kind == 4 && random.chance(5)) {
      served.freed.clear();
      served.tree.reset(served.freed);
      served.tree.release_slots(served.freed.slots);
      twin.freed.clear();
      twin.tree.reset(twin.freed);
      twin.tree.release_slots(twin.freed.slots);
    } else {
      const EvictDemand demand{.tokens = random.chance(40) ? random.between(1, 20) : 0,
                               .states = random.chance(40) ? random.between(1, 4) : 0,
                               .bytes = random.chance(40) ? random.between(1, 60) : 0};
      REQUIRE(served.evict(demand) == twin.evict(demand));
      REQUIRE(served.freed.kv == twin.freed.kv);
      REQUIRE(served.freed.slots == twin.freed.slots);
    }
    served.tree.check_invariants();
  }
}

}  // namespace

TEST_CASE("with a learned policy demands are met, locks are respected and equal calls give equal answers") {
  test::for_each_seed(3000, [](Random& random, std::uint64_t seed) {
    serve_at_random(random, seed % 3 == 0 ? EvictionOrder::gdsf : EvictionOrder::hix);
  });
}

TEST_CASE("hix evicts prompts that were never continued before the one that is always continued") {
  Served served({.slots = 64, .eviction = EvictionOrder::hix, .memory = {.state_bytes = 64}, .position_tokens = 4});
  // A conversation that goes on every 100 s, and others that are never seen again, more recently used.
  std::vector<Token> conversation(8, 7);
  double now_s = 0;
  Token fresh = 1000;
  for (int turn = 0; turn < 300; ++turn) {
    conversation.resize(conversation.size() % 64 + 8, 7);
    served.request(conversation, now_s, conversation.size(), {});
    for (int other = 0; other < 4; ++other) {
      now_s += 20;
      served.request(std::vector<Token>(8, ++fresh), now_s, 8, {});
      served.freed.clear();
      if (served.tree.sizes().total_states() > 24) served.tree.evict({.bytes = 72}, served.freed);
    }
    now_s += 20;
  }
  CHECK(served.tree.match(conversation, {}, {}, Lookup::again).tokens ==
        static_cast<std::int64_t>(conversation.size()));
}

TEST_CASE("leaves that no request can continue from go first") {
  Served served(options_of(EvictionOrder::hix, -1));
  served.request(std::vector<Token>(6, 1), 0, 6, {});
  const std::vector<Token> useless(5, 2);
  const std::vector<KvIndex> kv = {100, 101, 102, 103, 104};
  served.tree.insert({.tokens = useless, .kv = kv}, served.freed);
  served.freed.clear();
  CHECK(served.tree.evict({.bytes = 1}, served.freed) == EvictResult{.tokens = 5, .states = 0});
  CHECK(served.freed.kv == kv);
}

TEST_CASE("for bytes the KV above a leaf is evicted with it, up to the next fork or state") {
  Served served(options_of(EvictionOrder::hix, -1));
  const std::vector<Token> prompt = {1, 2, 3, 4, 5, 6, 7, 8};
  for (const int end : {2, 4, 6, 8})
    served.request({prompt.begin(), prompt.begin() + end}, 0, static_cast<std::size_t>(end), {});
  // The states after 4 and 6 tokens go alone, and leave KV for those behind them.
  for (const NodeInfo& node : served.tree.nodes())
    if (node.end_tokens == 4 || node.end_tokens == 6) served.tree.drop_state(node.id, served.freed);
  served.freed.clear();
  const auto lock = [&](std::size_t tokens) {
    return served.tree.lock(served.tree.match(std::span(prompt).first(tokens), {}, {}, Lookup::again).node);
  };
  const PrefixLock held = lock(2);
  CHECK(served.tree.evict({.bytes = 1}, served.freed) == EvictResult{.tokens = 6, .states = 1});
  served.tree.check_invariants();
  CHECK(served.tree.sizes().total_tokens() == 2);
}

TEST_CASE("a policy with memory belongs to one tree, and time does not go back") {
  const auto policy = make_eviction_policy(EvictionOrder::hix);
  PrefixTree tree({.slots = 1, .policy = policy});
  CHECK_THROWS_AS(PrefixTree({.slots = 1, .policy = policy}), InvalidState);
  tree.set_time(10);
  CHECK_THROWS_AS(tree.set_time(9), InvalidArgument);
  CHECK_THROWS_AS(make_eviction_policy(EvictionOrder::hix, {.positions = 0}), InvalidArgument);
  CHECK_THROWS_AS(make_eviction_policy(EvictionOrder::gdsf, {}, {.state_bytes = 0}), InvalidArgument);
}

TEST_CASE("an insert refuses to report impossible facts to a policy, and changes nothing") {
  PrefixTree tree({.slots = 1, .eviction = EvictionOrder::hix});
  tree.set_time(10);
  const std::vector<Token> tokens = {1, 2, 3};
  const std::vector<KvIndex> kv = {0, 1, 2};
  Freed freed;
  const auto refused = [&](const PromptPast& past, std::int64_t request_tokens) {
    CHECK_THROWS_AS(
        tree.insert({.tokens = tokens, .kv = kv, .prompt = {.tokens = request_tokens, .past = past}}, freed),
        InvalidArgument);
    CHECK(tree.node_count() == 0);
  };
  for (const double time_s :
       {-1.0, 10.5, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
    refused({.looked_up_s = time_s}, 0);
  refused({.looked_up_s = 10, .known_blocks = -1}, 0);
  refused({}, -1);
  refused({}, std::int64_t{INT32_MAX} + 1);
  tree.insert({.tokens = tokens, .kv = kv, .prompt = {.tokens = 4, .past = {.looked_up_s = 10, .known_blocks = 1}}},
              freed);
  tree.check_invariants();
}

TEST_CASE("a lookup by a learned policy allocates nothing") {
  Served served(options_of(EvictionOrder::hix, 4));
  served.request(std::vector<Token>(12, 1), 0, 6, {});
  const std::vector<Token> longer(40, 1);
  const auto before = test::heap_allocations();
  CHECK(served.tree.match(longer).tokens == 12);
  CHECK(test::heap_allocations() == before);
}
