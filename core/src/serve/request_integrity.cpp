// SPDX-License-Identifier: Apache-2.0
#include "serve/request_integrity.hpp"

#include <stateport/core/model/error.hpp>

#include <utility>

namespace stateport::detail {

std::int32_t RequestIntegrity::withdraw(std::span<const StateFault> faults) {
  for (const StateFault& fault : faults) {
    require(fault.kind >= StateFault::Kind::changed && fault.kind <= StateFault::Kind::not_finite, "faults.kind",
            static_cast<int>(fault.kind), "is not a kind of fault");
    require(fault.check.group >= 0 && std::cmp_less(fault.check.group, checks_.groups()), "faults.check.group",
            fault.check.group, "is out of range");
    const std::size_t slots = checks_.slots(static_cast<std::size_t>(fault.check.group));
    require(fault.check.slot.valid() && fault.check.slot.index() < slots, "faults.check.slot", fault.check.slot,
            "is out of range");
  }
  std::int32_t withdrawn = 0;
  book_.forgetting = true;  // they are not evicted
  book_.news.set_withdrawing(true);
  for (const StateFault& fault : faults) {
    ++checks_.usage.faults[static_cast<std::size_t>(fault.kind)];
    if (checks_.is_current(fault.check)) {
      const auto group = static_cast<std::size_t>(fault.check.group);
      if (prefixes_ != nullptr) prefixes_->end_pins_of(group, fault.check.slot);
      index_.withdraw(group, fault.check.slot);
      checks_.lost(group, fault.check.slot);
      ++withdrawn;
    } else if (const auto prefix = checks_.stored_prefix(fault.check.content); prefix && tiers_ != nullptr) {
      tiers_->index().withdraw_state(*prefix);
    }
  }
  book_.news.set_withdrawing(false);
  book_.forgetting = false;
  checks_.usage.withdrawn_states += withdrawn;
  if (tiers_ != nullptr) tiers_->end_call();
  return withdrawn;
}

}  // namespace stateport::detail
