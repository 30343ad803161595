// SPDX-License-Identifier: Apache-2.0
#include "align_cache.hpp"

#include <stateport/backends/transfer.hpp>
#include <stateport/core/align/chunk_split.hpp>
#include <stateport/core/model/error.hpp>

#include <algorithm>

#include "older_split.hpp"

namespace stateport::engine {
namespace {

/// Blocks of each group: what running requests hold at most, and some to keep.
std::int32_t blocks_of(const CacheOptions& options) {
  const auto resident = static_cast<std::int32_t>(
      resident_blocks(AlignMode::align, options.max_tokens, options.block_size, options.drafts, 0));
  return options.max_running * resident + options.checkpoints;
}

}  // namespace

AlignCache::AlignCache(const CacheOptions& options, bool on_device)
    : BlockTableCache(options, AlignMode::align, blocks_of(options)),
      columns_(static_cast<std::int32_t>(
          table_columns(AlignMode::align, options.max_tokens, options.block_size, options.drafts))),
      rows_(static_cast<std::size_t>(options.max_running)) {
  for (auto& row : rows_)
    for (const Group& group : groups_) row.emplace_back(group.block_size, options.drafts, columns_);
  for (const Group& group : groups_) copiers_.emplace_back(group.store, group.store);
  if (on_device) bind();
}

void AlignCache::bind() {
  const auto rows = static_cast<std::size_t>(options_.max_running);
  std::vector<AlignBinding> bindings;
  for (const Group& group : groups_) {
    tables_.emplace_back(memory_, rows * static_cast<std::size_t>(columns_) * sizeof(std::int32_t));
    bindings.push_back({&group.store, tables_.back().as<std::int32_t>(), columns_, columns_});
  }
  sampled_ = Buffer(memory_, rows * sizeof(std::int32_t));
  context_.emplace(planner_.options());
  context_->bind(bindings);
}

std::int64_t AlignCache::chunk(const Sequence& sequence, std::int64_t tokens) {
  const std::int64_t grid = groups_.back().block_size;  // a multiple of every group's
  const bool drops_block = options_.drafts > 0;         // as draft models do that cannot use the last block of a hit
  if (options_.fault == Fault::older_split)
    return test::OlderSplit{.block = grid,
                            .prompt = sequence.prefill,
                            .total = sequence.prefill,
                            .drops_block = drops_block,
                            .partial_hit_block = {},
                            .shared_boundary = {}}(sequence.computed, tokens);
  return split_chunk({.start = sequence.computed,
                      .tokens = tokens,
                      .prompt = sequence.prefill,
                      .total = sequence.prefill,
                      .drops_block = drops_block},
                     grid);
}

bool AlignCache::reserve(const Row& row) {
  if (!reserve_kv(row)) return false;
  const std::size_t slot = index_of(*row.sequence);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    ColumnTable& table = rows_[slot][g];
    std::vector<BlockId> released;
    table.release(row.start, released);
    groups_[g].pool.release(released);
    std::vector<BlockId> fresh(static_cast<std::size_t>(table.fresh_blocks(row.start + row.scheduled)));
    if (!take_blocks(g, fresh)) return false;
    table.grow(row.start + row.scheduled, fresh);
    table.check_invariants();
  }
  return true;
}

void AlignCache::begin_row(std::size_t slot, std::size_t group, std::int64_t tokens, BlockId block) {
  rows_[slot][group].start_from_hit(static_cast<std::int32_t>(tokens / groups_[group].block_size) - 1, block);
}

void AlignCache::began(std::size_t slot, std::int64_t tokens) {
  const RequestId request{static_cast<std::int32_t>(slot)};
  planner_.add_request(request, tokens);
  if (context_) context_->add_request(stream_, request, tokens);
}

void AlignCache::end_row(std::size_t slot, std::size_t group, std::vector<BlockId>& released) {
  rows_[slot][group].clear(released);
  rows_[slot][group] = ColumnTable(groups_[group].block_size, options_.drafts, columns_);
}

void AlignCache::ended(std::size_t slot, bool) {
  const RequestId request{static_cast<std::int32_t>(slot)};
  planner_.forget({&request, 1}, {}, {});
  if (context_) context_->forget(stream_, {&request, 1});
}

