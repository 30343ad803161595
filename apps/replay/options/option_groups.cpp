// SPDX-License-Identifier: Apache-2.0
#include "options/option_groups.hpp"

#include <stateport/core/model/models.hpp>

#include "options/finite_number.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <ranges>

namespace stateport::replay {
namespace {

void add_workload(CLI::App& app, WorkloadOptions& workload, bool seeds_traces) {
  auto* trace = app.add_option("--trace", workload.traces,
                               "Mooncake JSON lines, a recorded stateport trace (of one or more files), BurstGPT CSV, "
                               "Azure CSV or ShareGPT JSON with token counts, plain or in gzip: the content tells")
                    ->check(CLI::ExistingFile)
                    ->option_text("FILE …");
  app.add_flag("--skip-bad", workload.trace_options.skip_bad,
               "Count malformed lines (ShareGPT: conversations) of the trace, and leave them out")
      ->needs(trace);
  add_choice<std::optional<TimeUnit>, TimeUnit>(
      app, "--time-unit", workload.trace_options.time_unit, "Of the trace's timestamps",
      {{"us", TimeUnit::us}, {"ms", TimeUnit::ms}, {"s", TimeUnit::s}}, " [ms, BurstGPT: s; not for Azure]")
      .needs(trace);
  app.add_flag("--sort", workload.trace_options.sort, "Serve the trace in the order of its timestamps")->needs(trace);
  add_choice<WorkloadKind, WorkloadKind>(app, "--workload", workload.generator.kind,
                                         "Without a trace: the kind of the generated requests",
                                         {{"chat", WorkloadKind::chat},
                                          {"agent", WorkloadKind::agent},
                                          {"template", WorkloadKind::chat_template},
                                          {"shared-prompt", WorkloadKind::shared_prompt},
                                          {"grpo", WorkloadKind::grpo},
                                          {"burst", WorkloadKind::burst}},
                                         " [chat]")
      .excludes(trace);
  auto* seed =
      app.add_option("--seed", workload.generator.seed, "Of everything that is drawn at random")->capture_default_str();
  if (!seeds_traces) seed->excludes(trace);
  app.add_option("--requests", workload.requests_max, "Serve no more than these")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{100'000'000}))
      ->option_text(fmt::format("INT [all of a trace, {} generated; grpo: {}, burst: {}]", workload.generator.requests,
                                *requests_at_once(WorkloadKind::grpo), *requests_at_once(WorkloadKind::burst)));
  app.add_option("--block-size", workload.generator.block_size_tokens,
                 "Tokens of a block; without it a recorded trace keeps its own")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->each([&workload](const std::string&) { workload.trace_options.joins_blocks = true; })
      ->capture_default_str();
}

void add_model(CLI::App& app, ModelOptions& model) {
  const auto names = models::all() | std::views::transform(&models::ModelInfo::name);
  app.add_option("--model", model.name,
                 fmt::format("The model whose states are kept; without it a recorded trace has its own sizes: the path "
                             "of a config.json (Hugging Face) or of its folder, or {}",
                             fmt::join(names, ", ")))
      ->each([&model](const std::string&) { model.is_given = true; })
      ->capture_default_str();
  add_choice<std::optional<ElementType>, ElementType>(app, "--recurrent-dtype", model.recurrent_type,
                                                      "Of the recurrent states, instead of the model's",
                                                      {{"f32", ElementType::fp32}, {"bf16", ElementType::bf16}});
  static const std::map<std::string, std::optional<ElementType>> kept = {
      {"model", std::nullopt}, {"bf16", ElementType::bf16}, {"int8", ElementType::int8_block32}};
  app.add_option_function<std::string>(
         "--checkpoint-dtype", [&model](const std::string& name) { model.checkpoint_type = kept.at(name); },
         "Of recurrent states in checkpoints, for their cost: int8 = in blocks of 32 with fp16 scales. States of "
         "running requests stay as they are, and do not count in --memory")
      ->check(CLI::IsMember({"model", "bf16", "int8"}))
      ->option_text("model|bf16|int8 [model]");
}

