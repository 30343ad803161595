// SPDX-License-Identifier: Apache-2.0
#include "caches/request_replayer.hpp"

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

#include "caches/policy_kind.hpp"
#include "random.hpp"
#include "report/figures.hpp"
#include "symbolic_passes.hpp"
#include "workload/generator.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

using namespace stateport;
using namespace stateport::replay;
using stateport::replay::test::SymbolicPasses;

namespace {

using Blocks = std::vector<BlockIdentity>;

constexpr std::int32_t history = 3;

SymbolicPasses symbols_for(const RequestReplayOptions& options) {
  return SymbolicPasses({.slots = state_slots(options.cache), .scratch_slots = scratch_slots(options.cache)},
                        options.history_tokens, options.cache.drafts, in_columns(options.cache));
}

/// Looks at the cache after every request.
void serve_all(RequestReplayer& replayer) {
  replayer.run([&](std::int64_t) {
    replayer.check_invariants();
    return true;
  });
}

RequestReplayOptions align_options(const Workload& workload, std::int32_t blocks, std::int32_t drafts = 0,
                                   bool asynchronous = false, CacheIndex index = CacheIndex::hash) {
  return {.cache = align_cache_options(workload, blocks, drafts, asynchronous, index), .history_tokens = history};
}

constexpr CacheKind all_caches[] = {CacheKind::slots, CacheKind::tree, CacheKind::align, CacheKind::tree_align};

/// Of a cache that evicts nothing.
RequestReplayOptions roomy_options(CacheKind kind, const Workload& workload, const ScheduleOptions& schedule,
                                   bool asynchronous = false) {
  const CacheIndex index = is_tree(kind) ? CacheIndex::tree : CacheIndex::hash;
  const std::int64_t places = align_blocks_max(workload, 0, schedule.concurrency);
  const std::int64_t blocks = std::max(places, served_blocks_min(workload, schedule.concurrency));
  return {.cache = in_columns(kind) ? align_cache_options(workload, static_cast<std::int32_t>(places), 0, asynchronous,
                                                          index, schedule)
                                    : pool_cache_options(workload, index, blocks, 2000, asynchronous, schedule),
          .history_tokens = history,
          .running_max = schedule.running_max,
          .step_tokens_max = schedule.step_tokens_max,
          .refresh = schedule.refresh};
}

/// The figures of a replay with states that are checked.
struct Served {
  ReplayCounts counts;
  PassCounts passes;
  CacheCounts cache;
  std::size_t rows_max = 0;
};

Served serve_checked(const Workload& workload, const RequestReplayOptions& options) {
  SymbolicPasses states = symbols_for(options);
  RequestReplayer replayer(workload, options, states);
  replayer.run([](std::int64_t) { return true; });
  replayer.check_invariants();
  const ReplayCounts& counts = replayer.counts();
  CHECK(counts.requests == std::ssize(workload));
  CHECK(counts.first_mismatch.empty());
  CHECK(states.wrong_reads == 0);
  CHECK(states.counts().restores == counts.requests_hit);
  CHECK(replayer.pass_counts().computed_prompt_tokens == counts.input_tokens - counts.hit_tokens);
  CHECK(std::ssize(replayer.pass_counts().first_token_after_tokens) == counts.requests);
  return {counts, replayer.pass_counts(), replayer.cache_counts(), states.rows_max};
}

/// Tokens that are computed if each request reuses its first `shared(request)` tokens, but for those of the first of
/// each group.
template <class Shared>
std::int64_t computed_once(const Workload& workload, std::size_t group, const Shared& shared) {
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < workload.size(); ++i) {
    const std::int64_t input = workload.request(i).input_tokens;
    tokens += i % group == 0 ? input : input - shared(input);
  }
  return tokens;
}

/// The same requests by another index, with room for less.
RequestReplayOptions options_of(CacheIndex index, const Workload& workload, bool asynchronous) {
  return {.cache = pool_cache_options(workload, index, 2 * served_blocks_min(workload), 20, asynchronous),
          .history_tokens = history};
}

}  // namespace

