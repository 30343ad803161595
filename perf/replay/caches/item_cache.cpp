// SPDX-License-Identifier: Apache-2.0
#include "caches/item_cache.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>

namespace stateport::replay {

ItemCache::ItemCache(const Budget& budget, std::int32_t slots)
    : budget_(budget), items_(budget.bytes), slots_(std::max(slots, 0)) {
  check_budget(budget);
  require(slots >= 1, "slots", slots, "at least 1");
}

void ItemCache::prepare(std::span<const BlockIdentity> identities, std::int64_t input_tokens) {
  prompt_.read(identities);
  input_tokens_ = input_tokens;
  slot_of_.resize(prompt_.count());
  was_evicted_.resize(prompt_.count(), 0);
  used_s_.resize(prompt_.count(), 0);
  used_.assign(identities.size() + 1, 0);
}

Hit ItemCache::begin() {
  std::int32_t matched = 0;
  while (matched < prompt_.size() && items_.contains(kv_item(prompt_.at(matched + 1)))) ++matched;
  const auto usable = static_cast<std::int32_t>((input_tokens_ - 1) / budget_.block_size_tokens);
  const auto has_state = [&](std::int32_t depth) { return items_.contains(state_item(prompt_.at(depth))); };
  std::int32_t hit = std::min(matched, usable);
  bool evicted = false;
  while (hit > 0 && !has_state(hit)) evicted |= was_evicted_[prompt_.at(hit--)] != 0;
  Hit answer{.matched_blocks = matched, .hit_blocks = hit};
  if (hit > 0) {
    answer.slot = slot_of_[prompt_.at(hit)];
    used_[static_cast<std::size_t>(hit)] = 1;
  }
  if (hit < matched)
    answer.lost = matched > usable && has_state(matched) ? LostHit::too_few_tokens
                  : evicted                              ? LostHit::evicted
                                                         : LostHit::no_checkpoint;
  return answer;
}

void ItemCache::place(std::span<const std::int32_t> depths, std::vector<Checkpoint>& kept) {
  kept.clear();
  for (const std::int32_t depth : depths) {
    used_[static_cast<std::size_t>(depth)] = 1;
    const Block block = prompt_.at(depth);
    if (items_.contains(state_item(block))) continue;
    SlotId slot;
    const bool taken = slots_.allocate({&slot, 1});
    require_invariant(taken, "ItemCache", "the budget holds more states than there are slots");
    slot_of_[block] = slot;
    kept.push_back({.depth_blocks = depth, .slot = slot});
  }
}

void ItemCache::finish() {
  for (std::int32_t depth = prompt_.size(); depth > 0; --depth) {
    const Block block = prompt_.at(depth);
    if (!items_.contains(kv_item(block))) ++counts_.resident_blocks;
    items_.touch(kv_item(block), budget_.block_bytes());
    if (used_[static_cast<std::size_t>(depth)] == 0) continue;
    if (!items_.contains(state_item(block))) ++counts_.resident_states;
    items_.touch(state_item(block), budget_.state_bytes);
    was_evicted_[block] = 0;
    used_s_[block] = now_s_;
  }
  while (items_.over_budget()) drop(items_.evict());
}

void ItemCache::drop(ItemLru::Item item) {
  if (item % 2 == 0) {
    ++counts_.block_evictions;
    --counts_.resident_blocks;
    return;
  }
  const Block block = item / 2;
  slots_.release(slot_of_[block]);
  was_evicted_[block] = 1;
  eviction_ages_.add(now_s_ - used_s_[block]);
  ++counts_.state_evictions;
  --counts_.resident_states;
}

CacheCounts ItemCache::counts() const {
  CacheCounts counts = counts_;
  counts.victims = counts.state_evictions + counts.block_evictions;
  return counts;
}

void ItemCache::check_invariants() const {
  items_.check_invariants();
  slots_.check_invariants();
  require_invariant(items_.used_bytes() == budget_.used_bytes(counts_.resident_blocks, counts_.resident_states),
                    "ItemCache", "the bytes are counted wrong");
}

}  // namespace stateport::replay