void AlignCache::fill_batch(std::span<const Row> rows) {
  batch_ = {};
  batch_.ids.resize(groups_.size());
  for (const Row& row : rows) {
    batch_.request.push_back(row.sequence->slot);
    batch_.computed.push_back(static_cast<std::int32_t>(row.start));
    batch_.scheduled.push_back(static_cast<std::int32_t>(row.scheduled));
    batch_.drafts.push_back(static_cast<std::int32_t>(row.drafts));
    batch_.sampled.push_back(static_cast<std::int32_t>(row.sampled));
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const auto blocks = columns(index_of(*row.sequence), g);
      std::vector<std::int32_t>& ids = batch_.ids[g];
      const std::size_t end = ids.size() + static_cast<std::size_t>(columns_);
      ids.insert(ids.end(), blocks.begin(), blocks.end());
      ids.resize(end, null_block);
    }
  }
  for (const auto& ids : batch_.ids) batch_.tables.push_back({.ids = ids, .row_stride = columns_, .columns = columns_});
}

void AlignCache::stage(std::span<const Row> rows) {
  for (std::size_t g = 0; g < groups_.size(); ++g)
    copy_bytes(stream_, tables_[g].data(), batch_.ids[g].data(), batch_.ids[g].size() * sizeof(std::int32_t));
  std::vector<StagedRequest> staged;
  for (const Row& row : rows)
    staged.push_back({.request = row.sequence->slot,
                      .computed = static_cast<std::int32_t>(row.start),
                      .scheduled = static_cast<std::int32_t>(row.scheduled),
                      .drafts = static_cast<std::int32_t>(row.drafts),
                      .prompt = static_cast<std::int32_t>(row.sequence->prefill)});
  device_batch_ = context_->stage(stream_, staged);
}

void AlignCache::before_forward(std::span<const Row> rows) {
  fill_batch(rows);
  counts_.copies += planner_.pre_step(batch(), batch_.tables).copies;
  if (!context_) return copy_planned();
  stage(rows);
  context_->pre_step(stream_, device_batch_);
  compare_with_planner();
}

/// One launch per group.
void AlignCache::copy_planned() {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const CopyPlan plan = planner_.plan(static_cast<std::int32_t>(g));
    std::vector<SlotCopy> copies(plan.begin(), plan.end());
    if (options_.fault == Fault::wrong_shift)
      for (SlotCopy& copy : copies)
        if (copy.conv_shift > 0) --copy.conv_shift;
    copiers_[g].copy_shifted(stream_, copies);
  }
}

void AlignCache::read_state(const Row& row, ModelState& state) {
  const std::size_t slot = index_of(*row.sequence);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto group = static_cast<std::int32_t>(g);
    const std::int32_t column = planner_.columns(group)[slot];
    const std::int32_t bias = accepted_bias(planner_.accepted(group)[slot]);
    groups_[g].io.read(block_at(slot, g, column), bias, block_at(slot, g, column + bias), state);
  }
}

void AlignCache::wrote_state(const Row& row, std::int64_t done, const ModelState& state) {
  const std::int64_t draft = done - (row.scheduled - row.drafts);
  if (draft < 0) return;
  const std::size_t slot = index_of(*row.sequence);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::int32_t column = planner_.columns(static_cast<std::int32_t>(g))[slot];
    groups_[g].io.write_step(block_at(slot, g, column), block_at(slot, g, column + static_cast<std::int32_t>(draft)),
                             draft, state);
  }
}

void AlignCache::after_forward(std::span<const Row> rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) batch_.sampled[i] = static_cast<std::int32_t>(rows[i].sampled);
  planner_.accept(batch_.request, batch_.sampled);
  counts_.copies += planner_.post_step(batch(), batch_.tables).copies;
  if (context_) {
    copy_bytes(stream_, sampled_.data(), batch_.sampled.data(), batch_.sampled.size() * sizeof(std::int32_t));
    context_->scatter_accepted(stream_, device_batch_.request, sampled_.as<std::int32_t>(), device_batch_.rows);
    context_->post_step(stream_, device_batch_);
    compare_with_planner();
  } else {
    copy_planned();
  }
  for (const Row& row : rows) publish(*row.sequence);
}

/// Also waits for the stream: the host's arrays are used again.
void AlignCache::compare_with_planner() const {
  std::vector<std::int32_t> held(static_cast<std::size_t>(options_.max_running));
  const auto same = [&](const std::int32_t* device, std::span<const std::int32_t> expected) {
    copy_bytes(stream_, held.data(), device, held.size() * sizeof(std::int32_t));
    stream_.synchronize();
    require_invariant(std::ranges::equal(held, expected), "AlignCache", "context and planner differ");
  };
  for (std::int32_t g = 0; g < planner_.groups(); ++g) {
    same(context_->columns(g), planner_.columns(g));
    same(context_->accepted(g), planner_.accepted(g));
  }
}

}  // namespace stateport::engine