void add_speed(CLI::App& app, const char* option, double& bytes_per_s, const char* text) {
  app.add_option(option, bytes_per_s, text)
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::PositiveNumber)
      ->option_text("BYTES/s");
}

}  // namespace

void add_common(CLI::App& app, CommonOptions& common, bool seeds_traces) {
  add_workload(app, common.workload, seeds_traces);
  add_model(app, common.model);
  app.add_option("--json", common.json_file, "Also write the results to this file; stateport-report draws it")
      ->option_text("FILE");
}

void add_hints(CLI::App& app, HintKinds& hints) {
  app.add_flag("--hint-last-turns", hints.last_turns,
               "Tell hix which prompts no later one continues, as a server with sessions would");
  app.add_flag("--hint-tool-calls", hints.tool_calls,
               "Tell hix which prompts are continued within 20 s, as those that wait for a tool");
  app.add_flag("--hint-idle-times", hints.idle_times,
               "Tell hix that no prompt is continued before half of the time that it takes");
  app.add_flag("--hint-sessions", hints.sessions,
               "Tell hix which prompts are of the same session, where the workload says so");
  app.add_option(
         "--hint-continues", hints.continues_auc,
         "Tell hix how likely each prompt is continued, as a classifier with this area under its ROC curve would")
      ->check(finite_number())
      ->check(CLI::Range(0.001, 0.999))
      ->option_text("AUC");
}

void add_states(CLI::App& app, StateOptions& states) {
  app.add_option("--materialize", states.materialize_bytes,
                 "Memory for states (4GiB, 500MB, …): they are shrunk to fit, accounting stays at full size; 0: "
                 "bookkeeping alone, nothing is moved or verified")
      ->transform(CLI::AsSizeValue(false))
      ->option_text(fmt::format("BYTES [{}MiB]", states.materialize_bytes >> 20));
  app.add_option_function<std::string>(
         "--plant", [&states](const std::string&) { states.plant_wrong_slot = true; },
         "Self-test: wrong-slot = the first restore reads the wrong slot, and must be found")
      ->check(CLI::IsMember({"wrong-slot"}))
      ->group("");
}

void add_prometheus(CLI::App& app, std::string& file) {
  app.add_option("--prometheus", file, "Also write hits and lost hits as Prometheus text")->option_text("FILE");
}

void add_schedule(CLI::App& app, ScheduleOptions& schedule) {
  constexpr std::int32_t most = 1 << 16;
  app.add_option("--concurrency", schedule.concurrency,
                 "Requests in flight: looked up when they are admitted, then waiting or running")
      ->check(CLI::Range(1, most))
      ->capture_default_str();
  app.add_option("--max-running", schedule.running_max, "Of these, requests that run at a time")
      ->check(CLI::Range(1, most))
      ->option_text("INT [all]");
  app.add_option("--step-tokens", schedule.step_tokens_max, "Prompt tokens of a pass, at least a block")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str();
  app.add_flag("--refresh", schedule.refresh,
               "Look a waiting request up again when it is about to run: RequestCache::refresh");
  const auto read_share = [&schedule](const CLI::results_t& given) {
    ShareRunning& share = schedule.share_running;
    const std::size_t colon = given.front().find(':');
    if (!CLI::detail::lexical_cast(given.front().substr(0, colon), share.least_tokens) || share.least_tokens < 1)
      return false;
    return colon == std::string::npos ||
           (CLI::detail::lexical_cast(given.front().substr(colon + 1), share.longest_commits) &&
            share.longest_commits >= 1);
  };
  app.add_option("--share-running", read_share,
                 "A prompt waits for an earlier request that computes at least this number of its tokens, for at most "
                 "this number of passes: RequestCacheOptions::share_running")
      ->option_text(fmt::format("TOKENS[:PASSES] [passes {}]", ShareRunning{}.longest_commits));
}

