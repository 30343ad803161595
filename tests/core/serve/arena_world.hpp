// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "marked_memory.hpp"
#include "random.hpp"
#include "state_world.hpp"

#include <array>
#include <cstdint>
#include <vector>

namespace stateport::test {

/// An arena for the cache of `options`: small extents, and little more memory than it must have.
void draw_arena(Random& random, RequestCacheOptions& options);

/// Physical memory behind a StateWorld. Moves end late and in any order, and the system refuses some. The content of
/// memory that is unmapped is lost. Checks that the arena keeps to its bytes, and that answers name mapped memory
/// alone.
class ArenaWorld {
 public:
  /// `arena` and `world` must outlive it.
  ArenaWorld(const RequestCacheOptions& options, CacheArena& arena, StateWorld& world);

  /// Moves change this memory, too.
  void mark(MarkedMemory& memory) noexcept { marked_ = &memory; }
  void begin(const MemoryPlan& plan);
  /// Some moves end.
  void step(Random& random);
  /// All moves end, and none is refused.
  void settle_all();
  void check(const GroupPlan& plan) const;
  void check(const RowPlan& row) const;
  void check(const PassCommit& commit) const;
  void check(const Transfer& transfer) const;

  std::int64_t moves = 0;
  std::int64_t copies = 0;  ///< of KV blocks
  std::int64_t refused = 0;

 private:
  [[nodiscard]] const ExtentShape& shape(MemoryPart part) const {
    return part == MemoryPart::kv ? options_.kv : options_.states;
  }
  [[nodiscard]] std::vector<bool>& mapped(MemoryPart part) { return mapped_[static_cast<std::size_t>(part)]; }
  [[nodiscard]] std::int64_t bytes() const;
  void require_mapped(MemoryPart part, std::int32_t number) const;
  void check_slots(CopyPlan copies, bool sources) const;
  void end(const MemoryMove& move, bool done);

  ArenaOptions options_;
  std::int32_t ids_of_block_;  ///< of KV, by which plans name a block
  bool separate_;
  std::int32_t kv_blocks_;
  CacheArena& arena_;
  StateWorld& world_;
  MarkedMemory* marked_ = nullptr;
  std::array<std::vector<bool>, memory_part_count> mapped_;  ///< by part and extent
  std::vector<MemoryMove> under_way_;
};

}  // namespace stateport::test
