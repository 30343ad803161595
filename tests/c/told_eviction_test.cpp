// SPDX-License-Identifier: Apache-2.0
// With the same reports of random requests, a cache made by the C interface decides as one of C++ does.
#include <stateport.h>
#include <stateport/core/pool/block_pool.hpp>
#include <stateport/core/pool/slot_pool.hpp>
#include <stateport/core/slots/slot_allocator.hpp>
#include <stateport/core/tree/prefix_tree.hpp>

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

using namespace stateport;
using test::Random;

namespace {

void expect_ok(stateport_status status) {
  REQUIRE_MESSAGE(status == STATEPORT_OK, std::string(stateport_last_error()));
}

struct Policy {
  stateport_eviction_options c;
  EvictionOrder order;
  EvictionOptions options;
  MemoryCost memory;
};

/// Half of the values are the defaults, which C has by zeros.
Policy random_policy(Random& random) {
  const auto order = random.chance(80) ? EvictionOrder::hix : EvictionOrder::gdsf;
  Policy policy{.c = {.size = sizeof(stateport_eviction_options), .order = static_cast<std::int32_t>(order)},
                .order = order,
                .options = {},
                .memory = {}};
  if (random.chance(50)) {
    policy.c.state_bytes = policy.memory.state_bytes = random.between(1, 20);
    policy.c.kv_bytes_per_token = policy.memory.kv_bytes_per_token = random.between(1, 3);
  }
  if (random.chance(50)) {
    policy.c.benefit_linear = policy.options.benefit.linear = static_cast<double>(random.between(0, 2));
    policy.c.benefit_quadratic = policy.options.benefit.quadratic = 1;
  }
  if (random.chance(50))
    policy.c.positions = policy.options.positions = static_cast<std::size_t>(random.between(4, 40));
  if (random.chance(70)) {
    const std::int32_t drawn = random.between32(0, 4);
    policy.c.samples = policy.options.samples = drawn == 0 ? -1 : drawn;
  }
  return policy;
}

ReuseHint random_hint(Random& random) {
  if (random.chance(40)) return {};
  constexpr double factors[] = {0.1, 0.5, 1, 3, 20};
  return {.last_turn = random.chance(20),
          .tool_call_pending = random.chance(20),
          .continues = random.chance(30) ? static_cast<float>(random.between(1, 99)) / 100 : 0,
          .factor = factors[random.between(0, 4)],
          .expected_idle_s = random.chance(20) ? static_cast<double>(random.between(1, 200)) : 0,
          .session = static_cast<std::uint64_t>(random.between(0, 3))};
}

stateport_reuse_hint to_c(const ReuseHint& hint) {
  return {.size = sizeof(stateport_reuse_hint),
          .last_turn = hint.last_turn,
          .tool_call_pending = hint.tool_call_pending,
          .factor = hint.factor == 1 ? 0 : hint.factor,
          .expected_idle_s = hint.expected_idle_s,
          .session = hint.session,
          .continues = hint.continues};
}

/// Two trees, and the requests that were looked up and not yet kept.
class Trees {
 public:
  Trees(const Policy& policy, Random& random)
      : random_(random),
        tree_({.slots = slots,
               .policy = make_eviction_policy(policy.order, policy.options, policy.memory),
               .position_tokens = 2}) {
    const stateport_tree_options options{
        .size = sizeof options, .slots = slots, .eviction_options = &policy.c, .position_tokens = 2};
    expect_ok(stateport_tree_create(&options, &c_));
  }
  ~Trees() { static_cast<void>(stateport_tree_destroy(c_)); }
  Trees(const Trees&) = delete;
  Trees& operator=(const Trees&) = delete;

  void advance(double now_s) {
    tree_.set_time(now_s);
    expect_ok(stateport_tree_set_time(c_, now_s));
  }

  void look_up() {
    std::vector<Token> prompt(static_cast<std::size_t>(random_.between(1, 14)));
    for (Token& token : prompt) token = random_.chance(85) ? 1 : 2;
    const PrefixMatch hit = match(prompt, Lookup::request);
    requests_.push_back({prompt, hit.past, {c_hit_.past[0], c_hit_.past[1]}});
    if (random_.chance(20)) static_cast<void>(match(prompt, Lookup::again));
  }

