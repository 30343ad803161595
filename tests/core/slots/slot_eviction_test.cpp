// SPDX-License-Identifier: Apache-2.0
// Slot allocators with an EvictionPolicy.
#include <stateport/core/pool/block_pool.hpp>
#include <stateport/core/slots/slot_allocator.hpp>

#include "heap_counter.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <vector>

using namespace stateport;

namespace {

using Blocks = std::vector<BlockId>;
using Hashes = std::vector<BlockHash>;

constexpr std::int64_t block_size_tokens = 16;
constexpr EvictionOrder slot_orders[] = {EvictionOrder::lru,  EvictionOrder::lfu,      EvictionOrder::fifo,
                                         EvictionOrder::slru, EvictionOrder::priority, EvictionOrder::filo,
                                         EvictionOrder::gdsf, EvictionOrder::hix};

/// Records the facts and events that the allocator reports. Ranks the state that saves the fewest tokens first.
class SlotWitness final : public LearningPolicy {
 public:
  explicit SlotWitness(std::int32_t draws = 0) : draws_(draws) {}

  std::string_view name() const noexcept override { return "witness"; }
  VictimKey key(const VictimFacts& facts) const noexcept override {
    seen[facts.index] = facts;
    return VictimKey::from(static_cast<double>(facts.end_tokens - facts.fallback_tokens), facts.used_tick);
  }
  VictimTraits traits() const noexcept override { return {.key_may_shrink = true, .draws = draws_}; }
  bool observes_prompts() const noexcept override { return true; }
  void set_time(double now_s) noexcept override { time_s = now_s; }
  PromptPast looked_up(const PromptFacts& prompt) noexcept override {
    ++look_ups;
    looked_up_keys = prompt.keys.size();
    return {.looked_up_s = time_s};
  }
  void used(std::uint32_t index) noexcept override { uses.push_back(index); }
  void kept(const KeptFacts& prefix) noexcept override { kept_at[prefix.index] = prefix.at; }
  void removed(std::uint32_t index, std::uint32_t heir) noexcept override { heirs[index] = heir; }
  void lost_state(std::uint32_t index) noexcept override { heirs[index] = index; }

  mutable std::map<std::uint32_t, VictimFacts> seen;
  std::map<std::uint32_t, KeptAt> kept_at;
  std::map<std::uint32_t, std::uint32_t> heirs;  ///< by removed candidate; itself if only its state was removed
  std::vector<std::uint32_t> uses;
  std::size_t looked_up_keys = 0;
  int look_ups = 0;
  double time_s = 0;

 private:
  std::int32_t draws_;
};

/// Blocks 0, 1, … of a pool, all live. A prompt is named by the hashes of its prefixes.
struct Cache {
  Cache(std::int32_t slot_count, std::shared_ptr<EvictionPolicy> policy, std::int32_t block_count = 40)
      : blocks({.blocks = block_count + 1}), slots(slot_count), states(slots, blocks, {.eviction = std::move(policy)}) {
    Blocks all(static_cast<std::size_t>(block_count));
    REQUIRE(blocks.allocate(all));
  }
  /// The hash of the first `depth` blocks of `prompt`.
  static BlockHash hash(int prompt, std::int32_t depth) { return 100 * prompt + depth; }

  /// Stores the state of a prefix that only `block` ends.
  void store(std::int32_t block, BlockHash hash, std::int32_t depth) {
    const BlockId id{block};
    SlotId slot;
    states.allocate({&id, 1}, {&slot, 1});
    states.set_tag(id, {.token_count = depth * block_size_tokens});
    states.register_hashes({&id, 1}, {&hash, 1});
  }
  /// Used now; at ref 0, but still cached.
  void release(std::int32_t block) {
    const BlockId id{block};
    const BlockHash hash = 10'000 + block;
    blocks.register_hashes({&id, 1}, {&hash, 1});
    blocks.advance_tick();
    blocks.retain({&id, 1});
    for (int reference = 0; reference < 2; ++reference) blocks.release({&id, 1});
  }
  [[nodiscard]] bool has(std::int32_t block) const { return states.has_state(BlockId{block}); }

  BlockPool blocks;
  SlotPool slots;
  SlotAllocator states;
};

Hashes hashes_of(int prompt, std::int32_t blocks) {
  Hashes hashes;
  for (std::int32_t depth = 1; depth <= blocks; ++depth) hashes.push_back(Cache::hash(prompt, depth));
  return hashes;
}

}  // namespace

