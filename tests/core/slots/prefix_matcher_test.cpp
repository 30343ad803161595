// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/slots/prefix_matcher.hpp>

#include <stateport/core/model/error.hpp>
#include <stateport/core/pool/block_pool.hpp>

#include "heap_counter.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <vector>

using namespace stateport;

namespace {

constexpr std::int32_t block_size = 16;

PrefixHash prefix_of(std::int32_t index) {
  return {{static_cast<std::uint64_t>(index) + 1, 77}};
}

/// One prompt of 20 blocks: block i of the pool holds the i-th of them.
struct MatcherFixture {
  MatcherFixture() : blocks({.blocks = 41}), slots(20), states(slots, blocks) {
    held.resize(40);
    REQUIRE(blocks.allocate(held));
    for (std::int32_t i = 0; i < 20; ++i) {
      keys.push_back(i + 1);
      prefixes.push_back(prefix_of(i));
    }
  }
  void cache_blocks(std::int32_t count) {
    for (std::int32_t i = 0; i < count; ++i) cache_block(i);
  }
  void cache_block(std::int32_t i) {
    const BlockId block{i};
    const BlockHash hash = i + 1;
    const BlockHash parent = i;
    blocks.register_hashes({&block, 1}, {&hash, 1}, {&parent, 1});
  }
  void store(std::int32_t i) {
    const BlockId block{i};
    const BlockHash hash = i + 1;
    SlotId slot;
    states.allocate({&block, 1}, {&slot, 1});
    states.set_tag(block, {.token_count = (i + 1) * block_size, .prefix = prefix_of(i)});
    states.register_hashes({&block, 1}, {&hash, 1});
  }
  BlockMatch match(std::int64_t chunk, std::int32_t min_remaining = 1, std::int64_t finished = 0, bool hybrid = true) {
    const PrefixMatcher matcher(
        blocks, &states, {.block_size_tokens = block_size, .min_remaining_tokens = min_remaining, .hybrid = hybrid});
    std::vector<BlockId> out(keys.size());
    return matcher.match({.finished_tokens = finished, .chunk_tokens = chunk, .keys = keys, .prefixes = prefixes}, out);
  }

  BlockPool blocks;
  SlotPool slots;
  SlotAllocator states;
  std::vector<BlockId> held;
  std::vector<BlockHash> keys;
  std::vector<PrefixHash> prefixes;
};

}  // namespace

TEST_CASE("a skip ends at a state, and names the lost tokens and the reason") {
  MatcherFixture f;
  f.cache_blocks(5);
  const BlockMatch none = f.match(320);
  CHECK(none.matched_blocks == 5);
  CHECK(none.new_blocks() == 15);
  CHECK(none.skip_tokens == 0);
  CHECK(none.lost == LostHit::no_checkpoint);
  CHECK(none.lost_tokens == 80);
  f.store(2);
  f.store(7);  // outside the KV match
  const BlockMatch some = f.match(320);
  CHECK(some.skip_tokens == 48);
  CHECK(some.state_blocks == 3);
  REQUIRE(some.state);
  CHECK(some.state->block == BlockId{2});
  CHECK(some.wanted.token_count == 48);
  CHECK(f.states.restore_to_live(some.state->block, SlotId{0}, some.wanted));
  CHECK(some.lost_tokens == 32);
  f.store(4);
  const BlockMatch all = f.match(320);
  CHECK(all.skip_tokens == 80);
  CHECK_FALSE(all.lost);
}

TEST_CASE("too few tokens left: the next lower block that has a state, else none") {
  MatcherFixture f;
  f.cache_blocks(4);
  f.store(3);
  CHECK(f.match(64).skip_tokens == 0);
  CHECK(f.match(64).lost == LostHit::too_few_tokens);
  CHECK(f.match(65).skip_tokens == 64);
  CHECK(f.match(65, 2).skip_tokens == 0);
  f.store(1);
  CHECK(f.match(64).skip_tokens == 32);
  CHECK(f.match(64).lost == LostHit::too_few_tokens);
}

TEST_CASE("a state that was evicted is named as the reason") {
  MatcherFixture f;
  f.cache_blocks(4);
  for (std::int32_t i = 0; i < 20; ++i) f.store(i);
  f.blocks.release(std::span(f.held).subspan(3, 1));
  SlotId slot;
  const BlockId other{30};
  f.states.allocate({&other, 1}, {&slot, 1});
  const BlockMatch match = f.match(320);
  CHECK(match.skip_tokens == 48);
  CHECK(match.lost == LostHit::evicted);
}

TEST_CASE("a collision of keys is a miss") {
  MatcherFixture f;
  f.cache_blocks(4);
  f.store(1);
  f.store(3);
  f.prefixes[3].words[1] ^= 1;
  CHECK(f.match(320).skip_tokens == 32);
}