  /// Keeps a request that was looked up, perhaps with a checkpoint before its end.
  void keep() {
    if (requests_.empty()) return;
    const auto at = requests_.begin() + random_.between(0, std::ssize(requests_) - 1);
    const Request request = *at;
    requests_.erase(at);
    const bool handed_on = random_.chance(80);
    if (random_.chance(50))
      insert(request, static_cast<std::size_t>(random_.between(1, std::ssize(request.prompt))), handed_on);
    insert(request, request.prompt.size(), handed_on);
  }

  void evict() {
    const EvictDemand demand{.tokens = random_.between(0, 12), .states = random_.between(0, 3)};
    freed_.clear();
    const EvictResult result = tree_.evict(demand, freed_);
    std::int64_t tokens = -1;
    std::int64_t states = -1;
    expect_ok(stateport_tree_evict(c_, demand.tokens, demand.states, &tokens, &states));
    REQUIRE(tokens == result.tokens);
    REQUIRE(states == result.states);
    std::vector<std::int32_t> kv(freed_.kv.size() + 1);
    std::size_t count = 0;
    expect_ok(stateport_tree_take_freed_kv(c_, kv.data(), kv.size(), &count));
    kv.resize(count);
    REQUIRE(kv == freed_.kv);
  }

 private:
  static constexpr std::int32_t slots = 12;

  struct Request {
    std::vector<Token> prompt;
    PromptPast past;
    std::uint64_t c_past[2];
  };

  PrefixMatch match(const std::vector<Token>& prompt, Lookup lookup) {
    const PrefixMatch hit = tree_.match(prompt, {}, {}, lookup);
    c_hit_ = {.size = sizeof c_hit_};
    const auto call = lookup == Lookup::again ? stateport_tree_match_again : stateport_tree_match;
    expect_ok(call(c_, prompt.data(), prompt.size(), nullptr, nullptr, &c_hit_));
    REQUIRE(c_hit_.tokens == hit.tokens);
    REQUIRE(c_hit_.slot == hit.slot.value());
    return hit;
  }

  void insert(const Request& request, std::size_t count, bool handed_on) {
    const auto prefix = std::span(request.prompt).first(count);
    std::vector<KvIndex> kv(count);
    std::iota(kv.begin(), kv.end(), next_kv_);
    next_kv_ += static_cast<KvIndex>(count);
    const bool at_end = count == request.prompt.size();
    const bool chunked = !at_end && random_.chance(50);
    const std::int64_t request_tokens = chunked || random_.chance(50) ? std::ssize(request.prompt) : 0;
    const ReuseHint hint = random_hint(random_);
    SlotId slot;
    if (tree_.allocate_slots({&slot, 1})) tree_.tag_slot(slot, tree_.state_tag(prefix));
    freed_.clear();
    const InsertResult kept = tree_.insert(
        {.tokens = prefix,
         .kv = kv,
         .slot = slot,
         .chunked = chunked,
         .prompt = {.tokens = request_tokens, .past = handed_on ? request.past : PromptPast{}, .hint = hint}},
        freed_);
    if (slot.valid() && kept.state_exists) tree_.release_slots({&slot, 1});
    insert_into_c(request, kv, {.slot = slot.value(), .chunked = chunked, .request_tokens = request_tokens}, handed_on,
                  hint, kept);
  }

  struct Given {
    std::int32_t slot;
    bool chunked;
    std::int64_t request_tokens;
  };

