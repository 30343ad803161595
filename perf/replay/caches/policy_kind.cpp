// SPDX-License-Identifier: Apache-2.0
#include "caches/policy_kind.hpp"

#include <stateport/core/model/error.hpp>

#include "caches/item_cache.hpp"
#include "caches/slots_cache.hpp"
#include "caches/tree_cache.hpp"

#include <algorithm>
#include <limits>

namespace stateport::replay {
namespace {

/// What one request leaves at most without `every`: its end, a branch point and three rungs.
constexpr std::int64_t states_of_request = 5;

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

CheckpointMode checkpoint_mode(PolicyKind policy) noexcept {
  switch (policy) {
    case PolicyKind::every:
      return CheckpointMode::every;
    case PolicyKind::last:
      return CheckpointMode::last;
    case PolicyKind::branch:
    case PolicyKind::node_lru:
    case PolicyKind::gdsf:
    case PolicyKind::slots_lru:
    case PolicyKind::slots_gdsf:
    case PolicyKind::slots_hix:
      return CheckpointMode::branch;
    case PolicyKind::hix:
    case PolicyKind::hix_exact:
      break;
  }
  return CheckpointMode::rungs;
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
  const std::int64_t of_workload = states_max(checkpoint_mode(policy), static_cast<std::int64_t>(workload.size()),
                                              std::max<std::int64_t>(workload.distinct_blocks(), 1));
  return std::min(of_workload, budget.bytes / budget.state_bytes + of_request);
}

namespace {

/// Blocks that a budget can fill at most, with those of one request.
std::int32_t blocks_max(const Budget& budget, const Workload& workload) {
  const std::int64_t blocks =
      std::min(workload.distinct_blocks(), budget.bytes / budget.block_bytes() + workload.longest_blocks());
  return static_cast<std::int32_t>(std::max<std::int64_t>(blocks, 1));
}

std::unique_ptr<ReplayCache> make_slots_cache(PolicyKind policy, const Budget& budget, const ComputeCost& cost,
                                              const Workload& workload, std::int32_t slots) {
  SlotsCacheOptions options{.blocks = blocks_max(budget, workload),
                            .slots = slots,
                            .block_size_tokens = budget.block_size_tokens,
                            .budget = budget};
  const MemoryCost memory{.state_bytes = budget.state_bytes, .kv_bytes_per_token = budget.kv_bytes_per_token};
  if (policy == PolicyKind::slots_gdsf)
    options.eviction = make_eviction_policy(EvictionOrder::gdsf, {.benefit = cost}, memory);
  if (policy == PolicyKind::slots_hix) options.eviction = make_eviction_policy(EvictionOrder::hix, {}, memory);
  return std::make_unique<SlotsCache>(options);
}

std::unique_ptr<ReplayCache> make_tree_cache(PolicyKind policy, const Budget& budget, const ComputeCost& cost,
                                             const Workload& workload, std::int32_t slots) {
  const bool learns = policy == PolicyKind::hix || policy == PolicyKind::hix_exact;
  TreeCacheOptions tree{.blocks = blocks_max(budget, workload),
                        .slots = slots,
                        .block_size_tokens = budget.block_size_tokens,
                        .eviction = learns                       ? EvictionOrder::hix
                                    : policy == PolicyKind::gdsf ? EvictionOrder::gdsf
                                                                 : EvictionOrder::lru,
                        .state_bytes = budget.state_bytes,
                        .kv_bytes_per_token = budget.kv_bytes_per_token,
                        .budget_bytes = budget.bytes,
                        .spares_request = !learns};
  if (policy == PolicyKind::gdsf) tree.benefit = cost;
  if (policy == PolicyKind::hix_exact) {
    tree.samples = 0;
    tree.positions = std::max<std::size_t>(states_of_request * workload.size(), 1);
  }
  return std::make_unique<TreeCache>(tree);
}

}  // namespace

std::unique_ptr<ReplayCache> make_budget_cache(PolicyKind policy, const Budget& budget, const ComputeCost& cost,
                                               const Workload& workload) {
  check_budget(budget);
  const std::int64_t slots = slots_max(budget, workload, policy);
  require(slots < std::numeric_limits<std::int32_t>::max() / 4, "budget.bytes", budget.bytes,
          "holds too many states to number");
  const auto slot_count = static_cast<std::int32_t>(slots);
  switch (policy) {
    case PolicyKind::every:
    case PolicyKind::last:
    case PolicyKind::branch:
      return std::make_unique<ItemCache>(budget, slot_count);
    case PolicyKind::slots_lru:
    case PolicyKind::slots_gdsf:
    case PolicyKind::slots_hix:
      return make_slots_cache(policy, budget, cost, workload, slot_count);
    default:
      return make_tree_cache(policy, budget, cost, workload, slot_count);
  }
}

}  // namespace stateport::replay
