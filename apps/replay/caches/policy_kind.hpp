// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/cost.hpp>

#include "caches/budget.hpp"
#include "caches/cache.hpp"
#include "caches/checkpoint_depths.hpp"
#include "workload/workload.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace stateport::replay {

/// How checkpoints are found.
enum class CacheKind : std::uint8_t { slots, tree, align, tree_align };
/// Whether its index is a tree, and whether its states lie in columns.
[[nodiscard]] constexpr bool is_tree(CacheKind cache) noexcept {
  return cache == CacheKind::tree || cache == CacheKind::tree_align;
}
[[nodiscard]] constexpr bool in_columns(CacheKind cache) noexcept {
  return cache == CacheKind::align || cache == CacheKind::tree_align;
}

/// Which cache keeps to one byte budget, how it places checkpoints and how it chooses victims.
enum class PolicyKind : std::uint8_t {
  every,      ///< blocks and states as items of one LRU list, a state after every block
  last,       ///< the same, a state after the last block
  branch,     ///< the same, states after the last block and where the prompt left a cached prefix
  node_lru,   ///< tree, states as for branch, least recently used leaf
  gdsf,       ///< tree, states as for branch, greedy dual size frequency
  hix,        ///< tree, states as for branch and on rungs, learned hazard index
  hix_exact,  ///< the same, comparing all candidates and forgetting nothing
  slots_lru,  ///< by block hash, states as for branch, least recently used
  slots_gdsf,
  slots_hix,
};
/// Of the index by tokens, and of the reference that keeps items in one list.
inline constexpr std::array all_policies = {PolicyKind::every,    PolicyKind::last, PolicyKind::branch,
                                            PolicyKind::node_lru, PolicyKind::gdsf, PolicyKind::hix,
                                            PolicyKind::hix_exact};
/// Of the index by block hash.
inline constexpr std::array slots_policies = {PolicyKind::slots_lru, PolicyKind::slots_gdsf, PolicyKind::slots_hix};
/// All policies but hix_exact, which shows the cost of sampling.
inline constexpr std::array compared_policies = {PolicyKind::every,    PolicyKind::last, PolicyKind::branch,
                                                 PolicyKind::node_lru, PolicyKind::gdsf, PolicyKind::hix};

/// The policies of a budget over this index, slots or tree.
[[nodiscard]] std::span<const PolicyKind> policies_of(CacheKind cache) noexcept;
/// Those of them that a report compares.
[[nodiscard]] std::span<const PolicyKind> compared_policies_of(CacheKind cache) noexcept;

[[nodiscard]] std::string_view name(PolicyKind policy) noexcept;
[[nodiscard]] CheckpointPlacement placement_of(PolicyKind policy) noexcept;

/// Whether such a cache has tiers below the device.
[[nodiscard]] bool has_tiers(PolicyKind policy) noexcept;

/// Whether hints of requests change the evictions of such a cache.
[[nodiscard]] bool takes_hints(PolicyKind policy) noexcept;

/// FLOPs of a forward over a prefix, of the models of the catalogue where public configs make them certain; others
/// count tokens.
[[nodiscard]] ComputeCost compute_cost(std::string_view model);

/// The most slots that a budget can fill, with those that one request adds before it is finished.
[[nodiscard]] std::int64_t slots_max(const Budget& budget, const Workload& workload, PolicyKind policy);

struct ServedCacheOptions;
/// The options of the cache that make_budget_cache makes for a policy that has tiers. Throws InvalidArgument as
/// check_budget, and for a budget of too many states.
[[nodiscard]] ServedCacheOptions budget_cache_options(PolicyKind policy, const Budget& budget, const ComputeCost& cost,
                                                      const Workload& workload, bool tells_stored);

/// `tells_stored`: see ReplayCache::stored(); a cache that is timed should not.
[[nodiscard]] std::unique_ptr<ReplayCache> make_budget_cache(PolicyKind policy, const Budget& budget,
                                                             const ComputeCost& cost, const Workload& workload,
                                                             bool tells_stored = true);

}  // namespace stateport::replay
