// SPDX-License-Identifier: Apache-2.0
#include "serve/column_rows.hpp"

#include <stateport/core/model/error.hpp>

#include "align/chunk_split.hpp"
#include "align/state_hit.hpp"
#include "serve/checkpoint_placement.hpp"
#include "serve/request_options.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace stateport::detail {

std::vector<std::vector<std::int32_t>> no_references(const RequestCacheOptions& options) {
  std::vector<std::vector<std::int32_t>> references;
  for (const StateGroup& group : column_layout(options).groups)
    references.emplace_back(static_cast<std::size_t>(group.blocks + reserved_state_blocks));
  return references;
}

ColumnRows::ColumnRows(RequestBook& book, EvictionOrder eviction)
    : book_(book), options_(book.options), mode_(column_layout(options_).mode) {
  loading_.resize(index_rows(options_) * book_.groups);
  std::int32_t index = 0;
  for (const StateGroup& group : column_layout(options_).groups) {
    const std::int32_t g = index++;
    blocks_.emplace_back(group, g, book.news, eviction == EvictionOrder::lru ? nullptr : make_eviction_policy(eviction),
                         book.state_owners(static_cast<std::size_t>(g)), book.sessions ? &*book.sessions : nullptr,
                         book.checks ? &*book.checks : nullptr);
  }
  const auto columns_of = [&](AlignMode mode, const StateGroup& group) {
    return table_columns(mode, options_.max_request_tokens, group.block_size_tokens, options_.drafts);
  };
  std::int64_t most = 0;
  for (std::size_t request = 0; request < index_rows(options_); ++request)
    for (const StateGroup& group : column_layout(options_).groups) {
      const std::int64_t columns = columns_of(AlignMode::align, group);
      rows_.push_back(
          {.window = ColumnTable(group.block_size_tokens, options_.drafts, static_cast<std::int32_t>(columns)),
           .ids = {}});
      const std::int64_t ids = columns_of(mode_, group);
      if (mode_ != AlignMode::align) rows_.back().ids.reserve(static_cast<std::size_t>(ids));
      most = std::max({most, columns, ids});
    }
  scratch_.reserve(static_cast<std::size_t>(most) + 1);
}

std::int64_t ColumnRows::used() const noexcept {
  std::int64_t used = 0;
  for (const StateBlocks& blocks : blocks_) used += blocks.used();
  return used;
}

void ColumnRows::begin(RequestId id, std::int64_t tokens, std::span<const SlotId> hit) {
  for (std::size_t g = 0; g < groups(); ++g) {
    Row& row = rows_[row_at(id, g)];
    const std::int64_t size = blocks_[g].block_size();
    const std::int32_t column = seed_column(tokens, size);
    book_.states.of(id)[g] = {.read_column = column, .write_column = std::max(column, 0)};
    if (tokens == 0) continue;
    const BlockId block{hit[g].value()};
    blocks_[g].retain(block);
    if (mode_ == AlignMode::align) {
      row.window.start_from_hit(column, block);
    } else {
      row.ids.assign(static_cast<std::size_t>(tokens / size), null_block);
      row.ids.back() = block.value();
    }
  }
}

/// Mode align: the next token may belong to an earlier column than the last one of the first pass. It has a block, as
/// behind a hit.
bool ColumnRows::fork(RequestId id, RequestId point) {
  const std::int64_t computed = book_.record(id).computed;
  for (std::size_t g = 0; g < groups(); ++g) {
    Row& row = rows_[row_at(id, g)];
    book_.states.of(id)[g] = book_.states.of(point)[g];
    if (mode_ == AlignMode::all) row.ids.assign(static_cast<std::size_t>(fork_column(id, g)), null_block);
    if (mode_ != AlignMode::align) continue;
    BlockId block;
    if (!blocks_[g].take({&block, 1})) {
      release(id);
      return false;
    }
    row.window.start_from_hit(static_cast<std::int32_t>(computed / blocks_[g].block_size()), block);
  }
  return true;
}

