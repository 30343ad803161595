// SPDX-License-Identifier: Apache-2.0
#include "live_slots.hpp"

#include <algorithm>
#include <array>

namespace stateport::engine {

StateSpec live_state_spec(const CacheOptions& options) {
  constexpr std::array<std::size_t, Model::state_layers> all = {0, 1, 2, 3};
  return Model::state_spec({.conv_layout = options.conv_layout}, all);
}

LiveSlots::LiveSlots(const CacheOptions& options, std::int32_t slots)
    : store_(memory_, live_state_spec(options), {.slots = slots}), copier_(store_), io_(store_, stream_) {
  io_.poison();
  if (options.drafts > 0) steps_.emplace(store_, options.max_running, 1 + options.drafts, stream_);
}

void LiveSlots::wrote_state(const Row& row, std::int64_t done, SlotId live, const ModelState& state) {
  if (row.drafts > 0)
    steps_->put(row.index, done - 1, state);
  else if (done == row.scheduled)
    io_.write(live, state);
}

void LiveSlots::accept(const Row& row, SlotId live, std::int64_t kept_tokens, SlotId kept) {
  if (row.drafts == 0) return;
  commits_.push_back({.row = row.index,
                      .live_step = static_cast<std::int32_t>(row.end() - row.start - 1),
                      .live_slot = live,
                      .kept_step = static_cast<std::int32_t>(std::max<std::int64_t>(kept_tokens - row.start, 0) - 1),
                      .kept_slot = kept});
}

void LiveSlots::commit() {
  if (steps_) steps_->commit(commits_);
  commits_.clear();
}

std::int64_t LiveSlots::copy(CopyPlan plan) {
  if (!plan.empty()) copier_.copy_slots(stream_, plan);
  return static_cast<std::int64_t>(plan.size());
}

}  // namespace stateport::engine
