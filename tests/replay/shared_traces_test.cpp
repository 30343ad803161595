// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <filesystem>
#include <string>

#include <doctest/doctest.h>

#include "replayer.hpp"
#include "slots_cache.hpp"
#include "trace.hpp"

using namespace stateport::replay;

namespace {

#ifdef STATEPORT_ENABLE_ASSERT
constexpr bool assertions_on = true;
#else
constexpr bool assertions_on = false;
#endif

/// Token hit rate in per cent with a cache that never evicts.
double unlimited_hit_rate(const Workload& workload, CheckpointMode mode) {
  const std::int64_t distinct = workload.distinct_blocks();
  const std::int64_t slots = states_max(mode, static_cast<std::int64_t>(workload.size()), distinct);
  SlotsCache cache({.blocks = static_cast<std::int32_t>(distinct),
                    .slots = static_cast<std::int32_t>(slots),
                    .hash = stateport::BlockHashKind::xxh3_128});
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
  const auto near = [](double a, double b) { return std::abs(a - b) <= 0.01; };
  CHECK(near(unlimited_hit_rate(trace.workload, CheckpointMode::every), every));
  CHECK(near(unlimited_hit_rate(trace.workload, CheckpointMode::last), last));
  CHECK(near(unlimited_hit_rate(trace.workload, CheckpointMode::branch), branch));
}

}  // namespace

TEST_CASE("an unlimited cache has the hit rates of the independent simulator on the conversation trace") {
  check_hit_rates("conversation.jsonl", 37.34, 34.97, 35.86);
}

TEST_CASE("an unlimited cache has the hit rates of the independent simulator on the agent sessions") {
  check_hit_rates("agent_sessions.jsonl", 94.96, 94.49, 94.75);
}
