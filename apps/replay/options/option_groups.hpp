// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "options/options.hpp"

#include <CLI/CLI.hpp>

#include <string>
#include <utility>
#include <vector>

/// Groups of options that several commands take. Each function adds them to a command, and they write to a struct
/// that must live as long as the command. A check_ function is called after parsing; it throws CLI::ValidationError,
/// which names the option.
namespace stateport::replay {

/// An option whose values have names. `fallback`: as --help shows it, after the names.
template <class Target, class Value>
CLI::Option& add_choice(CLI::App& app, const char* name, Target& target, const char* text,
                        const std::vector<std::pair<std::string, Value>>& choices, const std::string& fallback = "") {
  std::string names;
  for (const auto& choice : choices) names += (names.empty() ? "" : "|") + choice.first;
  return *app.add_option(name, target, text)
              ->transform(CLI::CheckedTransformer(choices, CLI::ignore_case))
              ->option_text(names + fallback);
}

/// `seeds_traces`: --seed has a meaning beside --trace, too.
void add_common(CLI::App& app, CommonOptions& common, bool seeds_traces = false);
/// Hints of requests, for policies that learn.
void add_hints(CLI::App& app, HintKinds& hints);
void add_states(CLI::App& app, StateOptions& states);
void add_prometheus(CLI::App& app, std::string& file);

/// --cache with slots and tree.
void add_cache(CLI::App& app, CacheKind& cache);
/// Blocks, slots, their hash and their policy, whose name is not checked yet.
void add_pools(CLI::App& app, PoolOptions& pools, std::string& policy);
/// Throws for a policy that pools do not have.
void choose_policy(const std::string& policy, PoolOptions& pools);

/// --memory, its index and policy, whose name is not checked yet, --host and the speeds; --disk is of the command.
void add_memory(CLI::App& app, MemoryOptions& memory, std::string& policy);
/// --disk with bytes alone: files are counted.
void add_counted_disk(CLI::App& app, MemoryOptions& memory);
/// Bytes with a unit, 1 or more.
CLI::Option& as_bytes(CLI::Option& option);
/// Throws for a policy that the index does not have, or that has no tiers where these are wanted.
void choose_policy(const std::string& policy, bool wants_tiers, MemoryOptions& memory);
/// Throws for a speed that has no meaning to the command, and where some speeds are known and one is missing. `host`:
/// the command loads from the host; `computes`: --prefill-rate has a meaning.
void check_speeds(const CLI::App& app, const MemoryOptions& memory, bool host, bool computes);

}  // namespace stateport::replay