void add_tenants(CLI::App& app, TenantOptions& tenants) {
  CLI::Option* const flood =
      app.add_option(
             "--flood", tenants.flood,
             "Beside the workload, which is of a quiet tenant, another tenant serves it this number of times at "
             "once, with conversations of its own")
          ->check(finite_number())
          ->check(CLI::Range(0.01, 1000.0))
          ->option_text("TIMES");
  as_bytes(*app.add_option("--quiet-floor", tenants.quiet_floor_bytes,
                           "Memory that the flood cannot take from the quiet "
                           "tenant: TenantQuota::floor_bytes"))
      .needs(flood);
  as_bytes(*app.add_option("--flood-most", tenants.flood_most_bytes,
                           "Memory that the flood may have at most: TenantQuota::most_bytes"))
      .needs(flood);
}

void add_cache(CLI::App& app, CacheKind& cache) {
  add_choice<CacheKind, CacheKind>(
      app, "--cache", cache, "Index of the cache, with states in slots: slots = by block hash; tree = by tokens",
      {{"slots", CacheKind::slots}, {"tree", CacheKind::tree}}, cache == CacheKind::tree ? " [tree]" : " [slots]")
      .transform(CLI::Validator(
          [](const std::string& given) -> std::string {
            return given == "align" ? "align is none of slots, tree; it is an index of the command serve" : "";
          },
          ""));
}

void add_pools(CLI::App& app, PoolOptions& pools, std::string& policy) {
  constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max() - 1;
  add_choice<BlockHashKind, BlockHashKind>(app, "--hash", pools.hash, "Hash of blocks",
                                           {{"sha256", BlockHashKind::sha256}, {"xxh3_128", BlockHashKind::xxh3_128}},
                                           " [sha256]");
  auto* blocks = app.add_option("--blocks", pools.blocks, "KV blocks that can be cached")
                     ->check(CLI::Range(1, most))
                     ->option_text("INT [8 for each slot, at least the longest prompt]");
  auto* slots = app.add_option("--slots", pools.slots, "States that can be cached")
                    ->check(CLI::Range(1, most))
                    ->capture_default_str();
  app.add_flag("--unlimited", pools.unlimited, "As many blocks and slots as the workload can fill")
      ->excludes(blocks)
      ->excludes(slots);
  app.add_option("--policy", policy,
                 "Order of eviction of the states and, with --cache tree, of the KV: lru, fifo, filo, lfu, slru, "
                 "priority, gdsf, hix (learned hazard index)")
      ->option_text("NAME [lru with --cache slots, hix with tree]");
}

void choose_policy(const std::string& policy, PoolOptions& pools) {
  if (policy.empty()) return;
  for (const EvictionOrder order :
       {EvictionOrder::lru, EvictionOrder::lfu, EvictionOrder::fifo, EvictionOrder::slru, EvictionOrder::priority,
        EvictionOrder::filo, EvictionOrder::gdsf, EvictionOrder::hix})
    if (name(order) == policy) pools.eviction = order;
  if (pools.eviction) return;
  const bool of_memory = std::ranges::find(all_policies, policy, [](PolicyKind kind) { return name(kind); }) !=
                         std::ranges::end(all_policies);
  throw CLI::ValidationError("--policy", policy + " is no policy of blocks and slots" +
                                             (of_memory ? "; it is one of the commands budget, size and fleet" : ""));
}

CLI::Option& as_bytes(CLI::Option& option) {
  return *option.transform(CLI::AsSizeValue(false))->check(CLI::PositiveNumber)->option_text("BYTES");
}

void add_division(CLI::App& app, DivisionOptions& division) {
  CLI::Option* const arena = app.add_option("--arena", division.arena_tokens,
                                            "KV and states share one arena: memory moves between them in extents of "
                                            "this number of tokens, or of one state, and is really there")
                                 ->check(CLI::PositiveNumber)
                                 ->option_text("TOKENS");
  app.add_option("--walls", division.state_share,
                 "States have this share of the memory and KV has the rest, whatever happens")
      ->check(CLI::Range(0.001, 0.999))
      ->option_text("SHARE")
      ->excludes(arena);
}