TEST_CASE("a slot allocator reports to its policy the places of states and the cost of their loss") {
  const auto policy = std::make_shared<SlotWitness>();
  Cache cache(4, policy);
  // One prompt of 8 blocks with states after 2, 5 and 8, in blocks 0, 1 and 2.
  cache.store(0, Cache::hash(1, 2), 2);
  cache.store(1, Cache::hash(1, 5), 5);
  cache.store(2, Cache::hash(1, 8), 8);
  cache.states.note_served(hashes_of(1, 8), {.usable_blocks = 7, .matched_blocks = 2, .hit_blocks = 2}, 3);
  CHECK(policy->time_s == 3);
  CHECK(policy->looked_up_keys == 7);
  CHECK(policy->uses == std::vector<std::uint32_t>{0});
  CHECK(policy->kept_at == std::map<std::uint32_t, KeptAt>{{0, KeptAt::branch}, {1, KeptAt::rung}, {2, KeptAt::end}});
  for (const std::int32_t block : {0, 1, 2}) cache.release(block);
  const auto facts = [&](std::uint32_t block) { return policy->seen.at(block); };
  CHECK(facts(0).end_tokens == 2 * block_size_tokens);
  CHECK(facts(0).fallback_tokens == 0);
  CHECK(facts(0).chain_tokens == 0);
  CHECK(facts(1).fallback_tokens == 2 * block_size_tokens);
  CHECK(facts(2).end_tokens == 8 * block_size_tokens);
  CHECK(facts(2).fallback_tokens == 5 * block_size_tokens);
  CHECK(facts(2).chain_tokens > 0);
  cache.states.check_invariants();

  // Saves 2, 3 and 3 blocks: the first goes, and the second falls back to nothing.
  cache.store(10, Cache::hash(2, 1), 1);
  cache.store(11, Cache::hash(3, 1), 1);
  CHECK_FALSE(cache.has(0));
  CHECK(policy->heirs == std::map<std::uint32_t, std::uint32_t>{{0, 0}});
  cache.states.check_invariants();
  // Now 5 and 3: the end is evicted, and requests that would have hit it hit the second.
  cache.store(12, Cache::hash(4, 1), 1);
  CHECK_FALSE(cache.has(2));
  CHECK(cache.has(1));
  CHECK(facts(1).fallback_tokens == 0);
  CHECK(policy->heirs.at(2) == 1);
  cache.states.check_invariants();
}

TEST_CASE("states below an evicted one fall back to the next one that is left") {
  const auto policy = std::make_shared<SlotWitness>();
  Cache cache(4, policy);
  cache.store(0, Cache::hash(1, 3), 3);
  cache.store(1, Cache::hash(1, 4), 4);
  cache.store(2, Cache::hash(1, 6), 6);
  cache.states.note_served(hashes_of(1, 6), {}, 0);
  for (const std::int32_t block : {0, 1, 2}) cache.release(block);
  cache.store(10, Cache::hash(2, 1), 1);
  cache.store(11, Cache::hash(3, 1), 1);  // the states save 3, 1 and 2 blocks
  CHECK_FALSE(cache.has(1));
  cache.store(12, Cache::hash(4, 1), 1);  // now 3 and 3: the older one goes
  CHECK(policy->seen.at(2).fallback_tokens == 3 * block_size_tokens);
  CHECK_FALSE(cache.has(0));
  CHECK(policy->heirs == std::map<std::uint32_t, std::uint32_t>{{0, 0}, {1, 1}});
  cache.states.check_invariants();
  cache.store(13, Cache::hash(5, 1), 1);
  CHECK(policy->seen.at(2).fallback_tokens == 0);
  CHECK(policy->heirs.at(2) == LearningPolicy::no_heir);
  cache.states.check_invariants();
}

TEST_CASE("LRU gives up the state that saves most, GDSF and HIX do not") {
  for (const EvictionOrder order : {EvictionOrder::lru, EvictionOrder::gdsf, EvictionOrder::hix}) {
    Cache cache(3, make_eviction_policy(order));
    const std::int32_t depths[] = {9, 1, 2};
    for (std::int32_t block = 0; block < 3; ++block) {
      const std::int32_t depth = depths[block];
      cache.store(block, Cache::hash(block, depth), depth);
      cache.states.note_served(hashes_of(block, depth), {.usable_blocks = depth}, 0.01 * block);
      cache.release(block);
    }
    cache.store(10, Cache::hash(10, 1), 1);
    CAPTURE(name(order));
    CHECK(cache.has(0) == (order != EvictionOrder::lru));
    CHECK(cache.has(1) == (order == EvictionOrder::lru));
    CHECK(cache.has(2));
  }
}

