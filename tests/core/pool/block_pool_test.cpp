// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/pool/block_pool.hpp>

#include <stateport/core/model/error.hpp>

#include "block_recorder.hpp"
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

using test::Blocks;
using test::Hashes;
using test::ids;

Blocks take(BlockPool& pool, std::size_t count) {
  Blocks out(count);
  REQUIRE(pool.allocate(out));
  return out;
}

/// The same rules over plain lists, every choice by a scan.
class Model {
 public:
  explicit Model(const BlockPoolOptions& options)
      : unreferenced_(options.unreferenced),
        order_(options.eviction ? options.eviction : make_eviction_policy(EvictionOrder::lru)),
        blocks_(static_cast<std::size_t>(options.blocks)) {
    for (std::int32_t block = 0; block < options.blocks; ++block)
      if (BlockId{block} != options.reserved) free_.emplace_back(block);
  }

  std::optional<Blocks> allocate(std::size_t count) {
    while (free_.size() < count) {
      const Model before = *this;
      if (!evict(count - free_.size())) {
        *this = before;
        return std::nullopt;
      }
    }
    const auto first = free_.end() - static_cast<std::ptrdiff_t>(count);
    Blocks out(first, free_.end());
    free_.erase(first, free_.end());
    for (const BlockId block : out) {
      at(block).ref_count = 1;
      at(block).tick = tick;
    }
    return out;
  }

  bool can_retain(const Blocks& blocks) const {
    return std::ranges::none_of(blocks, [&](BlockId block) { return std::ranges::count(free_, block) > 0; });
  }
  void retain(const Blocks& blocks) {
    for (const BlockId block : blocks) {
      ++at(block).ref_count;
      ++at(block).hits;
      at(block).tick = tick;
    }
  }

  bool can_release(const Blocks& blocks) {
    return std::ranges::all_of(blocks,
                               [&](BlockId block) { return std::ranges::count(blocks, block) <= at(block).ref_count; });
  }
  void release(const Blocks& blocks) {
    for (const BlockId block : blocks) --at(block).ref_count;
    for (std::int32_t index = 0; index < static_cast<std::int32_t>(blocks_.size()); ++index) {
      const BlockId block{index};
      if (std::ranges::count(blocks, block) == 0 || at(block).ref_count > 0) continue;
      if (at(block).hash <= 0 || unreferenced_ == UnreferencedBlocks::dropped) drop(block);
    }
  }

  void register_hash(BlockId block, BlockHash hash, BlockHash parent) {
    if (hash <= 0 || at(block).hash > 0) return;
    at(block).hash = hash;
    at(block).registered = ++registrations_;
    at(block).hits = 1;
    map[hash] = block;
    if (unreferenced_ == UnreferencedBlocks::cached && parent > 0 && map.contains(parent) && map[parent] != block)
      at(block).parent = map[parent];
  }

  bool evict(std::size_t count) {
    const Model before = *this;
    for (std::size_t i = 0; i < count; ++i) {
      std::optional<BlockId> victim;
      for (std::int32_t index = 0; index < static_cast<std::int32_t>(blocks_.size()); ++index) {
        const BlockId block{index};
        if (at(block).ref_count > 0 || at(block).hash <= 0 || children(block) > 0) continue;
        if (!victim || key(block) < key(*victim)) victim = block;
      }
      if (!victim) {
        *this = before;
        return false;
      }
      drop(*victim);
    }
    return true;
  }

  void forget(const Blocks& blocks) {
    for (const BlockId block : blocks)
      for (Block& other : blocks_)
        if (other.parent == block) other.parent = {};
    for (const BlockId block : blocks) {
      at(block).parent = {};
      if (at(block).ref_count == 0) {
        drop(block);
        continue;
      }
      if (map.contains(at(block).hash) && map[at(block).hash] == block) map.erase(at(block).hash);
      at(block).hash = hash_not_computed;
    }
  }

  void set_last_use(const Blocks& blocks, std::int64_t value) {
    for (const BlockId block : blocks) at(block).tick = value;
  }

  std::int32_t children(BlockId block) const {
    return static_cast<std::int32_t>(
        std::ranges::count_if(blocks_, [&](const Block& other) { return other.parent == block; }));
  }

  void compare(const BlockPool& pool) const {
    REQUIRE(std::ranges::equal(pool.free_list(), free_));
    for (std::int32_t index = 0; index < pool.block_count(); ++index) {
      const BlockId block{index};
      const Block& ours = blocks_[block.index()];
      REQUIRE(pool.ref_count(block) == ours.ref_count);
      REQUIRE(pool.last_use_tick(block) == ours.tick);
      REQUIRE(pool.hash(block) == ours.hash);
      REQUIRE(pool.parent(block) == ours.parent);
      REQUIRE(pool.child_count(block) == children(block));
    }
    for (const auto& [hash, block] : map) REQUIRE(pool.find(hash) == block);
  }

