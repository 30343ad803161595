// SPDX-License-Identifier: Apache-2.0
#include "all_cache.hpp"

#include <algorithm>

namespace stateport::engine {
namespace {

/// Blocks of each group: for one request as long as any, and for checkpoints and other requests.
std::int32_t blocks_of(const CacheOptions& options) {
  const auto longest =
      static_cast<std::int32_t>(table_columns(AlignMode::all, options.max_tokens, options.block_size, options.drafts));
  return longest + 3 * options.checkpoints;
}

}  // namespace

AllCache::AllCache(const CacheOptions& options)
    : BlockTableCache(options, AlignMode::all, blocks_of(options)),
      rows_(static_cast<std::size_t>(options.max_running)) {
  for (auto& row : rows_) row.resize(groups_.size());
}

bool AllCache::reserve(const Row& row) {
  if (!reserve_kv(row)) return false;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    std::vector<std::int32_t>& ids = rows_[index_of(*row.sequence)][g];
    const auto needed = static_cast<std::size_t>(
        table_columns(AlignMode::all, row.start + row.scheduled, groups_[g].block_size, options_.drafts));
    if (needed <= ids.size()) continue;
    std::vector<BlockId> fresh(needed - ids.size());
    if (!take_blocks(g, fresh)) return false;
    for (const BlockId block : fresh) ids.push_back(block.value());
  }
  return true;
}

void AllCache::begin_row(std::size_t slot, std::size_t group, std::int64_t tokens, BlockId block) {
  std::vector<std::int32_t>& ids = rows_[slot][group];
  ids.assign(static_cast<std::size_t>(tokens / groups_[group].block_size), null_block);
  ids.back() = block.value();
}

void AllCache::began(std::size_t slot, std::int64_t tokens) {
  planner_.add_request(RequestId{static_cast<std::int32_t>(slot)}, tokens);
}

void AllCache::end_row(std::size_t slot, std::size_t group, std::vector<BlockId>& released) {
  for (const std::int32_t id : rows_[slot][group])
    if (id != null_block) released.push_back(BlockId{id});
  rows_[slot][group].clear();
}

void AllCache::ended(std::size_t slot, bool) {
  const RequestId request{static_cast<std::int32_t>(slot)};
  planner_.forget({}, {&request, 1}, {});
}

/// Where a pass with drafts leaves the state after its first token; the others follow.
std::int32_t AllCache::window_column(const Row& row, std::size_t group) const {
  return all_mode_column(row.start, row.scheduled, options_.drafts, groups_[group].block_size);
}

void AllCache::read_state(const Row& row, ModelState& state) {
  const std::size_t slot = index_of(*row.sequence);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto group = static_cast<std::int32_t>(g);
    std::int32_t column = planner_.columns(group)[slot];
    std::int32_t bias = accepted_bias(planner_.accepted(group)[slot]);
    if (column < 0) {
      column = all_mode_fallback_column(row.start, groups_[g].block_size);
      bias = 0;
    }
    groups_[g].io.read(block_at(slot, g, column), bias, block_at(slot, g, column + bias), state);
  }
}

void AllCache::wrote_state(const Row& row, std::int64_t done, const ModelState& state) {
  const std::size_t slot = index_of(*row.sequence);
  const std::int64_t position = row.start + done;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    if (row.drafts > 0) {
      const std::int32_t column = window_column(row, g);
      const auto step = static_cast<std::int32_t>(done - 1);
      group.io.write_step(block_at(slot, g, column), block_at(slot, g, column + step), step, state);
    } else if (position % group.block_size == 0 || done == row.scheduled) {
      const SlotId block = block_at(slot, g, seed_column(position, group.block_size));
      group.io.write(block, state);
      planner_.publication(static_cast<std::int32_t>(g)).wrote(block.value(), position);
    }
  }
}

void AllCache::after_forward(std::span<const Row> rows) {
  plan_next_step(rows);
  for (const Row& row : rows) {
    for (std::size_t g = 0; g < groups_.size() && row.drafts > 0; ++g) {
      PublicationCheck& publication = planner_.publication(static_cast<std::int32_t>(g));
      const std::size_t slot = index_of(*row.sequence);
      const std::int32_t column = window_column(row, g);
      publication.wrote_conv(block_at(slot, g, column).value(), row.start + 1);
      for (std::int32_t step = 0; step <= row.drafts; ++step)
        publication.wrote_recurrent(block_at(slot, g, column + step).value(),
                                    step < row.sampled ? row.start + 1 + step : PublicationCheck::unknown);
    }
    publish(*row.sequence);
  }
}

void AllCache::plan_next_step(std::span<const Row> rows) {
  std::vector<std::int32_t> request, computed, scheduled, drafts, sampled;
  for (const Row& row : rows) {
    request.push_back(row.sequence->slot);
    computed.push_back(static_cast<std::int32_t>(row.start));
    scheduled.push_back(static_cast<std::int32_t>(row.scheduled));
    drafts.push_back(static_cast<std::int32_t>(row.drafts));
    sampled.push_back(static_cast<std::int32_t>(row.sampled));
  }
  // Nothing is copied: no column is looked up.
  const std::vector<BlockTable> tables(groups_.size());
  planner_.accept(request, sampled);
  static_cast<void>(planner_.post_step({request, computed, scheduled, drafts}, tables));
}

}  // namespace stateport::engine
