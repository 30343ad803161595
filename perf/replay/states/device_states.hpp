// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/memory_resource.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/core/model/state_spec.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include "states/peer_copy.hpp"
#include "states/stand_in_model.hpp"
#include "states/state_mover.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::replay {

struct DeviceStatesOptions {
  std::int32_t slots = 0;             ///< of the cache
  std::size_t materialize_bytes = 0;  ///< bound on all memory for states: pool, live, scratch and the memcpy peer
  bool plant_wrong_slot = false;      ///< self-test: the first restore plan reads another slot than it should
};

/// States in device memory: restored and committed by the library's kernels, made and verified by StandInModel.
class DeviceStates final : public StateMover {
 public:
  /// Throws InvalidArgument when not even the smallest states fit, or a wrong slot is to be planted where there is but
  /// one; OutOfMemory.
  DeviceStates(MemoryResource& resource, const StateSpec& full, const DeviceStatesOptions& options);

  [[nodiscard]] std::uint64_t start(SlotId slot, Content at) override;
  void advance(Content from, Content to, std::span<const PlacedState> checkpoints) override;
  [[nodiscard]] MoverCounts counts() const override;

  /// What a state consists of in memory.
  [[nodiscard]] const StateSpec& spec() const noexcept { return pool_.spec(); }
  /// Memory for states: pool, live, scratch and the memcpy peer.
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

 private:
  struct Shares;
  DeviceStates(MemoryResource& resource, const StateSpec& spec, const DeviceStatesOptions& options,
               const Shares& shares);

  void restore(SlotId slot);
  void commit(std::span<const SlotCopy> intermediates, std::span<const SlotCopy> ends);

  Stream stream_;
  StateStore pool_;
  StateStore live_;
  StateStore scratch_;
  SlotCopier restorer_;
  SlotCopier committer_;
  StandInModel model_;
  PeerCopy peer_;
  std::size_t peer_images_;
  bool plant_wrong_slot_;
  std::int32_t live_slot_ = 0;  ///< of the current request; requests take turns
  std::int64_t copies_ = 0;     ///< launches that restored or committed
  MoverCounts counts_;
  std::vector<double> shares_of_memcpy_;
  std::vector<StandInModel::Row> rows_;
  std::vector<SlotCopy> intermediates_;
};

}  // namespace stateport::replay