  std::int64_t tick = 0;
  std::map<BlockHash, BlockId> map;

 private:
  struct Block {
    std::int32_t ref_count = 0;
    std::int64_t tick = 0;
    BlockHash hash = hash_not_computed;
    BlockId parent;
    std::uint64_t registered = 0;
    std::uint32_t hits = 0;
  };
  Block& at(BlockId block) { return blocks_[block.index()]; }
  VictimKey key(BlockId block) {
    return order_->key({.index = static_cast<std::uint32_t>(block.value()),
                        .used_tick = static_cast<std::uint64_t>(at(block).tick),
                        .created_tick = at(block).registered,
                        .hits = at(block).hits,
                        .children = static_cast<std::uint32_t>(children(block))});
  }
  void drop(BlockId block) {
    if (at(block).hash > 0) {
      if (map.contains(at(block).hash) && map[at(block).hash] == block) map.erase(at(block).hash);
      at(block) = {};
    }
    free_.push_back(block);
  }

  UnreferencedBlocks unreferenced_;
  std::shared_ptr<EvictionPolicy> order_;
  std::uint64_t registrations_ = 0;
  std::vector<Block> blocks_;
  Blocks free_;
};

}  // namespace

TEST_CASE("of blocks used at the same time the smallest id is evicted first, also above a victim") {
  BlockPool pool({.blocks = 4});
  const Blocks blocks = ids({0, 1, 2});
  CHECK(take(pool, 3) == blocks);
  // Block 0 continues block 2; block 1 stands alone.
  pool.register_hashes(ids({2}), Hashes{12});
  pool.register_hashes(ids({0}), Hashes{10}, Hashes{12});
  pool.register_hashes(ids({1}), Hashes{11});
  pool.release(blocks);
  REQUIRE(pool.evict(2));
  CHECK_FALSE(pool.find(10).valid());
  CHECK_FALSE(pool.find(11).valid());
  CHECK(pool.find(12) == BlockId{2});
  pool.check_invariants();
}

TEST_CASE("the last block is a dummy and allocation takes the top segment in stored order") {
  BlockPool pool({.blocks = 6});
  CHECK(take(pool, 2) == ids({3, 4}));
  CHECK(take(pool, 1) == ids({2}));
  pool.release(ids({4, 3}));
  CHECK(take(pool, 3) == ids({1, 3, 4}));
  Blocks two(2);
  CHECK_FALSE(pool.allocate(two));
  CHECK(pool.free_blocks() == 1);
}

TEST_CASE("an owner chooses the block that is never handed out") {
  BlockPool pool({.blocks = 4, .reserved = BlockId{0}});
  CHECK(pool.reserved() == BlockId{0});
  CHECK(take(pool, 3) == ids({1, 2, 3}));
  pool.reset();
  CHECK(std::ranges::equal(pool.free_list(), ids({1, 2, 3})));
  pool.check_invariants();
  CHECK_THROWS_AS(pool.retain(ids({0})), InvalidArgument);
  CHECK_THROWS_AS(BlockPool({.blocks = 4, .reserved = BlockId{4}}), InvalidArgument);
  CHECK(BlockPool({.blocks = 4}).reserved() == BlockId{3});
}

TEST_CASE("eviction peels leaves by tick and id, and never a parent before its cached children") {
  BlockPool pool({.blocks = 5});
  const Blocks chain = take(pool, 4);
  pool.register_hashes(chain, Hashes{10, 20, 30, 40}, Hashes{0, 10, 20, 10});
  pool.release(chain);
  pool.set_last_use(ids({3}), 7);
  test::BlockRecorder recorder(pool);
  CHECK(pool.evict(2));
  CHECK(recorder.reported.lost == ids({2, 1}));
  CHECK(recorder.reported.hashes == Hashes{30, 20});
  CHECK(pool.evict(2));
  CHECK(recorder.reported.lost == ids({2, 1, 3, 0}));
  CHECK_FALSE(pool.evict(1));
}

TEST_CASE("a block is evicted once though it was a candidate before it had a child") {
  BlockPool pool({.blocks = 5});
  const Blocks all = take(pool, 4);
  pool.register_hashes(ids({3}), Hashes{10});
  pool.release(ids({3}));
  pool.register_hashes(ids({0, 1}), Hashes{20, 30}, Hashes{10, 0});
  pool.release(ids({0, 1}));
  pool.set_last_use(ids({1}), 9);
  test::BlockRecorder recorder(pool);
  // Block 3 has the place that it had as a leaf, behind its child.
  CHECK(pool.evict(3));
  CHECK(recorder.reported.lost == ids({0, 3, 1}));
  pool.check_invariants();
}

