// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/c/copies.h>
#include <stateport/core/pool/copy_plan.hpp>

#include "arguments.hpp"

#include <vector>

namespace stateport::c {

static_assert(sizeof(stateport_slot_copy) == sizeof(SlotCopy), "device memory may hold either");

/// Copies of a caller's array, in storage that is used again.
[[nodiscard]] inline CopyPlan read_plan(const stateport_slot_copy* copies, std::size_t count,
                                        std::vector<SlotCopy>& storage, const char* argument = "copies") {
  storage.clear();
  for (const stateport_slot_copy& copy : array(copies, count, argument))
    storage.push_back({copy.src_slot, copy.dst_slot, copy.conv_shift, copy.recurrent_src_slot});
  return storage;
}

[[nodiscard]] inline stateport_slot_copy to_c(const SlotCopy& copy) noexcept {
  return {copy.src_slot, copy.dst_slot, copy.conv_shift, copy.recurrent_src_slot};
}

/// A plan for a caller, in storage that is used again.
template <class Storage>
void to_c(CopyPlan plan, Storage& storage) {
  storage.clear();
  for (const SlotCopy& copy : plan) storage.push_back(to_c(copy));
}

}  // namespace stateport::c
