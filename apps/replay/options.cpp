// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <stateport/core/model/models.hpp>

#include "finite_number.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <map>

namespace stateport::replay {
namespace {

// Lines short enough for 80 columns, whether this version of CLI11 wraps them or not.
constexpr const char* description =
    "Replays a serving workload through RequestCache, with states that are really\n"
    "made, copied and verified. Requests are served one at a time, in order. Each\n"
    "continues from the deepest state inside its longest cached prefix; a stand-in\n"
    "for the model computes the rest of the prompt. With --serve, and always with\n"
    "--cache align, eight requests are served at a time, prefilled in chunks, and\n"
    "decode their answers, as an engine does.";

constexpr const char* footer =
    "Keys of the JSON file, beside the settings of the run:\n"
    "  requests, input_tokens, token_hit_rate (0 to 1), request_hit_rate,\n"
    "  lost_hits {reason: count}, lost_tokens and lost_flops {reason: sum of all\n"
    "  that was computed again}, restores, verified, mismatches, commits,\n"
    "  dropped_checkpoints, evictions (of states),\n"
    "  tiers [{name, token_hit_rate, bytes_read, bytes_written, dropped (images),\n"
    "  seconds, states, blocks}]  with --host or --disk, at the model's full size.\n"
    "                 seconds: what loading instead of computing saved, null without\n"
    "                 --prefill-rate. Of each request that loaded something, in the\n"
    "                 slowest tier that it loaded from: tokens that it did not\n"
    "                 compute / prefill rate - bytes that it loaded from each tier /\n"
    "                 bandwidth of that tier. Moves to a lower tier, which are in\n"
    "                 bytes_read, too, make no request wait\n"
    "  bytes_copied   restores and commits at the model's full state size,\n"
    "                 read + written\n"
    "  bytes_moved    the same as really moved\n"
    "  copy_gb_per_s  of bytes_moved\n"
    "  copy_share_of_memcpy  speed relative to memcpy of the same sizes in the\n"
    "                 same run (median)\n"
    "  bookkeeping_ns_p50, bookkeeping_ns_p99  per request, start to finish\n"
    "  bookkeeping_ns_per_block_p50, hashing_ns_per_block_p50  per full block: the\n"
    "                 first with hashing, the second of hashing alone\n"
    "                 (of a pass without states: those empty the host's caches)\n"
    "  bookkeeping_ns_per_block_beside_copies_p50  of the pass with states\n"
    "  wall_s\n"
    "and with --report:\n"
    "  token_hit_rate_ceiling  of a cache that keeps everything\n"
    "  capacities [...]  as --sweep writes them, all policies with a quarter to\n"
    "                 four times the budget\n"
    "                 (with --host or --disk those that have tiers, and with them)\n"
    "  timeline [...]  of 24 equal parts of the requests; ages [...] of states\n"
    "and with --serve or --cache align:\n"
    "  steps, drafts_proposed, drafts_accepted, copies (planned), published,\n"
    "  refused (checkpoints without room), skipped_parts (copies without a slot),\n"
    "  planning_ns_p50, planning_ns_p99  of plan and commit of a step\n"
    "and with --nodes, instead of all these:\n"
    "  routes {route: {figure: {value, standard_error}}}, the figures of the text\n"
    "A node serves one prompt at a time, in simulated time: what is loaded takes\n"
    "bytes / bandwidth, what is computed tokens / --prefill-rate, answers nothing.\n"
    "Requests come when the workload says. What is moved between a device, its\n"
    "host and its disk takes no time but for loads; a link takes one transfer after\n"
    "the other. uncached_*: the same requests on the same nodes, all computed.\n"
    "Where a trace names no session, the block behind the shared opening names the\n"
    "conversation (openings end where more than 16 different blocks follow).\n"
    "A sample has whole conversations and its part of the nodes and of the remote\n"
    "store. What conversations share is computed and stored once in each sample, as\n"
    "in the whole: hit rates come out low, the more the smaller the sample, and the\n"
    "standard error does not know of it. Round robin comes back to a node sooner:\n"
    "hits in its own tiers come out high. Compare --sample N and --sample N/2.\n"
    "Exit code: 0; 1 when a verified state was wrong; 2 when the run could not be\n"
    "done; 130 when interrupted (Ctrl-C prints the summary so far).";

std::string known_models() {
  std::string names;
  for (const models::ModelInfo& model : models::all()) {
    if (!names.empty()) names += ", ";
    names += model.name;
  }
  return names;
}

void add_workload(CLI::App& app, Options& options) {
  auto* trace = app.add_option("--trace", options.trace,
                               "Mooncake JSON lines, BurstGPT CSV, Azure CSV or ShareGPT JSON with token counts, plain "
                               "or in gzip: the content tells")
                    ->check(CLI::ExistingFile);
  app.add_flag("--skip-bad", options.trace_options.skip_bad,
               "Count malformed lines (ShareGPT: conversations) of the trace, and leave them out")
      ->needs(trace);
  static const std::map<std::string, TimeUnit> units = {{"us", TimeUnit::us}, {"ms", TimeUnit::ms}, {"s", TimeUnit::s}};
  app.add_option("--time-unit", options.trace_options.time_unit, "Of the trace's timestamps")
      ->transform(CLI::CheckedTransformer(units, CLI::ignore_case))
      ->option_text("us|ms|s [ms, BurstGPT: s; not for Azure]")
      ->needs(trace);
  app.add_flag("--sort", options.trace_options.sort, "Serve the trace in the order of its timestamps")->needs(trace);
  static const std::map<std::string, WorkloadKind> kinds = {
      {"chat", WorkloadKind::chat}, {"agent", WorkloadKind::agent}, {"shared-prompt", WorkloadKind::shared_prompt}};
  app.add_option("--workload", options.generator.kind, "Without a trace: what is generated")
      ->transform(CLI::CheckedTransformer(kinds, CLI::ignore_case))
      ->option_text("chat|agent|shared-prompt [chat]")
      ->excludes(trace);
  app.add_option("--seed", options.generator.seed, "Of the generated workload and of the drafts that are kept")
      ->capture_default_str();
  app.add_option("--requests", options.requests_max,
                 "Serve only so many [all of a trace, 3000 generated, 100 for align and --serve]")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{100'000'000}));
  app.add_option("--block-size", options.generator.block_size_tokens, "Tokens of a block")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str();
}

