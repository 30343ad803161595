// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/memory_resource.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/core/model/state_spec.hpp>
#include <stateport/kernels/align_context.hpp>
#include <stateport/kernels/state_store.hpp>

#include "states/align_mover.hpp"
#include "states/align_stand_in.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::replay {

struct DeviceAlignStatesOptions {
  std::int32_t blocks = 0;  ///< of one state each, the null block not counted
  std::int64_t block_size_tokens = 512;
  std::int32_t drafts = 0;
  std::int32_t requests = 1;
  std::int32_t columns = 1;           ///< of the longest row
  std::int32_t history_tokens = 1;    ///< conv tokens of a state without drafts, at least 1
  std::size_t materialize_bytes = 0;  ///< bound on the memory for states
  bool plant_wrong_block = false;     ///< self-test: the first block that is restored is overwritten with another one
};

/// States in the blocks of device memory, moved where AlignContext decides, made and verified by AlignStandIn.
class DeviceAlignStates final : public AlignMover {
 public:
  /// `full`: a state with its drafts. Throws InvalidArgument when not even the smallest states fit; OutOfMemory.
  DeviceAlignStates(MemoryResource& resource, const StateSpec& full, const DeviceAlignStatesOptions& options);

  void add_request(RequestId request, std::int64_t computed) override;
  void forget(std::span<const RequestId> requests) override;
  void step(const AlignStepView& step) override;
  [[nodiscard]] bool remembers(std::span<const std::int32_t> columns, std::span<const std::int32_t> accepted) override;
  [[nodiscard]] std::uint64_t check_restored(BlockId block, std::span<const Content> window) override;
  [[nodiscard]] std::uint64_t check_published(BlockId block, std::span<const Content> window) override;
  [[nodiscard]] MoverCounts counts() const override { return counts_; }

  /// What a state consists of in memory.
  [[nodiscard]] const StateSpec& spec() const noexcept { return states_.spec(); }
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

 private:
  [[nodiscard]] std::uint64_t verify(BlockId block, std::span<const Content> window);
  template <class Call>
  void timed(double& seconds, const Call& call);

  Stream stream_;
  StateStore states_;
  AlignContext context_;
  AlignStandIn model_;
  Buffer table_;    ///< [requests, columns]
  Buffer sampled_;  ///< [requests]
  std::vector<std::int32_t> staged_table_;
  std::vector<std::int32_t> staged_sampled_;
  std::vector<AlignStandIn::Row> rows_;
  std::vector<std::int32_t> remembered_;
  bool plant_wrong_block_;
  MoverCounts counts_;
};

}  // namespace stateport::replay
