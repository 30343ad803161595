// SPDX-License-Identifier: Apache-2.0
// Construction takes all the memory that a request cache ever takes.
#include <stateport/core/serve/request_cache.hpp>

#include "frugal_cache.hpp"
#include "random.hpp"
#include "random_engine.hpp"
#include "state_world.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <memory>

using namespace stateport;
using stateport::test::Below;
using stateport::test::columns;
using stateport::test::Combination;
using stateport::test::every_combination;
using stateport::test::FrugalCache;
using stateport::test::Random;
using stateport::test::RandomEngine;

namespace {

void serve_without_allocating(Combination index, Below below, bool arena = false) {
  CAPTURE(static_cast<int>(index));
  CAPTURE(static_cast<int>(below));
  test::for_each_seed(100, [&](Random& random, std::uint64_t) {
    RequestCacheOptions options = test::random_options(random, index);
    constexpr std::array hashes = {BlockHashKind::sha256, BlockHashKind::xxh3_128};
    options.hash = hashes[static_cast<std::size_t>(random.between(0, 1))];
    options.scrub = random.chance(50);
    if (arena) test::draw_arena(random, options);
    if (below != Below::nothing) options.tiers = test::random_tiers(random, options);
    options.integrity = random.chance(50);
    RandomEngine engine(random, options, below == Below::states_alone && options.tiers.enabled(),
                        [](const RequestCacheOptions& made) { return std::make_unique<FrugalCache>(made); });
    if (random.chance(50)) engine.habits.changes_weights = true;
    engine.habits.damages = options.integrity && options.tiers.remote_bytes == 0;
    for (int step = 0; step < 100; ++step) engine.step();
    engine.finish();
  });
}

}  // namespace

TEST_CASE("no call of a request cache allocates") {
  for (const Combination index : every_combination) serve_without_allocating(index, Below::nothing);
}

TEST_CASE("nor does any call of one with tiers") {
  for (const Combination index : every_combination)
    for (const Below below : {Below::tiers, Below::states_alone}) serve_without_allocating(index, below);
}

TEST_CASE("nor does any call of one in an arena") {
  for (const Combination index : test::slot_combinations)
    for (const Below below : {Below::nothing, Below::tiers}) serve_without_allocating(index, below, true);
}

TEST_CASE("nor does an attach, whether images make a whole state or not") {
  std::int64_t seeds = 0, drops = 0;
  test::for_each_seed(300, [&](Random& random, std::uint64_t) {
    RequestCacheOptions options = test::random_options(random, Combination::hash_columns);
    columns(options).groups.resize(1);
    columns(options).groups.push_back(columns(options).groups[0]);
    ++seeds;
    if (columns(options).mode == AlignMode::none) return;  // has no tiers
    options.tiers = {.file_bytes = 8 * options.memory.state_bytes +
                                   12 * options.memory.kv_bytes_per_token * options.block_size_tokens};
    FrugalCache cache(options);
    const std::int64_t block = columns(options).groups[0].block_size_tokens;
    for (int i = 0; i < 200; ++i) {
      const auto prefix = static_cast<std::uint64_t>(random.between(1, 12));
      const bool is_kv = random.chance(30);
      static_cast<void>(
          cache.tiers()->attach(Medium::file, {.prefix = {{prefix, 1}},
                                               .tokens = block,
                                               .content = is_kv ? CacheContent::kv_block : CacheContent::state,
                                               .group = is_kv ? 0 : random.between32(0, 1)}));
      cache.check_invariants();
      if (random.chance(20)) drops += std::ssize(cache.tiers()->settle({}).transfers);
    }
  });
  if (seeds >= 10) CHECK(drops > 0);
}

TEST_CASE("nor does a pass that saves at the end of one block for each of two requests") {
  FrugalCache cache({.index = CacheIndex::hash,
                     .layout = SlotLayout{.checkpoints = 1, .placement = CheckpointPlacement::every},
                     .max_requests = 2,
                     .max_request_tokens = 4,
                     .block_size_tokens = 1,
                     .kv_tokens = 4,
                     .unchecked_layout = true});
  const std::array<Token, 4> prompt = {1, 2, 3, 4};
  const auto run = [&](std::size_t requests) {
    std::array<PassRow, 2> rows;
    for (PassRow& row : std::span(rows).first(requests)) {
      const auto started = cache.start({.tokens = prompt});
      REQUIRE(started);
      row = {.request = started->request, .tokens = static_cast<std::int32_t>(4 - started->reused_tokens)};
    }
    const PassPlan plan = cache.plan(std::span(rows).first(requests));
    std::size_t saves = 0;
    for (const RowPlan& row : plan.rows) saves += row.states[0].saves.size();
    const std::array<std::int32_t, 2> counts = {};
    static_cast<void>(cache.commit(plan.pass, std::span(counts).first(requests), {}));
    for (const PassRow& row : std::span(rows).first(requests)) cache.finish(row.request);
    return saves;
  };
  CHECK(run(1) == 3);
  CHECK(run(2) == 6);
  CHECK(saves_max(cache.options()) >= 6);
}
