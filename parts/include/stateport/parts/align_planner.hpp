// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/align/publication_check.hpp>
#include <stateport/core/model/ids.hpp>
#include <stateport/core/pool/copy_plan.hpp>
#include <stateport/parts/batch_counts.hpp>
#include <stateport/parts/prefill_checkpoint.hpp>
#include <stateport/parts/retention.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace stateport {

/// One group of layers that share a block table. Groups may differ in everything.
struct AlignGroup {
  std::int32_t block_size_tokens = 0;  ///< of this group's states, not of the KV blocks
  std::int32_t blocks = 0;             ///< block ids are < blocks
  std::int32_t conv_window = 0;        ///< W, the shortest of the group's conv states; 0: it has none
  RetentionPolicy retention = {};
};

struct AlignOptions {
  AlignMode mode = AlignMode::align;
  std::int32_t drafts = 0;  ///< K, at most
  std::int32_t max_requests = 0;
  std::vector<AlignGroup> groups;
};

/// The arrays of one batch, in batch order. A negative request marks a row to skip (padding).
struct AlignBatch {
  std::span<const std::int32_t> request;    ///< [rows] request slot
  std::span<const std::int32_t> computed;   ///< [rows] tokens before the step
  std::span<const std::int32_t> scheduled;  ///< [rows] tokens of the step, drafts included
  std::span<const std::int32_t> drafts;     ///< [rows] drafts of the step, or empty: none
  /// [rows + 1], in place of scheduled: tokens of the batch before each row, and of all rows.
  std::span<const std::int32_t> query_start_loc = {};
  bool computed_by_request = false;  ///< computed is [max_requests], by request slot
  bool drafts_by_request = false;    ///< drafts is [max_requests], by request slot

  [[nodiscard]] BatchCounts counts() const noexcept {
    return {.computed = computed.data(),
            .scheduled = query_start_loc.empty() ? scheduled.data() : nullptr,
            .query_start_loc = query_start_loc.data(),
            .drafts = drafts.empty() ? nullptr : drafts.data(),
            .computed_by_request = computed_by_request,
            .drafts_by_request = drafts_by_request};
  }
};

/// The block ids of one group, one row per batch row.
struct BlockTable {
  std::span<const std::int32_t> ids;  ///< [rows, row_stride]
  std::int64_t row_stride = 0;        ///< ids from one row to the next
  std::int32_t columns = 0;           ///< ids of a row
};

/// The plan of one step.
struct AlignStep {
  std::int64_t copies = 0;         ///< over all groups
  std::int64_t skipped_parts = 0;  ///< parts of copies without a valid block at an end
};

/// Decides on the host what the align kernels decide on the device: per group and request it remembers the running
/// column and the accepted count, and turns a batch into one CopyPlan per group, whose slots are block ids.
///
///     add_request → [ pre_step → forward → accept → post_step ]… → forget
///
/// The accepted count is kept per group: whether a copy consumes it depends on the group's block size.
/// A call that throws InvalidArgument has changed nothing but the plans. Steps are O(rows × groups × (1 + K)) and
/// allocate nothing after construction. Not thread-safe.
class AlignPlanner {
 public:
  /// Throws InvalidArgument: an unknown mode, no group, max_requests < 1, drafts < 0, a block size or number of blocks
  /// < 1, a conv window that is negative or not longer than drafts (a bias must leave a token), a negative retention
  /// interval.
  explicit AlignPlanner(AlignOptions options);

  /// The request starts (again) with `computed` tokens: column from the count with the group's own block size, accepted
  /// neutral. Throws for a request out of range, computed < 0 and computed > INT32_MAX.
  void add_request(RequestIndex request, std::int64_t computed);
  /// Forgets finished, preempted and resumed requests; naming one that is not remembered is harmless. (A forced
  /// preemption may show up only as resumed.) Throws for a request out of range.
  void forget(std::span<const RequestIndex> finished, std::span<const RequestIndex> preempted,
              std::span<const RequestIndex> resumed);

  /// Before the forward: plans the moves of running states (align mode) and remembers the columns.
  /// Throws for arrays of different lengths, a request >= max_requests or named twice, negative counts, more tokens
  /// than 32 bits count, another number of tables than groups, a table with fewer rows than the batch, a block id >=
  /// blocks, two copies into one block and chains of copies.
  AlignStep pre_step(const AlignBatch& batch, std::span<const BlockTable> tables);
  /// After sampling: accepted = max(sampled, 1) for every group. Throws for lengths, requests and sampled > 1 + K.
  void accept(std::span<const std::int32_t> request, std::span<const std::int32_t> sampled);
  /// After accept(): plans the copies to block boundaries (align), or remembers the columns of full draft steps (all).
  /// Throws as pre_step(), and for drafts > K, drafts > scheduled and a request that is not remembered.
  AlignStep post_step(const AlignBatch& batch, std::span<const BlockTable> tables);
  /// post_step() for an engine that only knows the token counts after the step [rows].
  AlignStep post_step_advanced(std::span<const std::int32_t> request, std::span<const std::int32_t> new_computed,
                               std::span<const BlockTable> tables);