void add_cache(CLI::App& app, Options& options) {
  constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max() - 1;
  static const std::map<std::string, CacheKind> caches = {
      {"slots", CacheKind::slots}, {"tree", CacheKind::tree}, {"align", CacheKind::align}};
  static const std::map<std::string, BlockHashKind> hashes = {{"sha256", BlockHashKind::sha256},
                                                              {"xxh3_128", BlockHashKind::xxh3_128}};
  static const std::map<std::string, CheckpointPlacement> modes = {{"every", CheckpointPlacement::every},
                                                                   {"last", CheckpointPlacement::last},
                                                                   {"branch", CheckpointPlacement::branch},
                                                                   {"rungs", CheckpointPlacement::rungs}};
  app.add_option("--cache", options.cache,
                 "Index of RequestCache: slots = by block hash; tree = by tokens; align = by block tables: a slot is a "
                 "block")
      ->transform(CLI::CheckedTransformer(caches, CLI::ignore_case))
      ->option_text("slots|tree|align [slots; tree with --budget, --sweep or size]");
  app.add_option("--checkpoint", options.checkpoint,
                 "Where states are kept: after every block; after the last full block; there and where the prompt "
                 "left a cached prefix; also 1, 2 and 4 blocks before the end")
      ->transform(CLI::CheckedTransformer(modes, CLI::ignore_case))
      ->option_text("every|last|branch|rungs [branch]");
  app.add_option("--hash", options.hash, "Block hash of the slots index")
      ->transform(CLI::CheckedTransformer(hashes, CLI::ignore_case))
      ->option_text("sha256|xxh3_128 [sha256]");
  auto* blocks = app.add_option("--blocks", options.blocks, "KV blocks that can be cached")
                     ->check(CLI::Range(1, most))
                     ->option_text("INT [8 for each slot, at least the longest prompt]");
  auto* slots = app.add_option("--slots", options.slots, "States that can be cached")
                    ->check(CLI::Range(1, most))
                    ->capture_default_str();
  app.add_flag("--unlimited", options.unlimited, "As many blocks and slots as the workload can fill")
      ->excludes(blocks)
      ->excludes(slots);
}

