// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <stateport/core/align/align_rules.hpp>

#include "copy_table.hpp"

/// The decision for one row of one group, by the rules of core: the same function for every backend.
namespace stateport::kernels {

/// One group as the kernels see it. Device memory; the arrays by request slot are written by steps.
struct AlignGroupView {
  CopyTableView table;
  const std::int32_t* block_table = nullptr;
  std::int64_t row_stride = 0;
  std::int32_t columns = 0;
  std::int32_t block_size = 1;
  std::int32_t blocks = 0;
  std::int32_t* column = nullptr;
  std::int32_t* accepted = nullptr;
  std::int32_t* src_column = nullptr;
  std::int32_t* src_offset = nullptr;
};

enum class AlignPhase : std::uint8_t { pre, post, post_advanced };

struct AlignBatchView {
  const std::int32_t* request = nullptr;
  const std::int32_t* computed = nullptr;
  const std::int32_t* scheduled = nullptr;
  const std::int32_t* drafts = nullptr;
  std::int32_t rows = 0;
  std::int32_t max_requests = 0;
  std::int32_t max_drafts = 0;
  AlignPhase phase = AlignPhase::pre;
};

/// What a step does with a row, and what it remembers.
struct AlignRow {
  SlotCopy copy;           ///< no valid part: nothing to move
  std::int32_t slot = -1;  ///< request slot; negative: the row is skipped
  std::int32_t column = 0;
  std::int32_t accepted = 0;
  std::int32_t src_column = 0;
  std::int32_t src_offset = 0;
  std::int32_t skipped_parts = 0;

  [[nodiscard]] constexpr bool moves() const noexcept {
    return copy.dst_slot >= 0 && (copy.src_slot >= 0 || copy.recurrent_src_slot >= 0);
  }
};

/// The copy between two columns. Blocks that the group does not have count as invalid, and so do both parts of a copy
/// from a column that is not remembered (a bias would make another column of it) and of one whose bias lies beyond the
/// drafts: no forward has written a state there.
constexpr void resolve_align_row(const AlignGroupView& group, const AlignBatchView& batch, std::int32_t row,
                                 std::int32_t src, std::int32_t dst, std::int32_t bias, AlignRow& out) noexcept {
  if (src == forgotten_column || bias > batch.max_drafts) {
    out.skipped_parts = 2;
    return;
  }
  ColumnCopy resolved = resolve_column_copy(group.block_table + row * group.row_stride, group.columns, src, dst, bias);
  SlotCopy& copy = resolved.copy;
  if (copy.dst_slot >= group.blocks) resolved = {SlotCopy{}, 2};
  if (copy.src_slot >= group.blocks) copy.src_slot = -1, ++resolved.skipped_parts;
  if (copy.recurrent_src_slot >= group.blocks) copy.recurrent_src_slot = -1, ++resolved.skipped_parts;
  out.copy = copy;
  out.skipped_parts = resolved.skipped_parts;
}

[[nodiscard]] constexpr AlignRow decide_align_row(const AlignGroupView& group, const AlignBatchView& batch,
                                                  std::int32_t row) noexcept {
  AlignRow out;
  const std::int32_t slot = batch.request[row];
  if (slot < 0 || slot >= batch.max_requests) return out;
  out.slot = slot;
  out.column = group.column[slot];
  out.accepted = group.accepted[slot];
  if (batch.phase == AlignPhase::pre) {
    const AlignPreStep step =
        align_pre_step(batch.computed[row], batch.scheduled[row], out.column, out.accepted, group.block_size);
    if (step.copy) resolve_align_row(group, batch, row, step.src_column, step.column, step.bias, out);
    out.column = step.column;
    out.accepted = step.accepted;
    out.src_column = step.src_column;
    out.src_offset = step.bias;
    return out;
  }
  const AlignPostStep step =
      batch.phase == AlignPhase::post
          ? align_post_step(batch.computed[row], batch.scheduled[row], batch.drafts[row], out.accepted, out.column,
                            group.block_size)
          : align_post_step_advanced(batch.computed[row], out.accepted, out.column, group.block_size);
  if (step.moves_bytes) resolve_align_row(group, batch, row, step.src_column, step.dst_column, step.bias, out);
  out.accepted = step.accepted;
  return out;
}

/// Remembers what was decided for a row.
constexpr void remember_align_row(const AlignGroupView& group, const AlignBatchView& batch,
                                  const AlignRow& decided) noexcept {
  if (decided.slot < 0) return;
  group.column[decided.slot] = decided.column;
  group.accepted[decided.slot] = decided.accepted;
  if (batch.phase != AlignPhase::pre) return;
  group.src_column[decided.slot] = decided.src_column;
  group.src_offset[decided.slot] = decided.src_offset;
}

}  // namespace stateport::kernels
