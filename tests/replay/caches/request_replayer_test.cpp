// SPDX-License-Identifier: Apache-2.0
#include "caches/request_replayer.hpp"

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

#include "workload/generator.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using namespace stateport;
using namespace stateport::replay;

namespace {

using Blocks = std::vector<BlockIdentity>;

constexpr std::int32_t history = 3;

/// Moves symbols: a state is the names of the prefixes that end at its conv tokens, and that of the whole.
class SymbolicPasses final : public PassMover {
 public:
  explicit SymbolicPasses(const RequestReplayOptions& options)
      : history_(options.history_tokens),
        index_(options.cache.index),
        states_(static_cast<std::size_t>(state_slots(options.cache))),
        scratch_(static_cast<std::size_t>(scratch_slots(options.cache))) {
    for (State& state : states_) state.conv.resize(static_cast<std::size_t>(history_ + options.cache.drafts), nothing);
    for (State& state : scratch_) state.conv.resize(static_cast<std::size_t>(history_), nothing);
  }

  void before(const PassPlan& plan) override {
    for (const SlotId slot : plan.groups.front().clear) at(slot.value()).recurrent = empty_content;
    copy(plan.groups.front().copies);
  }
  void forward(const PassForward& forward) override {
    for (const StateWrite& write : forward.saves) make(write, forward);
    for (const StateWrite& write : forward.targets) make(write, forward);
  }
  void after(const PassCommit& commit) override {
    counts_.commits += commit.published_states;
    for (const SlotCopy& copied : commit.groups.front().from_scratch)
      at(copied.dst_slot) = scratch_.at(static_cast<std::size_t>(copied.src_slot));
    copy(commit.groups.front().copies);
  }
  std::uint64_t check(const RowState& state, std::span<const Content> window, bool restored) override {
    REQUIRE(window.size() == static_cast<std::size_t>(history_));
    std::uint64_t wrong = at(state.recurrent_source().value()).recurrent != window.back();
    const State& conv = at(state.conv_source().value());
    for (std::size_t t = 0; t < window.size(); ++t)
      wrong += conv.conv[t + static_cast<std::size_t>(state.read_bias)] != window[t];
    counts_.restores += restored;
    ++counts_.verified;
    counts_.mismatches += wrong != 0;
    return wrong;
  }
  [[nodiscard]] MoverCounts counts() const override { return counts_; }
  void spoil_all() {
    for (State& state : states_) state.recurrent += 2;
  }
  std::int64_t wrong_reads = 0;

 private:
  static constexpr Content nothing = 2;  ///< no name of a prefix is even
  struct State {
    std::vector<Content> conv;
    Content recurrent = nothing;
  };
  State& at(std::int32_t slot) {
    REQUIRE(slot > (index_ == CacheIndex::align ? null_block : -1));
    return states_.at(static_cast<std::size_t>(slot));
  }
  State& out(const StateWrite& write, std::int32_t slot) {
    return write.in_scratch ? scratch_.at(static_cast<std::size_t>(slot)) : at(slot);
  }

  void copy(CopyPlan copies) {
    for (const SlotCopy& copied : copies) {
      const Content recurrent = at(copied.recurrent_src_slot).recurrent;
      const std::vector<Content> conv = at(copied.src_slot).conv;
      std::copy(conv.begin() + copied.conv_shift, conv.end(), at(copied.dst_slot).conv.begin());
      at(copied.dst_slot).recurrent = recurrent;
    }
  }

  void make(const StateWrite& write, const PassForward& forward) {
    if (write.conv_in >= 0) {
      wrong_reads += at(write.recurrent_in).recurrent != write.from;
      wrong_reads += at(write.conv_in).conv.at(static_cast<std::size_t>(write.bias + history_ - 1)) != write.from;
    }
    const auto window = forward.window.subspan(write.first_content, static_cast<std::size_t>(history_ + write.drafts));
    std::ranges::copy(window, out(write, write.conv_out).conv.begin());
    for (std::int32_t j = 0; j <= write.drafts; ++j)
      out(write, forward.recurrent_out[write.first_out + static_cast<std::size_t>(j)]).recurrent =
          window[static_cast<std::size_t>(history_ - 1 + j)];
  }

  std::int32_t history_;
  CacheIndex index_;
  std::vector<State> states_;
  std::vector<State> scratch_;
  MoverCounts counts_;
};

/// Looks at the cache after every request.
void serve_all(RequestReplayer& replayer) {
  replayer.run([&](std::int64_t) {
    replayer.check_invariants();
    return true;
  });
}

RequestReplayOptions align_options(const Workload& workload, std::int32_t blocks, std::int32_t drafts = 0,
                                   bool asynchronous = false) {
  return {.cache = align_cache_options(workload, blocks, drafts, asynchronous), .history_tokens = history};
}

/// The same requests by another index, with room for less.
RequestReplayOptions options_of(CacheIndex index, const Workload& workload, bool asynchronous) {
  return {.cache = pool_cache_options(workload, index, 2 * served_blocks_min(workload), 20, asynchronous),
          .history_tokens = history};
}

}  // namespace

