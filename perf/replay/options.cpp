// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <limits>
#include <map>

#include <CLI/CLI.hpp>
#include <stateport/core/models.hpp>

namespace stateport::replay {
namespace {

constexpr const char* description =
    "Replays a serving workload through a state cache whose states are really made, copied and verified.\n"
    "Requests are served one at a time, in order. A request continues from the deepest state inside the longest\n"
    "prefix whose KV is cached; the rest of its prompt is computed by a stand-in for the model.";

constexpr const char* footer =
    "JSON keys (--json): requests, input_tokens, token_hit_rate (0..1), request_hit_rate, lost_hits {reason: count},\n"
    "  restores, verified, mismatches, commits, dropped_checkpoints, evictions (of states), bytes_copied (restores "
    "and\n"
    "  commits at the model's full state size, read + written), bytes_moved (the same, as really moved), "
    "copy_gb_per_s\n"
    "  (really moved), copy_share_of_memcpy (median, memcpy of the same sizes in the same run), bookkeeping_ns_p50 "
    "and\n"
    "  _p99 (per request), bookkeeping_ns_per_block_p50, hashing_ns_per_block_p50 (per full block of the prompt), "
    "wall_s,\n"
    "  and the settings of the run.\n"
    "Exit code: 0; 1 when a restored state was wrong; 2 when the run could not be done; 130 when interrupted (Ctrl-C\n"
    "  prints the summary so far).";

std::string known_models() {
  std::string names;
  for (const models::ModelInfo& model : models::all()) {
    if (!names.empty()) names += ", ";
    names += model.name;
  }
  return names;
}

void add_workload(CLI::App& app, Options& options) {
  auto* trace = app.add_option("--trace", options.trace, "JSON lines: timestamp, input_length, output_length, hash_ids")
                    ->check(CLI::ExistingFile);
  app.add_flag("--skip-bad", options.skip_bad, "Count malformed lines of the trace instead of refusing it")
      ->needs(trace);
  static const std::map<std::string, WorkloadKind> kinds = {
      {"chat", WorkloadKind::chat}, {"agent", WorkloadKind::agent}, {"shared-prompt", WorkloadKind::shared_prompt}};
  app.add_option("--workload", options.generator.kind, "Without a trace: what is generated")
      ->transform(CLI::CheckedTransformer(kinds, CLI::ignore_case))
      ->option_text("chat|agent|shared-prompt [chat]")
      ->excludes(trace);
  app.add_option("--seed", options.generator.seed, "Of the generated workload")->capture_default_str()->excludes(trace);
  app.add_option("--requests", options.requests_max, "Serve only so many [all of a trace, 2000 generated]")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{100'000'000}));
  app.add_option("--block-size", options.generator.block_size_tokens, "Tokens of a block")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str();
}

void add_cache(CLI::App& app, Options& options) {
  constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max() - 1;
  static const std::map<std::string, CacheKind> caches = {{"slots", CacheKind::slots}};
  static const std::map<std::string, BlockHashKind> hashes = {{"sha256", BlockHashKind::sha256},
                                                              {"xxh3_128", BlockHashKind::xxh3_128}};
  static const std::map<std::string, CheckpointMode> modes = {
      {"every", CheckpointMode::every}, {"last", CheckpointMode::last}, {"branch", CheckpointMode::branch}};
  app.add_option("--cache", options.cache, "Index: slots = BlockPool and SlotAllocator, by block hash")
      ->transform(CLI::CheckedTransformer(caches, CLI::ignore_case))
      ->option_text("slots");
  app.add_option("--checkpoint", options.checkpoint,
                 "Where states are kept: after every block; after the last full block; there and where the prompt "
                 "left a cached prefix")
      ->transform(CLI::CheckedTransformer(modes, CLI::ignore_case))
      ->option_text("every|last|branch [branch]");
  app.add_option("--hash", options.hash, "Block hash")
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

void add_states(CLI::App& app, Options& options) {
  app.add_option("--model", options.model, "Whose states: " + known_models())->capture_default_str();
  app.add_option("--materialize", options.materialize_bytes,
                 "Memory for states (4GiB, 500MB, …): they are shrunk to fit, accounting stays at full size; 0: "
                 "bookkeeping alone, nothing is moved or verified")
      ->transform(CLI::AsSizeValue(false))
      ->option_text("BYTES [2GiB]");
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv, int& exit_code) {
  Options options;
  CLI::App app(description, "stateport-replay");
  app.footer(footer);
  add_workload(app, options);
  add_cache(app, options);
  add_states(app, options);
  app.add_option("--json", options.json_file, "Also write the summary to this file")->option_text("FILE");
  std::string plant;
  app.add_option("--plant", plant, "Self-test: wrong-slot = the first restore reads the wrong slot, and must be found")
      ->check(CLI::IsMember({"wrong-slot"}))
      ->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    constexpr int wrong_usage = 2;
    exit_code = app.exit(error) == 0 ? 0 : wrong_usage;
    return std::nullopt;
  }
  options.plant_wrong_slot = !plant.empty();
  return options;
}

}  // namespace stateport::replay
