// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/slots/slot_allocator.hpp>

#include <stateport/core/model/error.hpp>
#include <stateport/core/pool/block_pool.hpp>

#include "colliding_hashes.hpp"
#include "heap_counter.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <vector>

using namespace stateport;

namespace {

using Blocks = std::vector<BlockId>;
using Slots = std::vector<SlotId>;
using Hashes = std::vector<BlockHash>;

Blocks block_ids(std::initializer_list<std::int32_t> values) {
  Blocks blocks;
  for (const std::int32_t value : values) blocks.emplace_back(value);
  return blocks;
}

Slots slot_ids(std::initializer_list<std::int32_t> values) {
  Slots slots;
  for (const std::int32_t value : values) slots.emplace_back(value);
  return slots;
}

/// A pool of blocks that are all live, slots, and the allocator between them.
struct AllocatorFixture {
  AllocatorFixture(std::int32_t block_count, std::int32_t slot_count)
      : blocks({.blocks = block_count + 1}), slots(slot_count), states(slots, blocks) {
    all.resize(static_cast<std::size_t>(block_count));
    REQUIRE(blocks.allocate(all));
  }

  Slots allocate(const Blocks& wanted) {
    Slots out(wanted.size());
    states.allocate(wanted, out);
    return out;
  }
  /// Ref 0, but still cached: registered in the pool first.
  void unreference(const Blocks& list) {
    Hashes hashes;
    for (const BlockId block : list) hashes.push_back(1000 + block.value());
    blocks.register_hashes(list, hashes);
    blocks.release(list);
  }

  BlockPool blocks;
  SlotPool slots;
  SlotAllocator states;
  Blocks all;
};

constexpr StateTag tag_a{.token_count = 16, .prefix = {{1, 2}}, .layout_fingerprint = 3};

}  // namespace

TEST_CASE("victims are named before their slots are handed on, and can be seen before") {
  BlockPool blocks({.blocks = 7});
  SlotPool slots(3);
  std::vector<SlotVictim> reported;
  SlotAllocator states(slots, blocks, {.eviction = {}, .on_victim = [&](const SlotVictim& victim) {
                                         CHECK(slots.tag(victim.slot) == victim.tag);  // nothing was overwritten yet
                                         reported.push_back(victim);
                                       }});
  Blocks all(6);
  REQUIRE(blocks.allocate(all));
  Slots given(3);
  states.allocate(block_ids({0, 1, 2}), given);
  for (const std::int32_t block : {0, 1, 2}) {
    states.set_tag(BlockId{block}, {.token_count = 16 * (block + 1)});
    states.register_hashes(block_ids({block}), Hashes{100 + block});
  }
  blocks.register_hashes(block_ids({0, 1, 2}), Hashes{1, 2, 3});
  blocks.release(block_ids({0, 1, 2}));
  blocks.set_last_use(block_ids({1}), -5);

  std::vector<SlotVictim> next(2);
  for (int turn = 0; turn < 2; ++turn) {
    REQUIRE(states.peek_victims(next) == 2);
    CHECK(next[0].block == BlockId{1});
    CHECK(next[0].slot == given[1]);
    CHECK(next[0].tag.token_count == 32);
    CHECK(next[0].hash == 101);
    CHECK(next[1].block == BlockId{0});
    states.check_invariants();
  }
  CHECK(states.has_state(BlockId{1}));
  CHECK(reported.empty());

  Slots taken(2);
  states.allocate(block_ids({4, 5}), taken);
  REQUIRE(reported.size() == 2);
  for (std::size_t i = 0; i < reported.size(); ++i) {
    CHECK(reported[i].block == next[i].block);
    CHECK(reported[i].slot == taken[i]);
    CHECK(reported[i].tag == next[i].tag);
    CHECK(reported[i].hash == next[i].hash);
  }
  next.resize(5);
  CHECK(states.peek_victims(next) == 1);
  CHECK(states.peek_victims({}) == 0);
  blocks.retain(block_ids({2}));
  CHECK(states.peek_victims(next) == 0);
  states.check_invariants();
}