void ColumnRows::swap(RequestId one, RequestId other) {
  for (std::size_t g = 0; g < groups(); ++g) std::swap(rows_[row_at(one, g)], rows_[row_at(other, g)]);
}

/// Where the state of a fork lies before its first pass.
std::int32_t ColumnRows::fork_column(RequestId id, std::size_t group) const {
  return mode_ == AlignMode::all ? seed_column(book_.record(id).computed, blocks_[group].block_size()) : 0;
}

bool ColumnRows::reserve(RequestId request, std::int64_t upto) {
  const bool window = mode_ == AlignMode::align;
  for (std::size_t g = 0; g < groups(); ++g) {
    if (window ? grow_window(request, g, upto) : grow_row(request, g, upto)) continue;
    while (window && g-- > 0) shrink_window(request, g);
    return false;
  }
  return true;
}

std::int64_t ColumnRows::missing(RequestId request, std::size_t group, std::int64_t upto) const {
  const Row& row = rows_[row_at(request, group)];
  const StateBlocks& blocks = blocks_[group];
  if (mode_ == AlignMode::align) return row.window.fresh_blocks(upto) - blocks.available();
  return table_columns(mode_, upto, blocks.block_size(), options_.drafts) - std::ssize(row.ids) - blocks.available();
}

/// An outstanding pass reads the running state of the last commit, or a later one. A pass without drafts writes to the
/// column of its last token, which may lie before that of the drafts of the pass before it.
void ColumnRows::release_passed(RequestId request) {
  if (mode_ != AlignMode::all || book_.record(request).is_fork) return;  // a fork has none yet
  for (std::size_t g = 0; g < groups(); ++g) {
    std::vector<std::int32_t>& ids = rows_[row_at(request, g)].ids;
    const auto next = static_cast<std::int32_t>(book_.record(request).computed / blocks_[g].block_size());
    const std::int32_t running = std::min(book_.states.of(request)[g].read_column, next);
    scratch_.clear();
    for (std::int32_t column = running; column-- > 0 && ids[static_cast<std::size_t>(column)] != null_block;)
      scratch_.push_back(BlockId{std::exchange(ids[static_cast<std::size_t>(column)], null_block)});
    if (!scratch_.empty()) blocks_[g].release(scratch_);
  }
}

/// A window that was made for a longer pass has no columns for a shorter one.
void ColumnRows::unplace(Pass& pass) {
  if (mode_ != AlignMode::align) return;
  for (std::size_t i = 0; i < pass.rows.size(); ++i)
    for (std::size_t g = 0; g < groups() && pass.is_busy(i); ++g) shrink_window(pass.rows[i].request, g);
}

void ColumnRows::shrink_window(RequestId request, std::size_t group) {
  scratch_.clear();
  rows_[row_at(request, group)].window.undo_grow(scratch_);
  blocks_[group].release(scratch_);
}

/// Columns below the committed state are released: an outstanding pass may still read that state itself.
bool ColumnRows::grow_window(RequestId request, std::size_t group, std::int64_t upto) {
  ColumnTable& window = rows_[row_at(request, group)].window;
  scratch_.clear();
  window.release(book_.record(request).computed, scratch_);
  if (!scratch_.empty()) blocks_[group].release(scratch_);
  scratch_.resize(static_cast<std::size_t>(window.fresh_blocks(upto)));
  if (!blocks_[group].take(scratch_)) return false;
  window.grow(upto, scratch_);
  return true;
}

bool ColumnRows::grow_row(RequestId request, std::size_t group, std::int64_t upto) {
  std::vector<std::int32_t>& ids = rows_[row_at(request, group)].ids;
  const auto needed =
      static_cast<std::size_t>(table_columns(mode_, upto, blocks_[group].block_size(), options_.drafts));
  if (needed <= ids.size()) return true;
  scratch_.resize(needed - ids.size());
  if (!blocks_[group].take(scratch_)) return false;
  for (const BlockId block : scratch_) ids.push_back(block.value());
  return true;
}

