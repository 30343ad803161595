// SPDX-License-Identifier: Apache-2.0
#include <stateport/parts/external_block_pool.hpp>

#include <stateport/core/model/error.hpp>
#include <stateport/core/pool/slot_pool.hpp>
#include <stateport/core/slots/slot_allocator.hpp>

#include "block_recorder.hpp"
#include "colliding_hashes.hpp"
#include "heap_counter.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

using namespace stateport;

namespace {

using test::Blocks;
using test::Hashes;
using test::ids;

/// The same rules over plain lists: the answer of each call, and the events that it reports.
class ExternalModel {
 public:
  explicit ExternalModel(std::int32_t count) : blocks_(static_cast<std::size_t>(count)) {}

  void reference(const Blocks& blocks) {
    for (const BlockId block : blocks) {
      ++at(block).ref_count;
      at(block).tick = tick;
    }
  }
  bool can_unreference(const Blocks& blocks) {
    return std::ranges::all_of(blocks,
                               [&](BlockId block) { return std::ranges::count(blocks, block) <= at(block).ref_count; });
  }
  void unreference(const Blocks& blocks) {
    Blocks lost;
    for (const BlockId block : blocks) {
      if (--at(block).ref_count > 0) continue;
      if (at(block).hash > 0)
        reported.unreferenced.push_back(block);
      else
        lost.push_back(block);
    }
    forget(lost);
  }
  bool can_register(const Blocks& blocks) {
    return named_once(blocks) &&
           std::ranges::all_of(blocks, [&](BlockId block) { return at(block).ref_count > 0 && at(block).hash <= 0; });
  }
  void register_hashes(const Blocks& blocks, const Hashes& hashes) {
    for (std::size_t i = 0; i < blocks.size(); ++i) at(blocks[i]).hash = hashes[i];
  }
  bool can_deregister(const Blocks& blocks) {
    return named_once(blocks) &&
           std::ranges::all_of(blocks, [&](BlockId block) { return at(block).ref_count == 0 && at(block).hash > 0; });
  }
  void forget(const Blocks& blocks) {
    for (const BlockId block : blocks) {
      reported.lost.push_back(block);
      reported.hashes.push_back(at(block).hash);
      at(block) = {};
    }
  }
  void clear() {
    Blocks lost;
    for (std::int32_t index = 0; index < static_cast<std::int32_t>(blocks_.size()); ++index)
      if (at(BlockId{index}).ref_count > 0 || at(BlockId{index}).hash > 0) lost.emplace_back(index);
    forget(lost);
  }

  void compare(const ExternalBlockPool& pool, BlockHash hashes) {
    std::int32_t registered = 0;
    std::multiset<BlockHash> known;
    for (std::int32_t index = 0; index < pool.block_count(); ++index) {
      const BlockId block{index};
      REQUIRE(pool.ref_count(block) == at(block).ref_count);
      REQUIRE(pool.last_use_tick(block) == at(block).tick);
      REQUIRE(pool.hash(block) == at(block).hash);
      if (at(block).hash <= 0) continue;
      ++registered;
      known.insert(at(block).hash);
    }
    REQUIRE(pool.registered_blocks() == registered);
    for (BlockHash hash = 1; hash < hashes; ++hash) {
      const BlockId found = pool.find(hash);
      REQUIRE(found.valid() == known.contains(hash));
      if (found.valid()) REQUIRE(at(found).hash == hash);
    }
  }

  std::int64_t tick = 0;
  test::ToldOfBlocks reported;

 private:
  struct Block {
    std::int32_t ref_count = 0;
    std::int64_t tick = 0;
    BlockHash hash = hash_not_computed;
  };
  Block& at(BlockId block) { return blocks_[block.index()]; }
  static bool named_once(const Blocks& blocks) {
    return std::ranges::all_of(blocks, [&](BlockId block) { return std::ranges::count(blocks, block) == 1; });
  }

  std::vector<Block> blocks_;
};

}  // namespace

TEST_CASE("an external pool follows the engine's reports about its blocks") {
  ExternalBlockPool pool(8);
  test::BlockRecorder recorder(pool);
  pool.advance_tick();
  pool.reference(ids({5, 2, 7}));
  pool.register_hashes(ids({5, 2}), Hashes{10, 20}, Hashes{0, 10});
  CHECK(pool.find(20) == BlockId{2});
  CHECK(pool.parent(BlockId{2}) == BlockId{5});
  CHECK(pool.parent(BlockId{5}) == BlockId{});
  CHECK(pool.last_use_tick(BlockId{7}) == 1);
  Blocks out(3);
  CHECK(pool.find_prefix(Hashes{10, 20, 30}, out) == 2);
  CHECK(out[0] == BlockId{5});
  CHECK(out[1] == BlockId{2});

  pool.unreference(ids({7, 2, 5}));
  CHECK(recorder.reported == test::ToldOfBlocks{ids({2, 5}), ids({7}), {hash_not_computed}});
  pool.deregister(ids({5}));
  CHECK(recorder.reported == test::ToldOfBlocks{ids({2, 5}), ids({7, 5}), {hash_not_computed, 10}});
  CHECK_FALSE(pool.find(10).valid());
  CHECK(pool.find(20) == BlockId{2});
  pool.check_invariants();
}