void add_budget(CLI::App& app, Options& options, std::string& policy) {
  auto* budget = app.add_option("--budget", options.budget_bytes,
                                "One memory for KV and states (64GiB, …), instead of --blocks and --slots")
                     ->transform(CLI::AsSizeValue(false))
                     ->check(CLI::PositiveNumber)
                     ->option_text("BYTES");
  for (const char* other : {"--blocks", "--slots", "--unlimited", "--checkpoint"})
    budget->excludes(app.get_option(other));
  app.add_option("--host", options.host_bytes, "Memory on the host below the budget, for what the device gives up")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber)
      ->option_text("BYTES");
  const auto read_disk = [&options](const CLI::results_t& given) {
    const std::size_t colon = given.front().rfind(':');
    std::string bytes = given.front().substr(colon == std::string::npos ? 0 : colon + 1);
    if (colon != std::string::npos) options.disk_folder = given.front().substr(0, colon);
    if (!CLI::AsSizeValue(false)(bytes).empty()) return false;
    return CLI::detail::lexical_cast(bytes, options.disk_bytes) && options.disk_bytes > 0;
  };
  app.add_option("--disk", read_disk,
                 "Files below the budget and the host, in a folder of their own (images:1TiB); without --materialize "
                 "they are only counted")
      ->option_text("[FOLDER:]BYTES");
  app.add_option("--host-bandwidth", options.speeds.host_bytes_per_s, "Of loads from the host (50GB = 5e10, 50GiB, …)")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::PositiveNumber)
      ->option_text("BYTES/s");
  app.add_option("--disk-bandwidth", options.speeds.file_bytes_per_s, "Of loads from files")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::PositiveNumber)
      ->option_text("BYTES/s");
  app.add_option("--prefill-rate", options.speeds.tokens_per_s,
                 "Prompt tokens that the engine computes in a second. With the bandwidth of each tier, what is below "
                 "the device is loaded only where that is faster, and the time saved is told")
      ->check(finite_number())
      ->check(CLI::PositiveNumber)
      ->option_text("TOKENS/s");
  app.add_option("--policy", policy,
                 "What goes first. With --budget or size: every, last, branch = least recently used blocks and states, "
                 "placed as by --checkpoint; node-lru, gdsf = by tree node; hix = learned hazard index; hix-exact = "
                 "without sampling; with --cache slots too: lru, gdsf, hix. Without them, with --cache slots, of the "
                 "states, and with --cache tree: lru, fifo, filo, lfu, slru, priority, gdsf, hix")
      ->option_text("NAME [lru with --cache slots, else hix]");
  app.add_flag("--hint-last-turns", options.hints.last_turns,
               "Tell hix which prompts no later one continues, as a server with sessions would");
  app.add_flag("--hint-tool-calls", options.hints.tool_calls,
               "Tell hix which prompts are continued within 20 s, as those that wait for a tool");
  app.add_flag("--hint-idle-times", options.hints.idle_times,
               "Tell hix that no prompt is continued before half of the time that it takes");
  app.add_flag("--hint-sessions", options.hints.sessions,
               "Tell hix which prompts are of the same session, where the workload says so");
  app.add_option(
         "--hint-continues", options.hints.continues_auc,
         "Tell hix how likely each prompt is continued, as a classifier with this area under its ROC curve would")
      ->check(finite_number())
      ->check(CLI::Range(0.001, 0.999))
      ->option_text("AUC");
  app.add_option("--sweep", options.sweep_bytes, "Run every policy with each of these budgets and print tables")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber)
      ->delimiter(',')
      ->option_text("BYTES,…")
      ->excludes(budget);
}

void add_align(CLI::App& app, Options& options) {
  static const std::map<std::string, bool> counters = {{"sync", false}, {"async", true}};
  app.add_option("--draft", options.drafts, "Align: tokens proposed in a decode step")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  app.add_option("--accept", options.accept, "Align: chance that a draft is kept, if the one before it is")
      ->check(finite_number())
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_flag("--serve", options.serve,
               "Serve eight requests at a time, in chunks, with their answers; checkpoints lie where passes end");
  app.add_option("--counters", options.asynchronous,
                 "Align, --serve: async = a pass is planned before the last one's count is known")
      ->transform(CLI::CheckedTransformer(counters, CLI::ignore_case))
      ->option_text("sync|async [sync]");
}