TEST_CASE("a live child keeps its unreferenced parent, and the failed eviction changes nothing") {
  BlockPool pool({.blocks = 5});
  const Blocks blocks = take(pool, 3);
  pool.register_hashes(blocks, Hashes{10, 20, 30}, Hashes{0, 10, 0});
  pool.release(ids({blocks[0].value(), blocks[2].value()}));
  CHECK_FALSE(pool.evict(2));
  pool.check_invariants();
  CHECK(pool.find(10) == blocks[0]);
  CHECK(pool.find(30) == blocks[2]);
  CHECK(pool.evict(1));
  CHECK_FALSE(pool.find(30).valid());
}

TEST_CASE("listeners hear of unreferenced and of freed blocks, whether registered or not") {
  BlockPool pool({.blocks = 5});
  test::BlockRecorder recorder(pool);
  const Blocks blocks = take(pool, 3);
  pool.register_hashes({blocks.data(), 1}, Hashes{10});
  pool.release(blocks);
  CHECK(recorder.reported.unreferenced == Blocks{blocks[0]});
  CHECK(recorder.reported.lost == Blocks{blocks[1], blocks[2]});
  CHECK(recorder.reported.hashes == Hashes{-1, -1});
  pool.reset();
  CHECK(recorder.reported.lost.back() == blocks[0]);
  CHECK(pool.free_blocks() == 4);
}

TEST_CASE("a hash that two blocks have finds the one registered last, until that one is evicted") {
  BlockPool pool({.blocks = 4});
  const Blocks blocks = take(pool, 2);
  pool.register_hashes(blocks, Hashes{10, 10});
  CHECK(pool.find(10) == blocks[1]);
  pool.release(ids({blocks[0].value()}));
  CHECK(pool.evict(1));
  CHECK(pool.find(10) == blocks[1]);
  pool.check_invariants();
}

TEST_CASE("nonsense parents never make a block its own ancestor") {
  BlockPool pool({.blocks = 4});
  const Blocks blocks = take(pool, 3);
  pool.register_hashes(blocks, Hashes{10, 20, 30}, Hashes{20, 30, 10});
  pool.check_invariants();
  pool.release(blocks);
  CHECK(pool.evict(3));
}

TEST_CASE("find_prefix stops at the first hash that no block has") {
  BlockPool pool({.blocks = 4});
  const Blocks blocks = take(pool, 3);
  pool.register_hashes(blocks, Hashes{10, 20, 30});
  Blocks out(3);
  CHECK(pool.find_prefix(Hashes{10, 20, 30}, out) == 3);
  CHECK(out == blocks);
  CHECK(pool.find_prefix(Hashes{10, 99, 30}, out) == 1);
  CHECK(pool.find_prefix({}, {}) == 0);
  CHECK_THROWS_AS(static_cast<void>(pool.find_prefix(Hashes{10, 20, 30, 40}, out)), InvalidArgument);
}

TEST_CASE("find_prefix is right at every length, and where hashes differ only in bits that the index does not keep") {
  constexpr std::size_t length = 40;
  const Hashes all = test::colliding_hashes(0xffffffffu, length + 1);
  BlockPool pool({.blocks = length + 1});
  const Blocks blocks = take(pool, length);
  Blocks out(length);
  for (std::size_t known = 0; known <= length; ++known) {
    CHECK(pool.find_prefix(std::span(all).first(length), out) == known);
    CHECK(std::equal(blocks.begin(), blocks.begin() + static_cast<std::ptrdiff_t>(known), out.begin()));
    if (known < length) pool.register_hashes({&blocks[known], 1}, {&all[known], 1});
  }
  Hashes stranger = all;
  std::swap(stranger[17], stranger[length]);
  CHECK(pool.find_prefix(std::span(stranger).first(length), out) == 17);
  pool.check_invariants();
}

TEST_CASE("the block before it in the batch is a block's parent, though a later one has the same hash") {
  BlockPool pool({.blocks = 5});
  const Blocks blocks = take(pool, 4);
  pool.register_hashes(blocks, Hashes{10, 20, 10, 20}, Hashes{0, 10, 0, 10});
  CHECK(pool.parent(blocks[1]) == blocks[0]);
  CHECK(pool.parent(blocks[3]) == blocks[2]);
  CHECK(pool.find(20) == blocks[3]);
  pool.release(blocks);
  CHECK(pool.evict(4));
  pool.check_invariants();
}

