// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/copy_plan.hpp>

#include <cstdint>
#include <span>

/// Memory that moves between KV and states. Plain data: a RequestCache decides, and names its decisions in the `moves`
/// of its answers. The owner of the memory carries them out and reports how each ended.
namespace stateport {

/// The two kinds of content that share the memory of one arena.
enum class MemoryPart : std::uint8_t {
  kv,     ///< numbers are those of KV blocks
  states  ///< numbers are slots of the store that checkpoints lie in
};
inline constexpr int memory_part_count = 2;

/// An extent is the smallest run of blocks, or of slots, whose memory can be mapped and unmapped by itself. Extent e
/// has the numbers [e * count, (e + 1) * count).
struct ExtentShape {
  std::int32_t count = 1;  ///< blocks or slots of one extent
  std::int64_t bytes = 0;  ///< of physical memory that one extent takes, in all layers and tensors together
  friend constexpr bool operator==(const ExtentShape&, const ExtentShape&) noexcept = default;
};

/// Physical memory is taken from one extent or given to one. Addresses never change.
struct MemoryMove {
  enum class Kind : std::uint8_t {
    unmap,  ///< no later plan names the extent. Work of this answer and of earlier ones may still use it: unmap it when
            ///< the engine's stream has come so far
    map     ///< plans may name the extent once the move is settled
  };
  std::uint64_t id = 0;  ///< counts up from 1
  Kind kind = Kind::unmap;
  MemoryPart part = MemoryPart::kv;
  std::int32_t extent = 0;

  friend constexpr bool operator==(const MemoryMove&, const MemoryMove&) noexcept = default;
};

/// In the order in which they were decided. A map may need the memory of an unmap: core names it only when that unmap
/// is settled.
using MovePlan = std::span<const MemoryMove>;

/// The memory work of one answer, after all its other work. Does not own its memory.
struct MemoryPlan {
  /// Copies of whole KV blocks, in every layer and in any order; src_slot and dst_slot are their numbers. They empty
  /// extents that `moves` unmaps. Enqueue them before any later pass, which reads the copies.
  CopyPlan kv_copies;
  MovePlan moves;
};

}  // namespace stateport