TEST_CASE("a request that is noted again, at its end, counts no look-up and no use again") {
  const auto witness = std::make_shared<SlotWitness>();
  Cache cache(4, witness);
  cache.store(0, Cache::hash(1, 2), 2);
  cache.store(1, Cache::hash(1, 4), 4);
  // It runs on behind the four blocks of its prompt: it does not end there.
  const PromptPast past =
      cache.states.note_served(hashes_of(1, 4), {.usable_blocks = 4, .hit_blocks = 2, .tokens = 1 << 20}, 5);
  CHECK(past.looked_up_s == 5);
  CHECK(witness->kept_at == std::map<std::uint32_t, KeptAt>{{0, KeptAt::rung}, {1, KeptAt::rung}});
  CHECK(witness->uses == std::vector<std::uint32_t>{0});
  cache.store(2, Cache::hash(1, 6), 6);
  CHECK(cache.states.note_served(hashes_of(1, 6), {.hit_blocks = 2, .past = past}, 7).looked_up_s == 5);
  CHECK(witness->kept_at == std::map<std::uint32_t, KeptAt>{{0, KeptAt::rung}, {1, KeptAt::rung}, {2, KeptAt::end}});
  CHECK(witness->uses == std::vector<std::uint32_t>{0});
  CHECK(witness->look_ups == 1);
  CHECK_THROWS_AS(cache.states.note_served(hashes_of(1, 6), {.tokens = -1}, 7), InvalidArgument);
  CHECK_THROWS_AS(cache.states.note_served(hashes_of(1, 6), {.past = {.looked_up_s = 8}}, 7), InvalidArgument);
  cache.states.check_invariants();
}

TEST_CASE("hix evicts a last turn first, and states that no request reported by least recent use") {
  Cache cache(3, make_eviction_policy(EvictionOrder::hix));
  for (std::int32_t block = 0; block < 3; ++block) {
    cache.store(block, Cache::hash(block, 1), 1);
    if (block < 2)
      cache.states.note_served(hashes_of(block, 1), {.usable_blocks = 1, .hint = {.last_turn = block == 1}}, 0);
    cache.release(block);
  }
  for (const std::int32_t gone : {2, 1, 0}) {
    CHECK(cache.has(gone));
    cache.store(10 + gone, Cache::hash(10 + gone, 1), 1);
    CHECK_FALSE(cache.has(gone));
    cache.states.check_invariants();
  }
}

TEST_CASE("without reports of requests, a slot allocator with gdsf or hix evicts the least recently used state") {
  for (const EvictionOrder order : {EvictionOrder::lru, EvictionOrder::gdsf, EvictionOrder::hix}) {
    Cache cache(4, make_eviction_policy(order));
    for (const std::int32_t block : {3, 1, 2, 0}) {
      cache.store(block, Cache::hash(block, 1), 1);
      cache.release(block);
    }
    for (const std::int32_t gone : {3, 1, 2, 0}) {
      CHECK(cache.has(gone));
      cache.store(10 + gone, Cache::hash(10 + gone, 1), 1);
      CHECK_FALSE(cache.has(gone));
    }
  }
}

TEST_CASE("a slot allocator refuses policies it cannot serve and requests that make no sense") {
  CHECK_THROWS_AS(Cache(1, make_eviction_policy(EvictionOrder::mru)), InvalidArgument);
  const auto shared = std::make_shared<SlotWitness>();
  Cache cache(2, shared);
  CHECK_THROWS_AS(Cache(2, shared), InvalidState);
  const Hashes hashes = hashes_of(1, 2);
  cache.states.note_served(hashes, {}, 5);
  CHECK_THROWS_AS(cache.states.note_served(hashes, {}, 4), InvalidArgument);
  CHECK_THROWS_AS(cache.states.note_served({}, {}, std::numeric_limits<double>::quiet_NaN()), InvalidArgument);
  CHECK_THROWS_AS(cache.states.note_served({}, {}, std::numeric_limits<double>::infinity()), InvalidArgument);
  CHECK_THROWS_AS(cache.states.note_served(hashes, {.hint = {.factor = 0}}, 5), InvalidArgument);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_AS(cache.states.note_served(hashes, {.hint = {.factor = nan}}, 5), InvalidArgument);
  for (const float chance : {1.0F, -0.1F, static_cast<float>(nan)})
    CHECK_THROWS_AS(cache.states.note_served(hashes, {.hint = {.continues = chance}}, 5), InvalidArgument);
  CHECK_THROWS_AS(cache.states.note_served(hashes, {.hint = {.expected_idle_s = nan}}, 5), InvalidArgument);
  CHECK_THROWS_AS(cache.states.note_served(hashes, {.hint = {.expected_idle_s = -1}}, 5), InvalidArgument);
  CHECK_THROWS_AS(cache.states.note_served(hashes, {.usable_blocks = -1}, 5), InvalidArgument);
  CHECK_THROWS_AS(cache.states.note_served(hashes, {.matched_blocks = -1}, 5), InvalidArgument);
  CHECK_THROWS_AS(cache.states.note_served(hashes, {.hit_blocks = -1}, 5), InvalidArgument);
  cache.states.note_served({}, {}, 5);
  cache.states.note_served(Hashes{3, hash_not_computed, 4}, {.usable_blocks = 100}, 5);
  cache.states.check_invariants();
}

