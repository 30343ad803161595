// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/core/serve/request_cache.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_integrity.hpp>
#include <stateport/kernels/state_store.hpp>

#include "cache.hpp"
#include "draft_steps.hpp"
#include "state_io.hpp"

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace stateport::engine {

/// The states of an engine: a store for each group of layers, scratch states, and the copies that plans and commits of
/// a RequestCache ask for.
class StateStores {
 public:
  StateStores(const CacheOptions& options, const RequestCacheOptions& cache);

  /// The layers of one group. Where the states of drafts lie in blocks the convolution's window holds one input more
  /// for each draft.
  [[nodiscard]] static StateSpec spec(const CacheOptions& options, const RequestCacheOptions& cache, std::size_t group);

  /// [groups]
  [[nodiscard]] std::vector<const StateStore*> stores() const;

  /// Carries out the work before a pass; returns the number of copies. `sums` looks at copies; it may be null.
  std::int64_t before(const PassPlan& plan, StateIntegrity* sums);
  /// Carries out the work after a pass; returns the number of copies.
  std::int64_t after(const PassCommit& commit, StateIntegrity* sums);
  /// Slots lose their content.
  void forget(std::int32_t first, std::int32_t count);
  void read(std::span<const RowState> states, ModelState& state);
  /// The pass has computed the state after `done` tokens of a row.
  void wrote(const Row& row, std::span<const RowState> states, std::int64_t done, const ModelState& state);

 private:
  struct Group {
    Group(const StateSpec& spec, std::int32_t slots, const Stream& stream, std::byte poison);
    DeviceResource memory;
    StateStore store;
    StateIo io;
    SlotCopier copier;
  };

  void copy(std::size_t group, CopyPlan plan, StateIntegrity* sums);

  CacheOptions options_;
  Stream stream_ = Stream::default_stream();
  std::deque<Group> groups_;
  std::optional<Group> scratch_;
  std::optional<SlotCopier> committer_;
  std::optional<DraftSteps> steps_;
};

}  // namespace stateport::engine
