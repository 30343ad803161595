// SPDX-License-Identifier: Apache-2.0
// Calls that the headers of core allow to several threads at once.
#include <stateport/core/hash/block_hasher.hpp>
#include <stateport/core/pool/block_pool.hpp>
#include <stateport/core/pool/copy_plan.hpp>
#include <stateport/core/serve/request_cache.hpp>
#include <stateport/core/slots/prefix_matcher.hpp>

#include "combination.hpp"
#include "on_threads.hpp"
#include "random_numbers.hpp"

#include <array>
#include <cstdint>
#include <vector>

using namespace stateport;
using test::by_tokens;
using test::Combination;
using test::every_combination;
using test::index_of;
using test::must;
using test::on_threads;

namespace {

constexpr std::int32_t block_size = 4;

RequestCacheOptions options_of(Combination index) {
  RequestCacheOptions options{.index = index_of(index),
                              .max_requests = 2,
                              .max_request_tokens = 80,
                              .block_size_tokens = block_size,
                              .kv_tokens = 240,
                              .memory = {.state_bytes = 100, .kv_bytes_per_token = 1},
                              .position_tokens = 4,
                              .hash = BlockHashKind::sha256};
  if (in_columns(index))
    options.layout = ColumnLayout{
        .groups = {{.block_size_tokens = block_size, .blocks = 30, .conv_window = 3, .layout_fingerprint = 7}}};
  else
    options.layout = SlotLayout{.layout_fingerprint = 7, .checkpoints = 6};
  if (index != Combination::hash_columns)
    options.eviction = by_tokens(index) ? EvictionOrder::hix : EvictionOrder::gdsf;
  options.tiers = {.host_bytes = 4000, .file_bytes = 4000};
  return options;
}

void move_all(RequestCache& cache, TransferPlan transfers) {
  while (!transfers.empty()) {
    std::vector<TransferResult> results;
    for (const Transfer& transfer : transfers)
      if (transfer.kind != Transfer::Kind::drop) results.push_back({.id = transfer.id});
    transfers = cache.tiers()->settle(results).transfers;
  }
}

/// Serves one prompt, and a token more. Returns the tokens that it did not compute.
std::int64_t serve(RequestCache& cache, const std::vector<Token>& prompt, double now_s) {
  const auto started = cache.start({.tokens = prompt, .now_s = now_s});
  must(started.has_value(), "a request finds no room");
  move_all(cache, started->transfers);
  const std::int64_t reused = cache.computed(started->request);
  while (cache.computed(started->request) < std::ssize(prompt)) {
    const std::int64_t left = std::ssize(prompt) - cache.computed(started->request);
    const PassRow row{.request = started->request,
                      .tokens = static_cast<std::int32_t>(cache.chunk(started->request, left).tokens)};
    const PassPlan plan = cache.plan({&row, 1});
    must(plan.rows_without_room == 0, "a row finds no room");
    move_all(cache, plan.transfers);
    const bool ends = row.tokens == left;
    const std::int32_t count = ends ? 1 : 0;
    const Token token = 1;
    move_all(cache, cache.commit(plan.pass, {&count, 1}, {&token, ends ? std::size_t{1} : 0}).transfers);
  }
  cache.finish(started->request);
  move_all(cache, cache.tiers()->settle({}).transfers);
  return reused;
}

}  // namespace

TEST_CASE("caches on threads of their own, of each index and layout, serve as one alone does") {
  constexpr std::array indexes = every_combination;
  const auto life = [&](std::size_t number) {
    const auto cache = make_request_cache(options_of(indexes[number % indexes.size()]));
    test::Random random(number % indexes.size());
    std::int64_t reused = 0;
    for (int request = 0; request < 150; ++request) {
      std::vector<Token> prompt(static_cast<std::size_t>(random.between(8, 60)), random.between32(0, 3));
      reused += serve(*cache, prompt, request);
    }
    cache->check_invariants();
    return reused;
  };
  std::array<std::int64_t, indexes.size()> alone = {};
  for (std::size_t number = 0; number < alone.size(); ++number) CHECK((alone[number] = life(number)) > 0);
  on_threads(2 * alone.size(), [&](std::size_t number) {
    must(life(number) == alone[number % alone.size()], "a cache served otherwise beside others");
  });
}

TEST_CASE("plans are validated by any number of threads, each with its own answer") {
  on_threads(4, [](std::size_t number) {
    const auto first = static_cast<std::int32_t>(100 * number);
    std::vector<SlotCopy> plan;
    for (std::int32_t i = 0; i < 40; ++i) plan.push_back(SlotCopy::whole(first + i, first + 40 + i));
    for (int round = 0; round < 200; ++round) {
      validate(plan, 400, 400, true);
      bool is_refused = false;
      try {
        validate(plan, 400, first + 41, true);
      } catch (const std::logic_error&) {
        is_refused = true;
      }
      must(is_refused, "a plan into slots that are not there is taken");
    }
  });
}

TEST_CASE("one directory is searched by several matchers at a time, and one matcher by several threads") {
  constexpr std::int32_t count = 20;
  BlockPool blocks({.blocks = count + 1});
  SlotPool slots(count);
  SlotAllocator states(slots, blocks);
  std::vector<BlockId> held(count);
  REQUIRE(blocks.allocate(held));
  std::vector<BlockHash> keys;
  std::vector<PrefixHash> prefixes;
  for (std::int32_t i = 0; i < count; ++i) {
    keys.push_back(i + 1);
    prefixes.push_back({{static_cast<std::uint64_t>(i) + 1, 77}});
    const BlockHash parent = i;
    blocks.register_hashes({&held[static_cast<std::size_t>(i)], 1}, {&keys.back(), 1}, {&parent, 1});
    if (i % 3 != 0) continue;
    SlotId slot;
    states.allocate({&held[static_cast<std::size_t>(i)], 1}, {&slot, 1});
    states.set_tag(held[static_cast<std::size_t>(i)], {.token_count = (i + 1) * block_size, .prefix = prefixes.back()});
    states.register_hashes({&held[static_cast<std::size_t>(i)], 1}, {&keys.back(), 1});
  }
  const PrefixMatcher shared(blocks, &states, {.block_size_tokens = block_size});
  on_threads(4, [&](std::size_t number) {
    const PrefixMatcher own(blocks, &states, {.block_size_tokens = block_size});
    std::vector<BlockId> matched(keys.size());
    for (int round = 0; round < 300; ++round) {
      const BlockMatch match =
          (number % 2 == 0 ? shared : own)
              .match({.chunk_tokens = count * block_size, .keys = keys, .prefixes = prefixes}, matched);
      must(match.matched_blocks == count && match.state_blocks == 19, "a matcher found less beside others");
    }
  });
}

TEST_CASE("hashers of threads of their own hash alike") {
  constexpr std::array kinds = {BlockHashKind::sha256, BlockHashKind::xxh3_128};
  const std::vector<Token> tokens(16, 5);
  on_threads(4, [&](std::size_t number) {
    for (int round = 0; round < 100; ++round) {
      BlockHasher one({.kind = kinds[number % 2], .block_size_tokens = 16});
      BlockHasher other({.kind = kinds[number % 2], .block_size_tokens = 16});
      must(one.hash_block({}, tokens).prefix() == other.hash_block({}, tokens).prefix(),
           "a hash differs beside others");
    }
  });
}