void ColumnRows::place(Pass& pass, std::size_t index) {
  for (std::size_t g = 0; g < groups(); ++g) {
    const std::size_t first = pass.saves.size();
    if (mode_ == AlignMode::align)
      place_window(pass, index, g);
    else if (mode_ == AlignMode::all)
      place_all(pass, index, g);
    else
      place_none(pass, index, g);
    pass.save_ranges[index * groups() + g] = {first, pass.saves.size()};
  }
}

/// A pass is placed behind another one only if that is quiet: it keeps one token of each row.
ColumnRows::Running ColumnRows::running_before(const Pass& pass, const RowPlan& row, std::size_t group) const {
  const Pass* earlier = book_.passes.earlier(pass, row.request);
  if (earlier != nullptr) {
    const auto at = static_cast<std::size_t>(earlier->row_of[row.request.index()]);
    if (earlier->is_busy(at)) return running_after(*earlier, at, group, 1);
  }
  const RowState& state = book_.states.of(row.request)[group];
  return {.column = state.read_column, .bias = state.read_bias};
}

/// Modes none and all. In mode all the running state lies where a pass without drafts leaves it.
ColumnRows::Running ColumnRows::running_after(const Pass& pass, std::size_t index, std::size_t group,
                                              std::int32_t sampled) const {
  const RowPlan& row = pass.rows[index];
  const std::int32_t column = pass.columns[index * groups() + group];
  const std::int32_t bias = accepted_bias(accepted_after_sampling(sampled));
  if (column >= 0) return {.column = column, .bias = bias};
  return {.column = all_mode_fallback_column(row.start + row.tokens, blocks_[group].block_size())};
}

/// The row is that of a fork that has not begun: its state is a copy of that of its point, in this column.
bool ColumnRows::copy_point(Pass& pass, const RowPlan& row, std::size_t group, std::int32_t column) {
  if (!book_.record(row.request).is_fork) return false;
  const RowState& from = book_.states.of(book_.point_of(row.request))[group];
  const std::int32_t block = slots_of(row.request, group)[static_cast<std::size_t>(column)];
  if (!pass.inserts)
    pass.copies[group].push_back({from.conv_source().value(), block, from.read_bias, from.recurrent_source().value()});
  return true;
}

void ColumnRows::place_window(Pass& pass, std::size_t index, std::size_t group) {
  const RowPlan& row = pass.rows[index];
  const std::int64_t size = blocks_[group].block_size();
  const std::span<const std::int32_t> ids = slots_of(row.request, group);
  const Running before = running_before(pass, row, group);
  const AlignPreStep step = align_pre_step(row.start, row.tokens, before.column, 1 + before.bias, size);
  const bool is_fork = copy_point(pass, row, group, step.column);
  if (step.copy && !is_fork) {
    const auto count = static_cast<std::int32_t>(ids.size());
    const SlotCopy moved = resolve_column_copy(ids.data(), count, step.src_column, step.column, step.bias).copy;
    if (moved.dst_slot > null_block && !pass.inserts) pass.copies[group].push_back(moved);
  }
  pass.columns[index * groups() + group] = step.column;
  pass.states[index * groups() + group] = {.slots = ids,
                                           .read_column = row.start > 0 ? step.column : -1,
                                           .read_bias = is_fork ? 0 : accepted_bias(step.accepted),
                                           .write_column = step.column};
  const std::int64_t end = row.start + row.tokens;
  pass.quiet &= !align_post_step_running(end, neutral_accepted, step.column, size).moves_bytes;
}

void ColumnRows::place_all(Pass& pass, std::size_t index, std::size_t group) {
  const RowPlan& row = pass.rows[index];
  const std::int64_t size = blocks_[group].block_size();
  const std::span<const std::int32_t> ids = slots_of(row.request, group);
  Running before = running_before(pass, row, group);
  if (const std::int32_t column = fork_column(row.request, group); copy_point(pass, row, group, column))
    before = {.column = column};
  const std::int64_t end = row.start + row.tokens;
  const std::int32_t window = all_mode_column(row.start, row.tokens, options_.drafts, size);
  pass.columns[index * groups() + group] = window;
  pass.states[index * groups() + group] = {.slots = ids,
                                           .read_column = row.start > 0 ? before.column : -1,
                                           .read_bias = before.bias,
                                           .write_column = row.drafts > 0 ? window : seed_column(end, size)};
  const bool saves = row.drafts == 0 && !pass.inserts;
  for (std::int64_t at = floor_to(row.start, size) + size; saves && at < end; at += size)
    pass.saves.push_back({.offset = static_cast<std::int32_t>(at - row.start),
                          .slot = SlotId{ids[static_cast<std::size_t>(at / size) - 1]}});
}

