// SPDX-License-Identifier: Apache-2.0
#include "align/column_table.hpp"

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

#include <algorithm>

namespace stateport::detail {

ColumnTable::ColumnTable(std::int32_t block_size_tokens, std::int32_t drafts, std::int32_t reserve_columns)
    : block_size_(block_size_tokens), drafts_(drafts) {
  require(block_size_tokens >= 1, "block_size_tokens", block_size_tokens, "must be at least 1");
  require(drafts >= 0, "drafts", drafts, "must not be negative");
  require(reserve_columns >= 0, "reserve_columns", reserve_columns, "must not be negative");
  columns_.reserve(static_cast<std::size_t>(reserve_columns));
}

void ColumnTable::start_from_hit(std::int32_t null_columns, BlockId hit) {
  require_state(columns_.empty(), "start_from_hit", "columns", size(), "must be 0 when a row starts");
  require(null_columns >= 0, "null_columns", null_columns, "must not be negative");
  require(hit.value() > null_block, "hit", hit, "is not a block that can hold a state");
  columns_.assign(static_cast<std::size_t>(null_columns), null_block);
  columns_.push_back(hit.value());
  held_ = 1;
}

void ColumnTable::release(std::int64_t processed_tokens, std::vector<BlockId>& released) {
  require(processed_tokens >= 0, "processed_tokens", processed_tokens, "must not be negative");
  const std::int64_t wanted = floor_div(processed_tokens - 1, block_size_);
  const auto keep_from = static_cast<std::int32_t>(std::min<std::int64_t>(wanted, size()));
  for (std::int32_t column = keep_from - 1; column >= released_to_; --column) {
    std::int32_t& block = columns_[static_cast<std::size_t>(column)];
    if (block == null_block) continue;
    released.push_back(BlockId{block});
    block = null_block;
    --held_;
  }
  released_to_ = std::max(released_to_, keep_from);
}

std::int32_t ColumnTable::fresh_blocks(std::int64_t cover_tokens) const {
  const std::int64_t needed = columns_for(cover_tokens);
  if (needed <= size()) return 0;
  const std::int64_t window_start = needed - drafts_ - 1;
  const std::int64_t padded = std::max<std::int64_t>(size(), window_start);
  return static_cast<std::int32_t>(needed - padded - movable(window_start));
}

void ColumnTable::grow(std::int64_t cover_tokens, std::span<const BlockId> fresh) {
  require(fresh.size() == static_cast<std::size_t>(fresh_blocks(cover_tokens)), "fresh", fresh.size(),
          "must hold fresh_blocks(cover_tokens) ids");
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    require(fresh[i].value() > null_block, "fresh", fresh[i], "is not a block id");
    require(std::ranges::find(fresh.first(i), fresh[i]) == fresh.begin() + static_cast<std::ptrdiff_t>(i), "fresh",
            fresh[i], "is named twice");
  }
  const std::int64_t needed = columns_for(cover_tokens);
  growths_ = {Growth{}, growths_[0]};
  if (needed <= size()) return;
  const std::int64_t window_start = needed - drafts_ - 1;
  const std::int32_t moves = movable(window_start);
  const std::size_t old_window = columns_.size() - static_cast<std::size_t>(drafts_);
  growths_[0] = {.columns = size(), .moved = moves, .fresh = static_cast<std::int32_t>(fresh.size()), .first = !grown_};
  if (window_start > size()) columns_.resize(static_cast<std::size_t>(window_start), null_block);
  // The old window's draft columns hold nothing that is needed any more: their blocks serve the new one.
  for (std::size_t i = 0; i < static_cast<std::size_t>(moves); ++i) {
    columns_.push_back(columns_[old_window + i]);
    columns_[old_window + i] = null_block;
  }
  for (const BlockId block : fresh) columns_.push_back(block.value());
  held_ += static_cast<std::int32_t>(fresh.size());
  grown_ = true;
}

void ColumnTable::undo_grow(std::vector<BlockId>& released) {
  const Growth last = growths_[0];
  growths_ = {growths_[1], Growth{}};
  if (last.columns < 0) return;
  const auto fresh = static_cast<std::size_t>(last.fresh);
  const auto moved = static_cast<std::size_t>(last.moved);
  const std::size_t old_window = static_cast<std::size_t>(last.columns) - static_cast<std::size_t>(drafts_);
  const std::size_t first_fresh = columns_.size() - fresh;
  for (std::size_t i = first_fresh; i < columns_.size(); ++i) released.push_back(BlockId{columns_[i]});
  for (std::size_t i = 0; i < moved; ++i) columns_[old_window + i] = columns_[first_fresh - moved + i];
  columns_.resize(static_cast<std::size_t>(last.columns));
  held_ -= last.fresh;
  grown_ = !last.first;
}

void ColumnTable::clear(std::vector<BlockId>& released) {
  for (const std::int32_t block : columns_)
    if (block != null_block) released.push_back(BlockId{block});
  columns_.clear();
  held_ = 0;
  released_to_ = 0;
  grown_ = false;
  growths_ = {};
}

void ColumnTable::check_invariants() const {
  constexpr const char* structure = "ColumnTable";
  std::int32_t held = 0;
  for (std::int32_t column = 0; column < size(); ++column) {
    const std::int32_t block = columns_[static_cast<std::size_t>(column)];
    require_invariant(block >= null_block, structure, "a column names a negative block");
    require_invariant(column >= released_to_ || block == null_block, structure, "a released column is not null");
    held += block != null_block;
  }
  require_invariant(held == held_, structure, "the number of held blocks is wrong");
  for (std::int32_t i = 0; grown_ && i <= drafts_; ++i)
    require_invariant(size() - 1 - i < released_to_ || columns_[static_cast<std::size_t>(size() - 1 - i)] != null_block,
                      structure, "a column of the running window is null");
}

std::int64_t ColumnTable::columns_for(std::int64_t cover_tokens) const {
  require(cover_tokens >= 0, "cover_tokens", cover_tokens, "must not be negative");
  const std::int64_t needed = ceil_div(cover_tokens, block_size_) + drafts_;
  require(needed <= INT32_MAX, "cover_tokens", cover_tokens, "needs more columns than an index can name");
  return needed;
}

/// How many draft columns of the old window lie before the new window.
std::int32_t ColumnTable::movable(std::int64_t window_start) const noexcept {
  if (!grown_) return 0;
  const std::int64_t old_window = size() - drafts_;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(window_start - old_window, 0, drafts_));
}

}  // namespace stateport::detail
