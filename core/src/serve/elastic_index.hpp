// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/ids.hpp>
#include <stateport/core/pool/memory_move.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace stateport::detail {

/// An index as a MemoryArena sees it: pools of numbers, of KV blocks and of slots for states, whose memory comes and
/// goes.
class ElasticIndex {
 public:
  /// Numbers that can be handed out at once.
  [[nodiscard]] virtual std::int32_t free_numbers(MemoryPart part) const noexcept = 0;
  /// The number is closed, or can be handed out. False for one that is never handed out.
  [[nodiscard]] virtual bool is_free(MemoryPart part, std::int32_t number) const = 0;
  /// No number of the ranges is handed out from now on. None is closed; some may be in use, and stay so.
  virtual void close(MemoryPart part, std::span<const NumberRange> ranges) = 0;
  /// [first, first + count) are closed.
  virtual void open(MemoryPart part, std::int32_t first, std::int32_t count) = 0;
  /// by_extent[e]: how many numbers of [e * count, (e + 1) * count) have content that vacate() would take away.
  virtual void count_movable(MemoryPart part, std::int32_t count, std::span<std::int32_t> by_extent) = 0;
  /// Takes the contents of all closed numbers away, but for those that requests hold: KV to free numbers, of which
  /// there are enough, by copies that it adds to `copies`; states are evicted. O(numbers).
  virtual void vacate(MemoryPart part, std::vector<SlotCopy>& copies) = 0;
  /// Evicts the content of the least worth, KV or a state. False: requests hold all that there is.
  virtual bool evict_least() = 0;
  /// Evicts a checkpoint that a running request made and does not need. False: there is none.
  virtual bool evict_held_state() = 0;

 protected:
  ~ElasticIndex() = default;
};

}  // namespace stateport::detail
