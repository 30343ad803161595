// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/compute_cost.hpp>

#include "caches/budget.hpp"
#include "caches/cache.hpp"
#include "caches/checkpoint_mode.hpp"
#include "workload/workload.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

namespace stateport::replay {

/// How a cache under one byte budget places checkpoints and chooses victims.
enum class PolicyKind : std::uint8_t {
  every,      ///< blocks and states as items of one LRU list, a state after every block
  last,       ///< the same, a state after the last block
  branch,     ///< the same, states after the last block and where the prompt left a cached prefix
  node_lru,   ///< tree, states as for branch, least recently used leaf
  gdsf,       ///< tree, states as for branch, greedy dual size frequency
  hix,        ///< tree, states as for branch and on rungs, learned hazard index
  hix_exact,  ///< the same, comparing all candidates and forgetting nothing
};
inline constexpr std::array all_policies = {PolicyKind::every,    PolicyKind::last, PolicyKind::branch,
                                            PolicyKind::node_lru, PolicyKind::gdsf, PolicyKind::hix,
                                            PolicyKind::hix_exact};
/// What a report compares: all but the one that says what sampling costs.
inline constexpr std::array compared_policies = {PolicyKind::every,    PolicyKind::last, PolicyKind::branch,
                                                 PolicyKind::node_lru, PolicyKind::gdsf, PolicyKind::hix};

[[nodiscard]] std::string_view name(PolicyKind policy) noexcept;
[[nodiscard]] CheckpointMode checkpoint_mode(PolicyKind policy) noexcept;

/// FLOPs of a forward over a prefix, of the models where public configs make them certain; others count tokens.
[[nodiscard]] ComputeCost compute_cost(std::string_view model);

/// Slots that a budget can fill at most, with what one request adds before it is finished.
[[nodiscard]] std::int64_t slots_max(const Budget& budget, const Workload& workload, PolicyKind policy);

[[nodiscard]] std::unique_ptr<ReplayCache> make_budget_cache(PolicyKind policy, const Budget& budget,
                                                             const ComputeCost& cost, const Workload& workload);

}  // namespace stateport::replay
