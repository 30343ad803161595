// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/copy_plan.hpp>

#include <cstdint>

/// The decisions of block-table caching (after vLLM's mamba_utils and MambaHybridModelState) as constexpr functions of
/// integers: AlignPlanner calls them on the host, the align kernels call the very same ones on the device. No
/// exceptions, no containers; every function is O(1).
///
/// B = block size in tokens (> 0, checked by the callers), K = drafts of a step. Token counts are int64, columns and
/// accepted counts int32. A request's running state lies in its running column; with drafts, the K columns after it
/// hold the recurrent state after each further token, and the conv window of the running column holds K more tokens.
/// `accepted` tells how many tokens the last step kept: the state at `computed` tokens is read accepted - 1 tokens
/// (columns) past the running state.
namespace stateport {

inline constexpr std::int32_t no_column = -1;         ///< the request has no state yet
inline constexpr std::int32_t forgotten_column = -2;  ///< not remembered: derived from the token count when needed
inline constexpr std::int32_t null_block = 0;         ///< the block id of a column that holds nothing
inline constexpr std::int32_t neutral_accepted = 1;   ///< accepted count of a step without drafts
inline constexpr std::int32_t no_draft_count = -1;    ///< draft count of a row that does not decode

/// a / b rounded down, for 0 < b < 2^63.
[[nodiscard]] constexpr std::uint64_t quotient_of(std::uint64_t a, std::uint64_t b) noexcept {
  // Counts fit 32 bits, where division is several times cheaper on CPUs and GPUs.
  if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  // Others are divided bit by bit, the dividend's bits leaving where the quotient's come in: GPUs call a long function
  // for the operator, wherever it stands.
  std::uint64_t rest = 0;
  for (int bit = 0; bit < 64; ++bit) {
    rest = rest << 1 | a >> 63;  // below 2 * b, which is at most 2^63
    a <<= 1;
    if (rest < b) continue;
    rest -= b;
    a |= 1;
  }
  return a;
}

/// a / b rounded towards minus infinity, for b > 0.
[[nodiscard]] constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) noexcept {
  // Of ~a, which is -a - 1, the quotient rounded down is -q - 1: the complement of q.
  const std::int64_t sign = a >> 63;
  const std::uint64_t quotient = quotient_of(static_cast<std::uint64_t>(a ^ sign), static_cast<std::uint64_t>(b));
  return static_cast<std::int64_t>(quotient) ^ sign;
}
/// a / b rounded towards plus infinity, for b > 0.
[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept {
  return -floor_div(-a, b);
}
/// The largest multiple of `unit` that is <= a.
[[nodiscard]] constexpr std::int64_t floor_to(std::int64_t a, std::int64_t unit) noexcept {
  return floor_div(a, unit) * unit;
}

/// The column of a request's running state in a step that schedules `scheduled` tokens, drafts included.
[[nodiscard]] constexpr std::int32_t running_column(std::int64_t computed, std::int64_t scheduled,
                                                    std::int64_t block) noexcept {
  // ceil(n / B) - 1, written so that the usual case stays in 32 bits.
  return static_cast<std::int32_t>(floor_div(computed + scheduled - 1, block));
}

/// The column that holds state@computed when nothing is remembered: no_column for a new request.
[[nodiscard]] constexpr std::int32_t seed_column(std::int64_t computed, std::int64_t block) noexcept {
  return static_cast<std::int32_t>(floor_div(computed - 1, block));
}

/// Tokens that the last step kept past the running state. A stale row may carry accepted = 0.
[[nodiscard]] constexpr std::int32_t accepted_bias(std::int32_t accepted) noexcept {
  return accepted > 1 ? accepted - 1 : 0;
}

/// The accepted count after sampling: a prefill chunk samples 0 tokens and counts as the neutral 1.
[[nodiscard]] constexpr std::int32_t accepted_after_sampling(std::int32_t sampled) noexcept {
  return sampled > neutral_accepted ? sampled : neutral_accepted;
}

/// The draft count that decode kernels are given for a row: they take rows >= 0 for decode rows.
[[nodiscard]] constexpr std::int32_t decode_draft_count(bool decode, std::int32_t drafts) noexcept {
  return decode ? drafts : no_draft_count;
}

/// Before the forward, align mode: where the state lies, where this step needs it, and whether it must move.
struct AlignPreStep {
  std::int32_t src_column = no_column;  ///< column of the last step
  std::int32_t column = no_column;      ///< running column of this step: remembered in every case
  std::int32_t bias = 0;                ///< tokens past the running state of src_column
  std::int32_t accepted = 0;            ///< accepted count after the step's copy
  bool copy = false;                    ///< src_column → column, with bias
  friend constexpr bool operator==(const AlignPreStep&, const AlignPreStep&) noexcept = default;
};

/// `remembered`: the column of the last step, no_column or forgotten_column.
[[nodiscard]] constexpr AlignPreStep align_pre_step(std::int64_t computed, std::int64_t scheduled,
                                                    std::int32_t remembered, std::int32_t accepted,
                                                    std::int64_t block) noexcept {
  AlignPreStep step;
  step.src_column = remembered == forgotten_column ? seed_column(computed, block) : remembered;
  step.column = running_column(computed, scheduled, block);
  step.bias = accepted_bias(accepted);
  step.copy = step.src_column >= 0 && step.src_column != step.column;
  step.accepted = step.copy ? neutral_accepted : accepted;
  return step;
}

/// After sampling, align mode: whether the step ended on or crossed a block boundary, and the copy that keeps the
/// state there.
struct AlignPostStep {
  std::int64_t running = 0;       ///< tokens of the running state, accepted drafts not counted
  std::int64_t new_computed = 0;  ///< tokens after the step
  std::int64_t aligned = 0;       ///< the last block boundary <= new_computed
  std::int32_t src_column = no_column;
  std::int32_t dst_column = no_column;  ///< no_column without a copy
  std::int32_t bias = 0;                ///< aligned - running
  std::int32_t accepted = 0;            ///< accepted count after the copy
  bool copy = false;
  bool moves_bytes = false;  ///< a copy that is not column onto itself with bias 0
  friend constexpr bool operator==(const AlignPostStep&, const AlignPostStep&) noexcept = default;
};

/// `running` = tokens of the running state = computed + scheduled - drafts. Columns are compared, never blocks: prefix
/// sharing lets two columns name one block. With accepted = 0 nothing is copied and accepted stays 0.
[[nodiscard]] constexpr AlignPostStep align_post_step_running(std::int64_t running, std::int32_t accepted,
                                                              std::int32_t column, std::int64_t block) noexcept {
  AlignPostStep step;
  step.running = running;
  step.new_computed = running + accepted - 1;
  const std::int64_t boundary_column = floor_div(step.new_computed, block);
  step.aligned = boundary_column * block;
  step.src_column = column;
  step.accepted = accepted;
  step.copy = step.aligned >= running;
  if (!step.copy) return step;
  step.bias = static_cast<std::int32_t>(step.aligned - running);
  step.dst_column = static_cast<std::int32_t>(boundary_column - 1);
  const bool in_place = step.src_column == step.dst_column;
  step.moves_bytes = !in_place || step.bias != 0;
  if (in_place) step.accepted = neutral_accepted;
  return step;
}
[[nodiscard]] constexpr AlignPostStep align_post_step(std::int64_t computed, std::int64_t scheduled,
                                                      std::int64_t drafts, std::int32_t accepted, std::int32_t column,
                                                      std::int64_t block) noexcept {
  return align_post_step_running(computed + scheduled - drafts, accepted, column, block);
}
/// The form for an engine that only knows the token count after the step.
[[nodiscard]] constexpr AlignPostStep align_post_step_advanced(std::int64_t new_computed, std::int32_t accepted,
                                                               std::int32_t column, std::int64_t block) noexcept {
  return align_post_step_running(new_computed - accepted + 1, accepted, column, block);
}

/// All mode: a row with exactly 1 + K query tokens remembers the column of its last scheduled token, so that the next
/// step finds its in-place writes; any other row forgets (no_column).
[[nodiscard]] constexpr std::int32_t all_mode_column(std::int64_t computed, std::int64_t queries, std::int64_t drafts,
                                                     std::int64_t block) noexcept {
  if (queries != 1 + drafts) return no_column;
  const std::int32_t column = running_column(computed, queries, block);
  return column < 0 ? 0 : column;
}
/// All mode: the column to read when nothing is remembered.
[[nodiscard]] constexpr std::int32_t all_mode_fallback_column(std::int64_t computed, std::int64_t block) noexcept {
  const std::int32_t column = seed_column(computed, block);
  return column < 0 ? 0 : column;
}

/// First column of the 1 + K columns that a kernel is given for a sequence of seq_len tokens; 0 for an empty one.
[[nodiscard]] constexpr std::int32_t aligned_window_column(std::int64_t seq_len, std::int64_t block) noexcept {
  return all_mode_fallback_column(seq_len, block);
}

/// The block of a column, or -1 for a column outside the row, a null block and a negative id: never dereferenced.
[[nodiscard]] constexpr std::int32_t block_of_column(const std::int32_t* row, std::int32_t row_columns,
                                                     std::int64_t column) noexcept {
  if (column < 0 || column >= row_columns) return -1;
  return row[column] > null_block ? row[column] : -1;
}

/// A column copy in terms of blocks. Each part (conv, recurrent) needs its own source and the destination; a part that
/// lacks one is skipped (negative source in `copy`) and counted.
struct ColumnCopy {
  SlotCopy copy;
  std::int32_t skipped_parts = 0;
};

/// conv: tokens [bias, W) of src_column → [0, W - bias) of dst_column; recurrent: src_column + bias → dst_column.
[[nodiscard]] constexpr ColumnCopy resolve_column_copy(const std::int32_t* row, std::int32_t row_columns,
                                                       std::int32_t src_column, std::int32_t dst_column,
                                                       std::int32_t bias) noexcept {
  const std::int32_t dst = block_of_column(row, row_columns, dst_column);
  if (dst < 0) return {SlotCopy{}, 2};
  const std::int32_t conv_src = block_of_column(row, row_columns, src_column);
  const std::int32_t recurrent_src = block_of_column(row, row_columns, std::int64_t{src_column} + bias);
  return {SlotCopy{conv_src, dst, bias, recurrent_src}, (conv_src < 0 ? 1 : 0) + (recurrent_src < 0 ? 1 : 0)};
}

/// Which states a block table keeps.
enum class AlignMode : std::uint8_t {
  none,   ///< only the running window: 1 + K columns
  align,  ///< the running window, and the state at every block boundary that a step ends on or crosses
  all,    ///< the scan kernel itself writes the state at every boundary
};

/// Columns of a request's row. Precondition: block > 0.
[[nodiscard]] constexpr std::int64_t table_columns(AlignMode mode, std::int64_t max_tokens, std::int64_t block,
                                                   std::int64_t drafts) noexcept {
  return mode == AlignMode::none ? 1 + drafts : ceil_div(max_tokens, block) + drafts;
}

/// Blocks that a request holds at most in synchronous runs (align: one more with asynchronous counters), with
/// `checkpoints` columns for checkpoints inside prefill chunks.
[[nodiscard]] constexpr std::int64_t resident_blocks(AlignMode mode, std::int64_t max_tokens, std::int64_t block,
                                                     std::int64_t drafts, std::int64_t checkpoints) noexcept {
  if (mode == AlignMode::align) return 2 + drafts + checkpoints;
  return table_columns(mode, max_tokens, block, drafts);
}

/// The tokens that the states in a block stand for: PublicationCheck keeps these counts on the host, AlignContext on
/// the device. The counts of conv and recurrent parts differ, because with drafts these lie in different columns.
inline constexpr std::int64_t unknown_tokens = -1;

/// How many states of its window a forward of K drafts kept: none for an accepted count that no forward can have.
[[nodiscard]] constexpr std::int32_t forward_kept(std::int32_t accepted, std::int32_t drafts) noexcept {
  return accepted <= 1 + drafts ? accepted : 0;
}

/// The conv window that a forward leaves in its running column. `running`: tokens of the running state.
[[nodiscard]] constexpr std::int64_t forward_conv_tokens(std::int64_t running, std::int32_t kept) noexcept {
  return kept > 0 ? running : unknown_tokens;
}

/// The recurrent state that a forward leaves `i` columns behind its running column: of the running state and each kept
/// draft. The columns behind these hold drafts that were not kept.
[[nodiscard]] constexpr std::int64_t forward_recurrent_tokens(std::int64_t running, std::int32_t kept,
                                                              std::int64_t i) noexcept {
  return i < kept ? running + i : unknown_tokens;
}

/// The conv window after a copy with a shift: it ends `shift` tokens later.
[[nodiscard]] constexpr std::int64_t copied_conv_tokens(std::int64_t source, std::int32_t conv_shift) noexcept {
  return source == unknown_tokens ? unknown_tokens : source + conv_shift;
}

/// Whether a block with these counts may be published as state@tokens.
[[nodiscard]] constexpr bool holds_state(std::int64_t conv, std::int64_t recurrent, std::int64_t tokens) noexcept {
  return tokens > 0 && conv == tokens && recurrent == tokens;
}

}  // namespace stateport