TEST_CASE("states are given up for a caller that needs their memory, in order of eviction") {
  AllocatorFixture f(7, 4);
  f.allocate(block_ids({0, 1, 2, 3}));
  f.unreference(block_ids({0, 1, 2}));
  f.states.register_hashes(block_ids({0, 1, 2, 3}), Hashes{10, 11, 12, 13});
  f.blocks.set_last_use(block_ids({1}), -5);
  CHECK(f.states.evict(0) == 0);
  CHECK(f.slots.free_slots() == 0);
  CHECK(f.states.evict(2) == 2);
  CHECK(f.slots.free_list() == slot_ids({1, 0}));
  CHECK(f.states.was_evicted(BlockId{1}));
  CHECK_FALSE(f.states.find(10).valid());
  CHECK(f.states.find(12) == BlockId{2});
  CHECK(f.states.evictions() == 2);
  CHECK(f.states.evict(5) == 1);  // the block of the last one is in use
  CHECK(f.states.has_state(BlockId{3}));
  CHECK_THROWS_AS(f.states.evict(-1), InvalidArgument);
  f.states.check_invariants();
  f.slots.check_invariants();
}

TEST_CASE("new blocks take the top of the free stack, named ones keep their slot, duplicates share") {
  AllocatorFixture f(6, 4);
  CHECK(f.allocate(block_ids({3, 5})) == slot_ids({2, 3}));
  CHECK(f.allocate(block_ids({1, 3, 1, 0})) == slot_ids({0, 2, 0, 1}));
  CHECK(f.states.slot_of(BlockId{5}) == SlotId{3});
  CHECK_FALSE(f.states.has_state(BlockId{2}));
}

TEST_CASE("victims go by tick and id, and the first victim's slot to the first new block") {
  AllocatorFixture f(7, 4);
  f.allocate(block_ids({0, 1, 2, 3}));
  f.unreference(block_ids({0, 1, 2, 3}));
  f.states.register_hashes(block_ids({0, 1, 2, 3}), Hashes{10, 11, 12, 13});
  f.blocks.set_last_use(block_ids({0}), 40);
  f.blocks.set_last_use(block_ids({2}), 30);
  CHECK(f.allocate(block_ids({4, 5, 6})) == slot_ids({1, 3, 2}));
  CHECK(f.states.evictions() == 3);
  CHECK(f.states.was_evicted(BlockId{1}));
  CHECK_FALSE(f.states.find(11).valid());
  CHECK(f.states.find(10) == BlockId{0});
  CHECK(f.blocks.find(1001) == BlockId{1});
}

TEST_CASE("a slot taken from a victim has lost its tag") {
  for (const auto& eviction : {std::shared_ptr<EvictionPolicy>(), make_eviction_policy(EvictionOrder::lru)}) {
    BlockPool blocks({.blocks = 3});
    SlotPool slots(1);
    SlotAllocator states(slots, blocks, {.eviction = eviction});
    Blocks both(2);
    REQUIRE(blocks.allocate(both));
    Slots out(1);
    states.allocate({&both[0], 1}, out);
    states.set_tag(both[0], tag_a);
    const BlockHash hash = 1000;
    blocks.register_hashes({&both[0], 1}, {&hash, 1});  // still cached at ref 0
    blocks.release({&both[0], 1});
    REQUIRE(states.try_allocate({&both[1], 1}, out).met());
    CHECK(states.slot_of(both[1]) == SlotId{0});
    CHECK(states.was_evicted(both[0]));
    CHECK(slots.tag(SlotId{0}) == StateTag{});
    states.check_invariants();
  }
}

TEST_CASE("a shortage names both numbers and changes nothing") {
  AllocatorFixture f(5, 2);
  f.allocate(block_ids({0, 1}));
  f.unreference(block_ids({0, 1}));
  Slots out(3);
  try {
    f.states.allocate(block_ids({0, 2, 3}), out);
    FAIL("not refused");
  } catch (const SlotCapacityError& error) {
    CHECK(error.required() == 2);
    CHECK(error.available() == 1);  // block 0 is in the batch itself
  }
  f.states.check_invariants();
  CHECK(f.states.slot_of(BlockId{0}) == SlotId{0});
  CHECK(f.states.slot_of(BlockId{1}) == SlotId{1});
  CHECK(f.allocate(block_ids({0, 2})) == slot_ids({0, 1}));
}

