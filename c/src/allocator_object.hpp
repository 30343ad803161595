// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/block_pool.hpp>
#include <stateport/core/pool/slot_pool.hpp>
#include <stateport/core/slots/slot_allocator.hpp>

#include "allocator_blocks.hpp"
#include "handle_table.hpp"

#include <cstdint>
#include <vector>

namespace stateport::c {

struct AllocatorObject final : Object {
  static constexpr Kind kind = Kind::slot_allocator;
  AllocatorObject(AllocatorBlocks::Owner owner, const BlockPoolOptions& block_options, std::int32_t slot_count,
                  const SlotAllocatorOptions& options)
      : Object(kind), blocks(owner, block_options), slots(slot_count), allocator(slots, blocks.directory(), options) {}

  AllocatorBlocks blocks;
  SlotPool slots;
  SlotAllocator allocator;
  std::vector<BlockId> named_blocks;
  std::vector<SlotId> given_slots;
};

}  // namespace stateport::c