/// Budgets and pools know different policies.
void choose_policy(const std::string& policy, Options& options) {
  const bool slots = options.cache == CacheKind::slots;
  if (options.has_budget()) {
    const std::span<const PolicyKind> known = policies_of(options.cache);
    if (slots) options.policy = PolicyKind::slots_lru;
    if (policy.empty()) return;
    const std::string wanted = (slots ? "slots-" : "") + policy;
    const auto found = std::ranges::find(known, wanted, [](PolicyKind kind) { return name(kind); });
    if (found == known.end()) throw CLI::ValidationError("--policy", policy + " is no policy of a budget");
    options.policy = *found;
    return;
  }
  if (policy.empty()) return;
  for (const EvictionOrder order :
       {EvictionOrder::lru, EvictionOrder::lfu, EvictionOrder::fifo, EvictionOrder::slru, EvictionOrder::priority,
        EvictionOrder::filo, EvictionOrder::gdsf, EvictionOrder::hix})
    if (name(order) == policy) options.eviction = order;
  if (!options.eviction) throw CLI::ValidationError("--policy", policy + " needs --budget or size");
}

/// The speeds of all tiers are known, or none.
void check_speeds(const CLI::App& app, const Options& options) {
  const TierSpeeds& speeds = options.speeds;
  const bool known =
      speeds.tokens_per_s + speeds.host_bytes_per_s + speeds.file_bytes_per_s + speeds.remote_bytes_per_s > 0;
  const auto check = [&](const char* speed, bool wanted, const char* why_not) {
    if (app.count(speed) > 0 && !wanted) throw CLI::ValidationError(speed, why_not);
    if (app.count(speed) == 0 && wanted && known) throw CLI::ValidationError(speed, "is needed with the other speeds");
  };
  check("--host-bandwidth", options.host_bytes > 0 || options.size, "needs --host or size");
  check("--disk-bandwidth", options.disk_bytes > 0, "needs --disk");
  check("--link", options.fleet.remote_bytes > 0, "needs --remote");
  check("--prefill-rate", options.has_tiers() || options.size || options.fleet.wanted(),
        "needs --host, --disk, --nodes or size");
}

/// What means nothing to what was chosen.
void refuse_others(const CLI::App& app, const Options& options) {
  const auto refuse = [&](std::initializer_list<const char*> names, const char* why) {
    for (const char* option : names)
      if (app.count(option) > 0) throw CLI::ValidationError(option, why);
  };
  const bool align = options.cache == CacheKind::align;
  if (!align) refuse({"--draft", "--accept"}, "needs --cache align");
  if (!options.serves()) refuse({"--counters"}, "needs --cache align or --serve");
  if (options.serve) {
    refuse({"--checkpoint", "--budget", "--sweep", "--prometheus"}, "means nothing with --serve");
    if (options.size) throw CLI::ValidationError("--serve", "means nothing to size");
  }
  if (align && options.size) throw CLI::ValidationError("size", "means nothing with --cache align");
  if (align)
    refuse({"--budget", "--checkpoint", "--hash", "--blocks", "--sweep", "--prometheus"},
           "means nothing with --cache align");
  if (!align && !options.fleet.wanted() && app.count("--trace") > 0)
    refuse({"--seed"}, "means nothing with --trace, but for --cache align and --nodes");
  if (options.size)
    refuse({"--budget", "--sweep", "--blocks", "--slots", "--unlimited", "--checkpoint", "--prometheus", "--report"},
           "means nothing to size");
  if (!options.sweep_bytes.empty()) refuse({"--prometheus"}, "means nothing with --sweep");
  if (align) refuse({"--policy"}, "means nothing with --cache align");
  if (!options.has_budget() && !options.eviction)
    refuse({"--hint-last-turns", "--hint-tool-calls", "--hint-idle-times", "--hint-sessions", "--hint-continues"},
           "needs --budget, --sweep, size or --policy");
  if (options.budget_bytes == 0) refuse({"--report", "--host", "--disk"}, "needs --budget");
  if (!has_tiers(options.policy)) refuse({"--host", "--disk"}, "needs a policy of RequestCache");
  if (options.materialize_bytes > 0 && options.disk_folder.empty() && !options.size && !options.fleet.wanted())
    refuse({"--disk"}, "needs a folder (FOLDER:BYTES), or --materialize 0");
  check_fleet_arguments(app, options.fleet, options.policy, !options.disk_folder.empty());
  check_speeds(app, options);
  if (!options.checkpoint_type) return;
  if (align) refuse({"--checkpoint-dtype"}, "means nothing with --cache align: its checkpoints are states of requests");
}

