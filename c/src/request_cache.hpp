// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/c/request_cache.h>
#include <stateport/core/serve/request_cache.hpp>

#include "memory_moves.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::c {

/// The options of a caller. Structs that they point to are read.
[[nodiscard]] RequestCacheOptions read_cache_options(const stateport_request_cache_options* options);

[[nodiscard]] stateport_started_request to_c(const StartedRequest& started) noexcept;
[[nodiscard]] stateport_cache_event to_c(const CacheEvent& event) noexcept;
[[nodiscard]] stateport_cache_stats to_c(const CacheStats& stats, const CacheUsage& usage) noexcept;

/// One group of a plan, in arrays that are used again.
class GroupPlanArrays {
 public:
  /// Makes room for a plan of `rows` rows, which clears `cleared` slots and saves `saves` states.
  void reserve(std::size_t rows, std::size_t cleared, std::size_t saves);
  /// Before the rows of a plan.
  void clear() noexcept;
  void add(std::int32_t row, const RowState& state);
  /// A row of which nothing is planned.
  void add_nothing();
  void set(const GroupPlan& plan);
  [[nodiscard]] stateport_group_plan view() const noexcept;

 private:
  std::vector<std::int32_t> clear_;
  std::vector<stateport_slot_copy> copies_;
  std::vector<const std::int32_t*> slots_;
  std::vector<std::int32_t> slot_count_;
  std::vector<std::int32_t> read_column_;
  std::vector<std::int32_t> read_bias_;
  std::vector<std::int32_t> write_column_;
  std::vector<std::int32_t> read_slot_;
  std::vector<std::int32_t> read_recurrent_slot_;
  std::vector<std::int32_t> write_slot_;
  std::vector<stateport_state_save> saves_;
};

/// A plan, in arrays that are used again.
class PassPlanArrays {
 public:
  /// With room for whatever plans of such a cache tell.
  explicit PassPlanArrays(const RequestCacheOptions& options);

  /// `transfers`: those of the plan.
  void set(const PassPlan& plan, const stateport_transfer* transfers);
  /// Without the members that the caller sets: size, groups, group_count.
  [[nodiscard]] stateport_pass_plan view() const noexcept;
  [[nodiscard]] const std::vector<GroupPlanArrays>& groups() const noexcept { return groups_; }

 private:
  void add(const RowPlan& row);

  stateport_pass_plan answer_ = {};
  std::vector<std::uint8_t> room_;
  std::vector<std::int64_t> start_;
  std::vector<const std::int32_t*> kv_;
  std::vector<std::int64_t> kv_count_;
  std::vector<std::int32_t> scrub_kv_;
  std::vector<std::int32_t> scrub_scratch_;
  std::vector<std::int32_t> scrub_draft_rows_;
  std::vector<stateport_slot_copy> fork_copies_;
  MemoryPlanArrays memory_;
  std::vector<GroupPlanArrays> groups_;
};

/// One group of a commit, in arrays that are used again.
class GroupCommitArrays {
 public:
  /// Makes room for a commit of `rows` rows whose pass saved `saves` states.
  void reserve(std::size_t rows, std::size_t saves);
  void set(const GroupCommit& commit);
  [[nodiscard]] stateport_group_commit view() const noexcept;

 private:
  std::vector<stateport_step_commit> steps_;
  std::vector<stateport_slot_copy> from_scratch_;
  std::vector<stateport_slot_copy> copies_;
};

}  // namespace stateport::c
