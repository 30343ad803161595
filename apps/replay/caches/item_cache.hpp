// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/slot_pool.hpp>

#include "caches/budget.hpp"
#include "caches/cache.hpp"
#include "caches/checkpoint_depths.hpp"
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
  /// slots outside [1, 2^31 - 2] and the placement `passes`.
  ItemCache(const Budget& budget, std::int64_t slots, CheckpointPlacement placement);

  [[nodiscard]] StateRoom room() const override { return {.slots = live_.value() + 1}; }
  std::chrono::steady_clock::duration prepare(const Request& request, const Sequence& names) override;
  [[nodiscard]] Hit begin() override;
  [[nodiscard]] PassPlan plan() override;
  [[nodiscard]] PassCommit commit() override;
  void finish() override;
  [[nodiscard]] std::span<const std::int32_t> stored() const override { return stored_; }

  [[nodiscard]] CacheCounts counts() const override;
  [[nodiscard]] AgeHistogram eviction_ages() const override { return eviction_ages_; }
  void check_invariants() const override;

 private:
  using Block = PromptBlocks::Block;
  [[nodiscard]] static ItemLru::Item kv_item(Block block) noexcept { return 2 * block; }
  [[nodiscard]] static ItemLru::Item state_item(Block block) noexcept { return 2 * block + 1; }
  void drop(ItemLru::Item item);
  void place(std::int32_t depth);
  /// Whole blocks before the prompt's last token.
  [[nodiscard]] std::int32_t usable_blocks() const noexcept;

  Budget budget_;
  CheckpointPlacement placement_;
  SlotId live_;  ///< behind those of the cache
  ItemLru items_;
  SlotPool slots_;
  PromptBlocks prompt_;
  std::vector<SlotId> slot_of_;            ///< by block
  std::vector<std::uint8_t> was_evicted_;  ///< by block: its state, since it was last there
  std::vector<std::uint8_t> used_;         ///< by depth of the prompt: its state is touched by this request
  std::vector<double> used_s_;             ///< by block: when its state was made or used
  double now_s_ = 0;
  std::int64_t input_tokens_ = 0;
  std::int64_t tokens_ = 0;  ///< as seen
  Hit hit_;
  std::vector<std::int32_t> depths_;
  std::vector<std::int32_t> stored_;
  CacheCounts counts_;
  AgeHistogram eviction_ages_;

  // The parts of a request's pass.
  std::vector<StateSave> saves_;
  std::vector<SlotCopy> after_;
  SlotCopy restore_;
  std::int32_t live_column_ = 0;
  RowState state_;
  RowPlan row_;
  GroupPlan before_;
  GroupCommit commit_;
};

}  // namespace stateport::replay
