// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/column_table.hpp>

#include "serve/hashed_kv.hpp"
#include "serve/request_index.hpp"
#include "serve/state_blocks.hpp"

#include <cstdint>
#include <deque>
#include <vector>

namespace stateport::detail {

/// The index by block hash with states in the columns of block tables: every group of layers has blocks of states,
/// which are found by hash like blocks of KV, and a request has a row of them in each group. By the rules of
/// align_rules.hpp:
///
///     none    a row is the running window alone; no state is found again
///     align   a row is the running window and the columns below it until they are released; the state at each boundary
///     that
///             a pass ends on or crosses gets a block of its own
///     all     a row has all blocks, and the pass itself writes the state at each boundary
class HashColumns final : public RequestIndex {
 public:
  explicit HashColumns(RequestBook& book);

  [[nodiscard]] CacheUsage usage() const noexcept override;

  std::optional<OpenedPrompt> open(RequestId request, const PromptNames& names) override;
  bool reserve(RequestId request, std::int64_t upto) override;
  void place(Pass& pass, std::size_t index) override;
  void unplace(Pass& pass) override;
  void settle(Pass& pass, std::size_t index, std::int32_t sampled) override;
  [[nodiscard]] std::int64_t quiet_until(RequestId request) const override;
  void publish(Pass&) override {}
  void close(RequestId request, RequestEnd how, const ReuseHint& hint) override;
  void forget_all() override;
  [[nodiscard]] PromptChunk split(const RequestRecord& record, std::int64_t start, std::int64_t tokens) const override;
  [[nodiscard]] KvRow kv_of(RequestId request) const override { return kv_.row(request); }
  [[nodiscard]] std::span<const std::int32_t> slots_of(RequestId request, std::size_t group) const override;
  [[nodiscard]] const GrowingHashes& hashes_of(RequestId request, std::int64_t) override { return kv_.hashes(request); }
  [[nodiscard]] std::int64_t cached_now(RequestId request) override {
    return static_cast<std::int64_t>(kv_.cached_blocks(request)) * options_.block_size_tokens;
  }
  [[nodiscard]] bool reserve_load(RequestId request, std::int64_t tokens, std::int64_t cached_tokens,
                                  std::vector<std::int32_t>& kv_blocks, std::span<SlotId> slots) override;
  SlotId end_load(RequestId request, std::int64_t tokens, bool done) override;
  void check() const override;

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
    return request.index() * blocks_.size() + group;
  }
  [[nodiscard]] BlockId find_state(RequestId request, const StateBlocks& blocks, std::int64_t tokens) const;
  [[nodiscard]] bool has_states(RequestId request, std::int64_t tokens) const;
  [[nodiscard]] LostHit why_lost(RequestId request, std::int64_t reused_tokens, std::span<const BlockId> cached) const;
  void begin(RequestId request, std::int64_t tokens);
  void release_rows(RequestId request);
  [[nodiscard]] bool hold_state(RequestId request, std::size_t group, std::int64_t tokens);
  void release_loading(RequestId request, std::size_t group);
  void shrink_window(RequestId request, std::size_t group);
  [[nodiscard]] bool grow_window(RequestId request, std::size_t group, std::int64_t upto);
  [[nodiscard]] bool grow_row(RequestId request, std::size_t group, std::int64_t upto);
  [[nodiscard]] Running running_before(const Pass& pass, const RowPlan& row, std::size_t group) const;
  [[nodiscard]] Running running_after(const Pass& pass, std::size_t index, std::size_t group,
                                      std::int32_t sampled) const;
  void place_window(Pass& pass, std::size_t index, std::size_t group);
  void place_all(Pass& pass, std::size_t index, std::size_t group);
  void place_none(Pass& pass, std::size_t index, std::size_t group);
  [[nodiscard]] Running settle_window(const Pass& pass, std::size_t index, std::size_t group, std::int32_t sampled);
  void settle_all(const Pass& pass, std::size_t index, std::size_t group, std::int32_t sampled);
  void publish_states(const RowPlan& row, std::size_t group);

  HashedKv kv_;
  std::deque<StateBlocks> blocks_;  ///< by group
  std::vector<Row> rows_;           ///< [requests, groups]
  std::vector<BlockId> loading_;    ///< [requests, groups] where states are loaded to; null_block: nowhere
  std::vector<BlockId> scratch_;
};

}  // namespace stateport::detail