TEST_CASE("a pinned slot is no victim, and one whose block is gone is free after the last unpin") {
  AllocatorFixture f(4, 1);
  f.allocate(block_ids({0}));
  f.unreference(block_ids({0}));
  const SlotId slot = f.states.pin(BlockId{0});
  Slots out(1);
  CHECK_FALSE(f.states.try_allocate(block_ids({1}), out).met());
  CHECK(f.blocks.evict(1));
  CHECK_FALSE(f.states.has_state(BlockId{0}));
  CHECK(f.slots.free_slots() == 0);
  f.states.check_invariants();
  f.states.unpin(slot);
  CHECK(f.slots.free_slots() == 1);
  CHECK_THROWS_AS(f.states.unpin(slot), InvalidArgument);
  CHECK(f.allocate(block_ids({1})) == slot_ids({0}));
}

TEST_CASE("a slot pinned and unpinned can be evicted again") {
  AllocatorFixture f(3, 1);
  f.allocate(block_ids({0}));
  f.unreference(block_ids({0}));
  const SlotId slot = f.states.pin(BlockId{0});
  Slots out(1);
  CHECK_FALSE(f.states.try_allocate(block_ids({1}), out).met());
  f.states.unpin(slot);
  f.states.check_invariants();
  CHECK(f.allocate(block_ids({1})) == slot_ids({0}));
}

TEST_CASE("a block that is freed loses its state, registered or not") {
  AllocatorFixture f(4, 4);
  f.allocate(block_ids({0, 1}));
  f.states.register_hashes(block_ids({0}), Hashes{10});
  f.blocks.release(block_ids({0, 1}));
  CHECK(f.slots.free_slots() == 4);
  CHECK_FALSE(f.states.find(10).valid());
  f.states.check_invariants();
}

TEST_CASE("a hash is removed with the block that registered it last and with no other") {
  AllocatorFixture f(4, 3);
  f.allocate(block_ids({0, 1}));
  f.states.register_hashes(block_ids({0, 1}), Hashes{55, 55});
  CHECK(f.states.find(55) == BlockId{1});
  f.states.invalidate(BlockId{0});
  CHECK(f.states.find(55) == BlockId{1});
  f.states.register_hashes(block_ids({1}), Hashes{56});
  CHECK_FALSE(f.states.find(55).valid());
  f.states.invalidate(block_ids({1, 1}));
  CHECK(f.states.registered_count() == 0);
  CHECK(f.slots.free_slots() == 3);
  f.states.check_invariants();
}

TEST_CASE("find_longest_state searches right to left") {
  AllocatorFixture f(4, 4);
  f.allocate(block_ids({0, 2}));
  f.states.register_hashes(block_ids({0, 2}), Hashes{10, 12});
  const auto found = f.states.find_longest_state(Hashes{10, 11, 12, 13});
  REQUIRE(found);
  CHECK(found->index == 2);
  CHECK(found->block == BlockId{2});
  CHECK(found->slot == f.states.slot_of(BlockId{2}));
  CHECK_FALSE(f.states.find_longest_state(Hashes{11, 13}));
  CHECK_FALSE(f.states.find_longest_state({}));
}

TEST_CASE("a state is found by hash and tag, also beside one whose hash the index cannot tell from it") {
  AllocatorFixture f(4, 3);
  const Hashes hashes = test::colliding_hashes(7, 3);
  const Slots slots = f.allocate(block_ids({0, 1}));
  f.states.register_hashes(block_ids({0, 1}), std::span(hashes).first(2));
  StateTag tag_b = tag_a;
  tag_b.prefix.words[0] = 9;
  f.states.set_tag(BlockId{0}, tag_a);
  f.states.set_tag(BlockId{1}, tag_b);
  const auto found = f.states.find_tagged(hashes[1], tag_b);
  REQUIRE(found);
  CHECK(found->block == BlockId{1});
  CHECK(found->slot == slots[1]);
  CHECK(f.states.find_tagged(hashes[0], tag_a)->block == BlockId{0});
  StateTag wanted = tag_b;
  wanted.token_count = 32;
  CHECK_FALSE(f.states.find_tagged(hashes[1], wanted));
  CHECK_FALSE(f.states.find_tagged(hashes[2], wanted));
  CHECK(f.states.registered_hash(BlockId{1}) == hashes[1]);
  CHECK_THROWS_AS(static_cast<void>(f.states.registered_hash(BlockId{2})), InvalidArgument);
}

