// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "options/options.hpp"

#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

/// Groups of options that several commands take. Each function adds them to a command, and they write to a struct
/// that must live as long as the command. A check_ function is called after parsing; it throws CLI::ValidationError,
/// which names the option.
namespace stateport::replay {

/// `seeds_traces`: --seed has a meaning beside --trace, too.
void add_common(CLI::App& command, CommonOptions& common, bool seeds_traces = false);
/// Hints of requests, for policies that learn.
void add_hints(CLI::App& command, HintKinds& hints);
void add_states(CLI::App& command, StateOptions& states);
void add_prometheus(CLI::App& command, std::string& file);

/// --cache with slots and tree.
CLI::Option& add_cache(CLI::App& command, CacheKind& cache);
/// Blocks, slots, their hash and their policy, whose name is not checked yet.
void add_pools(CLI::App& command, PoolOptions& pools, std::string& policy);
/// Throws for a policy that pools do not have.
void choose_policy(const std::string& policy, PoolOptions& pools);

/// --memory, its index and policy, whose name is not checked yet, --host and the speeds; --disk is of the command.
void add_memory(CLI::App& command, MemoryOptions& memory, std::string& policy);
/// --disk with bytes alone: files are counted.
void add_counted_disk(CLI::App& command, MemoryOptions& memory);
/// Bytes with a unit, 1 or more.
CLI::Option& as_bytes(CLI::Option& option);
/// Throws for a policy that the index does not have, or that has no tiers where these are wanted.
void choose_policy(const std::string& policy, bool wants_tiers, MemoryOptions& memory);
/// Throws for a speed that has no meaning to the command, and where some speeds are known and one is missing. `host`:
/// the command loads from the host; `computes`: --prefill-rate has a meaning.
void check_speeds(const CLI::App& command, const MemoryOptions& memory, bool host, bool computes);

}  // namespace stateport::replay
