// SPDX-License-Identifier: Apache-2.0
#include "caches/policy_kind.hpp"

#include <stateport/core/model/error.hpp>

#include "caches/item_cache.hpp"
#include "caches/served_cache.hpp"

#include <algorithm>
#include <limits>

namespace stateport::replay {
namespace {

/// The most states that one request leaves without `every`: its end, a branch point and three rungs.
constexpr std::int64_t states_of_request = 5;
/// Between two states that are kept where there is room.
constexpr std::int64_t spare_blocks = 32;

EvictionOrder order_of(PolicyKind policy) {
  switch (policy) {
    case PolicyKind::hix:
    case PolicyKind::hix_exact:
    case PolicyKind::slots_hix:
      return EvictionOrder::hix;
    case PolicyKind::gdsf:
    case PolicyKind::slots_gdsf:
      return EvictionOrder::gdsf;
    default:
      return EvictionOrder::lru;
  }
}

}  // namespace

std::span<const PolicyKind> policies_of(CacheKind cache) noexcept {
  if (cache == CacheKind::slots) return slots_policies;
  return all_policies;
}

std::span<const PolicyKind> compared_policies_of(CacheKind cache) noexcept {
  if (cache == CacheKind::slots) return slots_policies;
  return compared_policies;
}

std::string_view name(PolicyKind policy) noexcept {
  switch (policy) {
    case PolicyKind::every:
      return "every";
    case PolicyKind::last:
      return "last";
    case PolicyKind::branch:
      return "branch";
    case PolicyKind::node_lru:
      return "node-lru";
    case PolicyKind::gdsf:
      return "gdsf";
    case PolicyKind::hix:
      return "hix";
    case PolicyKind::hix_exact:
      return "hix-exact";
    case PolicyKind::slots_lru:
      return "slots-lru";
    case PolicyKind::slots_gdsf:
      return "slots-gdsf";
    case PolicyKind::slots_hix:
      return "slots-hix";
  }
  return "?";
}

CheckpointPlacement placement_of(PolicyKind policy) noexcept {
  switch (policy) {
    case PolicyKind::every:
      return CheckpointPlacement::every;
    case PolicyKind::last:
      return CheckpointPlacement::last;
    case PolicyKind::branch:
    case PolicyKind::node_lru:
    case PolicyKind::gdsf:
    case PolicyKind::slots_lru:
    case PolicyKind::slots_gdsf:
      return CheckpointPlacement::branch;
    case PolicyKind::slots_hix:
    case PolicyKind::hix:
    case PolicyKind::hix_exact:
      break;
  }
  return CheckpointPlacement::rungs;
}

bool has_tiers(PolicyKind policy) noexcept {
  return policy != PolicyKind::every && policy != PolicyKind::last && policy != PolicyKind::branch;
}

bool takes_hints(PolicyKind policy) noexcept {
  return order_of(policy) == EvictionOrder::hix;
}

ComputeCost compute_cost(std::string_view model) {
  // Linear: 2 FLOPs for each active parameter. Quadratic: 4 · attention layers · query heads · head size, halved
  // because a token attends to those before it.
  if (model == "qwen3-next-80b-a3b") return {.linear = 2 * 3e9, .quadratic = 12 * 2 * 16 * 256};
  if (model == "nemotron-h-8b-base") return {.linear = 2 * 8.1e9, .quadratic = 4 * 2 * 32 * 128};
  return {};
}

std::int64_t slots_max(const Budget& budget, const Workload& workload, PolicyKind policy) {
  const std::int64_t of_request = policy == PolicyKind::every ? workload.longest_blocks() : states_of_request;
  const std::int64_t of_workload = states_max(placement_of(policy), static_cast<std::int64_t>(workload.size()),
                                              std::max<std::int64_t>(workload.distinct_blocks(), 1));
  return std::min(of_workload, budget.bytes / budget.state_bytes + of_request);
}

namespace {

/// The most blocks that a budget can fill, with those of one request. A block that the request computes again exists
/// twice.
std::int64_t blocks_max(const Budget& budget, const Workload& workload) {
  const std::int64_t cached = std::min(workload.distinct_blocks(), budget.bytes / budget.block_bytes());
  return std::max<std::int64_t>(cached + workload.longest_blocks(), 1);
}

/// Throws for a budget of too many states.
std::int64_t slots_of(PolicyKind policy, const Budget& budget, const Workload& workload) {
  check_budget(budget);
  const std::int64_t slots = std::max<std::int64_t>(slots_max(budget, workload, policy), 1);
  require(slots < std::numeric_limits<std::int32_t>::max() / 4, "budget.bytes", budget.bytes,
          "holds too many states to number");
  return slots;
}

}  // namespace

ServedCacheOptions budget_cache_options(PolicyKind policy, const Budget& budget, const ComputeCost& cost,
                                        const Workload& workload, bool tells_stored) {
  const std::int64_t slots = slots_of(policy, budget, workload);
  const bool in_slots = std::ranges::find(slots_policies, policy) != slots_policies.end();
  ServedCacheOptions options{.index = in_slots ? CacheIndex::hash : CacheIndex::tree,
                             .blocks = blocks_max(budget, workload),
                             .slots = slots,
                             .block_size_tokens = budget.block_size_tokens,
                             .longest_blocks = workload.longest_blocks(),
                             .placement = placement_of(policy),
                             .eviction = order_of(policy),
                             .separate_checkpoints = budget.separate_checkpoints,
                             .budget = budget,
                             .tells_stored = tells_stored};
  if (options.eviction == EvictionOrder::gdsf) options.eviction_options.benefit = cost;
  if (budget.positions > 0) options.eviction_options.positions = static_cast<std::size_t>(budget.positions);
  if (policy == PolicyKind::hix) options.spare_blocks = spare_blocks;
  if (policy == PolicyKind::hix_exact) {
    options.eviction_options.samples = -1;
    options.eviction_options.positions = std::max<std::size_t>(states_of_request * workload.size(), 1);
  }
  return options;
}

std::unique_ptr<ReplayCache> make_budget_cache(PolicyKind policy, const Budget& budget, const ComputeCost& cost,
                                               const Workload& workload, bool tells_stored) {
  if (!has_tiers(policy))
    return std::make_unique<ItemCache>(budget, slots_of(policy, budget, workload), placement_of(policy));
  return std::make_unique<ServedCache>(budget_cache_options(policy, budget, cost, workload, tells_stored));
}

}  // namespace stateport::replay