TEST_CASE("every state that is continued from, published or left at an end is right, with any drafts and counters") {
  constexpr std::int64_t requests = stateport::test::seeds_of_build(40);
  for (const CacheIndex index : {CacheIndex::hash, CacheIndex::tree})
    for (const WorkloadKind kind : {WorkloadKind::chat, WorkloadKind::agent, WorkloadKind::shared_prompt})
      for (const std::int64_t block_size : {16, 512})
        for (const std::int32_t drafts : {0, 1, 3})
          for (const bool asynchronous : {false, true}) {
            CAPTURE(static_cast<int>(index));
            CAPTURE(static_cast<int>(kind));
            CAPTURE(block_size);
            CAPTURE(drafts);
            CAPTURE(asynchronous);
            const Workload workload =
                generate_workload({.kind = kind, .requests = requests, .block_size_tokens = block_size});
            const RequestReplayOptions options = align_options(workload, 90, drafts, asynchronous, index);
            SymbolicPasses states = symbols_for(options);
            RequestReplayer replayer(workload, options, states);
            serve_all(replayer);
            CHECK(replayer.counts().requests == requests);
            CHECK(replayer.counts().first_mismatch.empty());
            CHECK(states.wrong_reads == 0);
            CHECK(states.counts().mismatches == 0);
            CHECK(states.counts().restores == replayer.counts().requests_hit);
            const std::int64_t ends = asynchronous ? 0 : requests;
            // A copy of a state that others find is verified, too, and is not published.
            CHECK(states.counts().verified ==
                  states.counts().restores + states.counts().commits + states.copies + ends);
            CHECK(states.counts().commits > 0);
            const PassCounts& passes = replayer.pass_counts();
            CHECK(passes.skipped_parts + passes.refused == 0);
            CHECK((passes.drafts_proposed > 0) == (drafts > 0));
            CHECK(passes.drafts_accepted <= passes.drafts_proposed);
            CHECK(passes.copies > 0);
          }
}

TEST_CASE("a template's turns continue from before the tail of the last one, or from the position that it named") {
  for (const CacheIndex index : {CacheIndex::hash, CacheIndex::tree}) {
    CAPTURE(static_cast<int>(index));
    const Workload workload =
        generate_workload({.kind = WorkloadKind::chat_template, .requests = 60, .block_size_tokens = 16});
    std::array<std::int64_t, 3> hit_tokens = {};
    for (std::size_t way = 0; way < hit_tokens.size(); ++way) {
      RequestReplayOptions options{.cache = pool_cache_options(workload, index, 2'000'000, 400, false),
                                   .history_tokens = history};
      auto& layout = std::get<SlotLayout>(options.cache.layout);
      layout.tail_tokens = way >= 1 ? 64 : -1;
      layout.breakpoint_saves = way == 2 ? 1 : 0;
      options.breakpoints = way == 2;
      SymbolicPasses states = symbols_for(options);
      RequestReplayer replayer(workload, options, states);
      serve_all(replayer);
      CHECK(states.wrong_reads == 0);
      CHECK(replayer.counts().first_mismatch.empty());
      hit_tokens[way] = replayer.counts().hit_tokens;
    }
    CHECK(hit_tokens[0] < hit_tokens[1]);
    CHECK(hit_tokens[0] < hit_tokens[2]);
  }
}

TEST_CASE("contents of closed sessions leave room for those of sessions that go on") {
  for (const CacheIndex index : {CacheIndex::hash, CacheIndex::tree}) {
    CAPTURE(static_cast<int>(index));
    const Workload workload = generate_workload({.kind = WorkloadKind::chat, .requests = 400, .block_size_tokens = 64});
    std::array<std::int64_t, 3> hit_tokens = {};
    for (std::size_t way = 0; way < hit_tokens.size(); ++way) {
      RequestReplayOptions options{.cache = pool_cache_options(workload, index, served_blocks_min(workload), 64, false),
                                   .history_tokens = history};
      options.cache.eviction = EvictionOrder::lru;
      options.cache.sessions.remembered = way > 0 ? 1024 : 0;
      options.mistaken_closes = way == 2 ? 100 : 0;
      SymbolicPasses states = symbols_for(options);
      RequestReplayer replayer(workload, options, states);
      serve_all(replayer);
      CHECK(states.wrong_reads == 0);
      CHECK(replayer.counts().first_mismatch.empty());
      hit_tokens[way] = replayer.counts().hit_tokens;
    }
    CHECK(hit_tokens[0] < hit_tokens[1]);
    CHECK(hit_tokens[2] < hit_tokens[1]);
  }
}