void add_memory(CLI::App& app, MemoryOptions& memory, std::string& policy) {
  as_bytes(*app.add_option("--memory", memory.bytes, "For KV and states together (64GiB, …)"))
      .required()
      ->option_text("BYTES REQUIRED");
  add_cache(app, memory.cache);
  app.add_option("--policy", policy,
                 "Order of eviction. With --cache tree: every, last, branch = least recently used blocks and states, "
                 "with states after every block, the last one, there and where prompts part; node-lru, gdsf = by tree "
                 "node; hix = learned hazard index; hix-exact = without sampling. With --cache slots: lru, gdsf, hix")
      ->option_text("NAME [lru with --cache slots, hix with tree]");
  app.add_option("--positions", memory.positions, "Positions of prompts whose history hix remembers, cached or not")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->option_text(fmt::format("INT [{}]", EvictionOptions{}.positions));
  as_bytes(*app.add_option("--host", memory.host_bytes, "Memory on the host, for contents that the device evicts"));
  add_speed(app, "--host-bandwidth", memory.speeds.host_bytes_per_s, "Of loads from the host (50GB = 5e10, 50GiB, …)");
  add_speed(app, "--disk-bandwidth", memory.speeds.file_bytes_per_s, "Of loads from files");
  app.add_option("--prefill-rate", memory.speeds.tokens_per_s,
                 "Prompt tokens that the engine computes in a second. With the bandwidth of each tier, contents below "
                 "the device are loaded only where that is faster, and the saved time is counted")
      ->check(finite_number())
      ->check(CLI::PositiveNumber)
      ->option_text("TOKENS/s");
}

void add_counted_disk(CLI::App& app, MemoryOptions& memory) {
  as_bytes(*app.add_option("--disk", memory.disk_bytes, "Files below the memory and the host; they are counted"));
}

void choose_policy(const std::string& policy, bool wants_tiers, MemoryOptions& memory) {
  const bool slots = memory.cache == CacheKind::slots;
  memory.policy = slots ? PolicyKind::slots_lru : PolicyKind::hix;
  if (!policy.empty()) {
    const std::span<const PolicyKind> known = policies_of(memory.cache);
    const auto found =
        std::ranges::find(known, (slots ? "slots-" : "") + policy, [](PolicyKind kind) { return name(kind); });
    if (found == known.end())
      throw CLI::ValidationError("--policy",
                                 fmt::format("{} is no policy of --cache {}", policy, slots ? "slots" : "tree"));
    memory.policy = *found;
  }
  if (wants_tiers && !has_tiers(memory.policy))
    throw CLI::ValidationError("--policy", policy + " has no tiers: this needs a policy of RequestCache");
}

void refuse_hints(const CLI::App& app, const std::string& why_not) {
  for (const CLI::Option* option : app.get_options())
    if (option->get_name().starts_with("--hint-") && option->count() > 0)
      throw CLI::ValidationError(option->get_name(), why_not);
}

void check_speeds(const CLI::App& app, const MemoryOptions& memory, bool host, bool computes) {
  const TierSpeeds& speeds = memory.speeds;
  const bool known = speeds.tokens_per_s + speeds.host_bytes_per_s + speeds.file_bytes_per_s > 0;
  const auto check = [&](const char* speed, bool wanted, const char* why_not) {
    if (app.count(speed) > 0 && !wanted) throw CLI::ValidationError(speed, why_not);
    if (app.count(speed) == 0 && wanted && known) throw CLI::ValidationError(speed, "is needed with the other speeds");
  };
  check("--host-bandwidth", host, "needs --host");
  check("--disk-bandwidth", memory.disk_bytes > 0, "needs --disk");
  check("--prefill-rate", computes, "needs --host or --disk");
}

}  // namespace stateport::replay
