// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/pool/copy_plan.hpp>

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <vector>

namespace stateport {

void validate(CopyPlan plan, std::int32_t src_slots, std::int32_t dst_slots, bool same_store) {
  // Reused by every call of a thread, so that a warm caller allocates nothing.
  thread_local std::vector<std::int32_t> destinations;
  destinations.clear();
  for (const SlotCopy& copy : plan) {
    require(copy.src_slot < src_slots, "src_slot", copy.src_slot, "is not a slot of the source store");
    require(copy.recurrent_src_slot < src_slots, "recurrent_src_slot", copy.recurrent_src_slot,
            "is not a slot of the source store");
    require(copy.dst_slot < dst_slots, "dst_slot", copy.dst_slot, "is not a slot of the destination store");
    require(copy.conv_shift >= 0, "conv_shift", copy.conv_shift, "must not be negative");
    if (copy.dst_slot >= 0) destinations.push_back(copy.dst_slot);
  }
  std::ranges::sort(destinations);
  const auto twice = std::ranges::adjacent_find(destinations);
  if (twice != destinations.end()) require(false, "dst_slot", *twice, "is written by two copies of one plan");
  if (!same_store) return;
  const auto is_written = [](std::int32_t slot) { return slot >= 0 && std::ranges::binary_search(destinations, slot); };
  for (const SlotCopy& copy : plan) {
    if (copy.dst_slot < 0) continue;
    require(copy.src_slot == copy.dst_slot || !is_written(copy.src_slot), "src_slot", copy.src_slot,
            "is the destination of another copy of the plan");
    require(copy.recurrent_src_slot == copy.dst_slot || !is_written(copy.recurrent_src_slot), "recurrent_src_slot",
            copy.recurrent_src_slot, "is the destination of another copy of the plan");
  }
}

}  // namespace stateport
