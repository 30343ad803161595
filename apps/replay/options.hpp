// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/hash/block_hasher.hpp>
#include <stateport/core/model/element_type.hpp>

#include "caches/budget.hpp"
#include "caches/checkpoint_depths.hpp"
#include "caches/policy_kind.hpp"
#include "fleet_arguments.hpp"
#include "workload/generator.hpp"
#include "workload/trace_types.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stateport::replay {

/// KV blocks per slot where the command line says nothing: of the catalogue's models with 512-token blocks, that many
/// take half to three times the memory of a state.
inline constexpr std::int64_t blocks_per_slot = 8;

/// What the command line says.
struct Options {
  std::string trace;  ///< file; empty: a generated workload
  TraceOptions trace_options;     ///< but for the block size
  GeneratorOptions generator;     ///< its block size is the trace's too
  std::int64_t requests_max = 0;  ///< serve only so many; 0: all of a trace, the default number of a workload
  std::string model = "qwen3-next-80b-a3b";
  CacheKind cache = CacheKind::slots;
  BlockHashKind hash = BlockHashKind::sha256;
  CheckpointPlacement checkpoint = CheckpointPlacement::branch;
  std::int32_t blocks = 0;  ///< 0: blocks_per_slot for each slot
  std::int32_t slots = 256;
  bool unlimited = false;
  std::int64_t budget_bytes = 0;          ///< > 0: one memory for KV and states, instead of blocks and slots
  std::int64_t host_bytes = 0;            ///< below the budget, on the host
  std::int64_t disk_bytes = 0;            ///< and in files
  std::string disk_folder;                ///< where the files are; empty: they are counted alone
  TierSpeeds speeds;                      ///< all that the tiers need, or none
  PolicyKind policy = PolicyKind::hix;    ///< of the budget
  std::optional<EvictionOrder> eviction;  ///< of blocks and slots, where the command line says
  std::vector<std::int64_t> sweep_bytes;  ///< not empty: every policy with each of these budgets
  HintKinds hints;                        ///< what the policy is told
  FleetArguments fleet;
  bool size = false;                          ///< what budget_bytes are worth, instead of a replay
  std::optional<ElementType> recurrent_type;  ///< instead of the catalogue's
  /// Of recurrent states in checkpoints, for what these cost; none: that of running requests.
  std::optional<ElementType> checkpoint_type;
  std::int32_t drafts = 0;                                   ///< align only, like the next two
  double accept = 0.7;                                       ///< chance that a draft is kept
  bool asynchronous = false;                                 ///< counters
  bool serve = false;                                        ///< as an engine does, through RequestCache; align always
  std::uint64_t materialize_bytes = std::uint64_t{2} << 30;  ///< 0: no states
  std::string json_file;                                     ///< empty: none
  std::string prometheus_file;                               ///< empty: none
  std::string report_file;                                   ///< empty: none
  bool plant_wrong_slot = false;

  [[nodiscard]] bool serves() const noexcept { return serve || cache == CacheKind::align; }
  [[nodiscard]] bool has_tiers() const noexcept { return host_bytes > 0 || disk_bytes > 0; }
  /// One memory for KV and states, or several to compare, instead of blocks and slots.
  [[nodiscard]] bool has_budget() const noexcept { return budget_bytes > 0 || !sweep_bytes.empty(); }
};

/// Reads the command line. No value: --help or --version was answered, or something was wrong and has been said;
/// `exit_code` tells which.
[[nodiscard]] std::optional<Options> parse_options(int argc, char** argv, int& exit_code);

}  // namespace stateport::replay
