// SPDX-License-Identifier: Apache-2.0
#include "caches/replayer.hpp"

#include "caches/served_cache.hpp"
#include "symbolic_passes.hpp"
#include "workload/generator.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <vector>

using namespace stateport::replay;
using namespace stateport::replay::test;
using stateport::CacheIndex;
using stateport::CheckpointPlacement;

namespace {

ServedCache make_cache(CacheIndex index, const Workload& workload, CheckpointPlacement placement, std::int64_t slots) {
  return ServedCache({.index = index,
                      .blocks = 8 * slots + 400,
                      .slots = slots,
                      .longest_blocks = workload.longest_blocks(),
                      .placement = placement});
}

ReplayCounts replay_all(const Workload& workload, ServedCache& cache, PassMover& states) {
  Replayer replayer(workload, cache, states);
  replayer.run([](std::int64_t) { return true; });
  cache.check_invariants();
  return replayer.counts();
}

constexpr CheckpointPlacement placements[] = {CheckpointPlacement::every, CheckpointPlacement::last,
                                              CheckpointPlacement::branch};

}  // namespace

TEST_CASE("every restored state is the one that the prompt needs, however often slots change hands") {
  for (const WorkloadKind kind : {WorkloadKind::chat, WorkloadKind::agent, WorkloadKind::shared_prompt}) {
    const Workload workload = generate_workload({.kind = kind, .requests = 300});
    for (const CacheIndex index : {CacheIndex::hash, CacheIndex::tree})
      for (const CheckpointPlacement placement : placements)
        for (const std::int64_t slots : {1, 7, 64}) {
          ServedCache cache = make_cache(index, workload, placement, slots);
          SymbolicPasses states(cache.room());
          const ReplayCounts counts = replay_all(workload, cache, states);
          CHECK(counts.requests == 300);
          CHECK(counts.first_mismatch.empty());
          CHECK(states.counts().mismatches == 0);
          CHECK(states.wrong_reads == 0);
          CHECK(states.counts().restores == counts.requests_hit);
        }
  }
}

TEST_CASE("with more slots the hit rate grows, and few slots are best spent on branch points and ends") {
  for (const WorkloadKind kind : {WorkloadKind::agent, WorkloadKind::shared_prompt}) {
    const Workload workload = generate_workload({.kind = kind, .requests = 600});
    std::map<CheckpointPlacement, double> before;
    for (const std::int64_t slots : {8, 32, 128, 512}) {
      std::map<CheckpointPlacement, double> rate;
      for (const CheckpointPlacement mode : placements) {
        NoPasses none;
        ServedCache cache = make_cache(CacheIndex::hash, workload, mode, slots);
        rate[mode] = replay_all(workload, cache, none).token_hit_rate();
        CHECK(rate[mode] >= before[mode]);
      }
      if (slots <= 128) {
        CHECK(rate[CheckpointPlacement::branch] >= rate[CheckpointPlacement::last]);
        CHECK(rate[CheckpointPlacement::last] >= rate[CheckpointPlacement::every]);
      }
      before = rate;
    }
  }
}

TEST_CASE("a wrong state is named once, with its request and slot") {
  Workload workload(4);
  const std::vector<BlockIdentity> blocks = {1, 2};
  workload.add({.input_tokens = 9}, blocks);
  workload.add({.input_tokens = 9}, blocks);
  workload.add({.input_tokens = 9}, blocks);
  ServedCache cache({.blocks = 8, .slots = 4, .block_size_tokens = 4, .placement = CheckpointPlacement::last});
  SymbolicPasses states(cache.room());
  Replayer replayer(workload, cache, states);
  replayer.run([&](std::int64_t served) {
    if (served == 1) states.spoil_all();
    return true;
  });
  CHECK(replayer.counts().first_mismatch ==
        "request 1: the restored content of slot 4 is not the state after 2 blocks of its prompt (1 wrong 16-byte "
        "words)");
  CHECK(states.counts().mismatches == 2);
}

TEST_CASE("of requests whose recorded hits are known the replay counts its own") {
  Workload workload(512);
  const std::vector<BlockIdentity> blocks = {1, 2, 3};
  workload.add({.input_tokens = 1600}, blocks);
  workload.add({.input_tokens = 1600}, blocks);
  workload.add({.input_tokens = 1700, .recorded_hit_tokens = 512}, std::vector<BlockIdentity>{1, 2, 3});
  workload.add({.input_tokens = 600, .recorded_hit_tokens = 0}, std::vector<BlockIdentity>{9});
  ServedCache cache = make_cache(CacheIndex::hash, workload, CheckpointPlacement::every, 8);
  SymbolicPasses states(cache.room());
  const ReplayCounts counts = replay_all(workload, cache, states);
  CHECK(counts.hit_tokens == 2 * 1536);
  CHECK(counts.recorded.requests == 2);
  CHECK(counts.recorded.input_tokens == 2300);
  CHECK(counts.recorded.recorded_tokens == 512);
  CHECK(counts.recorded.replayed_tokens == 1536);
}

TEST_CASE("a replay that is told to stop has the counts so far") {
  const Workload workload = generate_workload({.requests = 50});
  ServedCache cache({.blocks = 1000, .slots = 50});
  NoPasses states;
  Replayer replayer(workload, cache, states);
  replayer.run([](std::int64_t served) { return served < 20; });
  CHECK(replayer.counts().requests == 20);
  CHECK(replayer.counts().wall_seconds > 0);
}
