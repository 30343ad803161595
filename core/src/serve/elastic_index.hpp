// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/memory_move.hpp>

#include <cstdint>
#include <span>

namespace stateport::detail {

/// An index as a MemoryArena sees it: pools of numbers, of KV blocks and of slots for states, whose memory comes and
/// goes. A closed number has no memory, and is never handed out.
class ElasticIndex {
 public:
  /// Numbers that can be handed out at once.
  [[nodiscard]] virtual std::int32_t free_numbers(MemoryPart part) const noexcept = 0;
  /// The number is closed, or can be handed out. False for one that is never handed out.
  [[nodiscard]] virtual bool is_free(MemoryPart part, std::int32_t number) const = 0;
  /// [first, first + count) are free and not closed.
  virtual void close(MemoryPart part, std::int32_t first, std::int32_t count) = 0;
  /// [first, first + count) are closed.
  virtual void open(MemoryPart part, std::int32_t first, std::int32_t count) = 0;
  /// by_extent[e]: how many numbers of [e * count, (e + 1) * count) have content that clear() would evict.
  virtual void count_evictable(MemoryPart part, std::int32_t count, std::span<std::int32_t> by_extent) = 0;
  /// Evicts the contents of [first, first + count) that no request holds, and others with them.
  virtual void clear(MemoryPart part, std::int32_t first, std::int32_t count) = 0;
  /// Evicts the content of the least worth, KV or a state. False: requests hold all that there is.
  virtual bool evict_least() = 0;
  /// Evicts a checkpoint that a running request made and does not need. False: there is none.
  virtual bool evict_held_state() = 0;

 protected:
  ~ElasticIndex() = default;
};

}  // namespace stateport::detail