TEST_CASE("a restore names why it refuses, and then copies nothing") {
  AllocatorFixture f(3, 3);
  const SlotId slot = f.allocate(block_ids({1})).front();
  CHECK(f.states.restore_to_live(BlockId{0}, SlotId{7}, tag_a).check == TagCheck::empty);
  CHECK(f.states.restore_to_live(BlockId{1}, SlotId{7}, tag_a).check == TagCheck::empty);
  f.states.set_tag(BlockId{1}, tag_a);
  const RestorePlan good = f.states.restore_to_live(BlockId{1}, SlotId{7}, tag_a);
  REQUIRE(good);
  CHECK(good.copy == SlotCopy::whole(slot.value(), 7));
  StateTag wanted = tag_a;
  wanted.prefix.words[1] ^= 1;  // the same 63-bit key may still name it
  const RestorePlan collision = f.states.restore_to_live(BlockId{1}, SlotId{7}, wanted);
  CHECK(collision.check == TagCheck::prefix);
  CHECK(collision.copy == SlotCopy{});
  f.states.withdraw(BlockId{1});
  CHECK(f.states.restore_to_live(BlockId{1}, SlotId{7}, tag_a).check == TagCheck::empty);
  CHECK(f.states.has_state(BlockId{1}));
}

TEST_CASE("stores become copies into the slots") {
  AllocatorFixture f(3, 3);
  const Slots slots = f.allocate(block_ids({0, 1}));
  std::vector<SlotCopy> copies(2);
  f.states.store_from_live(slots, slot_ids({5, 4}), copies);
  CHECK(copies == std::vector{SlotCopy::whole(5, 1), SlotCopy::whole(4, 2)});
  CHECK(f.states.store_from(BlockId{1}, SlotId{9}) == SlotCopy::whole(9, 2));
}

TEST_CASE("reset gives a pool that is as new and keeps the engine's own slots") {
  AllocatorFixture f(4, 4);
  f.allocate(block_ids({0, 1, 2, 3}));
  static_cast<void>(f.states.pin(BlockId{2}));
  f.states.reset();
  f.states.check_invariants();
  CHECK(f.slots.free_list() == slot_ids({0, 1, 2, 3}));
  Slots mine(1);
  REQUIRE(f.slots.allocate(mine));
  f.allocate(block_ids({0}));
  f.states.reset();
  CHECK(f.slots.free_slots() == 3);
  CHECK(f.slots.owner(mine[0]) == SlotPool::caller);
}

TEST_CASE("a slot allocator refuses bad input and stays as it was") {
  AllocatorFixture f(4, 2);
  f.allocate(block_ids({0}));
  f.states.set_tag(BlockId{0}, tag_a);
  f.states.register_hashes(block_ids({0}), Hashes{10});
  Slots two(2);
  Slots one(1);
  std::vector<SlotCopy> copies(1);
  for (const std::int32_t bad : {-1, 5, 99}) {
    const BlockId block{bad};
    CHECK_THROWS_AS(f.states.allocate(block_ids({1, bad}), two), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(f.states.slot_of(block)), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(f.states.was_evicted(block)), InvalidArgument);
    CHECK_THROWS_AS(f.states.invalidate(block_ids({0, bad})), InvalidArgument);
    CHECK_THROWS_AS(f.states.register_hashes(block_ids({0, bad}), Hashes{20, 30}), InvalidArgument);
    CHECK_THROWS_AS(f.states.on_blocks_deregistered(block_ids({0, bad}), Hashes{10, 1}), InvalidArgument);
    CHECK_THROWS_AS(f.states.on_blocks_unreferenced(block_ids({bad})), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(f.states.pin(block)), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(f.states.restore_to_live(block, SlotId{0}, tag_a)), InvalidArgument);
  }
  CHECK_THROWS_AS(f.states.allocate(block_ids({1}), two), InvalidArgument);
  CHECK_THROWS_AS(f.states.register_hashes(block_ids({0, 1}), Hashes{20, 30}), InvalidArgument);
  CHECK_THROWS_AS(f.states.register_hashes(block_ids({0}), Hashes{20, 30}), InvalidArgument);
  CHECK_THROWS_AS(f.states.on_blocks_deregistered(block_ids({0}), {}), InvalidArgument);
  CHECK_THROWS_AS(f.states.set_tag(BlockId{1}, tag_a), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(f.states.tag(BlockId{1})), InvalidArgument);
  CHECK_THROWS_AS(f.states.withdraw(BlockId{1}), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(f.states.pin(BlockId{1})), InvalidArgument);
  CHECK_THROWS_AS(f.states.unpin(SlotId{1}), InvalidArgument);
  CHECK_THROWS_AS(f.states.unpin(SlotId{-1}), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(f.states.store_from(BlockId{1}, SlotId{0})), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(f.states.store_from(BlockId{0}, SlotId{})), InvalidArgument);
  CHECK_THROWS_AS(f.states.store_from_live(slot_ids({0}), slot_ids({0}), copies), InvalidArgument);
  CHECK_THROWS_AS(f.states.store_from_live(slot_ids({1}), slot_ids({-1}), copies), InvalidArgument);
  CHECK_THROWS_AS(f.states.store_from_live(slot_ids({1}), two, copies), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(f.states.restore_to_live(BlockId{0}, SlotId{}, tag_a)), InvalidArgument);
  f.states.check_invariants();
  CHECK(f.states.find(10) == BlockId{0});
  CHECK(f.slots.free_slots() == 1);
}