void ColumnRows::place_none(Pass& pass, std::size_t index, std::size_t group) {
  const RowPlan& row = pass.rows[index];
  const bool is_fork = copy_point(pass, row, group, 0);
  pass.columns[index * groups() + group] = 0;
  pass.states[index * groups() + group] = {.slots = slots_of(row.request, group),
                                           .read_column = row.start > 0 ? 0 : -1,
                                           .read_bias = is_fork ? 0 : running_before(pass, row, group).bias,
                                           .write_column = 0};
}

void ColumnRows::settle(const Pass& pass, std::size_t index, std::int32_t sampled) {
  const RequestId request = pass.rows[index].request;
  for (std::size_t g = 0; g < groups(); ++g) {
    Running running = running_after(pass, index, g, sampled);
    if (mode_ == AlignMode::align)
      running = settle_window(pass, index, g, sampled);
    else if (mode_ == AlignMode::all)
      settle_all(pass, index, g, sampled);
    RowState& state = book_.states.of(request)[g];
    state.read_column = state.write_column = running.column;
    state.read_bias = running.bias;
  }
}

ColumnRows::Running ColumnRows::settle_window(const Pass& pass, std::size_t index, std::size_t group,
                                              std::int32_t sampled) {
  const RowPlan& row = pass.rows[index];
  const std::int32_t column = pass.columns[index * groups() + group];
  const std::span<const std::int32_t> ids = slots_of(row.request, group);
  PublicationCheck& publication = blocks_[group].publication();
  const std::int32_t accepted = accepted_after_sampling(sampled);
  // Whatever was moved into the window, and whatever earlier passes wrote there, this pass wrote all of it again.
  const auto window = static_cast<std::size_t>(column);
  const std::size_t end = std::min(ids.size(), window + 1 + static_cast<std::size_t>(options_.drafts));
  const std::int64_t running = row.start + row.tokens - row.drafts;
  publication.wrote_window(ids.subspan(window, end - window), 0, running, accepted);
  const AlignPostStep step = align_post_step_running(running, accepted, column, blocks_[group].block_size());
  if (step.moves_bytes) {
    const SlotCopy kept = resolve_column_copy(ids.data(), static_cast<std::int32_t>(ids.size()), step.src_column,
                                              step.dst_column, step.bias)
                              .copy;
    if (kept.dst_slot > null_block) {
      book_.after[group].copies.push_back(kept);
      publication.copied(kept);
    }
  }
  return {.column = column, .bias = accepted_bias(step.accepted)};
}

void ColumnRows::settle_all(const Pass& pass, std::size_t index, std::size_t group, std::int32_t sampled) {
  const RowPlan& row = pass.rows[index];
  const std::size_t at = index * groups() + group;
  const std::span<const std::int32_t> ids = slots_of(row.request, group);
  PublicationCheck& publication = blocks_[group].publication();
  const auto column = static_cast<std::size_t>(pass.states[at].write_column);
  if (row.drafts > 0) {
    publication.wrote_window(ids.subspan(column, static_cast<std::size_t>(row.tokens)), 0, row.start + 1, sampled);
  } else {
    const auto [first, end] = pass.save_ranges[at];
    for (std::size_t i = first; i < end; ++i)
      publication.wrote(BlockId{pass.saves[i].slot.value()}, row.start + pass.saves[i].offset);
    publication.wrote(BlockId{ids[column]}, row.start + row.tokens);
  }
}

