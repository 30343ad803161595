// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/slot_pool.hpp>

#include "caches/budget.hpp"
#include "caches/cache.hpp"
#include "caches/item_lru.hpp"
#include "workload/prompt_blocks.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::replay {

/// An index by block under one byte budget: KV blocks and states are items of one list. A request touches its blocks
/// from the deepest to the shallowest, and right after a block its state if the request used or made it.
class ItemCache final : public ReplayCache {
 public:
  /// `slots` states at most; the budget must be the tighter limit. Throws InvalidArgument as check_budget, and for
  /// slots < 1.
  ItemCache(const Budget& budget, std::int32_t slots);

  void set_clock(double now_s) override { now_s_ = now_s; }
  void prepare(std::span<const BlockIdentity> identities, std::int64_t input_tokens) override;
  [[nodiscard]] Hit begin() override;
  void place(std::span<const std::int32_t> depths, std::vector<Checkpoint>& kept) override;
  void finish() override;

  [[nodiscard]] CacheCounts counts() const override;
  [[nodiscard]] AgeHistogram eviction_ages() const override { return eviction_ages_; }
  void check_invariants() const override;

 private:
  using Block = PromptBlocks::Block;
  [[nodiscard]] static ItemLru::Item kv_item(Block block) noexcept { return 2 * block; }
  [[nodiscard]] static ItemLru::Item state_item(Block block) noexcept { return 2 * block + 1; }
  void drop(ItemLru::Item item);

  Budget budget_;
  ItemLru items_;
  SlotPool slots_;
  PromptBlocks prompt_;
  std::vector<SlotId> slot_of_;            ///< by block
  std::vector<std::uint8_t> was_evicted_;  ///< by block: its state, since it was last there
  std::vector<std::uint8_t> used_;         ///< by depth of the prompt: its state is touched by this request
  std::vector<double> used_s_;             ///< by block: when its state was made or used
  std::int64_t input_tokens_ = 0;
  double now_s_ = 0;
  CacheCounts counts_;
  AgeHistogram eviction_ages_;
};

}  // namespace stateport::replay
