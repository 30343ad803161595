// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/ids.hpp>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::detail {

/// One request's row of the block table of one group in align mode: which column holds which block. The running window
/// (a column and the K after it) lies at the end; columns that the request has passed become null, after their blocks
/// were handed back. The caller owns the blocks: it gives fresh ids to grow() and gets released ids from release().
/// A row allocates only when it outgrows its reserve. Not thread-safe.
///
/// Growing moves draft columns that the window has left behind, so the state in one of them survives only while the
/// window moves by at most one column a step: block_size_tokens > drafts, or > 2 * drafts when the counters lag one
/// step behind and the number of drafts varies. (Block sizes of engines are in the hundreds.)
class ColumnTable {
 public:
  /// Throws InvalidArgument for block_size_tokens < 1, drafts < 0 and reserve_columns < 0.
  ColumnTable(std::int32_t block_size_tokens, std::int32_t drafts, std::int32_t reserve_columns = 0);

  /// Starts a row over a hit: `null_columns` null columns, then the block that holds the state of the hit.
  /// Throws InvalidState unless the row is empty, InvalidArgument unless the id is positive.
  void start_from_hit(std::int32_t null_columns, BlockId hit);

  /// Nulls every column below floor((processed - 1) / B), also beyond columns that are null already, and appends their
  /// blocks to `released`, last column first. Call it before grow(). O(columns) the first time, then O(new ones).
  /// Throws InvalidArgument for processed_tokens < 0.
  void release(std::int64_t processed_tokens, std::vector<BlockId>& released);

  /// How many fresh blocks grow() will take. O(K).
  [[nodiscard]] std::int32_t fresh_blocks(std::int64_t cover_tokens) const;

  /// Makes room for a running window that ends at cover_tokens: pads with null columns, moves blocks of the old
  /// window that the new one has left behind to its end, and appends the fresh blocks. Without effect if the row is
  /// long enough. Throws InvalidArgument (row unchanged) for cover_tokens < 0, a number of ids other than
  /// fresh_blocks(cover_tokens), an id < 1 and one that is named twice.
  void grow(std::int64_t cover_tokens, std::span<const BlockId> fresh);

  /// Takes the last grow() back, because its step does not run: the row is as before it, and its new blocks are
  /// appended to `released`. A second call takes back the one before; a third one has no effect. Precondition: nothing
  /// was released since. O(K).
  void undo_grow(std::vector<BlockId>& released);

  /// Hands every block back and empties the row.
  void clear(std::vector<BlockId>& released);

  /// Block id per column, 0 = null.
  [[nodiscard]] std::span<const std::int32_t> columns() const noexcept { return columns_; }
  [[nodiscard]] std::int32_t size() const noexcept { return static_cast<std::int32_t>(columns_.size()); }
  [[nodiscard]] std::int32_t held_blocks() const noexcept { return held_; }
  /// Leading columns that release() has nulled.
  [[nodiscard]] std::int32_t released_columns() const noexcept { return released_to_; }
  /// Throws std::logic_error naming the first broken invariant. O(columns).
  void check_invariants() const;

 private:
  [[nodiscard]] std::int64_t columns_for(std::int64_t cover_tokens) const;
  [[nodiscard]] std::int32_t movable(std::int64_t window_start) const noexcept;

  std::vector<std::int32_t> columns_;
  std::int32_t block_size_;
  std::int32_t drafts_;
  std::int32_t held_ = 0;
  std::int32_t released_to_ = 0;  ///< columns below are null
  bool grown_ = false;
  /// The part of a grow() that undo_grow() needs.
  struct Growth {
    std::int32_t columns = -1;  ///< before it; -1: it had no effect
    std::int32_t moved = 0;
    std::int32_t fresh = 0;
    bool first = false;
  };
  std::array<Growth, 2> growths_;  ///< the last one first
};

}  // namespace stateport::detail
