// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/c/cache_options.h>
#include <stateport/c/copies.h>
#include <stateport/c/memory_move.h>
#include <stateport/core/pool/memory_move.hpp>
#include <stateport/core/serve/cache_options.hpp>

#include <vector>

/// The arena of a cache and its memory work, between C and C++.
namespace stateport::c {

static_assert(STATEPORT_MOVE_UNMAP == static_cast<int>(MemoryMove::Kind::unmap) &&
              STATEPORT_MOVE_MAP == static_cast<int>(MemoryMove::Kind::map) &&
              STATEPORT_PART_KV == static_cast<int>(MemoryPart::kv) &&
              STATEPORT_PART_STATES == static_cast<int>(MemoryPart::states) &&
              STATEPORT_PART_STATES + 1 == memory_part_count && sizeof(stateport_memory_move) == 24);

/// None is no arena.
[[nodiscard]] ArenaOptions read_arena(const stateport_arena* arena);

/// The memory work of an answer, in arrays that are used again.
class MemoryPlanArrays {
 public:
  /// With room for whatever answers of such a cache tell.
  explicit MemoryPlanArrays(const RequestCacheOptions& options);

  void set(const MemoryPlan& plan);
  /// For an answer of C.
  template <class Struct>
  void point(Struct& answer) const noexcept {
    answer.kv_copies = kv_copies_.data();
    answer.kv_copy_count = kv_copies_.size();
    answer.moves = moves_.data();
    answer.move_count = moves_.size();
  }

 private:
  std::vector<stateport_slot_copy> kv_copies_;
  std::vector<stateport_memory_move> moves_;
};

}  // namespace stateport::c