  void insert_into_c(const Request& request, const std::vector<KvIndex>& kv, const Given& given, bool handed_on,
                     const ReuseHint& hint, const InsertResult& wanted) {
    const stateport_reuse_hint c_hint = to_c(hint);
    stateport_insert prefix{.size = sizeof prefix,
                            .tokens = request.prompt.data(),
                            .kv = kv.data(),
                            .count = kv.size(),
                            .slot = STATEPORT_NONE,
                            .chunked = given.chunked,
                            .hint = &c_hint,
                            .request_tokens = given.request_tokens};
    if (handed_on) std::ranges::copy(request.c_past, prefix.past);
    if (given.slot != STATEPORT_NONE) {
      expect_ok(stateport_tree_allocate_slots(c_, &prefix.slot, 1));
      expect_ok(stateport_tree_tag_slot(c_, prefix.slot, prefix.tokens, prefix.count, nullptr));
    }
    REQUIRE(prefix.slot == given.slot);
    stateport_insert_result kept{.size = sizeof kept};
    expect_ok(stateport_tree_insert(c_, &prefix, &kept));
    REQUIRE(kept.prefix_tokens == wanted.prefix_tokens);
    REQUIRE((kept.state_exists != 0) == wanted.state_exists);
    if (given.slot != STATEPORT_NONE && kept.state_exists) expect_ok(stateport_tree_release_slots(c_, &prefix.slot, 1));
    std::vector<std::int32_t> back(kv.size());
    std::size_t count = 0;
    expect_ok(stateport_tree_take_freed_kv(c_, back.data(), back.size(), &count));
    REQUIRE(count == freed_.kv.size());
  }

  Random& random_;
  PrefixTree tree_;
  stateport_tree* c_ = nullptr;
  stateport_match c_hit_{};
  Freed freed_;
  std::vector<Request> requests_;
  KvIndex next_kv_ = 0;
};

}  // namespace

TEST_CASE("a tree of C that gets reports of requests evicts as one of C++ does") {
  test::for_each_seed(300, [](Random& random, std::uint64_t) {
    Trees trees(random_policy(random), random);
    double now_s = 0;
    const bool has_clock = random.chance(80);
    for (int step = 0; step < 250; ++step) {
      if (has_clock) trees.advance(now_s += static_cast<double>(random.between(0, 40)));
      const auto kind = random.between(0, 6);
      if (kind <= 2)
        trees.look_up();
      else if (kind <= 5)
        trees.keep();
      else
        trees.evict();
    }
  });
}

namespace {

/// Two slot allocators. The prompts are words of two letters; a block of each is a letter.
class Allocators {
 public:
  Allocators(const Policy& policy, Random& random)
      : random_(random),
        pool_({.blocks = blocks}),
        slot_pool_(slots),
        states_(slot_pool_, pool_, {.eviction = make_eviction_policy(policy.order, policy.options, policy.memory)}) {
    const stateport_slot_allocator_options options{
        .size = sizeof options, .blocks = blocks, .slots = slots, .eviction = &policy.c};
    expect_ok(stateport_slot_allocator_create(&options, &c_));
  }
  ~Allocators() { static_cast<void>(stateport_slot_allocator_destroy(c_)); }
  Allocators(const Allocators&) = delete;
  Allocators& operator=(const Allocators&) = delete;

  void serve(double now_s) {
    const auto count = static_cast<std::size_t>(random_.between(1, 7));
    std::vector<BlockHash> hashes{1};
    for (std::size_t i = 0; i < count; ++i) hashes.push_back(2 * hashes.back() + (random_.chance(80) ? 0 : 1));
    hashes.erase(hashes.begin());
    const std::size_t matched = take_blocks(hashes);
    const auto usable = random_.between32(0, static_cast<std::int32_t>(count));
    std::int64_t hit = 0;
    if (const auto found = states_.find_longest_state(std::span(hashes).first(static_cast<std::size_t>(usable))))
      hit = static_cast<std::int64_t>(found->index) + 1;
    store(hashes, count);
    store(hashes, static_cast<std::size_t>(random_.between(1, static_cast<std::int64_t>(count))));
    note(hashes, now_s, usable, static_cast<std::int32_t>(matched), static_cast<std::int32_t>(hit));
    pool_.release(row_);
    expect_ok(stateport_slot_allocator_release_blocks(c_, c_row_.data(), count));
    pool_.advance_tick();
    expect_ok(stateport_slot_allocator_advance_tick(c_));
    compare();
  }

 private:
  static constexpr std::int32_t blocks = 40;
  static constexpr std::int32_t slots = 8;