namespace {

/// The allocator's rules over plain lists; hears of freed blocks like the allocator does.
class AllocatorModel final : public BlockListener {
 public:
  AllocatorModel(BlockPool& blocks, std::int32_t slot_count, bool by_block) : blocks_(blocks), by_block_(by_block) {
    for (std::int32_t slot = 0; slot < slot_count; ++slot) free.emplace_back(slot);
    blocks_.add_listener(*this);
  }
  ~AllocatorModel() { blocks_.remove_listener(*this); }

  /// In order of eviction.
  Blocks next_victims(const Blocks& batch) {
    Blocks candidates;
    for (const auto& [block, its_slot] : slot)
      if (blocks_.ref_count(block) == 0 && pins[its_slot] == 0 && std::ranges::count(batch, block) == 0)
        candidates.push_back(block);
    std::ranges::stable_sort(candidates, {},
                             [&](BlockId block) { return by_block_ ? 0 : blocks_.last_use_tick(block); });
    return candidates;
  }

  SlotDemand allocate(const Blocks& batch) {
    Blocks fresh;
    for (const BlockId block : batch)
      if (!slot.contains(block) && std::ranges::count(fresh, block) == 0) fresh.push_back(block);
    const Blocks candidates = next_victims(batch);
    if (fresh.size() > free.size() + candidates.size())
      return {static_cast<std::int64_t>(fresh.size()), static_cast<std::int64_t>(free.size() + candidates.size())};
    const std::size_t from_free = std::min(fresh.size(), free.size());
    Slots given(free.end() - static_cast<std::ptrdiff_t>(from_free), free.end());
    free.resize(free.size() - from_free);
    for (std::size_t i = 0; given.size() < fresh.size(); ++i) {
      given.push_back(slot[candidates[i]]);
      forget(candidates[i]);
    }
    for (std::size_t i = 0; i < fresh.size(); ++i) slot[fresh[i]] = given[i];
    return {static_cast<std::int64_t>(fresh.size()), static_cast<std::int64_t>(fresh.size())};
  }

  std::int64_t evict(std::int64_t count) {
    Blocks victims = next_victims({});
    victims.resize(std::min(victims.size(), static_cast<std::size_t>(count)));
    for (const BlockId block : victims) invalidate(block);
    return std::ssize(victims);
  }

  void invalidate(BlockId block) {
    if (!slot.contains(block)) return;
    const SlotId its_slot = slot[block];
    forget(block);
    if (pins[its_slot] == 0) free.push_back(its_slot);
  }
  void register_hash(BlockId block, BlockHash value) {
    if (hash.contains(block) && hash[block] != value) drop_hash(block);
    hash[block] = value;
    found[value] = block;
  }
  void unpin(SlotId pinned) {
    const bool owned = std::ranges::any_of(slot, [&](const auto& entry) { return entry.second == pinned; });
    if (--pins[pinned] == 0 && !owned) free.push_back(pinned);
  }
  void on_blocks_unreferenced(std::span<const BlockId>) override {}
  void on_blocks_deregistered(std::span<const BlockId> list, std::span<const BlockHash>) override {
    for (const BlockId block : list) invalidate(block);
  }

