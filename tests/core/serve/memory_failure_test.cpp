// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/serve/request_cache.hpp>

#include "failing_cache.hpp"
#include "random.hpp"
#include "random_engine.hpp"
#include "state_world.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <memory>

using namespace stateport;
using stateport::test::FailingCache;
using stateport::test::Below;
using stateport::test::every_index;
using stateport::test::Random;
using stateport::test::RandomEngine;

namespace {

struct FailingDays {
  std::uint64_t days = 0;
  std::int64_t failures = 0;
};

/// Short days, whose caches are as new as their structures are small, and every tenth one longer.

FailingDays run_failing_days(std::uint64_t seeds, CacheIndex index, Below below = Below::nothing) {
  FailingDays run;
  test::for_each_seed(seeds, [&](Random& random, std::uint64_t seed) {
    RequestCacheOptions options = test::random_options(random, index);
    constexpr std::array hashes = {BlockHashKind::sha256, BlockHashKind::xxh3_128};
    options.hash = hashes[static_cast<std::size_t>(random.between(0, 1))];
    options.scrub = random.chance(50);
    if (below != Below::nothing) options.tiers = test::random_tiers(random, options);
    RandomEngine engine(random, options, below == Below::states_alone && options.tiers.enabled(),
                        [&](const RequestCacheOptions& made) {
                          return std::make_unique<FailingCache>(made, seed % 2 == 0, run.failures);
                        });
    const int steps = seed % 10 == 0 ? 150 : 25;
    for (int step = 0; step < steps; ++step) engine.step();
    engine.finish();
    ++run.days;
  });
  return run;
}

}  // namespace

TEST_CASE("no call of a request cache that runs out of memory, at any allocation, changes anything") {
  for (const CacheIndex index : every_index) {
    CAPTURE(static_cast<int>(index));
    const FailingDays run = run_failing_days(100, index);
    if (run.days == 100) CHECK(run.failures > 2000);
  }
}

TEST_CASE("nor does any call of one with tiers") {
  for (const CacheIndex index : every_index)
    for (const Below below : {Below::tiers, Below::states_alone}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(static_cast<int>(below));
      const FailingDays run = run_failing_days(100, index, below);
      if (run.days == 100) CHECK(run.failures > 2000);
    }
}

TEST_CASE("nor does an attach, whether images make a whole state or not") {
  std::int64_t seeds = 0, failures = 0, drops = 0;
  test::for_each_seed(300, [&](Random& random, std::uint64_t seed) {
    RequestCacheOptions options = test::random_options(random, CacheIndex::align);
    options.groups.resize(1);
    options.groups.push_back(options.groups[0]);
    ++seeds;
    if (options.align_mode == AlignMode::none) return;  // has no tiers
    options.tiers = {.file_bytes = 8 * options.memory.state_bytes +
                                   12 * options.memory.kv_bytes_per_token * options.block_size_tokens};
    FailingCache cache(options, seed % 2 == 0, failures);
    const std::int64_t block = options.groups[0].block_size_tokens;
    for (int i = 0; i < 40; ++i) {
      const auto prefix = static_cast<std::uint64_t>(random.between(1, 12));
      const bool is_kv = random.chance(30);
      static_cast<void>(
          cache.tiers()->attach(Medium::file, {.prefix = {{prefix, 1}},
                                               .tokens = block,
                                               .content = is_kv ? CacheContent::kv_block : CacheContent::state,
                                               .group = is_kv ? 0 : random.between32(0, 1)}));
      cache.check_invariants();
      if (random.chance(20)) drops += static_cast<std::int64_t>(cache.tiers()->take_transfers().transfers.size());
    }
  });
  if (seeds == 300) CHECK(failures > 300);
  if (seeds >= 10) CHECK(drops > 0);
}
