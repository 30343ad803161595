// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/copy_plan.hpp>
#include <stateport/core/slots/slot_allocator.hpp>
#include <stateport/parts/checkpoint_budget.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport {

struct CheckpointPlannerOptions {
  std::int32_t block_size_tokens = 256;
  std::int32_t alignment_tokens = 128;  ///< distance in a chunk at which the scan kernel can save states
  std::int32_t max_rows = 1;            ///< prefill rows of a step
  std::uint64_t layout_fingerprint = 0;
};

/// One row of the prefill batch: the forward runs tokens [finished + skip, finished + chunk) of a prompt.
struct PrefillChunk {
  std::int32_t row = 0;  ///< position in the prefill batch, in the scan kernel's order
  SlotId live_slot;      ///< where the request's running state lives
  std::int64_t prompt_tokens = 0;
  std::int64_t finished_tokens = 0;
  std::int64_t skip_tokens = 0;
  std::int64_t chunk_tokens = 0;         ///< with the skipped ones
  std::int32_t matched_blocks = 0;       ///< where the request leaves the shared prefix
  std::int32_t required_blocks = 0;      ///< that the prompt touches up to the end of the chunk
  std::span<const BlockId> blocks;       ///< the request's row of the block table, at least its full blocks
  std::span<const PrefixHash> prefixes;  ///< of its full blocks
};

/// The states that one chunk will save: the state after offsets[i] tokens of the forward belongs to blocks[i]; the
/// state at the end of the prompt to end_block.
struct PlannedCheckpoints {
  std::int32_t count = 0;
  std::array<std::int32_t, max_checkpoints_per_chunk> offsets = {};
  std::array<BlockId, max_checkpoints_per_chunk> blocks = {};
  BlockId end_block;
  [[nodiscard]] bool any() const noexcept { return count > 0 || end_block.valid(); }
};

/// For the scan kernels, row by row; both empty when no intermediate state is due.
struct CheckpointArrays {
  std::span<const std::int32_t> offsets;  ///< [prefill rows, 3]; beyond a row's count: 0
  std::span<const std::int32_t> counts;   ///< [prefill rows]
};

/// The copies of one commit. Valid until publish() or abandon().
struct CheckpointCommit {
  CopyPlan from_scratch;  ///< source: the i-th state that the scan kernels saved, in row order, packed
  CopyPlan from_live;     ///< source: live slots
  std::int32_t dropped = 0;
};

/// Decides where a prefill saves states, and brings them into cache slots.
///
///     plan (each row) ─► device_arrays ─► [forward] ─► commit ─► [copies enqueued] ─► publish
///                                                        └────── abandon ◄─┘
///
/// Candidates, absolute: where the request leaves the shared prefix, the last full block of the prompt, the start of
/// the last block touched. One is kept if it lies strictly inside the tokens of the forward, on the alignment grid. A
/// prompt that ends on a block boundary also saves its end. Checkpoints are optional: one that finds no slot is dropped
/// and counted, in order of rows, intermediate before ends. Nothing is found by hash before publish().
///
/// O(rows) per step; allocates nothing after construction. Not thread-safe.
class CheckpointPlanner {
 public:
  /// `states` must outlive the planner. Throws InvalidArgument for options < 1.
  CheckpointPlanner(SlotAllocator& states, const CheckpointPlannerOptions& options);

  /// Plans one row; a second plan of a row replaces the first. Throws InvalidArgument, nothing changed, for a row out
  /// of range, a chunk outside its prompt, a skip outside its chunk, and blocks or prefixes that do not reach a
  /// checkpoint; InvalidState while a commit is pending.
  PlannedCheckpoints plan(const PrefillChunk& chunk);
  [[nodiscard]] bool has_any() const noexcept;
  /// Throws InvalidArgument for rows outside [0, max_rows].
  [[nodiscard]] CheckpointArrays device_arrays(std::int32_t prefill_rows) const;

  /// Gives slots to the planned checkpoints and lists the copies. A block that several rows name is copied once, from
  /// the last. Blocks without a hash get no slot. Throws InvalidState while a commit is pending.
  [[nodiscard]] CheckpointCommit commit();
  /// The copies were enqueued: tags and hashes are set, states can be found. Throws InvalidState without a pending
  /// commit.
  void publish();
  /// The copies were not enqueued: slots that hold nothing go back. Throws InvalidState without a pending commit.
  void abandon();
  /// Forgets the planned checkpoints. Throws InvalidState while a commit is pending.
  void clear();

  /// Checkpoints that found no slot, since construction.
  [[nodiscard]] std::int64_t dropped() const noexcept { return dropped_; }
  /// Throws std::logic_error naming the first broken invariant.
  void check_invariants() const;

 private:
  struct Row {
    PlannedCheckpoints planned;
    SlotId live_slot;
    std::array<StateTag, max_checkpoints_per_chunk> tags;
    StateTag end_tag;
  };
  struct Checkpoint {
    BlockId block;
    BlockHash hash = hash_not_computed;
    StateTag tag;
    std::int32_t source = -1;
    bool from_live = false;
    SlotId slot;
  };

  [[nodiscard]] StateTag tag_at(const PrefillChunk& chunk, std::size_t block_index) const;
  [[nodiscard]] Row planned_row(const PrefillChunk& chunk) const;
  void collect();
  void add(BlockId block, const StateTag& tag, std::int32_t source, bool from_live);
  void keep_what_fits(std::int64_t available);
  void build_copies();
  [[nodiscard]] bool stamp(BlockId block);
  void next_stamp();
  void forget_plan() noexcept;

  SlotAllocator& states_;
  CheckpointPlannerOptions options_;
  std::vector<Row> rows_;
  std::vector<std::int32_t> offsets_;  ///< [max_rows, 3]
  std::vector<std::int32_t> counts_;   ///< [max_rows]
  std::int64_t intermediates_ = 0;
  std::int64_t ends_ = 0;
  std::int64_t dropped_ = 0;
  bool pending_ = false;
  std::vector<Checkpoint> checkpoints_;
  std::vector<BlockId> blocks_;
  std::vector<SlotId> slots_;
  std::vector<SlotCopy> scratch_copies_;
  std::vector<SlotCopy> live_copies_;
  std::vector<std::uint32_t> stamps_;  ///< by block: seen in this pass
  std::uint32_t stamp_ = 0;
};

}  // namespace stateport