  void compare(const SlotAllocator& states) {
    REQUIRE(std::ranges::equal(states.slots().free_list(), free));
    for (std::int32_t index = 0; index < blocks_.block_count(); ++index) {
      const BlockId block{index};
      REQUIRE(states.slot_of(block) == (slot.contains(block) ? slot[block] : SlotId{}));
    }
    REQUIRE(states.registered_count() == found.size());
    for (const auto& [value, block] : found) REQUIRE(states.find(value) == block);
  }

  std::map<BlockId, SlotId> slot;
  std::map<BlockId, BlockHash> hash;
  std::map<BlockHash, BlockId> found;
  std::map<SlotId, int> pins;
  Slots free;

 private:
  void drop_hash(BlockId block) {
    if (hash.contains(block) && found.contains(hash[block]) && found[hash[block]] == block) found.erase(hash[block]);
    hash.erase(block);
  }
  void forget(BlockId block) {
    drop_hash(block);
    slot.erase(block);
  }

  BlockPool& blocks_;
  bool by_block_;
};

/// Equal keys are ordered by index.
class ByBlock final : public EvictionPolicy {
 public:
  std::string_view name() const noexcept override { return "by block"; }
  VictimKey key(const VictimFacts&) const noexcept override { return {}; }
};

/// The same batch in both, which must give the same slots or refuse it alike.
void allocate_in_both(SlotAllocator& states, AllocatorModel& model, const Blocks& batch) {
  Slots out(batch.size());
  const SlotDemand expected = model.allocate(batch);
  const SlotDemand got = states.try_allocate(batch, out);
  REQUIRE(got.met() == expected.met());
  REQUIRE(got.required == expected.required);
  if (!expected.met()) REQUIRE(got.available == expected.available);
  if (expected.met())
    for (std::size_t i = 0; i < batch.size(); ++i) REQUIRE(out[i] == model.slot[batch[i]]);
}

/// Takes a few blocks of the pool and registers most of them, each with a hash of its own.
void hold_new_blocks(test::Random& random, BlockPool& blocks, BlockHash& next_hash, Blocks& held) {
  Blocks out(static_cast<std::size_t>(random.between(0, 3)));
  if (!blocks.allocate(out)) return;
  held.insert(held.end(), out.begin(), out.end());
  if (!random.chance(60)) return;
  for (const BlockId one : out) {
    const BlockHash hash = next_hash++;
    blocks.register_hashes({&one, 1}, {&hash, 1});
  }
}

void peek_in_both(SlotAllocator& states, AllocatorModel& model) {
  std::vector<SlotVictim> next(4);
  next.resize(states.peek_victims(next));
  Blocks expected = model.next_victims({});
  expected.resize(std::min(expected.size(), std::size_t{4}));
  REQUIRE(std::ranges::equal(next, expected, {}, &SlotVictim::block));
}

/// The state of a block, or the next few victims.
void give_up_in_both(test::Random& random, SlotAllocator& states, AllocatorModel& model, BlockId block) {
  if (random.chance(50)) {
    const std::int64_t count = random.between(0, 3);
    REQUIRE(states.evict(count) == model.evict(count));
    return;
  }
  states.invalidate(block);
  model.invalidate(block);
}

/// Pins the block's state; if it has none, unpins the state that was pinned last.
void pin_or_unpin(SlotAllocator& states, AllocatorModel& model, BlockId block, Slots& pinned) {
  if (model.slot.contains(block)) {
    pinned.push_back(states.pin(block));
    ++model.pins[pinned.back()];
  } else if (!pinned.empty()) {
    states.unpin(pinned.back());
    model.unpin(pinned.back());
    pinned.pop_back();
  }
}

}  // namespace

