// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include <stateport/backends/buffer.hpp>
#include <stateport/core/align/column_table.hpp>
#include <stateport/kernels/align_context.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "block_table_cache.hpp"

namespace stateport::engine {

/// Align mode: a request keeps its running window of blocks, and the state at each block boundary that a step ends on
/// or crosses. AlignPlanner decides; its plans are copied from the host, or AlignContext decides the same on the device
/// and the planner only keeps the books.
class AlignCache final : public BlockTableCache {
 public:
  AlignCache(const CacheOptions& options, bool on_device);

  [[nodiscard]] std::int64_t chunk(const Sequence& sequence, std::int64_t tokens) override;
  [[nodiscard]] bool reserve(const Row& row) override;
  void before_forward(std::span<const Row> rows) override;
  void read_state(const Row& row, ModelState& state) override;
  void wrote_state(const Row& row, std::int64_t done, const ModelState& state) override;
  void after_forward(std::span<const Row> rows) override;

 private:
  /// The batch as the planner reads it.
  struct Batch {
    std::vector<std::int32_t> request, computed, scheduled, drafts, sampled;
    std::vector<std::vector<std::int32_t>> ids;  ///< [rows, columns_] by group
    std::vector<BlockTable> tables;
  };

  void begin_row(std::size_t slot, std::size_t group, std::int64_t tokens, BlockId block) override;
  void began(std::size_t slot, std::int64_t tokens) override;
  void end_row(std::size_t slot, std::size_t group, std::vector<BlockId>& released) override;
  void ended(std::size_t slot, bool aborted) override;
  [[nodiscard]] std::span<const std::int32_t> columns(std::size_t slot, std::size_t group) const override {
    return rows_[slot][group].columns();
  }

  void fill_batch(std::span<const Row> rows);
  [[nodiscard]] AlignBatch batch() const {
    return {
        .request = batch_.request, .computed = batch_.computed, .scheduled = batch_.scheduled, .drafts = batch_.drafts};
  }
  void bind();
  void stage(std::span<const Row> rows);
  void copy_planned();
  void compare_with_planner() const;

  std::int32_t columns_;                        ///< of a row of a device table
  std::vector<std::vector<ColumnTable>> rows_;  ///< by request slot and group
  Batch batch_;
  std::deque<SlotCopier> copiers_;  ///< by group
  // On the device:
  std::optional<AlignContext> context_;
  DeviceResource memory_;
  std::vector<Buffer> tables_;  ///< [max_running, columns_] by group
  Buffer sampled_;              ///< [max_running]
  AlignDeviceBatch device_batch_;
};

}  // namespace stateport::engine
