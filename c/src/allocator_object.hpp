// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/c/slot_allocator.h>
#include <stateport/core/pool/block_pool.hpp>
#include <stateport/core/pool/slot_pool.hpp>
#include <stateport/core/slots/slot_allocator.hpp>

#include "allocator_blocks.hpp"
#include "handle_table.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace stateport::c {

/// A function of the caller's, or null.
struct SlotVictimFunction {
  void (*call)(const stateport_slot_victim* victim, void* context) = nullptr;
  void* context = nullptr;
};

struct AllocatorObject final : Object {
  static constexpr Kind kind = Kind::slot_allocator;
  AllocatorObject(AllocatorBlocks::Owner owner, const BlockPoolOptions& block_options, std::int32_t slot_count,
                  const std::shared_ptr<EvictionPolicy>& eviction, SlotVictimFunction on_victim)
      : Object(kind),
        blocks(owner, block_options),
        slots(slot_count),
        allocator(slots, blocks.directory(), {.eviction = eviction, .on_victim = teller(on_victim)}) {}

  AllocatorBlocks blocks;
  SlotPool slots;
  SlotAllocator allocator;
  std::vector<BlockId> named_blocks;
  std::vector<SlotId> given_slots;

 private:
  [[nodiscard]] std::function<void(const SlotVictim&)> teller(SlotVictimFunction on_victim);
};

[[nodiscard]] stateport_slot_victim to_c(const SlotVictim& victim) noexcept;

}  // namespace stateport::c