  /// The copies of the last step for one group: one launch over all tensors of the group. Valid until the next step.
  [[nodiscard]] CopyPlan plan(std::int32_t group) const;
  /// [max_requests] by request slot.
  [[nodiscard]] std::span<const std::int32_t> columns(std::int32_t group) const;
  [[nodiscard]] std::span<const std::int32_t> accepted(std::int32_t group) const;
  /// Accepted counts in batch order for the forward's kernels; rows that are skipped or behind the batch get 1.
  /// Throws for out shorter than request.
  void gather_accepted(std::int32_t group, std::span<const std::int32_t> request, std::span<std::int32_t> out) const;

  /// The token counts of a group's blocks, kept up to date by the steps; ask it before registering a block.
  [[nodiscard]] PublicationCheck& publication(std::int32_t group);
  /// keep[i] for column start_column + i: the group's retention policy and `boundaries` (tokens).
  void fill_retention(std::int32_t group, std::int64_t start_column, std::span<const std::int64_t> boundaries,
                      std::span<std::uint8_t> keep) const;
  /// A checkpoint inside a prefill chunk of this group, by the predicate that the kernel uses. `state_block` of the
  /// chunk is replaced by the group's. When it is valid, the caller has the forward store it and reports it with
  /// publication(group).wrote(block, position).
  [[nodiscard]] PrefillCheckpoint checkpoint_in(std::int32_t group, PrefillCheckpointQuery chunk) const;

  [[nodiscard]] const AlignOptions& options() const noexcept { return options_; }
  [[nodiscard]] std::int32_t groups() const noexcept { return static_cast<std::int32_t>(groups_.size()); }
  /// Parts of copies skipped so far for want of a valid block.
  [[nodiscard]] std::int64_t skipped_parts() const noexcept { return skipped_parts_; }
  /// Throws std::logic_error naming the first broken invariant.
  void check_invariants() const;

 private:
  /// A row of the batch that names a request.
  struct LiveRow {
    std::size_t row;
    std::uint32_t slot;

    [[nodiscard]] std::int32_t computed(const BatchCounts& counts) const noexcept {
      return counts.computed_of(static_cast<std::int32_t>(row), static_cast<std::int32_t>(slot));
    }
    [[nodiscard]] std::int32_t scheduled(const BatchCounts& counts) const noexcept {
      return counts.scheduled_of(static_cast<std::int32_t>(row));
    }
    [[nodiscard]] std::int32_t drafts(const BatchCounts& counts) const noexcept {
      return counts.drafts_of(static_cast<std::int32_t>(row), static_cast<std::int32_t>(slot));
    }
  };
  /// The work of a step on a live row.
  struct Decision {
    std::int32_t column = 0;    ///< to remember
    std::int32_t accepted = 0;  ///< to remember
    std::int32_t src_column = 0;
    std::int32_t dst_column = 0;
    std::int32_t bias = 0;
    bool copy = false;         ///< src_column → dst_column, with bias
    std::int64_t running = 0;  ///< tokens of the running state that the forward wrote (post-step)
  };
  /// Columns and decisions depend on the block size and not on the blocks: groups of one size share them.
  struct Track {
    std::int32_t block_size_tokens;
    std::vector<std::int32_t> column;    ///< [max_requests]
    std::vector<std::int32_t> accepted;  ///< [max_requests]
    std::vector<Decision> decisions;     ///< [max_requests] of the step, one per live row
  };
  struct Group {
    std::size_t track;
    std::vector<SlotCopy> plan;          ///< at most one per row
    std::vector<std::uint32_t> written;  ///< [blocks] epoch of the last plan that writes the block
    PublicationCheck publication;
  };

  [[nodiscard]] const Group& group_at(std::int32_t group) const;
  void check_request(RequestIndex request) const;
  /// Starts a new epoch, of marks on the requests of the batch and on the blocks that its plans write, and lists the
  /// live rows.
  void check_requests(std::span<const std::int32_t> request);
  void check_batch(const AlignBatch& batch);
  /// The counts of one live row.
  void check_counts(const BatchCounts& counts, LiveRow live) const;
  void check_tables(std::span<const BlockTable> tables, std::size_t rows) const;
  void check_plan(Group& group) const;
  [[nodiscard]] const Track& track_of(const Group& group) const { return tracks_[group.track]; }
  /// Empties the plans.
  AlignStep plan_nothing();
  /// decisions[i] = rule(live row i, track), for every track.
  template <class Rule>
  void decide(const Rule& rule);
  /// Turns the decisions into plans, row by row; checks the ids of `columns` columns from the running one on.
  AlignStep plan_copies(std::span<const BlockTable> tables, std::int32_t window_columns);
  template <class RunningOf>
  AlignStep plan_post_step(std::span<const BlockTable> tables, const RunningOf& running_of);
  void record_forward(std::span<const BlockTable> tables);
  void commit(const AlignStep& step);

  AlignOptions options_;
  std::vector<Track> tracks_;
  std::vector<Group> groups_;
  std::vector<LiveRow> live_;        ///< of the batch, in its order; at most max_requests
  std::vector<std::uint32_t> seen_;  ///< [max_requests] epoch of the last batch that named the request
  std::uint32_t epoch_ = 0;
  std::int64_t skipped_parts_ = 0;
};

}  // namespace stateport
