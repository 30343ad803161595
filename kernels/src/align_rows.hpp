// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/align_rules.hpp>
#include <stateport/parts/batch_counts.hpp>

#include "copy_table.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

/// The decision for one row of one group, by the rules of core: the same function for every backend.
namespace stateport::kernels {

/// Of how many tokens a state in a block is, and which write of the running step said so: the last of them counts,
/// whatever the order of the threads. Between steps the order says nothing.
///
///     63          32 31           0
///     [   order     ][   tokens   ]     tokens: all ones if unknown
using HeldTokens = unsigned long long;  // a type for atomics of every backend

[[nodiscard]] constexpr HeldTokens pack_held(std::uint32_t order, std::int64_t tokens) noexcept {
  return HeldTokens{order} << 32 | static_cast<std::uint32_t>(tokens);
}
[[nodiscard]] constexpr std::int64_t tokens_of(HeldTokens held) noexcept {
  const auto tokens = static_cast<std::uint32_t>(held);
  return tokens == UINT32_MAX ? unknown_tokens : std::int64_t{tokens};
}

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
  HeldTokens* held_conv = nullptr;       ///< [blocks]
  HeldTokens* held_recurrent = nullptr;  ///< [blocks]
};

enum class AlignPhase : std::uint8_t { pre, post, post_advanced };

struct AlignBatchView {
  const std::int32_t* request = nullptr;
  BatchCounts counts;
  std::int32_t rows = 0;
  std::int32_t max_requests = 0;
  std::int32_t max_drafts = 0;
  AlignPhase phase = AlignPhase::pre;
};

/// The work of a step on a row, and the column and count that it remembers.
struct AlignRow {
  SlotCopy copy;           ///< no valid part: nothing to move
  std::int32_t slot = -1;  ///< request slot; negative: the row is skipped
  std::int32_t column = 0;
  std::int32_t accepted = 0;
  std::int32_t src_column = 0;
  std::int32_t src_offset = 0;
  std::int32_t skipped_parts = 0;
  std::int64_t running = 0;  ///< post-step: tokens of the running state that the forward wrote
  std::int32_t kept = 0;     ///< post-step: forward_kept()
  bool changes = false;      ///< the column or the count is another one than before

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
  const std::int32_t column = group.column[slot];
  const std::int32_t accepted = group.accepted[slot];
  const std::int64_t computed = batch.counts.computed_of(row, slot);
  out.slot = slot;
  if (batch.phase == AlignPhase::pre) {
    const AlignPreStep step =
        align_pre_step(computed, batch.counts.scheduled_of(row), column, accepted, group.block_size);
    if (step.copy) resolve_align_row(group, batch, row, step.src_column, step.column, step.bias, out);
    out.column = step.column;
    out.accepted = step.accepted;
    out.src_column = step.src_column;
    out.src_offset = step.bias;
  } else {
    const AlignPostStep step =
        batch.phase == AlignPhase::post
            ? align_post_step(computed, batch.counts.scheduled_of(row), batch.counts.drafts_of(row, slot), accepted,
                              column, group.block_size)
            : align_post_step_advanced(computed, accepted, column, group.block_size);
    out.running = step.running;
    out.kept = forward_kept(accepted, batch.max_drafts);
    if (step.moves_bytes) resolve_align_row(group, batch, row, step.src_column, step.dst_column, step.bias, out);
    out.column = column;
    out.accepted = step.accepted;
  }
  out.changes = out.column != column || out.accepted != accepted;
  return out;
}

/// Calls write(held, order, tokens) for every state that the forward of a row left in its window. `order` counts the
/// writes of a batch, from 1 on.
template <class Write>
KOKKOS_INLINE_FUNCTION void for_each_forward_state(const AlignGroupView& group, const AlignBatchView& batch,
                                                   std::int32_t row, const AlignRow& decided, const Write& write) {
  if (decided.slot < 0 || decided.column == forgotten_column) return;
  const std::int32_t* const blocks = group.block_table + row * group.row_stride;
  const auto first_order = static_cast<std::uint32_t>(row) * static_cast<std::uint32_t>(1 + batch.max_drafts) + 1;
  for (std::int32_t i = 0; i <= batch.max_drafts; ++i) {
    const std::int32_t block = block_of_column(blocks, group.columns, std::int64_t{decided.column} + i);
    if (block < 0 || block >= group.blocks) continue;
    const std::uint32_t order = first_order + static_cast<std::uint32_t>(i);
    if (i == 0) write(group.held_conv[block], order, forward_conv_tokens(decided.running, decided.kept));
    write(group.held_recurrent[block], order, forward_recurrent_tokens(decided.running, decided.kept, i));
  }
}

/// The counts of a copy's destination after it. Either source may be the destination. A part that the copy does not
/// move is not touched: the copy of another row, which runs at the same time, may move it into the same block.
constexpr void copy_held_tokens(const AlignGroupView& group, const SlotCopy& copy) noexcept {
  if (copy.dst_slot < 0) return;
  if (copy.src_slot >= 0)
    group.held_conv[copy.dst_slot] =
        pack_held(0, copied_conv_tokens(tokens_of(group.held_conv[copy.src_slot]), copy.conv_shift));
  if (copy.recurrent_src_slot >= 0 && copy.recurrent_src_slot != copy.dst_slot)
    group.held_recurrent[copy.dst_slot] = pack_held(0, tokens_of(group.held_recurrent[copy.recurrent_src_slot]));
}

/// Remembers the decision for a row.
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
