// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "align/column_table.hpp"
#include "serve/request_book.hpp"
#include "serve/state_blocks.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

namespace stateport::detail {

/// [groups, blocks] zeros: for ColumnRows::check().
[[nodiscard]] std::vector<std::vector<std::int32_t>> no_references(const RequestCacheOptions& options);

/// The states of requests in the columns of block tables: every group of layers has blocks of states, and a request has
/// a row of them in each group. By the rules of align_rules.hpp:
///
///     none    a row is the running window alone; no state is found again
///     align   a row is the running window and the columns below it until they are released; the state at each boundary
///             that a pass ends on or crosses gets a block of its own
///     all     a row has all blocks, and the pass itself writes the state at each boundary
///
/// An index decides which blocks are found again, and whether by hash or by tokens. No call allocates after
/// construction.
class ColumnRows {
 public:
  /// `eviction`: which block goes first of those that are found by hash and that nobody holds. An order that learns is
  /// not allowed. An index that finds no block by hash has no use for it.
  explicit ColumnRows(RequestBook& book, EvictionOrder eviction = EvictionOrder::lru);

  [[nodiscard]] std::size_t groups() const noexcept { return book_.groups; }
  [[nodiscard]] StateBlocks& blocks(std::size_t group) noexcept { return blocks_[group]; }
  [[nodiscard]] const StateBlocks& blocks(std::size_t group) const noexcept { return blocks_[group]; }
  /// The distance of the positions at which every group can have a state, in tokens.
  [[nodiscard]] std::int64_t grid() const noexcept { return blocks_.back().block_size(); }
  [[nodiscard]] std::span<const std::int32_t> slots_of(RequestId request, std::size_t group) const {
    const Row& row = rows_[row_at(request, group)];
    return mode_ == AlignMode::align ? row.window.columns() : std::span<const std::int32_t>(row.ids);
  }
  /// The block of this group for the state after `boundary` tokens, a multiple of its block size; null_block: the
  /// request has none.
  [[nodiscard]] BlockId at(RequestId request, std::size_t group, std::int64_t boundary) const {
    return BlockId{slots_of(request, group)[static_cast<std::size_t>(boundary / blocks_[group].block_size()) - 1]};
  }

  /// The rows begin after `tokens` tokens with these blocks, one for each group, which they hold from now on; 0 tokens:
  /// with none.
  void begin(RequestId request, std::int64_t tokens, std::span<const SlotId> hit);
  /// The rows begin after the computed tokens of the point, with blocks of their own. The first pass copies the states
  /// of the point. False: there are too few blocks, and nothing was taken.
  [[nodiscard]] bool fork(RequestId fork, RequestId point);
  /// The requests have each other's rows from now on.
  void swap(RequestId one, RequestId other);
  /// Takes blocks for `upto` tokens in every group. False: a group has too few.
  [[nodiscard]] bool reserve(RequestId request, std::int64_t upto);
  /// The number of blocks that the group lacks for reserve(); not more than 0: none.
  [[nodiscard]] std::int64_t missing(RequestId request, std::size_t group, std::int64_t upto) const;
  /// Mode all: gives the blocks below the running state back. (In mode align reserve() does.)
  void release_passed(RequestId request);
  /// See RequestIndex.
  void place(Pass& pass, std::size_t index);
  void unplace(Pass& pass);
  void settle(const Pass& pass, std::size_t index, std::int32_t sampled);
  [[nodiscard]] PromptChunk split(const RequestRecord& record, std::int64_t start, std::int64_t tokens) const;
  /// The running states stay in their columns until the request passes a multiple of `block` tokens.
  [[nodiscard]] std::int64_t quiet_until(RequestId request, std::int64_t block) const;
  void release(RequestId request);

  /// Takes a block in each group for the state that a load brings; false: there are too few, and nothing was taken.
  [[nodiscard]] bool take_loading(RequestId request, std::span<SlotId> slots);
  /// Holds these blocks, one for each group, until release_loading().
  void hold_loading(RequestId request, std::span<const SlotId> slots);
  [[nodiscard]] std::span<const SlotId> loading(RequestId request) const noexcept {
    return std::span(loading_).subspan(request.index() * groups(), groups());
  }
  void release_loading(RequestId request);

  [[nodiscard]] std::int64_t used() const noexcept;
  void reset();
  /// Throws std::logic_error if a block has another number of references than its rows, its loads and `others` make:
  /// by group and block, the references that the index holds.
  void check(std::vector<std::vector<std::int32_t>> others) const;

 private:
  /// Where a running state lies: `bias` tokens past the one of `column`.
  struct Running {
    std::int32_t column = no_column;
    std::int32_t bias = 0;
  };
  /// One request in one group.
  struct Row {
    ColumnTable window;             ///< align
    std::vector<std::int32_t> ids;  ///< none, all
  };

  /// Of a request in a group, in arrays of both.
  [[nodiscard]] std::size_t row_at(RequestId request, std::size_t group) const noexcept {
    return request.index() * groups() + group;
  }
  void shrink_window(RequestId request, std::size_t group);
  [[nodiscard]] bool grow_window(RequestId request, std::size_t group, std::int64_t upto);
  [[nodiscard]] bool grow_row(RequestId request, std::size_t group, std::int64_t upto);
  [[nodiscard]] Running running_before(const Pass& pass, const RowPlan& row, std::size_t group) const;
  [[nodiscard]] Running running_after(const Pass& pass, std::size_t index, std::size_t group,
                                      std::int32_t sampled) const;
  [[nodiscard]] std::int32_t fork_column(RequestId request, std::size_t group) const;
  [[nodiscard]] bool copy_point(Pass& pass, const RowPlan& row, std::size_t group, std::int32_t column);
  void place_window(Pass& pass, std::size_t index, std::size_t group);
  void place_all(Pass& pass, std::size_t index, std::size_t group);
  void place_none(Pass& pass, std::size_t index, std::size_t group);
  [[nodiscard]] Running settle_window(const Pass& pass, std::size_t index, std::size_t group, std::int32_t sampled);
  void settle_all(const Pass& pass, std::size_t index, std::size_t group, std::int32_t sampled);

  RequestBook& book_;
  const RequestCacheOptions& options_;
  const AlignMode mode_;
  std::deque<StateBlocks> blocks_;  ///< by group
  std::vector<Row> rows_;           ///< [requests, groups]
  std::vector<SlotId> loading_;     ///< [requests, groups] where states are loaded to; none: nowhere
  std::vector<BlockId> scratch_;
};

}  // namespace stateport::detail
