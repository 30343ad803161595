// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>
#include <stateport/core/serve/request_types.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::detail {

/// How a pass treats a row.
enum class RowPart : std::uint8_t {
  none,   ///< nothing: it found no room, or its request has ended since
  quiet,  ///< it runs, and nothing but counts and tokens changes
  busy    ///< it runs, and the index has a part in it: reserve, place, settle
};

/// First and end in Pass::saves.
using SaveRange = std::array<std::size_t, 2>;

struct Pass {
  PassId id = 0;
  bool ready = false;
  bool inserts = false;        ///< see RequestCache::insert
  bool quiet = false;          ///< if placed: its commit will do nothing but count tokens and register KV
  std::vector<RowPlan> rows;   ///< start and states: once the pass is placed
  std::vector<RowPart> parts;  ///< by row
  std::int32_t busy_rows = 0;
  std::vector<std::int32_t> row_of;  ///< by request: its row while that runs; else -1
  std::vector<RowState> states;      ///< [rows, groups] of busy rows
  std::vector<StateSave> saves;
  std::vector<SlotId> save_slots;             ///< [saves] index tree: where the states go as checkpoints
  std::vector<SaveRange> save_ranges;         ///< [rows, groups] first and end in `saves`
  std::vector<std::vector<SlotId>> clear;     ///< [groups]
  std::vector<std::vector<SlotCopy>> copies;  ///< [groups]
  std::vector<SlotCopy> fork_copies;          ///< see PassPlan
  std::vector<std::int32_t> scrub_kv;         ///< see ScrubPlan
  std::vector<SlotId> scrub_scratch;
  std::vector<std::int32_t> scrub_draft_rows;
  std::vector<GroupPlan> group_plans;
  /// Of drafts, one row after the other: the step that each follows. Empty: they are chains.
  std::vector<std::int32_t> parents;
  /// [rows, 1 + drafts] with parents, while the pass is committed: the kept steps of each row, in order.
  std::vector<std::int32_t> paths;
  std::vector<std::int32_t> columns;  ///< [rows, groups] indexes in columns: the running column; of busy rows
  std::int32_t without_room = 0;
  std::int32_t dropped = 0;  ///< checkpoints for which place() found no room

  /// Says where a row that runs begins, and where its state lies. `in_columns`: it may lie past a bias.
  void place(std::size_t row, std::int64_t start, std::span<const RowState> where, bool in_columns) noexcept {
    rows[row].start = start;
    rows[row].states = where;
    quiet &= rows[row].drafts == 0;
    if (!in_columns) return;
    // A pass that is placed before the commit of this one would read past the bias again.
    for (const RowState& state : where) quiet &= state.read_bias == 0;
  }
  [[nodiscard]] PassPlan view();
  /// The step of a row that is kept as its `depth`-th one; 0: that of its first token.
  [[nodiscard]] std::int32_t kept_step(std::size_t row, std::int64_t depth) const noexcept {
    if (paths.empty()) return static_cast<std::int32_t>(depth);
    return paths[row * (paths.size() / rows.size()) + static_cast<std::size_t>(depth)];
  }
  [[nodiscard]] bool runs(std::size_t row) const noexcept { return parts[row] != RowPart::none; }
  [[nodiscard]] bool is_busy(std::size_t row) const noexcept { return parts[row] == RowPart::busy; }
};

/// The outstanding passes, oldest first. Their memory is used again and again; nothing allocates after construction.
class PassQueue {
 public:
  static constexpr std::size_t capacity = 2;
  /// The computed tokens once some passes are committed: between `low` and `high`.
  struct Bounds {
    std::int64_t low = 0;
    std::int64_t high = 0;
  };

  explicit PassQueue(const RequestCacheOptions& options);

  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] Pass& at(std::size_t i) noexcept { return passes_[(first_ + i) % capacity]; }
  [[nodiscard]] const Pass& at(std::size_t i) const noexcept { return passes_[(first_ + i) % capacity]; }
  [[nodiscard]] Pass& newest() noexcept { return at(count_ - 1); }
  /// A pass whose rows are not filled in; it counts once it is pushed.
  [[nodiscard]] Pass& next(std::size_t rows);
  void push() noexcept { ++count_; }
  void pop_oldest() noexcept;
  void pop_newest() noexcept;

  /// After the first `passes` passes, for a request with this number of computed tokens now.
  [[nodiscard]] Bounds bounds(RequestId request, std::int64_t computed, std::size_t passes) const noexcept {
    Bounds bounds{.low = computed, .high = computed};
    for (std::size_t i = 0; i < passes; ++i) {
      const std::int32_t row = at(i).row_of[request.index()];
      if (row < 0) continue;
      const RowPlan& planned = at(i).rows[static_cast<std::size_t>(row)];
      bounds.low += planned.tokens - planned.drafts;
      bounds.high += planned.tokens;
    }
    return bounds;
  }
  /// The pass before this one, if it runs the request; null otherwise.
  [[nodiscard]] const Pass* earlier(const Pass& pass, RequestId request) const noexcept {
    const Pass& oldest = at(0);
    return &pass != &oldest && oldest.row_of[request.index()] >= 0 ? &oldest : nullptr;
  }
  /// An outstanding pass runs the request.
  [[nodiscard]] bool has(RequestId request) const noexcept {
    return (count_ > 0 && at(0).row_of[request.index()] >= 0) || (count_ > 1 && at(1).row_of[request.index()] >= 0);
  }
  /// A pass that is placed runs the request, so that its live state may have changed already.
  [[nodiscard]] bool in_flight(RequestId request) const noexcept;
  /// The rows of the request are void.
  void end_request(RequestId request) noexcept;

 private:
  static void forget_rows(Pass& pass) noexcept;

  std::array<Pass, capacity> passes_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

}  // namespace stateport::detail