  std::size_t take_blocks(const std::vector<BlockHash>& hashes) {
    const std::size_t count = hashes.size();
    row_.assign(count, BlockId{});
    const std::size_t matched = pool_.find_prefix(hashes, row_);
    const auto fresh = std::span(row_).subspan(matched);
    pool_.retain(std::span(row_).first(matched));
    REQUIRE(pool_.allocate(fresh));
    std::vector<BlockHash> parents{0};
    parents.insert(parents.end(), hashes.begin(), hashes.end() - 1);
    pool_.register_hashes(fresh, std::span(hashes).subspan(matched), std::span(parents).subspan(matched));

    c_row_.assign(count, STATEPORT_NONE);
    std::size_t found = 0;
    expect_ok(stateport_slot_allocator_find_blocks(c_, hashes.data(), count, c_row_.data(), &found));
    REQUIRE(found == matched);
    expect_ok(stateport_slot_allocator_retain_blocks(c_, c_row_.data(), found));
    expect_ok(stateport_slot_allocator_allocate_blocks(c_, c_row_.data() + found, count - found));
    expect_ok(stateport_slot_allocator_register_blocks(c_, c_row_.data() + found, hashes.data() + found,
                                                       parents.data() + found, count - found));
    return matched;
  }

  void store(const std::vector<BlockHash>& hashes, std::size_t depth) {
    const BlockId block = row_[depth - 1];
    const std::int32_t c_block = c_row_[depth - 1];
    SlotId slot;
    std::int32_t c_slot = STATEPORT_NONE;
    states_.allocate({&block, 1}, {&slot, 1});
    expect_ok(stateport_slot_allocator_allocate_slots(c_, &c_block, 1, &c_slot));
    REQUIRE(c_slot == slot.value());
    const StateTag tag{static_cast<std::int64_t>(4 * depth), {{1, 2}}, 3};
    const stateport_tag c_tag{
        .size = sizeof c_tag, .token_count = tag.token_count, .prefix = {1, 2}, .layout_fingerprint = 3};
    states_.set_tag(block, tag);
    expect_ok(stateport_slot_allocator_set_tag(c_, c_block, &c_tag));
    states_.register_hashes({&block, 1}, {&hashes[depth - 1], 1});
    expect_ok(stateport_slot_allocator_register_states(c_, &c_block, &hashes[depth - 1], 1));
  }

  void note(const std::vector<BlockHash>& hashes, double now_s, std::int32_t usable, std::int32_t matched,
            std::int32_t hit) {
    const ReuseHint hint = random_hint(random_);
    const stateport_reuse_hint c_hint = to_c(hint);
    states_.note_served(hashes, {.usable_blocks = usable, .matched_blocks = matched, .hit_blocks = hit, .hint = hint},
                        now_s);
    const stateport_served_prompt prompt{.size = sizeof prompt,
                                         .now_s = now_s,
                                         .hashes = hashes.data(),
                                         .count = hashes.size(),
                                         .usable_blocks = usable,
                                         .matched_blocks = matched,
                                         .hit_blocks = hit,
                                         .hint = &c_hint};
    expect_ok(stateport_slot_allocator_note_served(c_, &prompt));
  }

  void compare() {
    for (std::int32_t block = 0; block < blocks; ++block) {
      std::int32_t slot = STATEPORT_NONE;
      expect_ok(stateport_slot_allocator_slot_of(c_, block, &slot));
      REQUIRE(slot == states_.slot_of(BlockId{block}).value());
    }
  }

  Random& random_;
  BlockPool pool_;
  SlotPool slot_pool_;
  SlotAllocator states_;
  stateport_slot_allocator* c_ = nullptr;
  std::vector<BlockId> row_;
  std::vector<std::int32_t> c_row_;
};

}  // namespace

TEST_CASE("a slot allocator of C that gets reports of requests evicts as one of C++ does") {
  test::for_each_seed(300, [](Random& random, std::uint64_t) {
    Allocators allocators(random_policy(random), random);
    double now_s = 0;
    for (int request = 0; request < 150; ++request)
      allocators.serve(now_s += static_cast<double>(random.between(0, 40)));
  });
}