namespace {

/// Which blocks may lose their state, in a plain list.
std::set<BlockId> evictable(const Cache& cache, const Blocks& batch, const std::map<SlotId, int>& pins) {
  std::set<BlockId> list;
  for (std::int32_t index = 0; index < cache.blocks.block_count(); ++index) {
    const BlockId block{index};
    const SlotId slot = cache.states.slot_of(block);
    const bool pinned = pins.contains(slot) && pins.at(slot) > 0;
    if (slot.valid() && cache.blocks.ref_count(block) == 0 && !pinned && std::ranges::count(batch, block) == 0)
      list.insert(block);
  }
  return list;
}

std::set<BlockId> with_states(const Cache& cache) {
  std::set<BlockId> list;
  for (std::int32_t index = 0; index < cache.blocks.block_count(); ++index)
    if (cache.states.has_state(BlockId{index})) list.insert(BlockId{index});
  return list;
}

/// As many victims as are needed, and only such as may go; nothing changes on a shortage.
void allocate_checked(test::Random& random, Cache& cache, const std::map<SlotId, int>& pins) {
  Blocks batch(static_cast<std::size_t>(random.between(0, 4)));
  for (BlockId& block : batch) block = BlockId{random.between32(0, cache.blocks.block_count() - 1)};
  const auto may_go = evictable(cache, batch, pins);
  std::vector<SlotVictim> next(static_cast<std::size_t>(random.between(0, 3)));
  next.resize(cache.states.peek_victims(next));
  const auto all = evictable(cache, {}, pins);
  std::set<BlockId> peeked;
  for (const SlotVictim& victim : next) peeked.insert(victim.block);
  REQUIRE(peeked.size() == next.size());
  for (const BlockId block : peeked) REQUIRE(all.contains(block));
  const auto before = with_states(cache);
  std::set<BlockId> fresh(batch.begin(), batch.end());
  std::erase_if(fresh, [&](BlockId block) { return before.contains(block); });
  const auto free = static_cast<std::size_t>(cache.slots.free_slots());
  std::vector<SlotId> out(batch.size());
  const SlotDemand demand = cache.states.try_allocate(batch, out);
  REQUIRE(demand.met() == (fresh.size() <= free + may_go.size()));
  auto expected = before;
  if (demand.met()) expected.insert(fresh.begin(), fresh.end());
  const auto after = with_states(cache);
  std::size_t victims = 0;
  for (const BlockId block : expected) {
    if (after.contains(block)) continue;
    ++victims;
    REQUIRE(may_go.contains(block));
  }
  REQUIRE(victims == (demand.met() && fresh.size() > free ? fresh.size() - free : 0));
  for (const BlockId block : after) REQUIRE(expected.contains(block));
}

/// As many as are wanted, if they may go.
void evict_checked(test::Random& random, Cache& cache, const std::map<SlotId, int>& pins) {
  const std::int64_t may_go = std::ssize(evictable(cache, {}, pins));
  const std::int64_t wanted = random.between(0, 3);
  REQUIRE(cache.states.evict(wanted) == std::min(wanted, may_go));
}

/// Gives back one of the blocks that are held, mostly registered by then.
void release_one(test::Random& random, Cache& cache, Blocks& held) {
  std::swap(held.back(), held[static_cast<std::size_t>(random.between(0, std::ssize(held) - 1))]);
  const BlockHash hash = 10'000 + held.back().value();
  if (random.chance(70) && cache.blocks.hash(held.back()) <= 0)
    cache.blocks.register_hashes({&held.back(), 1}, {&hash, 1});
  cache.blocks.release({&held.back(), 1});
  held.pop_back();
}

std::shared_ptr<EvictionPolicy> random_policy(test::Random& random, std::size_t which) {
  const std::int32_t drawn = random.between32(0, 3);
  if (which >= std::size(slot_orders)) return std::make_shared<SlotWitness>(drawn);
  return make_eviction_policy(slot_orders[which], {.positions = 32, .samples = drawn == 0 ? -1 : drawn});
}

}  // namespace

