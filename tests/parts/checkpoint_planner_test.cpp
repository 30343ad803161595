// SPDX-License-Identifier: Apache-2.0
#include <stateport/parts/checkpoint_planner.hpp>

#include <stateport/core/model/error.hpp>
#include <stateport/core/pool/block_pool.hpp>

#include "heap_counter.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

using namespace stateport;

namespace {

using Blocks = std::vector<BlockId>;

/// All blocks live, block b registered with hash 1000 + b.
struct Fixture {
  explicit Fixture(std::int32_t slot_count, CheckpointPlannerOptions options = {.max_rows = 4}, std::int32_t count = 40)
      : blocks({.blocks = count + 1}), slots(slot_count), states(slots, blocks), planner(states, options) {
    all.resize(static_cast<std::size_t>(count));
    REQUIRE(blocks.allocate(all));
    std::vector<BlockHash> hashes;
    for (const BlockId block : all) {
      hashes.push_back(1000 + block.value());
      prefixes.push_back({{static_cast<std::uint64_t>(block.value()), 5}});
    }
    blocks.register_hashes(all, hashes);
  }
  /// A whole prompt in one chunk, over blocks [first, …).
  PrefillChunk prompt(std::int32_t row, std::int64_t tokens, std::size_t first = 0, std::int32_t matched = 0) {
    const std::span row_blocks = std::span(all).subspan(first);
    return {.row = row,
            .live_slot = SlotId{row + 20},
            .prompt_tokens = tokens,
            .chunk_tokens = tokens,
            .matched_blocks = matched,
            .required_blocks = static_cast<std::int32_t>((tokens + 255) / 256),
            .blocks = row_blocks,
            .prefixes = std::span(prefixes).subspan(first)};
  }

  BlockPool blocks;
  SlotPool slots;
  SlotAllocator states;
  CheckpointPlanner planner;
  Blocks all;
  std::vector<PrefixHash> prefixes;
};

std::vector<SlotCopy> copies(CopyPlan plan) {
  return {plan.begin(), plan.end()};
}

}  // namespace

TEST_CASE("a plan names offsets, owners and the end, and fills the kernels' arrays row by row") {
  Fixture f(8);
  const PlannedCheckpoints planned = f.planner.plan(f.prompt(2, 768, 0, 1));
  CHECK(planned.count == 2);
  CHECK(planned.offsets[0] == 256);
  CHECK(planned.offsets[1] == 512);
  CHECK(planned.blocks[1] == f.all[1]);
  CHECK(planned.end_block == f.all[2]);
  const CheckpointArrays arrays = f.planner.device_arrays(3);
  CHECK(std::vector(arrays.counts.begin(), arrays.counts.end()) == std::vector<std::int32_t>{0, 0, 2});
  CHECK(std::vector(arrays.offsets.begin(), arrays.offsets.end()) ==
        std::vector<std::int32_t>{0, 0, 0, 0, 0, 0, 256, 512, 0});
  f.planner.clear();
  CHECK(f.planner.device_arrays(3).counts.empty());
  CHECK_FALSE(f.planner.has_any());
}

TEST_CASE("a prompt that only saves its end needs no arrays") {
  Fixture f(8);
  CHECK(f.planner.plan(f.prompt(0, 256)).end_block == f.all[0]);
  CHECK(f.planner.has_any());
  CHECK(f.planner.device_arrays(1).offsets.empty());
}

TEST_CASE("a committed state is found only after it is published") {
  Fixture f(8);
  static_cast<void>(f.planner.plan(f.prompt(0, 768, 0, 1)));
  static_cast<void>(f.planner.plan(f.prompt(1, 300, 10)));
  const CheckpointCommit commit = f.planner.commit();
  CHECK(copies(commit.from_scratch) ==
        std::vector{SlotCopy::whole(0, 4), SlotCopy::whole(1, 5), SlotCopy::whole(2, 6)});
  CHECK(copies(commit.from_live) == std::vector{SlotCopy::whole(20, 7)});
  CHECK_FALSE(f.states.find(1000 + f.all[0].value()).valid());
  f.planner.publish();
  CHECK(f.states.find(1000 + f.all[0].value()) == f.all[0]);
  CHECK(f.states.tag(f.all[1]) == StateTag{.token_count = 512, .prefix = f.prefixes[1]});
  CHECK(f.states.restore_to_live(f.all[2], SlotId{0}, {.token_count = 768, .prefix = f.prefixes[2]}));
  CHECK_FALSE(f.planner.has_any());
}