TEST_CASE("an external block whose parent was evicted, or holds other content, has none") {
  ExternalBlockPool pool(4);
  pool.reference(ids({1, 2, 3}));
  pool.register_hashes(ids({1, 2, 3}), Hashes{10, 20, 30}, Hashes{root_hash, 10, 10});
  CHECK(pool.parent(BlockId{3}) == BlockId{1});
  pool.unreference(ids({1}));
  pool.deregister(ids({1}));
  CHECK_FALSE(pool.parent(BlockId{2}).valid());
  pool.reference(ids({1}));
  pool.register_hashes(ids({1}), Hashes{10});
  CHECK_FALSE(pool.parent(BlockId{3}).valid());
  pool.check_invariants();
}

TEST_CASE("a hash of several external blocks finds one until the last of them is deregistered") {
  ExternalBlockPool pool(4);
  pool.reference(ids({0, 1, 2}));
  pool.register_hashes(ids({0, 1, 2}), Hashes{10, 10, 10});
  pool.unreference(ids({0, 1, 2}));
  for (const std::int32_t gone : {1, 0, 2}) {
    CHECK(pool.hash(pool.find(10)) == 10);
    pool.deregister(ids({gone}));
    pool.check_invariants();
  }
  CHECK_FALSE(pool.find(10).valid());
}

TEST_CASE("an external pool keeps hashes apart that differ only in bits that its index does not keep") {
  const Hashes hashes = test::colliding_hashes(0xffffffffu, 6);
  ExternalBlockPool pool(6);
  const Blocks blocks = ids({3, 1, 4, 0, 5});
  pool.reference(blocks);
  pool.register_hashes(blocks, std::span(hashes).first(5));
  for (std::size_t i = 0; i < blocks.size(); ++i) CHECK(pool.find(hashes[i]) == blocks[i]);
  Blocks out(6);
  CHECK(pool.find_prefix(hashes, out) == 5);
  CHECK(std::equal(blocks.begin(), blocks.end(), out.begin()));
  pool.check_invariants();
}

TEST_CASE("the states of blocks of an external pool go with the content, and by last use") {
  ExternalBlockPool pool(8);
  SlotPool slots(2);
  SlotAllocator states(slots, pool);
  std::vector<SlotId> given(2);
  pool.reference(ids({1, 2, 3}));
  pool.register_hashes(ids({1, 2, 3}), Hashes{10, 20, 30});
  states.allocate(ids({1, 2}), given);
  states.register_hashes(ids({1, 2}), Hashes{10, 20});
  pool.advance_tick();
  pool.reference(ids({1}));
  pool.unreference(ids({1, 1, 2, 3}));
  states.allocate(ids({3}), std::span(given).first(1));
  CHECK_FALSE(states.has_state(BlockId{2}));
  CHECK(states.find(10) == BlockId{1});
  pool.deregister(ids({1}));
  CHECK_FALSE(states.find(10).valid());
  CHECK(slots.free_slots() == 1);
  states.check_invariants();
}