TEST_CASE("with any policy a slot allocator evicts as many states as it must, and only those it may") {
  test::for_each_seed(2000, [](test::Random& random, std::uint64_t seed) {
    const std::size_t which = seed % (2 * std::size(slot_orders));
    const std::shared_ptr<EvictionPolicy> policy = random_policy(random, which);
    CAPTURE(policy->name());
    Cache cache(random.between32(0, 6), policy, random.between32(2, 10));
    std::map<SlotId, int> pins;
    Blocks held;
    for (std::int32_t index = 0; index + 1 < cache.blocks.block_count(); ++index) held.emplace_back(index);
    double now_s = 0;
    for (int step = 0; step < 80; ++step) {
      const BlockId block{random.between32(0, cache.blocks.block_count() - 1)};
      switch (random.between(0, 9)) {
        case 0:
        case 1:
        case 2:
          allocate_checked(random, cache, pins);
          break;
        case 3:
          cache.states.invalidate(block);
          break;
        case 4:
          if (cache.states.has_state(block)) {
            const BlockHash hash = Cache::hash(random.between32(0, 1), random.between32(1, 5));
            cache.states.set_tag(block, {.token_count = random.between(0, 5) * block_size_tokens});
            cache.states.register_hashes({&block, 1}, {&hash, 1});
          }
          break;
        case 5:
          evict_checked(random, cache, pins);
          break;
        case 6:
          now_s += static_cast<double>(random.between(0, 100)) / 10;
          cache.states.note_served(
              hashes_of(random.between32(0, 1), random.between32(0, 5)),
              {.usable_blocks = random.between32(0, 5),
               .matched_blocks = random.between32(0, 5),
               .hit_blocks = random.between32(0, 5),
               .hint = {.last_turn = random.chance(20), .session = static_cast<std::uint64_t>(random.between(0, 2))}},
              now_s);
          break;
        case 7:
          if (!held.empty()) release_one(random, cache, held);
          break;
        case 8:
          cache.blocks.advance_tick();
          if (!cache.blocks.is_free(block)) {
            cache.blocks.retain({&block, 1});
            held.push_back(block);
          } else if (Blocks taken(1); cache.blocks.allocate(taken)) {
            held.push_back(taken[0]);
          }
          break;
        default:
          if (cache.states.has_state(block) && random.chance(50)) {
            ++pins[cache.states.pin(block)];
          } else if (!pins.empty()) {
            cache.states.unpin(pins.begin()->first);
            if (--pins.begin()->second == 0) pins.erase(pins.begin());
          } else if (random.chance(5)) {
            cache.states.reset();
          }
      }
      cache.states.check_invariants();
    }
  });
}

TEST_CASE("a warm slot allocator with a policy allocates nothing, evictions and learning included") {
  for (const EvictionOrder order : slot_orders) {
    Cache cache(20, make_eviction_policy(order), 100);
    Hashes hashes = hashes_of(1, 3);
    const auto step = [&](std::int32_t round) {
      const BlockId block{round % 100};
      cache.store(block.value(), 7 * (round % 300) + 3, 3);
      for (std::size_t depth = 0; depth < hashes.size(); ++depth)
        hashes[depth] = 7 * (round % 300) + static_cast<BlockHash>(depth) + 1;
      cache.states.note_served(hashes, {.usable_blocks = 3}, 0.1 * round);
      if (round < 100) cache.release(block.value());
    };
    for (std::int32_t round = 0; round < 400; ++round) step(round);
    const std::uint64_t before = test::heap_allocations();
    for (std::int32_t round = 400; round < 1000; ++round) step(round);
    CAPTURE(name(order));
    CHECK(test::heap_allocations() == before);
    CHECK(cache.states.evictions() > 500);
    cache.states.check_invariants();
  }
}
