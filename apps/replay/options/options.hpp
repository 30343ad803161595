// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/hash/block_hasher.hpp>
#include <stateport/core/model/element_type.hpp>

#include "caches/budget.hpp"
#include "caches/checkpoint_depths.hpp"
#include "caches/policy_kind.hpp"
#include "caches/schedule_options.hpp"
#include "caches/tenant_options.hpp"
#include "fleet/router.hpp"
#include "workload/generator.hpp"
#include "workload/trace_types.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

/// The command line of stateport-replay: a struct for each command, made of groups that several of them have.
namespace stateport::replay {

/// KV blocks per slot where the command line names none: of the catalogue's models with 512-token blocks, that many
/// take half to three times the memory of a state.
inline constexpr std::int64_t blocks_per_slot = 8;

struct WorkloadOptions {
  std::vector<std::string> traces;  ///< files; empty: a generated workload
  TraceOptions trace_options;       ///< its block size is that of `generator`
  GeneratorOptions generator;       ///< `requests` are those of a workload without a limit
  std::int64_t requests_max = 0;    ///< requests to serve; 0: all of the trace or of the generated workload
  HintKinds hints;
};

struct ModelOptions {
  std::string name = "qwen3-next-80b-a3b";     ///< of the catalogue, or the path of a config.json
  bool is_given = false;                       ///< on the command line: it stands before the sizes of a recorded trace
  std::optional<ElementType> recurrent_type;   ///< none: the model's
  std::optional<ElementType> checkpoint_type;  ///< of recurrent states in checkpoints; none: that of running requests
};

/// Options of every command.
struct CommonOptions {
  WorkloadOptions workload;
  ModelOptions model;
  TenantOptions tenants;
  std::string json_file;  ///< empty: none
};

/// States that are really made, copied and verified.
struct StateOptions {
  std::uint64_t materialize_bytes = std::uint64_t{2} << 30;  ///< 0: none is made
  bool plant_wrong_slot = false;
};

/// Separate memories for KV and for states.
struct PoolOptions {
  CacheKind cache = CacheKind::slots;
  BlockHashKind hash = BlockHashKind::sha256;
  std::int32_t blocks = 0;  ///< 0: blocks_per_slot for each slot
  std::int32_t slots = 256;
  bool unlimited = false;
  std::optional<EvictionOrder> eviction;  ///< none: the default of the index

  /// Of an index by block hash or by tokens.
  [[nodiscard]] EvictionOrder order() const noexcept {
    return eviction.value_or(is_tree(cache) ? EvictionOrder::hix : EvictionOrder::lru);
  }
};

/// How KV and states share one memory. Without either they are counted together, wherever they lie.
struct DivisionOptions {
  std::int64_t arena_tokens = 0;  ///< > 0: an arena, and tokens of an extent of KV
  double state_share = 0;         ///< > 0: walls, and the share of states
};

/// One memory for KV and states, and the tiers below it.
struct MemoryOptions {
  CacheKind cache = CacheKind::tree;
  PolicyKind policy = PolicyKind::hix;
  std::int64_t bytes = 0;
  std::int64_t host_bytes = 0;
  std::int64_t disk_bytes = 0;
  TierSpeeds speeds;  ///< those of all tiers, or none
  DivisionOptions division;
  std::int64_t positions = 0;  ///< 0: the default of EvictionOptions

  [[nodiscard]] bool has_tiers() const noexcept { return host_bytes > 0 || disk_bytes > 0; }
};

struct PromptsOptions {
  CommonOptions common;
  PoolOptions pools;
  CheckpointPlacement checkpoint = CheckpointPlacement::branch;
  StateOptions states;
  std::string prometheus_file;  ///< empty: none
};

struct ServeOptions {
  /// Every decoded token writes states: fewer requests and smaller states keep a run short.
  static constexpr std::int64_t requests = 100;
  static constexpr std::uint64_t materialize_bytes = std::uint64_t{64} << 20;

  CommonOptions common = {.workload = {.generator = {.requests = requests}}};
  PoolOptions pools;
  StateOptions states = {.materialize_bytes = materialize_bytes};
  ScheduleOptions schedule;
  std::int32_t drafts = 0;    ///< align alone, like the next
  double accept = 0.7;        ///< chance that a draft is kept
  bool asynchronous = false;  ///< counters
  std::int64_t tail_tokens = 0;
  bool breakpoints = false;  ///< prompts name where the next one of their session leaves them
  bool close_sessions = false;
  double mistaken_closes = 0;  ///< per cent: see RequestReplayOptions
};

struct BudgetOptions {
  CommonOptions common;
  MemoryOptions memory;
  std::string disk_folder;  ///< of the files; empty: they are counted alone
  StateOptions states;
  bool compare = false;         ///< all policies with a quarter to four times the memory, too
  std::string prometheus_file;  ///< empty: none
};

struct SweepOptions {
  CommonOptions common;
  CacheKind cache = CacheKind::tree;
  std::vector<std::int64_t> memory_bytes;  ///< each with every policy
  DivisionOptions division;
};

struct SizeOptions {
  CommonOptions common;
  MemoryOptions memory;
};

struct FleetRunOptions {
  CommonOptions common;
  MemoryOptions memory;  ///< of each node
  std::size_t nodes = 0;
  std::int64_t remote_bytes = 0;  ///< of the store that all nodes share; 0: there is none
  std::vector<Route> routes = {Route::round_robin, Route::session, Route::prefix};
  bool write_back = false;
  double load = 1;
  std::int64_t imbalance_tokens = 65'536;
  double event_delay_s = 0;
  double mean_life_s = 0;  ///< 0: no node fails
  double down_s = 0;
  ScheduleOptions schedule = {.concurrency = 1};  ///< of each node
  std::int64_t sample_nodes = -1;                 ///< 0: all nodes; -1: the command line names none
  std::int32_t samples = 8;
};

using Command = std::variant<PromptsOptions, ServeOptions, BudgetOptions, SweepOptions, SizeOptions, FleetRunOptions>;

}  // namespace stateport::replay