TEST_CASE("a state that lost its slot between commit and publication is not published") {
  Fixture f(3);
  static_cast<void>(f.planner.plan(f.prompt(0, 256)));
  static_cast<void>(f.planner.plan(f.prompt(1, 256, 5)));
  static_cast<void>(f.planner.commit());
  // Block 0 has no slot any more; block 5 has another one, which nothing was copied into.
  f.states.invalidate(std::vector{f.all[0], f.all[5]});
  const Blocks other = {f.all[5], f.all[9]};
  std::vector<SlotId> given(2);
  f.states.allocate(other, given);
  f.planner.publish();
  CHECK_FALSE(f.states.has_state(f.all[0]));
  CHECK_FALSE(f.states.find(1000 + f.all[5].value()).valid());
  CHECK(f.states.tag(f.all[5]) == StateTag{});
  f.states.check_invariants();
  f.planner.check_invariants();
}

TEST_CASE("an abandoned commit gives its slots back and hides nothing that was there") {
  Fixture f(2);
  static_cast<void>(f.planner.plan(f.prompt(0, 300)));
  static_cast<void>(f.planner.commit());
  f.planner.publish();
  static_cast<void>(f.planner.plan(f.prompt(0, 300)));
  static_cast<void>(f.planner.plan(f.prompt(1, 300, 5)));
  static_cast<void>(f.planner.commit());
  CHECK(f.slots.free_slots() == 0);
  f.planner.abandon();
  CHECK(f.slots.free_slots() == 1);
  CHECK(f.states.find(1000 + f.all[0].value()) == f.all[0]);
}

TEST_CASE("a slot that held another state is hidden from the commit on") {
  Fixture f(2);
  static_cast<void>(f.planner.plan(f.prompt(0, 300)));
  static_cast<void>(f.planner.commit());
  f.planner.publish();
  f.prefixes[0].words[1] = 6;
  static_cast<void>(f.planner.plan(f.prompt(0, 300)));
  static_cast<void>(f.planner.commit());
  CHECK(f.states.tag(f.all[0]).token_count == -1);
  CHECK_FALSE(f.states.find(1000 + f.all[0].value()).valid());
  f.planner.publish();
  CHECK(f.states.tag(f.all[0]).prefix == f.prefixes[0]);
}

TEST_CASE("two requests that save one block write it once, the last one") {
  Fixture f(4);
  static_cast<void>(f.planner.plan(f.prompt(0, 300)));
  static_cast<void>(f.planner.plan(f.prompt(1, 400)));
  const CheckpointCommit commit = f.planner.commit();
  CHECK(copies(commit.from_scratch) == std::vector{SlotCopy::whole(1, 3)});
  CHECK(f.slots.free_slots() == 3);
}

TEST_CASE("checkpoints without a slot are dropped in order and counted") {
  Fixture f(2);
  SlotId slot;
  f.states.allocate({&f.all[10], 1}, {&slot, 1});
  static_cast<void>(f.planner.plan(f.prompt(0, 900, 0, 1)));  // blocks 0 and 2
  static_cast<void>(f.planner.plan(f.prompt(1, 300, 10)));    // block 10 has a slot
  static_cast<void>(f.planner.plan(f.prompt(2, 300)));        // block 0 again
  const CheckpointCommit commit = f.planner.commit();
  CHECK(commit.dropped == 1);
  CHECK(f.planner.dropped() == 1);
  CHECK(f.states.has_state(f.all[0]));
  CHECK_FALSE(f.states.has_state(f.all[2]));
  CHECK(copies(commit.from_scratch) == std::vector{SlotCopy::whole(2, slot.value()), SlotCopy::whole(3, 0)});
}