TEST_CASE("an external pool refuses blocks told twice or never, and stays as it was") {
  CHECK_THROWS_AS(ExternalBlockPool(0), InvalidArgument);
  ExternalBlockPool pool(6);
  test::BlockRecorder recorder(pool);
  pool.reference(ids({1, 2, 3, 3}));
  pool.register_hashes(ids({1, 2}), Hashes{10, 20});
  pool.unreference(ids({1}));
  recorder.reported = {};
  for (const std::int32_t bad : {-1, 6, 100}) {
    CHECK_THROWS_AS(pool.reference(ids({2, bad})), InvalidArgument);
    CHECK_THROWS_AS(pool.unreference(ids({2, bad})), InvalidArgument);
    CHECK_THROWS_AS(pool.register_hashes(ids({3, bad}), Hashes{30, 40}), InvalidArgument);
    CHECK_THROWS_AS(pool.deregister(ids({1, bad})), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(pool.hash(BlockId{bad})), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(pool.ref_count(BlockId{bad})), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(pool.last_use_tick(BlockId{bad})), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(pool.parent(BlockId{bad})), InvalidArgument);
  }
  CHECK_THROWS_AS(pool.unreference(ids({2, 2})), InvalidArgument);
  CHECK_THROWS_AS(pool.unreference(ids({2, 1})), InvalidArgument);
  CHECK_THROWS_AS(pool.unreference(ids({2, 4})), InvalidArgument);
  CHECK_THROWS_AS(pool.register_hashes(ids({3, 4}), Hashes{30, 40}), InvalidArgument);
  CHECK_THROWS_AS(pool.register_hashes(ids({3, 2}), Hashes{30, 20}), InvalidArgument);
  CHECK_THROWS_AS(pool.register_hashes(ids({3, 3}), Hashes{30, 30}), InvalidArgument);
  CHECK_THROWS_AS(pool.register_hashes(ids({3}), Hashes{0}), InvalidArgument);
  CHECK_THROWS_AS(pool.register_hashes(ids({3}), Hashes{30, 40}), InvalidArgument);
  CHECK_THROWS_AS(pool.register_hashes(ids({3}), Hashes{30}, Hashes{1, 2}), InvalidArgument);
  CHECK_THROWS_AS(pool.deregister(ids({1, 1})), InvalidArgument);
  CHECK_THROWS_AS(pool.deregister(ids({1, 2})), InvalidArgument);
  CHECK_THROWS_AS(pool.deregister(ids({1, 3})), InvalidArgument);
  CHECK_THROWS_AS(pool.deregister(ids({4})), InvalidArgument);
  Blocks short_out(1);
  CHECK_THROWS_AS(static_cast<void>(pool.find_prefix(Hashes{10, 20}, short_out)), InvalidArgument);

  pool.check_invariants();
  CHECK(recorder.reported == test::ToldOfBlocks{});
  CHECK(pool.ref_count(BlockId{2}) == 1);
  CHECK(pool.ref_count(BlockId{3}) == 2);
  CHECK(pool.hash(BlockId{3}) == hash_not_computed);
  CHECK(pool.find(10) == BlockId{1});
  CHECK(pool.find(20) == BlockId{2});
  CHECK_FALSE(pool.find(30).valid());
  pool.deregister(ids({1}));
}

TEST_CASE("random batches told to an external pool agree with plain lists") {
  test::for_each_seed(1500, [](test::Random& random, std::uint64_t) {
    constexpr BlockHash hashes = 9;  // few, so that blocks share them
    const std::int32_t count = random.between32(1, 10);
    ExternalBlockPool pool(count);
    test::BlockRecorder recorder(pool);
    ExternalModel model(count);
    const auto some_blocks = [&] {
      Blocks blocks(static_cast<std::size_t>(random.between(0, 3)));
      for (BlockId& block : blocks) block = BlockId{random.between32(0, count - 1)};
      return blocks;
    };
    for (int step = 0; step < 80; ++step) {
      const Blocks blocks = some_blocks();
      switch (random.between(0, 8)) {
        case 0:
        case 1:
          pool.reference(blocks);
          model.reference(blocks);
          break;
        case 2:
        case 3:
          if (model.can_unreference(blocks)) {
            pool.unreference(blocks);
            model.unreference(blocks);
          } else {
            REQUIRE_THROWS_AS(pool.unreference(blocks), InvalidArgument);
          }
          break;
        case 4:
        case 5: {
          Hashes names(blocks.size());
          for (BlockHash& name : names) name = random.between(1, hashes - 1);
          if (model.can_register(blocks)) {
            pool.register_hashes(blocks, names, Hashes(blocks.size(), random.between(0, hashes)));
            model.register_hashes(blocks, names);
          } else {
            REQUIRE_THROWS_AS(pool.register_hashes(blocks, names), InvalidArgument);
          }
          break;
        }
        case 6:
        case 7:
          if (model.can_deregister(blocks)) {
            pool.deregister(blocks);
            model.forget(blocks);
          } else {
            REQUIRE_THROWS_AS(pool.deregister(blocks), InvalidArgument);
          }
          break;
        default:
          if (random.chance(90)) {
            pool.advance_tick();
            ++model.tick;
          } else {
            pool.clear();
            model.clear();
          }
      }
      model.compare(pool, hashes);
      REQUIRE(recorder.reported == model.reported);
      pool.check_invariants();
    }
  });
}

TEST_CASE("an external pool allocates nothing once it is made") {
  ExternalBlockPool pool(200);
  Blocks blocks;
  Hashes hashes;
  for (std::int32_t index = 0; index < 200; ++index) {
    blocks.emplace_back(index);
    hashes.push_back(index + 1);
  }
  const std::uint64_t before = test::heap_allocations();
  for (int turn = 0; turn < 3; ++turn) {
    pool.reference(blocks);
    pool.register_hashes(blocks, hashes, hashes);
    pool.unreference(blocks);
    pool.deregister(blocks);
    pool.reference(blocks);
    pool.unreference(blocks);
  }
  CHECK(test::heap_allocations() == before);
}

TEST_CASE("an external pool whose allocations fail is not made, or works") {
  std::unique_ptr<ExternalBlockPool> pool;
  const auto failures = test::fail_each_allocation(
      [&](std::uint64_t) { pool = std::make_unique<ExternalBlockPool>(40); }, [](std::uint64_t) {});
  CHECK(failures > 3);
  REQUIRE(pool);
  pool->check_invariants();
}
