// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/c/state_check.h>
#include <stateport/core/pool/state_check.hpp>

#include "arguments.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// Checks and faults of states, between C and C++. Kinds and reserved members that come from C are checked.
namespace stateport::c {

static_assert(sizeof(stateport_state_check) == 40 && sizeof(stateport_state_fault) == 48);
static_assert(STATEPORT_CHECK_PUBLISHED == static_cast<int>(StateCheck::Kind::published) &&
              STATEPORT_CHECK_READ == static_cast<int>(StateCheck::Kind::read));
static_assert(STATEPORT_FAULT_CHANGED == static_cast<int>(StateFault::Kind::changed) &&
              STATEPORT_FAULT_OTHER_STATE == static_cast<int>(StateFault::Kind::other_state) &&
              STATEPORT_FAULT_NOT_FINITE == static_cast<int>(StateFault::Kind::not_finite));

[[nodiscard]] inline stateport_state_check to_c(const StateCheck& check) noexcept {
  return {.kind = static_cast<std::int32_t>(check.kind),
          .group = check.group,
          .slot = check.slot.value(),
          .reserved = 0,
          .content = check.content,
          .request = check.request.value(),
          .pass = check.pass};
}
[[nodiscard]] inline stateport_state_fault to_c(const StateFault& fault) noexcept {
  return {.kind = static_cast<std::int32_t>(fault.kind), .tensor = fault.tensor, .check = to_c(fault.check)};
}

[[nodiscard]] inline StateCheck from_c(const stateport_state_check& check, const char* kind) {
  require(check.reserved == 0, "reserved", check.reserved, "must be 0");
  return {.kind = enumerator(check.kind, StateCheck::Kind::read, kind),
          .group = check.group,
          .slot = SlotId{check.slot},
          .content = check.content,
          .request = RequestId{check.request},
          .pass = check.pass};
}
[[nodiscard]] inline StateFault from_c(const stateport_state_fault& fault) {
  return {.kind = enumerator(fault.kind, StateFault::Kind::not_finite, "faults.kind"),
          .tensor = fault.tensor,
          .check = from_c(fault.check, "faults.check.kind")};
}

/// For a caller, in storage that is used again.
template <class From, class To>
void to_c(std::span<const From> values, std::vector<To>& storage) {
  storage.clear();
  for (const From& value : values) storage.push_back(to_c(value));
}

}  // namespace stateport::c