TEST_CASE("a checkpoint planner refuses bad input and keeps its plan") {
  Fixture f(4);
  for (const CheckpointPlannerOptions& bad :
       {CheckpointPlannerOptions{.block_size_tokens = 0}, CheckpointPlannerOptions{.alignment_tokens = 0},
        CheckpointPlannerOptions{.max_rows = 0}})
    CHECK_THROWS_AS(CheckpointPlanner(f.states, bad), InvalidArgument);
  static_cast<void>(f.planner.plan(f.prompt(0, 300)));
  const auto refused = [&](auto&& change) {
    PrefillChunk chunk = f.prompt(1, 800, 0, 1);
    change(chunk);
    CHECK_THROWS_AS(f.planner.plan(chunk), InvalidArgument);
    f.planner.check_invariants();
  };
  refused([](PrefillChunk& c) { c.row = -1; });
  refused([](PrefillChunk& c) { c.row = 4; });
  refused([](PrefillChunk& c) { c.live_slot = SlotId{}; });
  refused([](PrefillChunk& c) { c.finished_tokens = -1; });
  refused([](PrefillChunk& c) { c.finished_tokens = 1; });
  refused([](PrefillChunk& c) { c.chunk_tokens = -1; });
  refused([](PrefillChunk& c) { c.chunk_tokens = INT64_MAX; });
  refused([](PrefillChunk& c) { c.prompt_tokens = 799; });
  refused([](PrefillChunk& c) { c.skip_tokens = 801; });
  refused([](PrefillChunk& c) { c.skip_tokens = -1; });
  refused([](PrefillChunk& c) { c.matched_blocks = -1; });
  refused([](PrefillChunk& c) { c.required_blocks = -1; });
  refused([](PrefillChunk& c) { c.blocks = c.blocks.first(2); });
  refused([](PrefillChunk& c) { c.prefixes = c.prefixes.first(2); });
  const Blocks nonsense(4, BlockId{41});
  refused([&](PrefillChunk& c) { c.blocks = nonsense; });
  CHECK_THROWS_AS(static_cast<void>(f.planner.device_arrays(-1)), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(f.planner.device_arrays(5)), InvalidArgument);
  CHECK_THROWS_AS(f.planner.publish(), InvalidState);
  CHECK_THROWS_AS(f.planner.abandon(), InvalidState);
  CHECK(f.planner.commit().from_scratch.size() == 1);
  CHECK_THROWS_AS(f.planner.plan(f.prompt(0, 300)), InvalidState);
  CHECK_THROWS_AS(static_cast<void>(f.planner.commit()), InvalidState);
  CHECK_THROWS_AS(f.planner.clear(), InvalidState);
  f.planner.publish();
}

namespace {

/// A checkpoint that a chunk asks for, and the scratch or live slot that it comes from.
struct Wanted {
  BlockId block;
  std::int32_t source;
  bool live;
};

void require_copies(Fixture& f, const CheckpointCommit& commit, const std::map<BlockId, Wanted>& kept) {
  REQUIRE(commit.from_scratch.size() + commit.from_live.size() == kept.size());
  validate(commit.from_scratch, 64, f.slots.capacity_slots(), false);
  validate(commit.from_live, 64, f.slots.capacity_slots(), false);
  for (const auto& [block, wanted] : kept) {
    const CopyPlan plan = wanted.live ? commit.from_live : commit.from_scratch;
    REQUIRE(std::ranges::count(plan, SlotCopy::whole(wanted.source, f.states.slot_of(block).value())) == 1);
  }
}

/// A chunk of a prompt of at most ten blocks, its blocks and prefixes left to the caller.
PrefillChunk random_chunk(test::Random& random, std::int32_t row, std::int32_t block_size) {
  PrefillChunk chunk{.row = row, .live_slot = SlotId{row}};
  chunk.prompt_tokens = random.chance(30) ? block_size * random.between(0, 10) : random.between(0, 160);
  chunk.finished_tokens = random.chance(60) ? 0 : random.between(0, chunk.prompt_tokens);
  chunk.chunk_tokens = chunk.prompt_tokens - chunk.finished_tokens;
  if (random.chance(30)) chunk.chunk_tokens = random.between(0, chunk.chunk_tokens);
  if (random.chance(30)) chunk.skip_tokens = random.between(0, chunk.chunk_tokens);
  chunk.matched_blocks = random.between32(0, 10);
  const std::int64_t chunk_end = chunk.finished_tokens + chunk.chunk_tokens;
  chunk.required_blocks = static_cast<std::int32_t>((chunk_end + block_size - 1) / block_size);
  return chunk;
}

/// Where the rules allow a checkpoint inside of the chunk, in tokens from the beginning of the prompt.
std::vector<std::int64_t> checkpoints_by_rule(const PrefillChunk& chunk, std::int32_t block_size,
                                              std::int32_t alignment) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t at = 1; at < chunk.finished_tokens + chunk.chunk_tokens; ++at) {
    const bool candidate = at == chunk.matched_blocks * block_size ||
                           at == chunk.prompt_tokens / block_size * block_size ||
                           at == (chunk.required_blocks - 1) * block_size;
    const std::int64_t offset = at - chunk.finished_tokens - chunk.skip_tokens;
    if (candidate && offset > 0 && offset % alignment == 0) tokens.push_back(at);
  }
  return tokens;
}

}  // namespace