TEST_CASE("a continuation chunk of a hybrid model skips nothing, one of an attention model does") {
  MatcherFixture f;
  f.cache_blocks(8);
  f.store(5);
  const BlockMatch hybrid = f.match(100, 1, 64);
  CHECK(hybrid.first_block == 4);
  CHECK(hybrid.matched_blocks == 4);
  CHECK(hybrid.skip_tokens == 0);
  CHECK_FALSE(hybrid.state);
  CHECK(f.match(100, 1, 64, false).skip_tokens == 64);
  CHECK(f.match(64, 1, 64, false).skip_tokens == 48);
  CHECK(f.match(100, 1, 60, false).skip_tokens == 68);
}

TEST_CASE("without a state cache a hybrid model shares KV and skips nothing") {
  MatcherFixture f;
  f.cache_blocks(3);
  const PrefixMatcher matcher(f.blocks, nullptr, {.block_size_tokens = block_size});
  std::vector<BlockId> out(f.keys.size());
  const BlockMatch match = matcher.match({.chunk_tokens = 320, .keys = f.keys, .prefixes = f.prefixes}, out);
  CHECK(match.matched_blocks == 3);
  CHECK(match.skip_tokens == 0);
  CHECK(match.lost == LostHit::no_checkpoint);
}

TEST_CASE("a prefix matcher refuses bad input") {
  MatcherFixture f;
  CHECK_THROWS_AS(PrefixMatcher(f.blocks, nullptr, {.block_size_tokens = 0}), InvalidArgument);
  CHECK_THROWS_AS(PrefixMatcher(f.blocks, nullptr, {.min_remaining_tokens = 0}), InvalidArgument);
  const PrefixMatcher matcher(f.blocks, &f.states, {.block_size_tokens = block_size});
  std::vector<BlockId> out(f.keys.size());
  const auto match = [&](const MatchQuery& query, std::span<BlockId> room) { return matcher.match(query, room); };
  CHECK_THROWS_AS(match({.finished_tokens = -1}, out), InvalidArgument);
  CHECK_THROWS_AS(match({.chunk_tokens = -1}, out), InvalidArgument);
  CHECK_THROWS_AS(match({.finished_tokens = INT64_MAX, .chunk_tokens = INT64_MAX}, out), InvalidArgument);
  CHECK_THROWS_AS(match({.chunk_tokens = 1, .keys = f.keys}, out), InvalidArgument);
  CHECK_THROWS_AS(match({.chunk_tokens = 1, .keys = f.keys, .prefixes = f.prefixes}, std::span(out).first(3)),
                  InvalidArgument);
}

TEST_CASE("random matches agree with the rule read literally, and allocate nothing") {
  test::for_each_seed(2000, [](test::Random& random, std::uint64_t) {
    MatcherFixture f;
    std::set<std::int32_t> cached;
    std::set<std::int32_t> stored;
    for (std::int32_t i = 0; i < 20; ++i) {
      if (random.chance(80)) cached.insert(i);
      if (random.chance(30)) stored.insert(i);
    }
    for (const std::int32_t i : cached) f.cache_block(i);
    for (const std::int32_t i : stored) f.store(i);
    const std::int64_t finished = random.chance(70) ? 0 : random.between(1, 200);
    const std::int64_t chunk = random.between(0, 330);
    const auto min_remaining = random.between32(1, 20);
    const std::uint64_t before = test::heap_allocations();
    const PrefixMatcher matcher(f.blocks, &f.states,
                                {.block_size_tokens = block_size, .min_remaining_tokens = min_remaining});
    std::array<BlockId, 20> out;
    const BlockMatch match = matcher.match(
        {.finished_tokens = finished, .chunk_tokens = chunk, .keys = f.keys, .prefixes = f.prefixes}, out);
    REQUIRE(test::heap_allocations() == before);

    const auto first = static_cast<std::int32_t>((finished + block_size - 1) / block_size);
    const auto end = static_cast<std::int32_t>((finished + chunk + block_size - 1) / block_size);
    std::int32_t matched = 0;
    while (first + matched < std::min(end, 20) && cached.contains(first + matched)) ++matched;
    REQUIRE(match.matched_blocks == matched);
    std::int64_t skip = 0;
    for (std::int32_t i = 0; finished == 0 && i < matched; ++i)
      if (stored.contains(i) && chunk - (i + 1) * block_size >= min_remaining) skip = (i + 1) * block_size;
    REQUIRE(match.skip_tokens == skip);
    REQUIRE(match.state.has_value() == (skip > 0));
    REQUIRE(match.lost.has_value() == (match.lost_tokens > 0));
    if (skip > 0) REQUIRE(f.states.restore_to_live(match.state->block, SlotId{0}, match.wanted));
  });
}
