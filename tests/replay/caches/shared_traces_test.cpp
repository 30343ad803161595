// SPDX-License-Identifier: Apache-2.0
#include "caches/replayer.hpp"
#include "caches/slots_cache.hpp"
#include "caches/tree_cache.hpp"
#include "workload/trace.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <string>

using namespace stateport::replay;

namespace {

#ifdef STATEPORT_ENABLE_ASSERT
constexpr bool assertions_on = true;
#else
constexpr bool assertions_on = false;
#endif

/// Token hit rate in per cent with a cache that never evicts.
template <class Cache, class CacheOptions>
double unlimited_hit_rate(const Workload& workload, CheckpointMode mode) {
  const std::int64_t distinct = workload.distinct_blocks();
  const std::int64_t slots = states_max(mode, static_cast<std::int64_t>(workload.size()), distinct);
  CacheOptions options{.blocks = static_cast<std::int32_t>(distinct), .slots = static_cast<std::int32_t>(slots)};
  if constexpr (requires { options.hash; }) options.hash = stateport::BlockHashKind::xxh3_128;
  Cache cache(options);
  NoStates states;
  Replayer replayer(workload, cache, states, mode);
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
  if constexpr (assertions_on) {
    MESSAGE("read, not replayed: millions of blocks are too slow with assertions and sanitizers");
    return;
  }
  const auto check = [&](CheckpointMode mode, double rate) {
    const auto near = [&](double found) { return std::abs(found - rate) <= 0.01; };
    CHECK(near(unlimited_hit_rate<SlotsCache, SlotsCacheOptions>(trace.workload, mode)));
    CHECK(near(unlimited_hit_rate<TreeCache, TreeCacheOptions>(trace.workload, mode)));
  };
  check(CheckpointMode::every, every);
  check(CheckpointMode::last, last);
  check(CheckpointMode::branch, branch);
}

}  // namespace

TEST_CASE("unlimited caches have the hit rates of the independent simulator on the conversation trace") {
  check_hit_rates("conversation.jsonl", 37.34, 34.97, 35.86);
}

TEST_CASE("unlimited caches have the hit rates of the independent simulator on the agent sessions") {
  check_hit_rates("agent_sessions.jsonl", 94.96, 94.49, 94.75);
}