TEST_CASE("every state that is continued from, published or left at an end is right, with any drafts and counters") {
  for (const WorkloadKind kind : {WorkloadKind::chat, WorkloadKind::agent, WorkloadKind::shared_prompt})
    for (const std::int64_t block_size : {16, 512})
      for (const std::int32_t drafts : {0, 1, 3})
        for (const bool asynchronous : {false, true}) {
          CAPTURE(static_cast<int>(kind));
          CAPTURE(block_size);
          CAPTURE(drafts);
          CAPTURE(asynchronous);
          const Workload workload = generate_workload({.kind = kind, .requests = 40, .block_size_tokens = block_size});
          const RequestReplayOptions options = align_options(workload, 90, drafts, asynchronous);
          SymbolicPasses states(options);
          RequestReplayer replayer(workload, options, states);
          serve_all(replayer);
          CHECK(replayer.counts().requests == 40);
          CHECK(replayer.counts().first_mismatch.empty());
          CHECK(states.wrong_reads == 0);
          CHECK(states.counts().mismatches == 0);
          CHECK(states.counts().restores == replayer.counts().requests_hit);
          const std::int64_t ends = asynchronous ? 0 : 40;
          CHECK(states.counts().verified == states.counts().restores + states.counts().commits + ends);
          CHECK(states.counts().commits > 0);
          const PassCounts& passes = replayer.pass_counts();
          CHECK(passes.skipped_parts + passes.refused == 0);
          CHECK((passes.drafts_proposed > 0) == (drafts > 0));
          CHECK(passes.drafts_accepted <= passes.drafts_proposed);
          CHECK(passes.copies > 0);
        }
}

TEST_CASE("requests are served alike by block hash and by tokens") {
  for (const CacheIndex index : {CacheIndex::slots, CacheIndex::tree})
    for (const WorkloadKind kind : {WorkloadKind::chat, WorkloadKind::agent, WorkloadKind::shared_prompt})
      for (const bool asynchronous : {false, true}) {
        CAPTURE(static_cast<int>(index));
        CAPTURE(static_cast<int>(kind));
        CAPTURE(asynchronous);
        const Workload workload = generate_workload({.kind = kind, .requests = 40, .block_size_tokens = 64});
        const RequestReplayOptions options = options_of(index, workload, asynchronous);
        SymbolicPasses states(options);
        RequestReplayer replayer(workload, options, states);
        serve_all(replayer);
        CHECK(replayer.counts().requests == 40);
        CHECK(replayer.counts().requests_hit > 0);
        CHECK(states.wrong_reads == 0);
        CHECK(states.counts().mismatches == 0);
        CHECK(states.counts().restores == replayer.counts().requests_hit);
        CHECK(states.counts().commits > 0);
        CHECK(replayer.cache_counts().state_evictions > 0);
        CHECK(replayer.cache_counts().resident_states > 0);
      }
}

TEST_CASE("with KV for what runs alone every request is served") {
  for (const CacheIndex index : {CacheIndex::slots, CacheIndex::tree}) {
    CAPTURE(static_cast<int>(index));
    const Workload workload = generate_workload({.kind = WorkloadKind::agent, .requests = 60, .block_size_tokens = 64});
    const RequestReplayOptions options{
        .cache = pool_cache_options(workload, index, served_blocks_min(workload), 3, false), .history_tokens = history};
    SymbolicPasses states(options);
    RequestReplayer replayer(workload, options, states);
    serve_all(replayer);
    CHECK(replayer.counts().requests == 60);
    CHECK(states.counts().mismatches == 0);
    CHECK(replayer.cache_counts().state_evictions > 0);
  }
}

TEST_CASE("residents are what was stored and not removed") {
  Workload workload(16);
  for (BlockIdentity i = 1; i <= 20; ++i)
    workload.add({.input_tokens = 40, .output_tokens = 30}, Blocks{2 * i, 2 * i + 1});
  for (const std::int32_t blocks : {400, 50}) {
    const RequestReplayOptions options = align_options(workload, blocks, 1);
    SymbolicPasses states(options);
    RequestReplayer replayer(workload, options, states);
    replayer.run([](std::int64_t) { return true; });
    const CacheCounts counts = replayer.cache_counts();
    CHECK((counts.state_evictions > 0) == (blocks == 50));
    CHECK(counts.resident_states == states.counts().commits - counts.state_evictions);
    CHECK(counts.resident_blocks == 20 * 4);  // 69 tokens of each have their KV
    CHECK(counts.block_evictions == 0);
  }
}

