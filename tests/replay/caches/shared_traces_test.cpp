// SPDX-License-Identifier: Apache-2.0
#include "caches/checkpoint_depths.hpp"
#include "caches/replayer.hpp"
#include "caches/served_cache.hpp"
#include "random.hpp"
#include "workload/trace.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <string>

using namespace stateport::replay;
using stateport::CacheIndex;
using stateport::CheckpointPlacement;

namespace {

/// Token hit rate in per cent with a cache that never evicts.
double unlimited_hit_rate(CacheIndex index, const Workload& workload, CheckpointPlacement placement) {
  const std::int64_t distinct = workload.distinct_blocks();
  const std::int64_t slots = states_max(placement, static_cast<std::int64_t>(workload.size()), distinct);
  ServedCache cache({.index = index,
                     .blocks = distinct + workload.longest_blocks(),
                     .slots = slots + 1,
                     .longest_blocks = workload.longest_blocks(),
                     .placement = placement,
                     .hash = stateport::BlockHashKind::xxh3_128,
                     .tells_stored = false});
  NoPasses none;
  Replayer replayer(workload, cache, none, std::nullopt);
  replayer.run([](std::int64_t) { return true; });
  cache.check_invariants();
  CHECK(cache.counts().state_evictions == 0);
  CHECK(cache.counts().block_evictions == 0);
  CHECK(cache.counts().dropped_checkpoints == 0);
  return 100 * replayer.counts().token_hit_rate();
}

void check_hit_rates(const char* file, double every, double last, double branch) {
  const std::filesystem::path path = std::filesystem::path(STATEPORT_SHARED_DIR) / "traces" / file;
  if (!std::filesystem::exists(path)) {
    MESSAGE("skipped: no " << path.string());
    return;
  }
  const Trace trace = read_trace(path);
  if constexpr (stateport::test::assertions_on) {
    MESSAGE("read, not replayed: millions of blocks are too slow with assertions and sanitizers");
    return;
  }
  const auto check = [&](CheckpointPlacement placement, double rate) {
    for (const CacheIndex index : {CacheIndex::hash, CacheIndex::tree})
      CHECK(std::abs(unlimited_hit_rate(index, trace.workload, placement) - rate) <= 0.01);
  };
  check(CheckpointPlacement::every, every);
  check(CheckpointPlacement::last, last);
  check(CheckpointPlacement::branch, branch);
}

}  // namespace

TEST_CASE("unlimited caches have the hit rates of the independent simulator on the conversation trace") {
  check_hit_rates("conversation.jsonl", 37.34, 34.97, 35.86);
}

TEST_CASE("unlimited caches have the hit rates of the independent simulator on the agent sessions") {
  check_hit_rates("agent_sessions.jsonl", 94.96, 94.49, 94.75);
}
