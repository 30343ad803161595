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

/// An option whose values have names, in any case; no other text is accepted. `fallback`: as --help shows it, after the
/// names.
template <class Target, class Value>
CLI::Option& add_choice(CLI::App& app, const char* name, Target& target, const char* text,
                        const std::vector<std::pair<std::string, Value>>& choices, const std::string& fallback = "") {
  std::string shown;
  std::string listed;
  for (const auto& choice : choices) {
    shown += (shown.empty() ? "" : "|") + choice.first;
    listed += (listed.empty() ? "" : ", ") + choice.first;
  }
  // CLI11's own transformer accepts the numbers of the values, too, and shows them in its errors.
  const auto to_number = [choices, listed](std::string& given) -> std::string {
    for (const auto& [choice, value] : choices) {
      if (CLI::ignore_case(given) != CLI::ignore_case(choice)) continue;
      given = std::to_string(static_cast<int>(value));
      return {};
    }
    return given + " is none of " + listed;
  };
  return *app.add_option(name, target, text)->transform(CLI::Validator(to_number, ""))->option_text(shown + fallback);
}

/// `seeds_traces`: --seed has a meaning beside --trace, too.
void add_common(CLI::App& app, CommonOptions& common, bool seeds_traces = false);
/// Hints of requests. Only the policies hix and hix-exact read them.
void add_hints(CLI::App& app, HintKinds& hints);
void add_states(CLI::App& app, StateOptions& states);
void add_prometheus(CLI::App& app, std::string& file);

/// Requests at a time, and how they wait for tokens that others compute.
void add_schedule(CLI::App& app, ScheduleOptions& schedule);

/// A flood beside the workload, and the shares of both tenants.
void add_tenants(CLI::App& app, TenantOptions& tenants);

/// --cache with slots and tree.
void add_cache(CLI::App& app, CacheKind& cache);
/// Blocks, slots, their hash and their policy, whose name is not checked yet.
void add_pools(CLI::App& app, PoolOptions& pools, std::string& policy);
/// Throws for a policy that pools do not have.
void choose_policy(const std::string& policy, PoolOptions& pools);

/// How the memory is divided: --arena, --walls.
void add_division(CLI::App& app, DivisionOptions& division);
/// --memory, its index and policy, whose name is not checked yet, --host and the speeds; --disk is of the command.
void add_memory(CLI::App& app, MemoryOptions& memory, std::string& policy);
/// --disk with bytes alone: files are counted.
void add_counted_disk(CLI::App& app, MemoryOptions& memory);
/// Bytes with a unit, 1 or more.
CLI::Option& as_bytes(CLI::Option& option);
/// Throws for a policy that the index does not have, or that has no tiers where these are wanted.
void choose_policy(const std::string& policy, bool wants_tiers, MemoryOptions& memory);
/// Throws for a hint that is given: `why_not`.
void refuse_hints(const CLI::App& app, const std::string& why_not);
/// Throws for a speed that has no meaning to the command, and where some speeds are known and one is missing. `host`:
/// the command loads from the host; `computes`: --prefill-rate has a meaning.
void check_speeds(const CLI::App& app, const MemoryOptions& memory, bool host, bool computes);

}  // namespace stateport::replay
