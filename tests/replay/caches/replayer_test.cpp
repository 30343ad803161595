// SPDX-License-Identifier: Apache-2.0
#include "caches/replayer.hpp"

#include "caches/slots_cache.hpp"
#include "caches/tree_cache.hpp"
#include "workload/generator.hpp"

#include <doctest/doctest.h>

#include <map>
#include <vector>

using namespace stateport::replay;

namespace {

/// Remembers which prefix each slot holds, and says so when a request is given another one's state.
class RememberedStates final : public StateMover {
 public:
  std::uint64_t start(stateport::SlotId slot, Content at) override {
    const Content live = slot.valid() ? held_.at(slot.value()) : empty_content;
    started_at_ = at;
    counts_.restores += slot.valid();
    counts_.verified += slot.valid();
    counts_.mismatches += live != at;
    return live != at ? 1 : 0;
  }
  void advance(Content from, Content, std::span<const PlacedState> checkpoints) override {
    CHECK(from == started_at_);
    for (const PlacedState& state : checkpoints) held_[state.slot.value()] = state.content;
    counts_.commits += static_cast<std::int64_t>(checkpoints.size());
  }
  [[nodiscard]] MoverCounts counts() const override { return counts_; }
  void spoil(std::int32_t slot) { held_.at(slot) += 2; }

 private:
  std::map<std::int32_t, Content> held_;
  Content started_at_ = empty_content;
  MoverCounts counts_;
};

template <class Cache>
ReplayCounts replay(const Workload& workload, CheckpointMode mode, std::int32_t slots, StateMover& states) {
  Cache cache({.blocks = 8 * slots + 400, .slots = slots});
  Replayer replayer(workload, cache, states, mode);
  replayer.run([](std::int64_t) { return true; });
  cache.check_invariants();
  return replayer.counts();
}

constexpr CheckpointMode modes[] = {CheckpointMode::every, CheckpointMode::last, CheckpointMode::branch};

}  // namespace

TEST_CASE_TEMPLATE("every restored state is the one that the prompt needs, however often slots change hands", Cache,
                   SlotsCache, TreeCache) {
  for (const WorkloadKind kind : {WorkloadKind::chat, WorkloadKind::agent, WorkloadKind::shared_prompt}) {
    const Workload workload = generate_workload({.kind = kind, .requests = 300});
    for (const CheckpointMode mode : modes) {
      for (const std::int32_t slots : {1, 7, 64}) {
        RememberedStates states;
        const ReplayCounts counts = replay<Cache>(workload, mode, slots, states);
        CHECK(counts.requests == 300);
        CHECK(counts.first_mismatch.empty());
        CHECK(states.counts().mismatches == 0);
        CHECK(states.counts().restores == counts.requests_hit);
      }
    }
  }
}

TEST_CASE("with more slots the hit rate grows, and few slots are best spent on branch points and ends") {
  for (const WorkloadKind kind : {WorkloadKind::agent, WorkloadKind::shared_prompt}) {
    const Workload workload = generate_workload({.kind = kind, .requests = 600});
    std::map<CheckpointMode, double> before;
    for (const std::int32_t slots : {8, 32, 128, 512}) {
      std::map<CheckpointMode, double> rate;
      for (const CheckpointMode mode : modes) {
        NoStates states;
        rate[mode] = replay<SlotsCache>(workload, mode, slots, states).token_hit_rate();
        CHECK(rate[mode] >= before[mode]);
      }
      if (slots <= 128) {
        CHECK(rate[CheckpointMode::branch] >= rate[CheckpointMode::last]);
        CHECK(rate[CheckpointMode::last] >= rate[CheckpointMode::every]);
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
  SlotsCache cache({.blocks = 8, .slots = 4, .block_size_tokens = 4});
  RememberedStates states;
  Replayer replayer(workload, cache, states, CheckpointMode::last);
  replayer.run([&](std::int64_t served) {
    if (served == 1) states.spoil(3);
    return true;
  });
  CHECK(
      replayer.counts().first_mismatch ==
      "request 1: what was restored from slot 3 is not the state after 2 blocks of its prompt (1 wrong 16-byte words)");
  CHECK(states.counts().mismatches == 2);
}

TEST_CASE("a replay that is told to stop has the counts so far") {
  const Workload workload = generate_workload({.requests = 50});
  SlotsCache cache({.blocks = 1000, .slots = 50});
  NoStates states;
  Replayer replayer(workload, cache, states, CheckpointMode::branch);
  replayer.run([](std::int64_t served) { return served < 20; });
  CHECK(replayer.counts().requests == 20);
  CHECK(replayer.counts().wall_seconds > 0);
}
