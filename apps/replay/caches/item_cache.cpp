// SPDX-License-Identifier: Apache-2.0
#include "caches/item_cache.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <limits>

namespace stateport::replay {

ItemCache::ItemCache(const Budget& budget, std::int64_t slots, CheckpointPlacement placement)
    : budget_(budget), placement_(placement), items_(budget.bytes), slots_([&] {
        check_budget(budget);
        require(slots >= 1 && slots < std::numeric_limits<std::int32_t>::max(), "slots", slots, "1 to 2^31 - 2");
        require(placement != CheckpointPlacement::passes, "placement", name(placement), "depends on passes");
        return static_cast<std::int32_t>(slots);
      }()) {
  live_ = SlotId{static_cast<std::int32_t>(slots)};
}

std::chrono::steady_clock::duration ItemCache::prepare(const Request& request, const Sequence& names) {
  now_s_ = request.arrival_s();
  prompt_.read(names.identities());
  input_tokens_ = request.input_tokens;
  tokens_ = names.tokens();
  slot_of_.resize(prompt_.count());
  was_evicted_.resize(prompt_.count(), 0);
  used_s_.resize(prompt_.count(), 0);
  used_.assign(static_cast<std::size_t>(prompt_.size()) + 1, 0);
  stored_.clear();
  return {};
}

std::int32_t ItemCache::usable_blocks() const noexcept {
  return std::min(prompt_.size(), static_cast<std::int32_t>((input_tokens_ - 1) / budget_.block_size_tokens));
}

Hit ItemCache::begin() {
  std::int32_t matched = 0;
  while (matched < prompt_.size() && items_.contains(kv_item(prompt_.at(matched + 1)))) ++matched;
  const std::int32_t usable = usable_blocks();
  const auto has_state = [&](std::int32_t depth) { return items_.contains(state_item(prompt_.at(depth))); };
  std::int32_t hit = std::min(matched, usable);
  bool evicted = false;
  while (hit > 0 && !has_state(hit)) evicted |= was_evicted_[prompt_.at(hit--)] != 0;
  hit_ = {.matched_blocks = matched, .hit_blocks = hit};
  if (hit < matched)
    hit_.lost = matched > usable && has_state(matched) ? LostHit::too_few_tokens
                : evicted                              ? LostHit::evicted
                                                       : LostHit::no_checkpoint;
  return hit_;
}

PassPlan ItemCache::plan() {
  saves_.clear();
  after_.clear();
  const std::int64_t start = std::int64_t{hit_.hit_blocks} * tokens_per_block;
  live_column_ = live_.value();
  row_ = {.room = true, .tokens = static_cast<std::int32_t>(tokens_ - start), .start = start};
  if (hit_.hit_blocks > 0) {
    used_[static_cast<std::size_t>(hit_.hit_blocks)] = 1;
    restore_ = SlotCopy::whole(slot_of_[prompt_.at(hit_.hit_blocks)], live_);
    before_ = {.copies = {&restore_, 1}};
  } else {
    before_ = {.clear = {&live_, 1}};
  }
  choose_depths(placement_,
                {.hit = hit_.hit_blocks, .matched = hit_.matched_blocks, .usable = usable_blocks(), .full = prompt_.size()},
                depths_);
  for (const std::int32_t depth : depths_) place(depth);
  state_ = {.slots = {&live_column_, 1}, .read_column = start > 0 ? 0 : -1, .saves = saves_};
  row_.states = {&state_, 1};
  return {.ready = true, .rows = {&row_, 1}, .groups = {&before_, 1}};
}

/// The state at the end of the prompt is copied from the live slot.
void ItemCache::place(std::int32_t depth) {
  used_[static_cast<std::size_t>(depth)] = 1;
  const Block block = prompt_.at(depth);
  if (items_.contains(state_item(block))) return;
  SlotId slot;
  const bool taken = slots_.allocate({&slot, 1});
  require_invariant(taken, "ItemCache", "the budget holds more states than there are slots");
  slot_of_[block] = slot;
  stored_.push_back(depth);
  const std::int64_t at = std::int64_t{depth} * tokens_per_block;
  if (at < tokens_)
    saves_.push_back({.offset = static_cast<std::int32_t>(at - row_.start), .slot = slot});
  else
    after_.push_back(SlotCopy::whole(live_, slot));
}

PassCommit ItemCache::commit() {
  commit_ = {.copies = after_};
  return {.groups = {&commit_, 1}, .published_states = static_cast<std::int32_t>(stored_.size())};
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
