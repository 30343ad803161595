// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/memory_move.hpp>

#include <cstdint>

namespace stateport {

/// The memory of an arena (SlotLayout::arena), by the cache's own count.
struct ArenaUsage {
  std::int64_t kv_bytes = 0;       ///< of extents that are mapped, or may be
  std::int64_t state_bytes = 0;    ///< the same; both together are never more than ArenaOptions::bytes
  std::int64_t moves = 0;          ///< decided since construction
  std::int64_t refused_moves = 0;  ///< settled as not done
};

/// Answers about memory that moves between KV and states. The MemoryPlan of a PassPlan or a PassCommit comes after all
/// other work of that answer and of those before it:
///
///     plan, commit ─► (the work of the answer) ─► kv_copies ─► unmap, map ─► settle
///
/// The engine enqueues the copies at once. It carries the moves out when it likes, off the critical path, and in any
/// order: nothing that a plan names depends on a move that is not settled. All moves must be settled in the end, also
/// those of a plan that is cancelled or replaced. Addresses never change. Not thread-safe, as its cache.
///
/// Ranks. settle() is a part of the sequence of calls: what is evicted and where content lies depend on it. The ranks
/// of a group settle each move at the same point of that sequence, and as `done` only if it is done on all of them.
class CacheArena {
 public:
  /// The memory plan that no answer has carried: of an insert() that found no room, and maps that settled unmaps made
  /// possible. If nobody takes these, the next commit or plan without room has them; an engine that takes them after
  /// settle() has the memory a pass earlier. Leaves the spans of other answers valid; its own are until the next call
  /// but settle(). O(1).
  [[nodiscard]] virtual MemoryPlan take() = 0;
  /// The move ended. A map that is not `done` was refused by the system: its extent stays unmapped, and another one is
  /// tried. After two refusals the cache asks for no further memory until some is given back, or for 1,024 commits. An
  /// unmap that is not `done` leaves its extent mapped. Throws InvalidArgument for a move that is not under way, and
  /// changes nothing. O(moves under way), and O(extents) if a map becomes possible.
  virtual void settle(std::uint64_t move, bool done) = 0;
  /// Plans may name the numbers of this extent. An engine maps these extents before it makes the first plan. Throws
  /// InvalidArgument for an extent that does not exist. O(1).
  [[nodiscard]] virtual bool is_mapped(MemoryPart part, std::int32_t extent) const = 0;
  /// O(1).
  [[nodiscard]] virtual ArenaUsage usage() const noexcept = 0;

 protected:
  ~CacheArena() = default;
};

}  // namespace stateport
