// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/c/request_cache.h>
#include <stateport/core/serve/request_cache.hpp>

#include "containers/ready_vector.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::c {

/// What a caller's options say. What they point to is read.
[[nodiscard]] RequestCacheOptions read_cache_options(const stateport_request_cache_options* options);

/// States that a pass over these rows can save on its way, at most, in each group. Of rows that plan() refuses no more
/// is believed than their requests have. Throws for a request that does not run.
[[nodiscard]] std::size_t saves_max(const RequestCache& cache, std::span<const PassRow> rows);

[[nodiscard]] stateport_started_request to_c(const StartedRequest& started) noexcept;
[[nodiscard]] stateport_cache_event to_c(const CacheEvent& event) noexcept;
[[nodiscard]] stateport_cache_stats to_c(const CacheStats& stats, const CacheUsage& usage) noexcept;

/// What one group of a plan tells, in arrays that are used again.
class GroupPlanArrays {
 public:
  /// Makes room for a plan of so many rows, which clears so many slots.
  void reserve(std::size_t rows, std::size_t cleared);
  /// Moves nothing that the last plan told.
  void prepare_saves(std::size_t saves) { saves_.prepare(saves); }
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
  detail::ReadyVector<stateport_state_save> saves_;
};

/// What a plan tells, in arrays that are used again.
class PassPlanArrays {
 public:
  /// With room for whatever plans of such a cache tell, but for states that passes save on their way.
  explicit PassPlanArrays(const RequestCacheOptions& options);

  /// Makes room for so many of these in each group, and moves nothing that the last plan told.
  void prepare_saves(std::size_t saves);
  void set(const PassPlan& plan);
  /// Without what the caller sets: size, groups, group_count.
  [[nodiscard]] stateport_pass_plan view() const noexcept;
  [[nodiscard]] const std::vector<GroupPlanArrays>& groups() const noexcept { return groups_; }

 private:
  void add(const RowPlan& row);

  stateport_pass_plan told_ = {};
  std::vector<std::uint8_t> room_;
  std::vector<std::int64_t> start_;
  std::vector<const std::int32_t*> kv_;
  std::vector<std::int64_t> kv_count_;
  std::vector<std::int32_t> scrub_kv_;
  std::vector<std::int32_t> scrub_scratch_;
  std::vector<std::int32_t> scrub_draft_rows_;
  std::vector<GroupPlanArrays> groups_;
};

/// What one group of a commit tells, in arrays that are used again.
class GroupCommitArrays {
 public:
  /// Makes room for a commit of so many rows.
  void reserve(std::size_t rows);
  /// Makes room for so many states that the pass saved, and moves nothing that the last commit told.
  void prepare_saves(std::size_t saves) { from_scratch_.prepare(saves); }
  void set(const GroupCommit& commit);
  [[nodiscard]] stateport_group_commit view() const noexcept;

 private:
  std::vector<stateport_step_commit> steps_;
  detail::ReadyVector<stateport_slot_copy> from_scratch_;
  std::vector<stateport_slot_copy> copies_;
};

}  // namespace stateport::c