TEST_CASE("random slot allocator operations agree with plain lists") {
  test::for_each_seed(1500, [](test::Random& random, std::uint64_t) {
    const bool by_block = random.chance(40);
    std::shared_ptr<EvictionPolicy> order = random.chance(30) ? make_eviction_policy(EvictionOrder::lru) : nullptr;
    if (by_block) order = std::make_shared<ByBlock>();
    const auto unreferenced = random.chance(80) ? UnreferencedBlocks::cached : UnreferencedBlocks::dropped;
    const std::int32_t count = random.between32(2, 10);
    BlockPool blocks({.blocks = count, .unreferenced = unreferenced});
    SlotPool slots(random.between32(0, 6));
    SlotAllocator states(slots, blocks, {.eviction = order});
    AllocatorModel model(blocks, slots.capacity_slots(), by_block);
    Blocks held;
    Slots pinned;
    BlockHash next_hash = 1;
    for (int step = 0; step < 90; ++step) {
      if (random.chance(30)) peek_in_both(states, model);
      const BlockId block{random.between32(0, count - 1)};
      switch (random.between(0, 10)) {
        case 0:
        case 1:
        case 2: {
          Blocks batch(static_cast<std::size_t>(random.between(0, 4)));
          for (BlockId& one : batch) one = BlockId{random.between32(0, count - 1)};
          allocate_in_both(states, model, batch);
          break;
        }
        case 3:
          give_up_in_both(random, states, model, block);
          break;
        case 4: {
          const BlockHash hash = random.chance(80) ? next_hash++ : random.between(1, next_hash);
          if (!model.slot.contains(block)) break;
          states.register_hashes({&block, 1}, {&hash, 1});
          model.register_hash(block, hash);
          break;
        }
        case 5:
          hold_new_blocks(random, blocks, next_hash, held);
          break;
        case 6:
          if (!blocks.is_free(block)) {
            blocks.retain({&block, 1});
            held.push_back(block);
          }
          break;
        case 7:
        case 8:
          if (!held.empty()) {
            std::swap(held.back(), held[static_cast<std::size_t>(random.between(0, std::ssize(held) - 1))]);
            blocks.release({&held.back(), 1});
            held.pop_back();
          }
          break;
        case 9:
          if (random.chance(50)) {
            blocks.advance_tick();
          } else if (!blocks.is_free(block)) {
            blocks.set_last_use({&block, 1}, random.between(0, 5));
          }
          break;
        default:
          pin_or_unpin(states, model, random.chance(50) ? block : BlockId{}, pinned);
      }
      model.compare(states);
      states.check_invariants();
    }
  });
}

TEST_CASE("a warm slot allocator allocates nothing, evictions included") {
  AllocatorFixture f(1000, 100);
  f.unreference(f.all);
  Slots out(10);
  Hashes hashes(10);
  const auto step = [&](std::size_t first) {
    const std::span batch = std::span(f.all).subspan(first, out.size());
    for (std::size_t i = 0; i < hashes.size(); ++i) hashes[i] = static_cast<BlockHash>(first + i + 1);
    f.states.allocate(batch, out);
    f.states.register_hashes(batch, hashes);
  };
  step(0);
  const std::uint64_t before = test::heap_allocations();
  for (int round = 0; round < 5; ++round)
    for (std::size_t first = 0; first < 1000; first += out.size()) step(first);
  CHECK(test::heap_allocations() == before);
  CHECK(f.states.evictions() > 4000);
  f.states.check_invariants();
}

TEST_CASE("a failed allocation inside the slot allocator leaves it valid") {
  BlockPool blocks({.blocks = 40});
  SlotPool slots(2);
  std::unique_ptr<SlotAllocator> states;
  const auto failures = test::fail_each_allocation(
      [&](std::uint64_t) { states = std::make_unique<SlotAllocator>(slots, blocks); }, [](std::uint64_t) {});
  CHECK(failures > 3);
  REQUIRE(states);
  // The scratch of a batch larger than the pool was reserved.
  Blocks batch;
  for (std::int32_t block = 0; block < 30; ++block) batch.emplace_back(block);
  Slots out(batch.size());
  const auto more =
      test::fail_each_allocation([&](std::uint64_t) { static_cast<void>(states->try_allocate(batch, out)); },
                                 [&](std::uint64_t) { states->check_invariants(); });
  CHECK(more == 0);
  CHECK(slots.free_slots() == 2);
}
