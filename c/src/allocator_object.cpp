// SPDX-License-Identifier: Apache-2.0
#include "allocator_object.hpp"

namespace stateport::c {

stateport_slot_victim to_c(const SlotVictim& victim) noexcept {
  return {.block = victim.block.value(),
          .slot = victim.slot.value(),
          .token_count = victim.tag.token_count,
          .prefix = {victim.tag.prefix.words[0], victim.tag.prefix.words[1]},
          .layout_fingerprint = victim.tag.layout_fingerprint,
          .hash = victim.hash};
}

std::function<void(const SlotVictim&)> AllocatorObject::teller(SlotVictimFunction on_victim) {
  if (on_victim.call == nullptr) return {};
  // An exception would leave the allocator half changed: the program ends instead.
  return [this, on_victim](const SlotVictim& victim) noexcept {
    stateport_slot_victim reported = to_c(victim);
    reported.size = sizeof reported;
    const Callback callback(*this);
    on_victim.call(&reported, on_victim.context);
  };
}

}  // namespace stateport::c