TEST_CASE("a block pool refuses bad input and stays as it was") {
  CHECK_THROWS_AS(BlockPool({.blocks = 0}), InvalidArgument);
  BlockPool pool({.blocks = 5});
  const Blocks blocks = take(pool, 2);
  pool.register_hashes(ids({2}), Hashes{10});
  for (const std::int32_t bad : {-1, 5, 100}) {
    CHECK_THROWS_AS(pool.retain(ids({2, bad})), InvalidArgument);
    CHECK_THROWS_AS(pool.release(ids({2, bad})), InvalidArgument);
    CHECK_THROWS_AS(pool.register_hashes(ids({3, bad}), Hashes{20, 30}), InvalidArgument);
    CHECK_THROWS_AS(pool.set_last_use(ids({2, bad}), 9), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(pool.ref_count(BlockId{bad})), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(pool.hash(BlockId{bad})), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(pool.parent(BlockId{bad})), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(pool.last_use_tick(BlockId{bad})), InvalidArgument);
  }
  CHECK_THROWS_AS(pool.retain(ids({2, 0})), InvalidArgument);
  CHECK_THROWS_AS(pool.retain(ids({4})), InvalidArgument);
  CHECK_THROWS_AS(pool.release(ids({2, 3, 2})), InvalidArgument);
  CHECK_THROWS_AS(pool.release(ids({0})), InvalidArgument);
  CHECK_THROWS_AS(pool.set_last_use(ids({0}), 1), InvalidArgument);
  CHECK_THROWS_AS(pool.register_hashes(ids({3, 3}), Hashes{20, 30}), InvalidArgument);
  CHECK_THROWS_AS(pool.register_hashes(ids({3, 2}), Hashes{20, 30}), InvalidArgument);
  CHECK_THROWS_AS(pool.register_hashes(ids({0}), Hashes{20}), InvalidArgument);
  CHECK_THROWS_AS(pool.register_hashes(ids({3}), Hashes{20, 30}), InvalidArgument);
  CHECK_THROWS_AS(pool.register_hashes(ids({3}), Hashes{20}, Hashes{1, 2}), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(pool.evict(-1)), InvalidArgument);
  CHECK_THROWS_WITH_AS(BlockPool({.blocks = 2, .eviction = make_eviction_policy(EvictionOrder::hix)}),
                       "eviction = hix (must be an order: a block pool knows no prompts)", InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(pool.can_allocate(-1)), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(pool.can_allocate(1, -1)), InvalidArgument);
  pool.check_invariants();
  CHECK(pool.ref_count(BlockId{2}) == 1);
  CHECK(pool.ref_count(BlockId{3}) == 1);
  CHECK(pool.hash(BlockId{3}) == hash_not_computed);
}

namespace {

/// The newest registration goes first, but compared with all others anew each time.
class DrawnFilo final : public EvictionPolicy {
 public:
  std::string_view name() const noexcept override { return "drawn filo"; }
  VictimKey key(const VictimFacts& facts) const noexcept override { return {0, ~facts.created_tick}; }
  VictimTraits traits() const noexcept override { return {.draws = 100}; }
};

/// None: by default.
std::shared_ptr<EvictionPolicy> any_order(test::Random& random) {
  constexpr EvictionOrder orders[] = {EvictionOrder::lru,     EvictionOrder::lfu, EvictionOrder::fifo,
                                      EvictionOrder::slru,    EvictionOrder::mru, EvictionOrder::filo,
                                      EvictionOrder::priority};
  const auto which = static_cast<std::size_t>(random.between(0, 2 * std::ssize(orders) - 1));
  if (which < std::size(orders)) return make_eviction_policy(orders[which]);
  return which == std::size(orders) ? std::make_shared<DrawnFilo>() : nullptr;
}

void retain_in_both(BlockPool& pool, Model& model, const Blocks& blocks, BlockId reserved) {
  if (model.can_retain(blocks) && std::ranges::count(blocks, reserved) == 0) {
    pool.retain(blocks);
    model.retain(blocks);
  } else {
    REQUIRE_THROWS_AS(pool.retain(blocks), InvalidArgument);
  }
}

void release_in_both(BlockPool& pool, Model& model, const Blocks& blocks) {
  if (model.can_release(blocks)) {
    pool.release(blocks);
    model.release(blocks);
  } else {
    REQUIRE_THROWS_AS(pool.release(blocks), InvalidArgument);
  }
}

void forget_in_both(BlockPool& pool, Model& model, test::Random& random) {
  Blocks blocks;
  for (std::int32_t block = 0; block < pool.block_count(); ++block)
    if (pool.hash(BlockId{block}) > 0 && random.chance(30)) blocks.emplace_back(block);
  pool.forget(blocks);
  model.forget(blocks);
}

}  // namespace