void add_states(CLI::App& app, Options& options) {
  app.add_option("--model", options.model, "Whose states: " + known_models())->capture_default_str();
  static const std::map<std::string, ElementType> types = {{"f32", ElementType::fp32}, {"bf16", ElementType::bf16}};
  app.add_option("--recurrent-dtype", options.recurrent_type, "Of the recurrent states, instead of the catalogue's")
      ->transform(CLI::CheckedTransformer(types, CLI::ignore_case))
      ->option_text("f32|bf16");
  static const std::map<std::string, std::optional<ElementType>> kept = {
      {"model", std::nullopt}, {"bf16", ElementType::bf16}, {"int8", ElementType::int8_block32}};
  app.add_option_function<std::string>(
         "--checkpoint-dtype", [&options](const std::string& name) { options.checkpoint_type = kept.at(name); },
         "Of recurrent states in checkpoints, for what these cost: int8 = in blocks of 32 with fp16 scales. States of "
         "running requests stay as they are, and do not count in --budget")
      ->check(CLI::IsMember({"model", "bf16", "int8"}))
      ->option_text("model|bf16|int8 [model]");
  app.add_option("--materialize", options.materialize_bytes,
                 "Memory for states (4GiB, 500MB, …): they are shrunk to fit, accounting stays at full size; 0: "
                 "bookkeeping alone, nothing is moved or verified")
      ->transform(CLI::AsSizeValue(false))
      ->option_text("BYTES [2GiB, 64MiB for align and --serve]");
}

/// `size` is a subcommand that takes the options of the program, so that there is one list of them.
void add_size(CLI::App& app, Options& options) {
  auto* size = app.add_subcommand(
      "size", "Says what --memory is worth for the workload, what more would be, and what host memory below it");
  size->fallthrough();
  size->add_option("--memory", options.budget_bytes, "For KV and states together (64GiB, …)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber)
      ->option_text("BYTES")
      ->required();
  size->callback([&options] { options.size = true; });
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv, int& exit_code) {
  Options options;
  CLI::App app(description, "stateport-replay");
  app.footer(footer);
  add_workload(app, options);
  add_cache(app, options);
  std::string policy;
  add_budget(app, options, policy);
  add_fleet_arguments(app, options.fleet, options.speeds);
  add_align(app, options);
  add_states(app, options);
  add_size(app, options);
  app.add_option("--json", options.json_file, "Also write the summary to this file")->option_text("FILE");
  app.add_option("--prometheus", options.prometheus_file, "Also write hits and lost hits as Prometheus text")
      ->option_text("FILE");
  app.add_option("--report", options.report_file,
                 "With --budget, also write a page (HTML, inline SVG): hit rates of all policies over memory, lost "
                 "hits, memory and copies over time, ages of states")
      ->option_text("FILE");
  std::string plant;
  app.add_option("--plant", plant, "Self-test: wrong-slot = the first restore reads the wrong slot, and must be found")
      ->check(CLI::IsMember({"wrong-slot"}))
      ->group("");
  try {
    app.parse(argc, argv);
    if (options.has_budget() && app.count("--cache") == 0) options.cache = CacheKind::tree;
    choose_policy(policy, options);
    refuse_others(app, options);
  } catch (const CLI::ParseError& error) {
    constexpr int wrong_usage = 2;
    exit_code = app.exit(error) == 0 ? 0 : wrong_usage;
    return std::nullopt;
  }
  options.plant_wrong_slot = !plant.empty();
  // Every decoded token writes states: fewer and smaller ones keep a run short.
  if (options.serves()) {
    constexpr std::uint64_t align_materialize_bytes = std::uint64_t{64} << 20;
    if (app.count("--materialize") == 0) options.materialize_bytes = align_materialize_bytes;
    if (options.trace.empty() && options.requests_max == 0) options.requests_max = 100;
  }
  return options;
}

}  // namespace stateport::replay
