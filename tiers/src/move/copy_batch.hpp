// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>
#include <stateport/core/pool/copy_plan.hpp>
#include <stateport/core/tier/transfer_plan.hpp>
#include <stateport/tiers/host_tier.hpp>

#include "host/ready_queue.hpp"
#include "move/copy_lane.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::tiers {

/// Copies that gather until something needs them to be enqueued: all stores of the batch go first, then all loads, each
/// route in one launch. For a copy that this order would make wrong the batch before it is enqueued first:
///
///     a copy from or to a slot that a load of the batch writes (writes())
///     a drop of an image that the batch copies, whose place may go to a store (copies())
///
/// Allocates in its constructor and in reserve() alone.
class CopyBatch {
 public:
  /// `slots`: [kinds] of the device. `images_max`: of host memory.
  CopyBatch(CopyLane& lane, const CopyRoutes& routes, std::span<const std::int32_t> slots, std::size_t images_max);

  /// Makes room for this number of copies.
  void reserve(std::size_t copies);

  [[nodiscard]] bool empty() const noexcept { return empty_; }
  [[nodiscard]] bool writes(std::size_t kind, std::int32_t slot) const noexcept {
    return written_[kind][static_cast<std::size_t>(slot)] == number_;
  }
  [[nodiscard]] bool copies(HostImage image) const noexcept {
    return image.index < images_.size() && images_[image.index] == number_;
  }

  /// A copy to a tier.
  void add_store(std::size_t route, std::int32_t from, std::int32_t to, std::uint32_t operation) noexcept;
  /// A copy to a slot of the device.
  void add_load(std::size_t route, std::int32_t place, std::int32_t slot, TransferId id) noexcept;
  /// An image of host memory that one of the copies reads or writes.
  void note(HostImage image) noexcept;

  /// Enqueues the copies and answers the loads. Returns operations whose copies were refused, until the next call.
  std::span<const std::uint32_t> enqueue(const Stream& stream, ReadyQueue<TransferResult>& results);

 private:
  /// The copies of one route, and whose they are: operations of stores, numbers of loads.
  struct Copies {
    std::vector<SlotCopy> plan;
    std::vector<std::uint32_t> operations;
    std::vector<TransferId> loads;
  };

  void enqueue(const Stream& stream, std::size_t route, ReadyQueue<TransferResult>& results);
  /// False: the lane refuses them.
  [[nodiscard]] bool try_copy(const Stream& stream, std::size_t route);

  CopyLane* lane_;
  CopyRoutes routes_;
  std::vector<Copies> copies_;                       ///< [routes]
  std::vector<std::vector<std::uint64_t>> written_;  ///< [kinds, slots] the batch in which a load last wrote the slot
  std::vector<bool> refused_;                        ///< [kinds] stores of this batch, that its loads may read
  std::vector<std::uint64_t> images_;                ///< [image index] the batch that last copied it
  std::vector<std::uint32_t> failed_;
  std::uint64_t number_ = 1;  ///< of the batch that gathers
  bool empty_ = true;
};

}  // namespace stateport::tiers