TEST_CASE("random steps agree with the rules read literally") {
  test::for_each_seed(1500, [](test::Random& random, std::uint64_t) {
    const std::int32_t block_size = 16;
    const std::int32_t alignment = 8 << random.between(0, 2);
    Fixture f(random.between32(0, 10), {.block_size_tokens = block_size, .alignment_tokens = alignment, .max_rows = 4});
    f.blocks.release(std::span(f.all).subspan(20));  // unreferenced: their slots can be evicted
    const auto state_of = [&](BlockId block) { return f.states.has_state(block); };
    std::int64_t dropped = 0;
    for (int step = 0; step < 12; ++step) {
      std::vector<Wanted> intermediates;
      std::vector<Wanted> ends;
      for (std::int32_t row = 0; row < 4; ++row) {
        if (random.chance(30)) continue;
        Blocks row_blocks(10);
        for (BlockId& block : row_blocks) block = f.all[static_cast<std::size_t>(random.between(0, 39))];
        const std::vector<PrefixHash> prefixes(10);
        PrefillChunk chunk = random_chunk(random, row, block_size);
        const std::int64_t chunk_end = chunk.finished_tokens + chunk.chunk_tokens;
        chunk.blocks = row_blocks;
        chunk.prefixes = prefixes;
        const PlannedCheckpoints planned = f.planner.plan(chunk);
        std::int32_t count = 0;
        for (const std::int64_t at : checkpoints_by_rule(chunk, block_size, alignment)) {
          REQUIRE(planned.offsets[static_cast<std::size_t>(count++)] == at - chunk.finished_tokens - chunk.skip_tokens);
          intermediates.push_back({row_blocks[static_cast<std::size_t>(at / block_size - 1)],
                                   static_cast<std::int32_t>(intermediates.size()), false});
        }
        REQUIRE(planned.count == count);
        const bool end = chunk_end == chunk.prompt_tokens && chunk_end % block_size == 0 && chunk_end > 0;
        REQUIRE(planned.end_block.valid() == end);
        if (end) ends.push_back({row_blocks[static_cast<std::size_t>(chunk_end / block_size - 1)], row, true});
      }
      f.planner.check_invariants();

      std::vector<Wanted> wanted = intermediates;
      wanted.insert(wanted.end(), ends.begin(), ends.end());
      const auto named = [&](BlockId block) {
        return std::ranges::any_of(wanted, [&](const Wanted& w) { return w.block == block; });
      };
      std::int64_t available = f.slots.free_slots();
      for (const BlockId block : f.all) available += state_of(block) && f.blocks.ref_count(block) == 0 && !named(block);
      Blocks fresh;
      for (const Wanted& w : wanted)
        if (!state_of(w.block) && std::ranges::count(fresh, w.block) == 0) fresh.push_back(w.block);
      Blocks kept_fresh(fresh.begin(), fresh.begin() + std::min<std::int64_t>(available, std::ssize(fresh)));
      std::map<BlockId, Wanted> last;
      std::int64_t lost = 0;
      for (const Wanted& w : wanted)
        if (state_of(w.block) || std::ranges::count(kept_fresh, w.block) > 0)
          last.insert_or_assign(w.block, w);
        else
          ++lost;

      const CheckpointCommit commit = f.planner.commit();
      REQUIRE(commit.dropped == lost);
      REQUIRE(f.planner.dropped() == (dropped += lost));
      require_copies(f, commit, last);
      if (random.chance(80)) {
        f.planner.publish();
        for (const auto& [block, w] : last) REQUIRE(f.states.find(1000 + block.value()) == block);
      } else {
        f.planner.abandon();
      }
      f.states.check_invariants();
      for (const BlockId block : f.all)  // no slot without a state is left behind
        if (state_of(block)) REQUIRE(f.states.tag(block).token_count > 0);
    }
  });
}

TEST_CASE("a warm planner allocates nothing, also when it drops") {
  Fixture f(3);
  const auto step = [&] {
    for (std::int32_t row = 0; row < 4; ++row)
      static_cast<void>(f.planner.plan(f.prompt(row, 768, static_cast<std::size_t>(row) * 8, 1)));
    static_cast<void>(f.planner.commit());
    f.planner.publish();
  };
  step();
  const std::uint64_t before = test::heap_allocations();
  for (int i = 0; i < 10; ++i) step();
  CHECK(test::heap_allocations() == before);
  CHECK(f.planner.dropped() > 0);
}

TEST_CASE("a planner whose allocations fail is not made, or works") {
  Fixture f(3);
  std::unique_ptr<CheckpointPlanner> planner;
  const auto failures = test::fail_each_allocation(
      [&](std::uint64_t) { planner = std::make_unique<CheckpointPlanner>(f.states, CheckpointPlannerOptions{}); },
      [](std::uint64_t) {});
  CHECK(failures > 3);
  REQUIRE(planner);
  planner->check_invariants();
}