PromptChunk ColumnRows::split(const RequestRecord& record, std::int64_t start, std::int64_t tokens) const {
  if (mode_ != AlignMode::align) return {.tokens = tokens, .least_budget = 1};
  for (const std::int64_t at : book_.breakpoints_of(record.id))
    if (at > start) tokens = std::min(tokens, at - start);
  ChunkRequest wanted{.start = start, .tokens = tokens, .prompt = record.prompt_tokens, .total = record.prompt_tokens};
  const std::int64_t tail = record.tail_tokens;
  if (tail > 0)
    wanted.tail = wanted.total - before_tail(wanted.total, tail, grid(), book_.asked_breakpoints_of(record.id),
                                             book_.opened_of(record.id).reused_tokens, grid());
  return {.tokens = split_chunk(wanted, grid()), .least_budget = least_chunk(wanted, grid())};
}

/// The running state stays in its column until a token goes into the next one.
std::int64_t ColumnRows::quiet_until(RequestId request, std::int64_t block) const {
  if (mode_ != AlignMode::align) return 0;
  const std::int64_t computed = book_.record(request).computed;
  for (std::size_t g = 0; g < groups(); ++g) {
    const std::int32_t column = book_.states.of(request)[g].read_column;
    const bool stays = column == floor_div(computed, blocks_[g].block_size());
    if (!stays || rows_[row_at(request, g)].window.released_columns() < column) return 0;
  }
  return floor_to(computed, block) + block;
}

void ColumnRows::release(RequestId id) {
  for (std::size_t g = 0; g < groups(); ++g) {
    Row& row = rows_[row_at(id, g)];
    scratch_.clear();
    row.window.clear(scratch_);
    for (const std::int32_t block : row.ids)
      if (block != null_block) scratch_.push_back(BlockId{block});
    row.ids.clear();
    blocks_[g].release(scratch_);
  }
}

bool ColumnRows::take_loading(RequestId request, std::span<SlotId> slots) {
  for (std::size_t g = 0; g < groups(); ++g) {
    BlockId block;
    if (blocks_[g].take({&block, 1})) {
      slots[g] = loading_[row_at(request, g)] = SlotId{block.value()};
      continue;
    }
    release_loading(request);
    return false;
  }
  return true;
}

void ColumnRows::hold_loading(RequestId request, std::span<const SlotId> slots) {
  for (std::size_t g = 0; g < groups(); ++g) {
    blocks_[g].retain(BlockId{slots[g].value()});
    loading_[row_at(request, g)] = slots[g];
  }
}

void ColumnRows::release_loading(RequestId request) {
  for (std::size_t g = 0; g < groups(); ++g) {
    const BlockId block{std::exchange(loading_[row_at(request, g)], SlotId{}).value()};
    if (block.valid()) blocks_[g].release({&block, 1});
  }
}

void ColumnRows::reset() {
  for (StateBlocks& blocks : blocks_) blocks.reset();
}

void ColumnRows::check(std::vector<std::vector<std::int32_t>> others) const {
  for (const StateBlocks& blocks : blocks_) blocks.check_invariants();
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    std::vector<std::int32_t>& held = others[i % groups()];
    const auto hold = [&](std::int32_t block) {
      if (block != null_block) ++held[static_cast<std::size_t>(block)];
    };
    std::ranges::for_each(rows_[i].window.columns(), hold);
    std::ranges::for_each(rows_[i].ids, hold);
    if (loading_[i].valid()) hold(loading_[i].value());
  }
  for (std::size_t g = 0; g < groups(); ++g)
    for (std::size_t block = null_block + 1; block < others[g].size(); ++block)
      require_invariant(blocks_[g].ref_count(BlockId{static_cast<std::int32_t>(block)}) == others[g][block],
                        "ColumnRows", "a block of states has another number of references than holders");
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    rows_[i].window.check_invariants();
    const RequestId request{static_cast<std::int32_t>(i / groups())};
    const RowState& state = book_.states.of(request)[i % groups()];
    require_invariant(state.read_bias >= 0 && state.read_bias <= options_.drafts, "ColumnRows",
                      "a bias is not in [0, drafts]");
  }
}

}  // namespace stateport::detail