TEST_CASE("drafts are kept by the chance that was asked for, the same ones for a seed") {
  const Workload workload = generate_workload({.requests = 20});
  const auto kept = [&](double accept, std::uint64_t seed) {
    RequestReplayOptions options = align_options(workload, 400, 1);
    options.accept = accept;
    options.seed = seed;
    NoPasses none;
    RequestReplayer replayer(workload, options, none);
    replayer.run([](std::int64_t) { return true; });
    const PassCounts& counts = replayer.pass_counts();
    return static_cast<double>(counts.drafts_accepted) / static_cast<double>(counts.drafts_proposed);
  };
  CHECK(kept(0, 1) == 0);
  CHECK(kept(1, 1) == 1);
  CHECK(kept(0.4, 1) == doctest::Approx(0.4).epsilon(0.1));
  CHECK(kept(0.4, 1) == kept(0.4, 1));
  CHECK(kept(0.4, 1) != kept(0.4, 2));
}

TEST_CASE("answers are found again by the prompts that go on from them") {
  Workload workload(16);
  const std::vector<BlockIdentity> blocks = {1, 2, 3, 4, 5, 6};
  workload.add({.input_tokens = 20, .output_tokens = 60, .session = 1}, blocks);
  for (std::int64_t i = 0; i < requests_at_a_time; ++i) workload.add({.input_tokens = 100, .output_tokens = 1}, blocks);
  workload.add({.input_tokens = 97, .session = 1}, blocks);
  const RequestReplayOptions options = align_options(workload, 200, 2);
  SymbolicPasses states(options);
  RequestReplayer replayer(workload, options, states);
  replayer.run([](std::int64_t) { return true; });
  CHECK(replayer.counts().hit_tokens > 0);
  CHECK(states.counts().mismatches == 0);
}

TEST_CASE("a wrong state is named once, with its request and slot") {
  const Workload workload = generate_workload({.requests = 40});
  const RequestReplayOptions options = align_options(workload, 400);
  SymbolicPasses states(options);
  RequestReplayer replayer(workload, options, states);
  std::int64_t served = 0;
  replayer.run([&](std::int64_t now) {
    served = now;
    if (served == 12) states.spoil_all();
    return true;
  });
  CHECK(states.counts().mismatches > 0);
  CHECK(replayer.counts().first_mismatch.find("is not the state after") != std::string::npos);
}

TEST_CASE("a replay over RequestCache that is told to stop has the counts so far") {
  const Workload workload = generate_workload({.requests = 50});
  NoPasses none;
  RequestReplayer replayer(workload, align_options(workload, 400, 1), none);
  replayer.run([](std::int64_t served) { return served < 20; });
  CHECK(replayer.counts().requests == 20);
  CHECK(replayer.counts().wall_seconds > 0);
  replayer.check_invariants();
}

TEST_CASE("a replay over RequestCache refuses options that cannot work") {
  const Workload workload = generate_workload({.requests = 2, .block_size_tokens = 8});
  NoPasses none;
  const auto refused = [&](const auto& change) {
    RequestReplayOptions options = align_options(workload, 400, 1);
    change(options);
    CHECK_THROWS_AS(RequestReplayer(workload, options, none), InvalidArgument);
  };
  refused([](RequestReplayOptions& options) { options.cache.drafts = 4; });  // 5 tokens a step in blocks of 8
  refused([](RequestReplayOptions& options) { options.accept = 1.1; });
  refused([](RequestReplayOptions& options) { options.accept = -0.1; });
  refused([](RequestReplayOptions& options) { options.history_tokens = 0; });
  refused([](RequestReplayOptions& options) { options.step_tokens_max = 7; });
  refused([](RequestReplayOptions& options) { options.cache.block_size_tokens = 4; });
  refused([](RequestReplayOptions& options) { options.cache.index = CacheIndex::slots; });  // with a draft
  CHECK_THROWS_AS(align_cache_options(workload, 31, 0, false), InvalidArgument);
  CHECK_THROWS_AS(align_cache_options(workload, 400, -1, false), InvalidArgument);
  const std::int64_t least = served_blocks_min(workload);
  CHECK_THROWS_AS(pool_cache_options(workload, CacheIndex::tree, least - 1, 20, false), InvalidArgument);
  CHECK_THROWS_AS(pool_cache_options(workload, CacheIndex::tree, least, -1, false), InvalidArgument);
  CHECK_THROWS_AS(pool_cache_options(workload, CacheIndex::tree, 1 << 30, 20, false), InvalidArgument);
}