TEST_CASE("requests are served alike by block hash and by tokens") {
  for (const CacheIndex index : {CacheIndex::hash, CacheIndex::tree})
    for (const WorkloadKind kind : {WorkloadKind::chat, WorkloadKind::agent, WorkloadKind::shared_prompt})
      for (const bool asynchronous : {false, true}) {
        CAPTURE(static_cast<int>(index));
        CAPTURE(static_cast<int>(kind));
        CAPTURE(asynchronous);
        const Workload workload = generate_workload({.kind = kind, .requests = 40, .block_size_tokens = 64});
        const RequestReplayOptions options = options_of(index, workload, asynchronous);
        SymbolicPasses states = symbols_for(options);
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

TEST_CASE("with KV for the running requests alone every request is served") {
  for (const CacheIndex index : {CacheIndex::hash, CacheIndex::tree}) {
    CAPTURE(static_cast<int>(index));
    const Workload workload = generate_workload({.kind = WorkloadKind::agent, .requests = 60, .block_size_tokens = 64});
    const RequestReplayOptions options{
        .cache = pool_cache_options(workload, index, served_blocks_min(workload), 3, false), .history_tokens = history};
    SymbolicPasses states = symbols_for(options);
    RequestReplayer replayer(workload, options, states);
    serve_all(replayer);
    CHECK(replayer.counts().requests == 60);
    CHECK(states.counts().mismatches == 0);
    CHECK(replayer.cache_counts().state_evictions > 0);
  }
}

TEST_CASE("a burst of 64 prompts computes its opening once, and 64 suffixes") {
  const Workload workload = generate_workload({.kind = WorkloadKind::burst, .requests = 64, .block_size_tokens = 64});
  const std::int64_t once = computed_once(workload, 64, [](std::int64_t) { return 8192; });
  for (const CacheKind kind : all_caches)
    for (const bool asynchronous : {false, true})
      for (const std::int64_t step_tokens : {2048, 5000, 32768}) {
        CAPTURE(static_cast<int>(kind));
        CAPTURE(asynchronous);
        CAPTURE(step_tokens);
        ScheduleOptions schedule{.concurrency = 64, .step_tokens_max = step_tokens};
        const Served alone = serve_checked(workload, roomy_options(kind, workload, schedule, asynchronous));
        CHECK(alone.passes.computed_prompt_tokens == alone.counts.input_tokens);
        CHECK(alone.cache.awaited_tokens == 0);
        schedule.share_running = {.least_tokens = 64};
        const Served shared = serve_checked(workload, roomy_options(kind, workload, schedule, asynchronous));
        CHECK(shared.passes.computed_prompt_tokens == once);
        CHECK(shared.cache.awaited_tokens == 63 * 8192);
        CHECK(shared.counts.requests_hit == 63);
      }
}

TEST_CASE("a group of 16 samples computes the whole blocks of its prompt once") {
  constexpr std::int64_t block = 16;
  const Workload workload =
      generate_workload({.kind = WorkloadKind::grpo, .requests = 6 * 16, .block_size_tokens = block});
  const std::int64_t once = computed_once(workload, 16, [](std::int64_t input) { return floor_to(input - 1, block); });
  for (const CacheKind kind : all_caches)
    for (const bool asynchronous : {false, true}) {
      CAPTURE(static_cast<int>(kind));
      CAPTURE(asynchronous);
      ScheduleOptions schedule{.concurrency = 6 * 16};
      const Served alone = serve_checked(workload, roomy_options(kind, workload, schedule, asynchronous));
      CHECK(alone.passes.computed_prompt_tokens == alone.counts.input_tokens);
      schedule.share_running = {.least_tokens = block};
      const Served shared = serve_checked(workload, roomy_options(kind, workload, schedule, asynchronous));
      CHECK(shared.passes.computed_prompt_tokens == once);
      CHECK(shared.cache.awaited_tokens == shared.counts.hit_tokens);
      CHECK(shared.counts.lost_hits[static_cast<std::size_t>(LostHit::never_stored)] == 6);
      CHECK(std::accumulate(shared.counts.lost_hits.begin(), shared.counts.lost_hits.end(), std::int64_t{0}) == 6);
      CHECK(quantile(shared.passes.first_token_after_tokens, 0.5) <
            quantile(alone.passes.first_token_after_tokens, 0.5) / 4);
    }
}

TEST_CASE("refresh alone helps requests that wait until others have run") {
  for (const WorkloadKind workload_kind : {WorkloadKind::grpo, WorkloadKind::burst})
    for (const CacheKind kind : all_caches)
      for (const bool asynchronous : {false, true}) {
        CAPTURE(static_cast<int>(workload_kind));
        CAPTURE(static_cast<int>(kind));
        CAPTURE(asynchronous);
        const Workload workload = generate_workload({.kind = workload_kind, .requests = 48, .block_size_tokens = 64});
        ScheduleOptions schedule{.concurrency = 48, .running_max = 6};
        const Served alone = serve_checked(workload, roomy_options(kind, workload, schedule, asynchronous));
        CHECK(alone.rows_max == 6);
        CHECK(alone.passes.computed_prompt_tokens == alone.counts.input_tokens);
        CHECK(alone.counts.lost_hits[static_cast<std::size_t>(LostHit::never_stored)] == 48);
        schedule.refresh = true;
        const Served refreshed = serve_checked(workload, roomy_options(kind, workload, schedule, asynchronous));
        CHECK(refreshed.rows_max == 6);
        CHECK(refreshed.passes.computed_prompt_tokens < alone.passes.computed_prompt_tokens / 3);
        CHECK(refreshed.cache.awaited_tokens == 0);
        CHECK(refreshed.counts.requests_hit >= 36);
        if (workload_kind == WorkloadKind::grpo)
          CHECK(refreshed.counts.lost_hits[static_cast<std::size_t>(LostHit::never_stored)] <= 12);
      }
}

TEST_CASE("a wait that is over leaves the rest of a prompt to refresh") {
  const Workload workload = generate_workload({.kind = WorkloadKind::grpo, .requests = 160, .block_size_tokens = 64});
  for (const CacheKind kind : all_caches) {
    CAPTURE(static_cast<int>(kind));
    // Most groups begin long after 20 passes.
    ScheduleOptions schedule{
        .concurrency = 160, .running_max = 2, .share_running = {.least_tokens = 16, .longest_commits = 20}};
    const Served expired = serve_checked(workload, roomy_options(kind, workload, schedule));
    CHECK(expired.passes.computed_prompt_tokens > expired.counts.input_tokens / 2);
    schedule.refresh = true;
    const Served refreshed = serve_checked(workload, roomy_options(kind, workload, schedule));
    CHECK(refreshed.passes.computed_prompt_tokens < refreshed.counts.input_tokens / 8);
    CHECK(refreshed.cache.awaited_tokens < refreshed.counts.hit_tokens);
  }
}

TEST_CASE("requests run in the order of the workload, whatever place they have") {
  Workload workload(16);
  std::vector<double> expected;
  double tokens = 0;
  for (BlockIdentity i = 1; i <= 20; ++i) {
    const auto input = static_cast<std::int64_t>(32 + i);  // each request runs its own number of tokens
    workload.add({.input_tokens = input, .output_tokens = 1 + static_cast<std::int64_t>(i % 3)},
                 Blocks{3 * i, 3 * i + 1, 3 * i + 2});
    expected.push_back(tokens += static_cast<double>(input));
  }
  for (const std::int64_t step_tokens : {16, 100}) {
    const ScheduleOptions schedule{.concurrency = 4, .running_max = 1, .step_tokens_max = step_tokens};
    const Served served = serve_checked(workload, roomy_options(CacheKind::slots, workload, schedule));
    CHECK(served.rows_max == 1);
    CHECK(served.passes.first_token_after_tokens == expected);
  }
}

TEST_CASE("states are right, and hits add up, for any workload whose requests look again and wait for each other") {
  for (const WorkloadKind workload_kind :
       {WorkloadKind::chat, WorkloadKind::agent, WorkloadKind::shared_prompt, WorkloadKind::grpo, WorkloadKind::burst})
    for (const CacheKind kind : all_caches)
      for (const bool asynchronous : {false, true})
        for (const bool refresh : {false, true}) {
          CAPTURE(static_cast<int>(workload_kind));
          CAPTURE(static_cast<int>(kind));
          CAPTURE(asynchronous);
          CAPTURE(refresh);
          const Workload workload = generate_workload({.kind = workload_kind, .requests = 40, .block_size_tokens = 64});
          const ScheduleOptions schedule{.concurrency = 20,
                                         .running_max = 7,
                                         .step_tokens_max = 3000,
                                         .refresh = refresh,
                                         .share_running = {.least_tokens = 100, .longest_commits = 50}};
          const Served served = serve_checked(workload, roomy_options(kind, workload, schedule, asynchronous));
          CHECK(served.counts.requests_hit > 0);
          CHECK(served.rows_max == 7);
        }
}

TEST_CASE("residents are the contents that were stored and not removed") {
  Workload workload(16);
  for (BlockIdentity i = 1; i <= 20; ++i)
    workload.add({.input_tokens = 40, .output_tokens = 30}, Blocks{2 * i, 2 * i + 1});
  for (const std::int32_t blocks : {400, 50}) {
    const RequestReplayOptions options = align_options(workload, blocks, 1);
    SymbolicPasses states = symbols_for(options);
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
  SymbolicPasses states = symbols_for(options);
  RequestReplayer replayer(workload, options, states);
  replayer.run([](std::int64_t) { return true; });
  CHECK(replayer.counts().hit_tokens > 0);
  CHECK(states.counts().mismatches == 0);
}

TEST_CASE("a wrong state is named once, with its request and slot") {
  const Workload workload = generate_workload({.requests = 40});
  const RequestReplayOptions options = align_options(workload, 400);
  SymbolicPasses states = symbols_for(options);
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
  refused([](RequestReplayOptions& options) { options.running_max = -1; });
  refused([](RequestReplayOptions& options) { options.step_tokens_max = 7; });
  refused([](RequestReplayOptions& options) { options.cache.block_size_tokens = 4; });
  refused([](RequestReplayOptions& options) { options.cache.layout = stateport::SlotLayout{}; });  // with a draft
  CHECK_THROWS_AS(align_cache_options(workload, 31, 0, false), InvalidArgument);
  CHECK_THROWS_AS(align_cache_options(workload, 400, -1, false), InvalidArgument);
  CHECK_THROWS_AS(align_cache_options(workload, 400, 0, false, CacheIndex::hash, {.concurrency = 0}), InvalidArgument);
  CHECK_THROWS_AS(align_cache_options(workload, 400, 0, false, CacheIndex::hash, {.concurrency = 101}),
                  InvalidArgument);
  CHECK_THROWS_AS(pool_cache_options(workload, CacheIndex::hash, 100, 20, false, {.concurrency = 0}), InvalidArgument);
  const std::int64_t least = served_blocks_min(workload);
  CHECK_THROWS_AS(pool_cache_options(workload, CacheIndex::tree, least - 1, 20, false), InvalidArgument);
  CHECK_THROWS_AS(pool_cache_options(workload, CacheIndex::tree, least, -1, false), InvalidArgument);
  CHECK_THROWS_AS(pool_cache_options(workload, CacheIndex::tree, 1 << 30, 20, false), InvalidArgument);
}
