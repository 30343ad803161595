// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "arena_world.hpp"
#include "combination.hpp"
#include "random_engine.hpp"

#include <doctest/doctest.h>

#include <cstdint>

using namespace stateport;
using namespace stateport::test;

namespace {

enum class Damaged : std::uint8_t { device, tiers, arena, forks, weights };

/// Images of a remote store cannot be withdrawn.
TierOptions local_tiers(Random& random, const RequestCacheOptions& options) {
  TierOptions tiers = random_tiers(random, options);
  if (tiers.remote_bytes > 0) {
    tiers.host_bytes += tiers.remote_bytes;
    tiers.remote_bytes = 0;
    tiers.write_through = tiers.write_through && tiers.file_bytes > 0;
  }
  return tiers;
}

}  // namespace

TEST_CASE("whoever writes to checkpoints, no pass reads a wrong state, and nothing else is called wrong") {
  for (const Combination index : every_combination)
    for (const Damaged kind : {Damaged::device, Damaged::tiers, Damaged::arena, Damaged::forks, Damaged::weights}) {
      if (kind == Damaged::arena && in_columns(index)) continue;
      CAPTURE(static_cast<int>(index));
      CAPTURE(static_cast<int>(kind));
      RandomRuns runs;
      for_each_seed(100, [&](Random& random, std::uint64_t) {
        RequestCacheOptions options = random_options(random, index);
        options.integrity = true;
        options.scrub = random.chance(20);
        if (kind == Damaged::arena) draw_arena(random, options);
        if (kind == Damaged::tiers || random.chance(30)) options.tiers = local_tiers(random, options);
        RandomEngine engine(random, options);
        engine.habits = {.changes_weights = kind == Damaged::weights,
                         .crowds = random.chance(30),
                         .forks = kind == Damaged::forks,
                         .trees = random.chance(30),
                         .damages = true};
        for (int step = 0; step < 200; ++step) engine.step();
        runs.add(engine);
        ++runs.seeds;
      });
      if (runs.seeds < 100) continue;
      CHECK(runs.checks > 100);
      CHECK(runs.damaged > 100);
      CHECK(runs.faults > 10);
      CHECK(runs.withdrawn > 10);
    }
}
