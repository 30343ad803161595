// SPDX-License-Identifier: Apache-2.0
#include "../sizes.hpp"
#include "caches/policy_kind.hpp"
#include "caches/replayer.hpp"
#include "model_cache.hpp"
#include "random.hpp"
#include "report/json.hpp"
#include "report/sweep.hpp"
#include "served_request.hpp"
#include "symbolic_passes.hpp"
#include "workload/generator.hpp"
#include "workload/trace.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

using stateport::Medium;
using stateport::TierSpeeds;
using stateport::TierUsage;
using namespace stateport::replay;
using namespace stateport::replay::test;
using stateport::CheckpointPlacement;
using stateport::LostHit;
using stateport::test::for_each_seed;
using stateport::test::Random;

namespace {

/// Of Qwen3-Next-80B-A3B with recurrent states in fp32.
Budget qwen3_next(std::int64_t bytes) {
  return {.bytes = bytes, .state_bytes = 77'266'944, .kv_bytes_per_token = 24'576, .block_size_tokens = 512};
}

/// Of all indexes.
std::vector<PolicyKind> every_policy() {
  std::vector<PolicyKind> policies;
  for (const CacheKind cache : {CacheKind::tree, CacheKind::slots})
    for (const PolicyKind policy : policies_of(cache)) policies.push_back(policy);
  return policies;
}

Workload random_workload(Random& random, int requests) {
  Workload workload(block_size);
  std::vector<BlockIdentity> blocks;
  std::int64_t now_ms = 0;
  for (int i = 0; i < requests; ++i) {
    blocks.resize(static_cast<std::size_t>(random.between(0, 9)));
    for (BlockIdentity& block : blocks) block = static_cast<BlockIdentity>(random.between(1, 2));
    now_ms += random.between(0, 30'000);
    const std::int64_t extra = blocks.empty() ? 1 : random.between(0, block_size - 1);
    workload.add({.arrival_ms = now_ms, .input_tokens = static_cast<std::int64_t>(blocks.size()) * block_size + extra},
                 blocks);
  }
  return workload;
}

}  // namespace

TEST_CASE("with room for everything a budget finds the same as the model of whole prefixes") {
  for_each_seed(40, [](Random& random, std::uint64_t) {
    for (const PolicyKind policy : every_policy()) {
      const Workload workload = random_workload(random, 80);
      const Budget budget{.bytes = gib, .state_bytes = 100, .kv_bytes_per_token = 10, .block_size_tokens = block_size};
      CAPTURE(name(policy));
      const auto cache = make_budget_cache(policy, budget, {}, workload);
      using Last = ModelCache::Last;
      const bool is_tree = policy > PolicyKind::branch && policy < PolicyKind::slots_lru;
      ModelCache model(placement_of(policy), block_size,
                       policy >= PolicyKind::slots_lru ? Last::nothing
                       : is_tree                       ? Last::kv_and_state
                                                       : Last::kv);
      for (std::size_t i = 0; i < workload.size(); ++i) {
        const auto blocks = workload.blocks(i);
        const std::int64_t tokens = workload.request(i).input_tokens;
        const auto expected = model.serve(blocks, tokens);
        const Hit hit = serve(*cache, {blocks.begin(), blocks.end()},
                              tokens - static_cast<std::int64_t>(blocks.size()) * block_size);
        REQUIRE(hit.matched_blocks == expected.matched_blocks);
        REQUIRE(hit.hit_blocks == expected.hit_blocks);
        cache->check_invariants();
      }
      CHECK(cache->counts().victims == 0);
    }
  });
}

TEST_CASE("loads from the host save the time of the workload's own tokens and bytes, or are not done") {
  std::int64_t loads = 0;
  for_each_seed(20, [&](Random& random, std::uint64_t) {
    const Workload workload = random_workload(random, 80);
    for (const PolicyKind policy : {PolicyKind::node_lru, PolicyKind::slots_lru}) {
      Budget budget{.bytes = random.between(1, 1000),
                    .state_bytes = 100,
                    .kv_bytes_per_token = 10,
                    .block_size_tokens = block_size,
                    .host_bytes = 10'000};
      const auto host_after = [&](const stateport::TierSpeeds& speeds, std::int64_t* too_slow = nullptr) {
        budget.speeds = speeds;
        const auto cache = make_budget_cache(policy, budget, {}, workload);
        NoPasses none;
        Replayer replayer(workload, *cache, none);
        replayer.run([](std::int64_t) { return true; });
        if (too_slow != nullptr)
          *too_slow = replayer.counts().lost_hits[static_cast<std::size_t>(LostHit::tier_costs_more)];
        return cache->counts().of(Medium::host);
      };
      // A state and a block are loaded in less than a millisecond, and computed in 20 ms a token.
      const TierUsage fast = host_after({.host_bytes_per_s = 1e6, .tokens_per_s = 50});
      const double expected = static_cast<double>(fast.hit_tokens) / 50 - static_cast<double>(fast.bytes_read) / 1e6;
      CHECK(fast.saved_s == doctest::Approx(expected));
      CHECK(host_after({}) == [&] {
        TierUsage same = fast;
        same.saved_s = 0;
        return same;
      }());
      std::int64_t too_slow = 0;
      CHECK(host_after({.host_bytes_per_s = 1e-3, .tokens_per_s = 50}, &too_slow).loads == 0);
      CHECK((too_slow > 0) == (fast.loads > 0));
      loads += fast.loads;
    }
  });
  CHECK(loads > 100);
}

TEST_CASE("with tiers below a small budget every restored state is the right one, and more tokens hit") {
  std::int64_t hits = 0;
  std::int64_t hits_without = 0;
  std::int64_t loads = 0;
  for_each_seed(40, [&](Random& random, std::uint64_t) {
    for (const PolicyKind policy : {PolicyKind::node_lru, PolicyKind::gdsf, PolicyKind::hix, PolicyKind::hix_exact,
                                    PolicyKind::slots_lru, PolicyKind::slots_gdsf, PolicyKind::slots_hix}) {
      const Workload workload = random_workload(random, 80);
      Budget budget{.bytes = random.between(1, 2000),
                    .state_bytes = 100,
                    .kv_bytes_per_token = 10,
                    .block_size_tokens = block_size};
      const auto replay = [&] {
        const auto cache = make_budget_cache(policy, budget, {}, workload);
        SymbolicPasses states(cache->room());
        Replayer replayer(workload, *cache, states);
        replayer.run([&](std::int64_t) {
          cache->check_invariants();
          const CacheCounts counts = cache->counts();
          REQUIRE(counts.tiers[static_cast<std::size_t>(Medium::host)].bytes <= budget.host_bytes);
          REQUIRE(counts.tiers[static_cast<std::size_t>(Medium::file)].bytes <= budget.file_bytes);
          return true;
        });
        REQUIRE(states.counts().mismatches == 0);
        for (const TierUsage& tier : cache->counts().tiers) loads += tier.loads;
        return replayer.counts().hit_tokens;
      };
      hits_without += replay();
      const std::int64_t least = budget.state_bytes + budget.block_bytes();
      if (random.chance(70)) budget.host_bytes = least + random.between(0, 2000);
      if (random.chance(50)) budget.file_bytes = least + random.between(0, 4000);
      hits += replay();
    }
  });
  CHECK(loads > 100);
  CHECK(hits > hits_without);
}

TEST_CASE("under a small budget every restored state is the right one and the bytes are kept") {
  for_each_seed(40, [](Random& random, std::uint64_t) {
    for (const PolicyKind policy : every_policy()) {
      const Workload workload = random_workload(random, 80);
      const Budget budget{.bytes = random.between(1, 4000),
                          .state_bytes = 100,
                          .kv_bytes_per_token = 10,
                          .block_size_tokens = block_size};
      const auto cache = make_budget_cache(policy, budget, {}, workload);
      SymbolicPasses states(cache->room());
      Replayer replayer(workload, *cache, states);
      replayer.run([&](std::int64_t) {
        cache->check_invariants();
        const CacheCounts counts = cache->counts();
        const bool spares_path = policy == PolicyKind::node_lru || policy == PolicyKind::gdsf;
        if (!spares_path) REQUIRE(budget.used_bytes(counts.resident_blocks, counts.resident_states) <= budget.bytes);
        return true;
      });
      CHECK(replayer.counts().first_mismatch.empty());
      CHECK(states.counts().restores == replayer.counts().requests_hit);
    }
  });
}

TEST_CASE("every token of every prompt is a hit or lost for one reason, and without evictions none is lost to them") {
  for_each_seed(20, [](Random& random, std::uint64_t) {
    for (const PolicyKind policy : every_policy()) {
      const Workload workload = random_workload(random, 100);
      const bool unlimited = random.chance(50);
      const Budget budget{.bytes = unlimited ? gib : random.between(1, 4000),
                          .state_bytes = 100,
                          .kv_bytes_per_token = 10,
                          .block_size_tokens = block_size};
      const auto cache = make_budget_cache(policy, budget, {}, workload);
      NoPasses states;
      Replayer replayer(workload, *cache, states);
      replayer.run([](std::int64_t) { return true; });
      const stateport::CacheStats& stats = replayer.counts().stats;
      std::int64_t tokens = stats.hit_tokens;
      for (const stateport::Loss& loss : stats.lost) tokens += loss.tokens;
      REQUIRE(tokens == stats.prompt_tokens);
      REQUIRE(stats.hit_tokens == replayer.counts().hit_tokens);
      REQUIRE(stats.reuse_ages.total() == replayer.counts().requests_hit);
      REQUIRE(stats.eviction_ages.total() == cache->counts().state_evictions);
      if (!unlimited) continue;
      REQUIRE(stats.of(LostHit::evicted).tokens == 0);
      // Slots give KV without a state back at once: that of the last block of a prompt of whole blocks.
      std::int64_t given_back = 0;
      for (std::size_t i = 0; i < workload.size() && policy >= PolicyKind::slots_lru; ++i)
        if (workload.request(i).input_tokens % block_size == 0) given_back += block_size;
      REQUIRE(stats.of(LostHit::evicted_kv).tokens <= given_back);
      if (policy == PolicyKind::every) REQUIRE(stats.of(LostHit::no_checkpoint).tokens == 0);
    }
  });
}

TEST_CASE("the reasons of a small case are the ones that a reader would give") {
  // A state takes 100 bytes, a block of 4 tokens 40: room for one prompt of two blocks with its state.
  const Budget budget{.bytes = 180, .state_bytes = 100, .kv_bytes_per_token = 10, .block_size_tokens = block_size};
  Workload workload(block_size);
  const std::vector<BlockIdentity> first = {1, 2};
  const std::vector<BlockIdentity> second = {3, 4};
  const std::vector<BlockIdentity> branch = {1, 5};
  workload.add({.arrival_ms = 0, .input_tokens = 9}, first);      // 9 never stored
  workload.add({.arrival_ms = 1000, .input_tokens = 8}, first);   // one block, and the state is one token too deep
  workload.add({.arrival_ms = 2000, .input_tokens = 9}, second);  // 9 never stored; the first one is evicted
  workload.add({.arrival_ms = 3000, .input_tokens = 9}, branch);  // 4 of KV evicted, 5 never stored
  const auto cache = make_budget_cache(PolicyKind::last, budget, {}, workload);
  NoPasses states;
  Replayer replayer(workload, *cache, states);
  replayer.run([](std::int64_t) { return true; });
  const stateport::CacheStats& stats = replayer.counts().stats;
  CHECK(stats.hit_tokens == 0);
  CHECK(stats.of(LostHit::never_stored).tokens == 9 + 9 + 5);
  CHECK(stats.of(LostHit::no_checkpoint).tokens == 4);
  CHECK(stats.of(LostHit::too_few_tokens).tokens == 4);
  CHECK(stats.of(LostHit::evicted_kv).tokens == 4);
  CHECK(stats.of(LostHit::evicted).tokens == 0);
}

TEST_CASE("HIX hits more with any kind of hint, and node LRU neither more nor less") {
  Workload workload = generate_workload({.kind = WorkloadKind::agent, .requests = 2000});
  const std::vector<std::int64_t> budgets = {32 * gib};
  const auto hits = [&](PolicyKind policy, const HintKinds& hints) {
    workload.give_hints(hints);
    const std::vector<PolicyKind> policies = {policy};
    return sweep(workload, 2000, qwen3_next(1), budgets, policies, {}, [] { return true; }).front().hit_tokens;
  };
  const std::int64_t hix = hits(PolicyKind::hix, {});
  CHECK(hits(PolicyKind::hix, {.last_turns = true}) > hix);
  CHECK(hits(PolicyKind::hix, {.tool_calls = true}) > hix);
  CHECK(hits(PolicyKind::hix, {.idle_times = true}) > hix);
  CHECK(hits(PolicyKind::hix, {.sessions = true}) > hix);
  CHECK(hits(PolicyKind::hix, {.continues_auc = 0.95}) > hix);
  CHECK(hits(PolicyKind::hix, {.continues_auc = 0.5}) == hix);
  const HintKinds all = {.last_turns = true, .tool_calls = true, .idle_times = true, .sessions = true};
  CHECK(hits(PolicyKind::node_lru, all) == hits(PolicyKind::node_lru, {}));
}

TEST_CASE("on generated workloads with little memory no simple policy wins over HIX") {
  if constexpr (stateport::test::assertions_on) {
    MESSAGE("not replayed: too slow with assertions and sanitizers");
    return;
  }
  const std::vector<std::int64_t> budgets = {8 * gib, 16 * gib, 24 * gib, 32 * gib};
  for (const WorkloadKind kind : {WorkloadKind::chat, WorkloadKind::agent, WorkloadKind::shared_prompt})
    for (const std::uint64_t seed : {1U, 2U, 3U}) {
      const Workload workload = generate_workload({.kind = kind, .requests = 3000, .seed = seed});
      const auto cells = sweep(workload, 3000, qwen3_next(1), budgets, policies_of(CacheKind::tree),
                               compute_cost("qwen3-next-80b-a3b"), [] { return true; });
      for (const std::int64_t budget : budgets) {
        CAPTURE(static_cast<int>(kind));
        CAPTURE(seed);
        CAPTURE(budget / gib);
        double hix = 0;
        double best = 0;
        for (const SweepCell& cell : cells) {
          if (cell.budget_bytes != budget || cell.policy == PolicyKind::hix_exact) continue;
          (cell.policy == PolicyKind::hix ? hix : best) =
              std::max(cell.policy == PolicyKind::hix ? 0 : best, 100 * cell.token_hit_rate);
        }
        CHECK(hix > best - 0.3);
      }
    }
}

TEST_CASE("an arena hits nearly as often as bytes that are counted together, and more often than walls") {
  const Workload workload = generate_workload({.kind = WorkloadKind::chat, .requests = 1000});
  for (const PolicyKind policy :
       {PolicyKind::slots_lru, PolicyKind::slots_hix, PolicyKind::node_lru, PolicyKind::hix}) {
    const auto hits = [&](std::int64_t arena_tokens, double state_share) {
      Budget budget = qwen3_next(16 * gib);
      budget.arena_tokens = arena_tokens;
      budget.state_share = state_share;
      const auto cells = sweep(workload, 1000, budget, std::array{16 * gib}, std::array{policy},
                               compute_cost("qwen3-next-80b-a3b"), [] { return true; });
      return 100 * cells.at(0).token_hit_rate;
    };
    CAPTURE(name(policy));
    const double together = hits(0, 0);
    const double arena = hits(2048, 0);
    CHECK(arena > together - 3);
    CHECK(arena > hits(0, 0.7) + 2);
    CHECK(hits(1, 0) > together - 3);  // extents of one block
  }
}

TEST_CASE("memory of an arena moves while it serves, and its books are right") {
  for_each_seed(20, [](Random& random, std::uint64_t) {
    const Workload workload = random_workload(random, 200);
    for (const PolicyKind policy :
         {PolicyKind::slots_lru, PolicyKind::slots_hix, PolicyKind::node_lru, PolicyKind::hix}) {
      Budget budget{.bytes = 700, .state_bytes = 20, .kv_bytes_per_token = 1, .block_size_tokens = block_size};
      budget.bytes = 40 * (budget.state_bytes + budget.block_bytes());
      budget.arena_tokens = random.between(1, 3) * block_size;
      const auto cache = make_budget_cache(policy, budget, {}, workload, true);
      for (std::size_t i = 0; i < workload.size(); ++i) {
        const auto blocks = workload.blocks(i);
        serve(*cache, {blocks.begin(), blocks.end()},
              workload.request(i).input_tokens - std::ssize(blocks) * block_size);
        cache->check_invariants();
      }
      const CacheCounts counts = cache->counts();
      CHECK(budget.used_bytes(counts.resident_blocks, counts.resident_states) <= budget.bytes);
      CHECK(counts.memory_mapped_bytes <= counts.memory_moves * std::max(budget.arena_tokens, budget.state_bytes));
      CHECK(counts.memory_mapped_bytes >=
            counts.memory_moves / 2 * std::min(budget.arena_tokens, budget.state_bytes) - budget.bytes);
      CHECK(counts.memory_copied_bytes % budget.block_bytes() == 0);
    }
  });
}

TEST_CASE("an arena counts the memory that extents got, and the KV that was copied out of others") {
  const Workload workload = generate_workload({.kind = WorkloadKind::chat, .requests = 1000});
  for (const PolicyKind policy : {PolicyKind::slots_lru, PolicyKind::node_lru}) {
    CAPTURE(name(policy));
    Budget budget = qwen3_next(16 * gib);
    budget.arena_tokens = 2048;
    const auto cache = make_budget_cache(policy, budget, {}, workload);
    NoPasses none;
    Replayer replayer(workload, *cache, none);
    replayer.run([](std::int64_t) { return true; });
    const CacheCounts counts = cache->counts();
    CHECK(counts.memory_mapped_bytes > gib);
    // What is given back is not counted: at the end no more is mapped than there is.
    const std::int64_t largest = std::max(budget.arena_tokens * budget.kv_bytes_per_token, budget.state_bytes);
    CHECK(2 * counts.memory_mapped_bytes <= counts.memory_moves * largest + budget.bytes);
    CHECK(counts.memory_copied_bytes > 0);
    CHECK(counts.memory_copied_bytes % budget.block_bytes() == 0);
  }
}

TEST_CASE("the sweep's table and its JSON have the same figures") {
  const Workload workload = generate_workload({.kind = WorkloadKind::chat, .requests = 200});
  const std::vector<std::int64_t> budgets = {2 * gib, 16 * gib};
  const auto policies = every_policy();
  const auto cells = sweep(workload, 150, qwen3_next(1), budgets, policies, {}, [] { return true; });
  REQUIRE(cells.size() == budgets.size() * policies.size());
  const std::string table = to_table(cells);
  const SweepReport report = {.cells = cells, .requests = 150, .input_tokens = 7, .interrupted = true};
  const auto whole = nlohmann::json::parse(to_json({.command = "sweep"}, report));
  CHECK(whole["requests"] == 150);
  CHECK(whole["input_tokens"] == 7);
  CHECK(whole["interrupted"] == true);
  const auto& json = whole["capacities"];
  for (std::size_t i = 0; i < cells.size(); ++i) {
    CHECK(json[i]["policy"] == name(cells[i].policy));
    CHECK(json[i]["hit_tokens"] == cells[i].hit_tokens);
    CHECK(table.find(std::to_string(cells[i].hit_tokens)) != std::string::npos);
  }
  CHECK(table.find("2.00 GiB") != std::string::npos);
}

namespace {

struct Expected {
  PolicyKind policy;
  double rate;              ///< per cent, of the independent simulator's table
  std::int64_t hit_tokens;  ///< 0: only the rate is known
  std::int64_t victims = 0;
};

/// The same prompts, but for one token more of those of whole blocks. The simulator keeps the state at the end of such
/// a prompt, the library the one a block before; with a token more they keep the same.
Workload without_whole_prompts(const Workload& workload) {
  Workload longer(workload.block_size_tokens());
  for (std::size_t i = 0; i < workload.size(); ++i) {
    Request request = workload.request(i);
    request.input_tokens += request.input_tokens % workload.block_size_tokens() == 0;
    longer.add(request, workload.blocks(i));
  }
  return longer;
}

void check_trace(const char* file, std::int64_t budget_gib, const std::vector<Expected>& expected) {
  const std::filesystem::path path = std::filesystem::path(STATEPORT_SHARED_DIR) / "traces" / file;
  if (!std::filesystem::exists(path)) {
    MESSAGE("skipped: no " << path.string());
    return;
  }
  if constexpr (stateport::test::assertions_on) {
    MESSAGE("not replayed: too slow with assertions and sanitizers");
    return;
  }
  const Workload workload = without_whole_prompts(read_trace(path).workload);
  const std::vector<std::int64_t> budgets = {budget_gib * gib};
  for (const Expected& row : expected) {
    const std::vector<PolicyKind> policies = {row.policy};
    const auto cells = sweep(workload, static_cast<std::int64_t>(workload.size()), qwen3_next(1), budgets, policies,
                             compute_cost("qwen3-next-80b-a3b"), [] { return true; });
    REQUIRE(cells.size() == 1);
    const SweepCell& cell = cells.front();
    CAPTURE(name(row.policy));
    CHECK(std::abs(100 * cell.token_hit_rate - row.rate) <= (row.policy == PolicyKind::hix ? 0.2 : 0.01));
    if (row.hit_tokens > 0) CHECK(cell.hit_tokens == row.hit_tokens);
    if (row.victims > 0) CHECK(cell.victims == row.victims);
    if (row.policy == PolicyKind::hix) CHECK(cell.metadata_bytes <= 2'000'000);
  }
}

}  // namespace

TEST_CASE("every policy has the figures of its reference on the agent sessions with 32 GiB") {
  check_trace("agent_sessions.jsonl", 32,
              {{PolicyKind::every, 39.18, 0},
               {PolicyKind::last, 79.91, 0},
               {PolicyKind::branch, 80.30, 0},
               {PolicyKind::node_lru, 78.62, 0},
               {PolicyKind::gdsf, 77.12, 395'130'368},
               {PolicyKind::hix, 82.79, 0},
               {PolicyKind::hix_exact, 82.79, 424'151'040, 9'625}});
}

TEST_CASE("every policy has the figures of its reference on the conversation trace with 64 GiB") {
  check_trace("conversation.jsonl", 64,
              {{PolicyKind::every, 4.41, 0},
               {PolicyKind::last, 9.08, 0},
               {PolicyKind::branch, 9.21, 0},
               {PolicyKind::node_lru, 9.15, 0},
               {PolicyKind::gdsf, 11.03, 15'964'160},
               {PolicyKind::hix, 16.43, 0},
               {PolicyKind::hix_exact, 16.43, 23'782'400, 35'248}});
}
