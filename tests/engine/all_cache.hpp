// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "block_table_cache.hpp"

namespace stateport::engine {

/// All mode: a request keeps every block, and the forward itself writes the state at each boundary that it passes into
/// the boundary's column; nothing is copied. A pass with drafts writes the state after each of its tokens into a column
/// of its own, from the last one that it may reach on; AlignPlanner remembers where.
class AllCache final : public BlockTableCache {
 public:
  explicit AllCache(const CacheOptions& options);

  /// All or none: a pass with fewer could not be told from a chunk, whose states are not kept one by one.
  [[nodiscard]] std::int64_t drafts(std::int64_t drafts) override { return drafts == options_.drafts ? drafts : 0; }
  [[nodiscard]] bool reserve(const Row& row) override;
  void before_forward(std::span<const Row>) override {}
  void read_state(const Row& row, ModelState& state) override;
  void wrote_state(const Row& row, std::int64_t done, const ModelState& state) override;
  void after_forward(std::span<const Row> rows) override;

 private:
  void begin_row(std::size_t slot, std::size_t group, std::int64_t tokens, BlockId block) override;
  void began(std::size_t slot, std::int64_t tokens) override;
  void end_row(std::size_t slot, std::size_t group, std::vector<BlockId>& released) override;
  void ended(std::size_t slot, bool aborted) override;
  [[nodiscard]] std::span<const std::int32_t> columns(std::size_t slot, std::size_t group) const override {
    return rows_[slot][group];
  }
  [[nodiscard]] std::int32_t window_column(const Row& row, std::size_t group) const;
  void plan_next_step(std::span<const Row> rows);

  std::vector<std::vector<std::vector<std::int32_t>>> rows_;  ///< block ids by request slot and group
};

}  // namespace stateport::engine
