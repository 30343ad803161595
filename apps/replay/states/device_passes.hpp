// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/memory_resource.hpp>
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/core/model/state_spec.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>
#include <stateport/tiers/state_tiers.hpp>

#include "states/pass_mover.hpp"
#include "states/pass_stand_in.hpp"
#include "states/peer_copy.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stateport::replay {

struct DevicePassesOptions {
  StateRoom room;                   ///< of the cache whose plans are executed; one group
  std::int32_t history_tokens = 1;  ///< conv tokens of a state without drafts, at least 1
  std::int32_t drafts = 0;
  std::size_t materialize_bytes = 0;           ///< bound on the memory for states
  std::optional<ElementType> checkpoint_type;  ///< of recurrent states, if checkpoints have a store of their own
  bool against_memcpy = false;    ///< also measure MoverCounts::copy_share_of_memcpy; costs memory and time
  std::int64_t host_states = 0;   ///< > 0: images on the host, beside materialize_bytes
  std::int64_t file_states = 0;   ///< > 0: images in files
  std::string file_folder;        ///< of these
  bool plant_wrong_slot = false;  ///< self-test: the first state that is restored is overwritten with another one
};

/// States in device memory: moved where the plans of a cache say, made and verified by PassStandIn.
class DevicePasses final : public PassMover {
 public:
  /// `full`: a state with its drafts. Throws InvalidArgument when not even the smallest states fit; OutOfMemory.
  DevicePasses(MemoryResource& resource, const StateSpec& full, const DevicePassesOptions& options);

  void before(const PassPlan& plan) override;
  void forward(const PassForward& forward) override;
  void after(const PassCommit& commit) override;
  void after_end(CopyPlan copies) override;
  void transfer(TransferPlan transfers, std::vector<TransferResult>& answers) override;
  [[nodiscard]] std::uint64_t check(const RowState& state, std::span<const Content> window, bool restored) override;
  [[nodiscard]] MoverCounts counts() const override;

  /// The tensors of a state in memory.
  [[nodiscard]] const StateSpec& spec() const noexcept { return states_.spec(); }
  /// Memory for states: those of the cache, scratch and the memcpy peer.
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

 private:
  [[nodiscard]] const StateStore& checkpoints() const noexcept { return separate_ ? *separate_ : states_; }
  void plant(SlotId slot);
  void make_tiers(const DevicePassesOptions& options);
  template <class Call>
  double timed(double& seconds, const Call& call);
  void compare(std::size_t states, double seconds, bool restores);

  Stream stream_;
  StateStore states_;
  std::optional<StateStore> scratch_;
  std::optional<StateStore> separate_;  ///< checkpoints
  SlotCopier copier_;                   ///< of live states
  SlotCopier restorer_;                 ///< from checkpoints to live states
  SlotCopier keeper_;                   ///< and back
  std::optional<SlotCopier> committer_;
  PinnedResource host_memory_;
  std::optional<StateTiers> tiers_;
  std::vector<Transfer> moves_;  ///< of states: KV is not made
  PassStandIn model_;
  std::int32_t peer_images_;
  std::optional<PeerCopy> peer_;
  bool plant_wrong_slot_;
  MoverCounts counts_;
  std::int64_t copies_ = 0;  ///< launches that restored or committed
  std::vector<double> shares_of_memcpy_;
};

}  // namespace stateport::replay