TEST_CASE("random block pool operations agree with plain lists") {
  test::for_each_seed(1500, [](test::Random& random, std::uint64_t) {
    const auto unreferenced = random.chance(80) ? UnreferencedBlocks::cached : UnreferencedBlocks::dropped;
    const std::int32_t count = random.between32(1, 12);
    const BlockId reserved{random.between32(0, count - 1)};
    const BlockPoolOptions options{
        .blocks = count, .unreferenced = unreferenced, .reserved = reserved, .eviction = any_order(random)};
    BlockPool pool(options);
    Model model(options);
    BlockHash next_hash = 1;
    const auto some_blocks = [&] {
      Blocks blocks(static_cast<std::size_t>(random.between(0, 4)));
      for (BlockId& block : blocks) block = BlockId{random.between32(0, count - 1)};
      return blocks;
    };
    for (int step = 0; step < 80; ++step) {
      switch (random.between(0, 8)) {
        case 0:
        case 1: {
          Blocks out(static_cast<std::size_t>(random.between(0, 4)));
          const auto expected = model.allocate(out.size());
          REQUIRE(pool.allocate(out) == expected.has_value());
          if (expected) REQUIRE(out == *expected);
          break;
        }
        case 2:
          retain_in_both(pool, model, some_blocks(), reserved);
          break;
        case 3:
        case 4:
          release_in_both(pool, model, some_blocks());
          break;
        case 5: {
          const BlockId block{random.between32(0, count - 1)};
          const BlockHash hash = pool.hash(block) > 0 ? pool.hash(block) : random.chance(85) ? next_hash++ : 1;
          const BlockHash parent = random.between(0, next_hash);
          if (pool.is_free(block)) break;
          pool.register_hashes({&block, 1}, {&hash, 1}, {&parent, 1});
          model.register_hash(block, hash, parent);
          break;
        }
        case 6: {
          const auto victims = random.between32(0, 3);
          REQUIRE(pool.evict(victims) == model.evict(static_cast<std::size_t>(victims)));
          break;
        }
        case 7:
          forget_in_both(pool, model, random);
          break;
        default:
          if (random.chance(60)) {
            pool.advance_tick();
            ++model.tick;
          } else {
            const BlockId block{random.between32(0, count - 1)};
            const std::int64_t tick = random.between(0, 9);
            if (pool.is_free(block)) break;
            pool.set_last_use({&block, 1}, tick);
            model.set_last_use({block}, tick);
          }
      }
      model.compare(pool);
      pool.check_invariants();
    }
  });
}

TEST_CASE("a prompt is given up from its end only as far as the order of the pool says") {
  BlockPool pool({.blocks = 4, .eviction = make_eviction_policy(EvictionOrder::filo)});
  const Blocks all = take(pool, 3);
  pool.register_hashes(ids({0}), Hashes{10});
  pool.register_hashes(ids({2}), Hashes{30});
  pool.register_hashes(ids({1}), Hashes{20}, Hashes{10});
  pool.release(all);
  pool.set_last_use(ids({2}), 9);  // block 0 was used before it, but is the older registration
  test::BlockRecorder recorder(pool);
  CHECK(pool.evict(2));
  CHECK(recorder.reported.lost == ids({1, 2}));
  pool.check_invariants();
}

TEST_CASE("a warm block pool allocates nothing") {
  BlockPool pool({.blocks = 1001});
  Blocks out(100);
  Hashes hashes(100);
  const auto life = [&](BlockHash first) {
    for (std::size_t i = 0; i < hashes.size(); ++i) hashes[i] = first + static_cast<BlockHash>(i);
    CHECK(pool.allocate(out));
    pool.register_hashes(out, hashes, hashes);
    pool.retain(out);
    pool.release(out);
    pool.release(out);
    pool.advance_tick();
  };
  life(1);
  const std::uint64_t before = test::heap_allocations();
  for (BlockHash first = 1000; first < 40000; first += 1000) life(first);
  CHECK(test::heap_allocations() == before);
  pool.check_invariants();
}

TEST_CASE("a block pool whose allocations fail is not made, or works") {
  std::unique_ptr<BlockPool> pool;
  const auto failures = test::fail_each_allocation(
      [&](std::uint64_t) { pool = std::make_unique<BlockPool>(BlockPoolOptions{.blocks = 40}); }, [](std::uint64_t) {});
  CHECK(failures > 3);
  REQUIRE(pool);
  pool->check_invariants();
}
