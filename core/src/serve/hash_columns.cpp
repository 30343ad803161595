// SPDX-License-Identifier: Apache-2.0
#include "serve/hash_columns.hpp"

#include <stateport/core/align/chunk_split.hpp>
#include <stateport/core/align/state_hit.hpp>
#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <memory>
#include <utility>

namespace stateport::detail {

HashColumns::HashColumns(RequestBook& book) : RequestIndex(book), kv_(options_, book.news) {
  loading_.assign(static_cast<std::size_t>(options_.max_requests) * book_.groups, BlockId{null_block});
  std::int32_t index = 0;
  for (const StateGroup& group : options_.groups) {
    std::shared_ptr<EvictionPolicy> eviction;
    if (options_.eviction != EvictionOrder::lru) eviction = make_eviction_policy(options_.eviction);
    blocks_.emplace_back(group, index++, book_.news, std::move(eviction));
  }
  const auto columns_of = [&](AlignMode mode, const StateGroup& group) {
    return table_columns(mode, options_.max_request_tokens, group.block_size_tokens, options_.drafts);
  };
  std::int64_t most = 0;
  for (std::int32_t request = 0; request < options_.max_requests; ++request)
    for (const StateGroup& group : options_.groups) {
      const std::int64_t columns = columns_of(AlignMode::align, group);
      rows_.push_back(
          {.window = ColumnTable(group.block_size_tokens, options_.drafts, static_cast<std::int32_t>(columns)),
           .ids = {}});
      const std::int64_t ids = columns_of(options_.align_mode, group);
      if (options_.align_mode != AlignMode::align) rows_.back().ids.reserve(static_cast<std::size_t>(ids));
      most = std::max({most, columns, ids});
    }
  scratch_.reserve(static_cast<std::size_t>(most) + 1);
}

CacheUsage HashColumns::usage() const noexcept {
  CacheUsage usage{.kv_tokens = kv_.used_blocks() * options_.block_size_tokens,
                   .evicted_kv_tokens = kv_.evicted_blocks() * options_.block_size_tokens};
  for (const StateBlocks& blocks : blocks_) {
    usage.states += blocks.used();
    usage.evicted_states += blocks.evictions();
  }
  return usage;
}

std::span<const std::int32_t> HashColumns::slots_of(RequestId request, std::size_t group) const {
  const Row& row = rows_[row_at(request, group)];
  return options_.align_mode == AlignMode::align ? row.window.columns() : std::span<const std::int32_t>(row.ids);
}

/// The block with the state after `tokens` tokens of the prompt; none if there is none.
BlockId HashColumns::find_state(RequestId request, const StateBlocks& blocks, std::int64_t tokens) const {
  const GrowingHashes& hashes = kv_.hashes(request);
  const auto at = static_cast<std::size_t>(tokens / options_.block_size_tokens) - 1;
  return blocks.find(hashes.keys()[at], hashes.prefixes()[at], tokens);
}

/// Every group has the state after `tokens` tokens of the prompt.
bool HashColumns::has_states(RequestId request, std::int64_t tokens) const {
  return std::ranges::all_of(blocks_,
                             [&](const StateBlocks& blocks) { return find_state(request, blocks, tokens).valid(); });
}

std::optional<OpenedPrompt> HashColumns::open(RequestId id, const PromptNames& names) {
  const std::span<const BlockId> cached = kv_.match(id, record(id).tokens.all(), names);
  OpenedPrompt opened{.cached_tokens = std::ssize(cached) * options_.block_size_tokens};
  const std::int64_t grid = blocks_.back().block_size();  // a multiple of every group's
  const std::int64_t upto = std::min(record(id).prompt_tokens - 1, opened.cached_tokens);
  if (options_.align_mode != AlignMode::none)
    opened.reused_tokens = longest_state_hit(upto, grid, grid, [&](std::int32_t column) {
                             return has_states(id, (column + 1) * grid);
                           }).tokens;
  kv_.begin(id, cached.first(static_cast<std::size_t>(opened.reused_tokens / options_.block_size_tokens)));
  begin(id, opened.reused_tokens);
  if (opened.cached_tokens > opened.reused_tokens) opened.lost = why_lost(id, opened.reused_tokens, cached);
  return opened;
}

/// A state that was there and could not be used says more than one that has gone.
LostHit HashColumns::why_lost(RequestId id, std::int64_t reused_tokens, std::span<const BlockId> cached) const {
  const std::int64_t block = options_.block_size_tokens;
  const std::int64_t grid = blocks_.back().block_size();
  const std::int64_t boundary = floor_to(std::ssize(cached) * block, grid);
  if (boundary == reused_tokens) return LostHit::off_grid;
  const bool keeps = options_.align_mode != AlignMode::none;
  if (keeps && boundary == record(id).prompt_tokens && has_states(id, boundary)) return LostHit::too_few_tokens;
  for (std::int64_t at = boundary; at > reused_tokens; at -= grid)
    if (kv_.had_state(cached[static_cast<std::size_t>(at / block) - 1]) && !has_states(id, at)) return LostHit::evicted;
  return LostHit::no_checkpoint;
}

/// The row of each group begins with the block of the hit.
void HashColumns::begin(RequestId id, std::int64_t tokens) {
  for (std::size_t g = 0; g < blocks_.size(); ++g) {
    Row& row = rows_[row_at(id, g)];
    const std::int64_t size = blocks_[g].block_size();
    const std::int32_t column = seed_column(tokens, size);
    book_.states.of(id)[g] = {.read_column = column, .write_column = std::max(column, 0)};
    if (tokens == 0) continue;
    const BlockId block = find_state(id, blocks_[g], tokens);
    blocks_[g].retain(block);
    if (options_.align_mode == AlignMode::align) {
      row.window.start_from_hit(column, block);
    } else {
      row.ids.assign(static_cast<std::size_t>(tokens / size), null_block);
      row.ids.back() = block.value();
    }
  }
}

bool HashColumns::reserve(RequestId request, std::int64_t upto) {
  if (!kv_.reserve(request, upto)) return false;
  const bool window = options_.align_mode == AlignMode::align;
  for (std::size_t g = 0; g < blocks_.size(); ++g) {
    if (window ? grow_window(request, g, upto) : grow_row(request, g, upto)) continue;
    while (window && g-- > 0) shrink_window(request, g);
    return false;
  }
  return true;
}

/// A window that was made for a longer pass has no columns for a shorter one.
void HashColumns::unplace(Pass& pass) {
  if (options_.align_mode != AlignMode::align) return;
  for (std::size_t i = 0; i < pass.rows.size(); ++i)
    for (std::size_t g = 0; g < blocks_.size() && pass.is_busy(i); ++g) shrink_window(pass.rows[i].request, g);
}

void HashColumns::shrink_window(RequestId request, std::size_t group) {
  scratch_.clear();
  rows_[row_at(request, group)].window.undo_grow(scratch_);
  blocks_[group].release(scratch_);
}

/// Columns below the committed state are released: an outstanding pass may still read that state itself.
bool HashColumns::grow_window(RequestId request, std::size_t group, std::int64_t upto) {
  ColumnTable& window = rows_[row_at(request, group)].window;
  scratch_.clear();
  window.release(record(request).computed, scratch_);
  if (!scratch_.empty()) blocks_[group].release(scratch_);
  scratch_.resize(static_cast<std::size_t>(window.fresh_blocks(upto)));
  if (!blocks_[group].take(scratch_)) return false;
  window.grow(upto, scratch_);
  return true;
}

bool HashColumns::grow_row(RequestId request, std::size_t group, std::int64_t upto) {
  std::vector<std::int32_t>& ids = rows_[row_at(request, group)].ids;
  const auto needed =
      static_cast<std::size_t>(table_columns(options_.align_mode, upto, blocks_[group].block_size(), options_.drafts));
  if (needed <= ids.size()) return true;
  scratch_.resize(needed - ids.size());
  if (!blocks_[group].take(scratch_)) return false;
  for (const BlockId block : scratch_) ids.push_back(block.value());
  return true;
}

void HashColumns::place(Pass& pass, std::size_t index) {
  for (std::size_t g = 0; g < blocks_.size(); ++g) {
    const std::size_t first = pass.saves.size();
    if (options_.align_mode == AlignMode::align)
      place_window(pass, index, g);
    else if (options_.align_mode == AlignMode::all)
      place_all(pass, index, g);
    else
      place_none(pass, index, g);
    pass.save_ranges[index * book_.groups + g] = {first, pass.saves.size()};
  }
}

/// A pass is placed behind another one only if that is quiet: it keeps one token of each row.
HashColumns::Running HashColumns::running_before(const Pass& pass, const RowPlan& row, std::size_t group) const {
  const Pass* earlier = book_.passes.earlier(pass, row.request);
  if (earlier != nullptr) {
    const auto at = static_cast<std::size_t>(earlier->row_of[row.request.index()]);
    if (earlier->is_busy(at)) return running_after(*earlier, at, group, 1);
  }
  const RowState& state = book_.states.of(row.request)[group];
  return {.column = state.read_column, .bias = state.read_bias};
}

/// Modes none and all. In mode all the running state lies where a pass without drafts leaves it.
HashColumns::Running HashColumns::running_after(const Pass& pass, std::size_t index, std::size_t group,
                                                std::int32_t sampled) const {
  const RowPlan& row = pass.rows[index];
  const std::int32_t column = pass.columns[index * book_.groups + group];
  const std::int32_t bias = accepted_bias(accepted_after_sampling(sampled));
  if (column >= 0) return {.column = column, .bias = bias};
  return {.column = all_mode_fallback_column(row.start + row.tokens, blocks_[group].block_size())};
}

void HashColumns::place_window(Pass& pass, std::size_t index, std::size_t group) {
  const RowPlan& row = pass.rows[index];
  const std::int64_t size = blocks_[group].block_size();
  const std::span<const std::int32_t> ids = slots_of(row.request, group);
  const Running before = running_before(pass, row, group);
  const AlignPreStep step = align_pre_step(row.start, row.tokens, before.column, 1 + before.bias, size);
  if (step.copy) {
    const auto count = static_cast<std::int32_t>(ids.size());
    const SlotCopy moved = resolve_column_copy(ids.data(), count, step.src_column, step.column, step.bias).copy;
    if (moved.dst_slot > null_block && !pass.inserts) pass.copies[group].push_back(moved);
  }
  pass.columns[index * book_.groups + group] = step.column;
  pass.states[index * book_.groups + group] = {.slots = ids,
                                               .read_column = row.start > 0 ? step.column : -1,
                                               .read_bias = accepted_bias(step.accepted),
                                               .write_column = step.column};
  const std::int64_t end = row.start + row.tokens;
  pass.quiet &= !align_post_step_running(end, neutral_accepted, step.column, size).moves_bytes;
}

void HashColumns::place_all(Pass& pass, std::size_t index, std::size_t group) {
  const RowPlan& row = pass.rows[index];
  const std::int64_t size = blocks_[group].block_size();
  const std::span<const std::int32_t> ids = slots_of(row.request, group);
  const Running before = running_before(pass, row, group);
  const std::int64_t end = row.start + row.tokens;
  const std::int32_t window = all_mode_column(row.start, row.tokens, options_.drafts, size);
  pass.columns[index * book_.groups + group] = window;
  pass.states[index * book_.groups + group] = {.slots = ids,
                                               .read_column = row.start > 0 ? before.column : -1,
                                               .read_bias = before.bias,
                                               .write_column = row.drafts > 0 ? window : seed_column(end, size)};
  const bool saves = row.drafts == 0 && !pass.inserts;
  for (std::int64_t at = floor_to(row.start, size) + size; saves && at < end; at += size)
    pass.saves.push_back({.offset = static_cast<std::int32_t>(at - row.start),
                          .slot = SlotId{ids[static_cast<std::size_t>(at / size) - 1]}});
}

void HashColumns::place_none(Pass& pass, std::size_t index, std::size_t group) {
  const RowPlan& row = pass.rows[index];
  pass.columns[index * book_.groups + group] = 0;
  pass.states[index * book_.groups + group] = {.slots = slots_of(row.request, group),
                                               .read_column = row.start > 0 ? 0 : -1,
                                               .read_bias = running_before(pass, row, group).bias,
                                               .write_column = 0};
}

void HashColumns::settle(Pass& pass, std::size_t index, std::int32_t sampled) {
  const RowPlan& row = pass.rows[index];
  const std::int64_t computed = record(row.request).computed;
  const bool full = kv_.fills_block(row.request, computed);
  if (full) kv_.register_full(row.request, record(row.request).tokens.first(computed), record(row.request).names());
  for (std::size_t g = 0; g < blocks_.size(); ++g) {
    Running running = running_after(pass, index, g, sampled);
    if (options_.align_mode == AlignMode::align)
      running = settle_window(pass, index, g, sampled);
    else if (options_.align_mode == AlignMode::all)
      settle_all(pass, index, g, sampled);
    RowState& state = book_.states.of(row.request)[g];
    state.read_column = state.write_column = running.column;
    state.read_bias = running.bias;
    if (full && options_.align_mode != AlignMode::none) publish_states(row, g);
  }
}

/// The running state stays in its column until a token goes into the next one. Before that, a block of KV becomes full.
std::int64_t HashColumns::quiet_until(RequestId request) const {
  if (options_.align_mode != AlignMode::align) return 0;
  const std::int64_t computed = record(request).computed;
  for (std::size_t g = 0; g < blocks_.size(); ++g) {
    const std::int32_t column = book_.states.of(request)[g].read_column;
    const bool stays = column == floor_div(computed, blocks_[g].block_size());
    if (!stays || rows_[row_at(request, g)].window.released_columns() < column) return 0;
  }
  return floor_to(computed, options_.block_size_tokens) + options_.block_size_tokens;
}

HashColumns::Running HashColumns::settle_window(const Pass& pass, std::size_t index, std::size_t group,
                                                std::int32_t sampled) {
  const RowPlan& row = pass.rows[index];
  const std::int32_t column = pass.columns[index * book_.groups + group];
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

void HashColumns::settle_all(const Pass& pass, std::size_t index, std::size_t group, std::int32_t sampled) {
  const RowPlan& row = pass.rows[index];
  const std::size_t at = index * book_.groups + group;
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

/// Publishes the boundaries that the row passed, if their blocks hold the right states.
void HashColumns::publish_states(const RowPlan& row, std::size_t group) {
  StateBlocks& blocks = blocks_[group];
  const std::int64_t size = blocks.block_size();
  const std::int64_t computed = record(row.request).computed;
  const std::span<const std::int32_t> ids = slots_of(row.request, group);
  const GrowingHashes& hashes = kv_.hashes(row.request);
  for (std::int64_t boundary = floor_to(row.start, size) + size; boundary <= computed; boundary += size) {
    const BlockId block{ids[static_cast<std::size_t>(boundary / size) - 1]};
    if (block.value() == null_block) continue;
    const auto at = static_cast<std::size_t>(boundary / options_.block_size_tokens) - 1;
    if (!blocks.publish(block, hashes.keys()[at], hashes.prefixes()[at], boundary)) continue;
    ++book_.published;
    kv_.note_state(row.request, at);
  }
}

bool HashColumns::reserve_load(RequestId id, std::int64_t tokens, std::int64_t cached_tokens,
                               std::vector<std::int32_t>& kv_blocks, std::span<SlotId> slots) {
  kv_.hold_cached(id, static_cast<std::size_t>(std::min(cached_tokens, tokens) / options_.block_size_tokens));
  if (!kv_.reserve(id, tokens)) return false;
  const std::span loading = std::span(loading_).subspan(id.index() * book_.groups, book_.groups);
  for (std::size_t g = 0; g < book_.groups; ++g) {
    if (slots.empty() ? hold_state(id, g, tokens) : blocks_[g].take(loading.subspan(g, 1))) continue;
    while (g-- > 0) release_loading(id, g);
    return false;
  }
  for (std::size_t g = 0; g < slots.size(); ++g) slots[g] = SlotId{loading[g].value()};
  const std::int64_t block = options_.block_size_tokens;
  for (std::int64_t at = cached_tokens; at < tokens; at += block)
    kv_blocks.push_back(kv_.blocks(id)[static_cast<std::size_t>(at / block)].value());
  return true;
}

/// The state after `tokens` tokens is on the device, and stays until the load of its KV has ended.
bool HashColumns::hold_state(RequestId id, std::size_t group, std::int64_t tokens) {
  const BlockId block = find_state(id, blocks_[group], tokens);
  if (!block.valid()) return false;
  blocks_[group].retain(block);
  loading_[row_at(id, group)] = block;
  return true;
}

void HashColumns::release_loading(RequestId id, std::size_t group) {
  BlockId& block = loading_[row_at(id, group)];
  blocks_[group].release({&block, 1});
  block = BlockId{null_block};
}

SlotId HashColumns::end_load(RequestId id, std::int64_t tokens, bool done) {
  if (done) {
    kv_.register_full(id, record(id).tokens.first(tokens), record(id).names());
    const auto at = static_cast<std::size_t>(tokens / options_.block_size_tokens) - 1;
    const GrowingHashes& hashes = kv_.hashes(id);
    for (std::size_t g = 0; g < book_.groups; ++g) {
      const BlockId block = loading_[row_at(id, g)];
      blocks_[g].publication().wrote(block, tokens);
      static_cast<void>(blocks_[g].publish(block, hashes.keys()[at], hashes.prefixes()[at], tokens));
      kv_.note_state(id, at);
    }
    release_rows(id);
    begin(id, tokens);
  }
  for (std::size_t g = 0; g < book_.groups; ++g) release_loading(id, g);
  return SlotId{};
}

void HashColumns::close(RequestId id, RequestEnd, const ReuseHint&) {
  release_rows(id);
  kv_.end(id);
}

void HashColumns::release_rows(RequestId id) {
  for (std::size_t g = 0; g < blocks_.size(); ++g) {
    Row& row = rows_[row_at(id, g)];
    scratch_.clear();
    row.window.clear(scratch_);
    for (const std::int32_t block : row.ids)
      if (block != null_block) scratch_.push_back(BlockId{block});
    row.ids.clear();
    blocks_[g].release(scratch_);
  }
}

void HashColumns::forget_all() {
  kv_.reset();
  for (StateBlocks& blocks : blocks_) blocks.reset();
}

PromptChunk HashColumns::split(const RequestRecord& record, std::int64_t start, std::int64_t tokens) const {
  if (options_.align_mode != AlignMode::align) return RequestIndex::split(record, start, tokens);
  const ChunkRequest wanted{
      .start = start, .tokens = tokens, .prompt = record.prompt_tokens, .total = record.prompt_tokens};
  const std::int64_t block = blocks_.back().block_size();
  return {.tokens = split_chunk(wanted, block), .least_budget = least_chunk(wanted, block)};
}

void HashColumns::check() const {
  kv_.pool().check_invariants();
  for (const StateBlocks& blocks : blocks_) blocks.check_invariants();
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    rows_[i].window.check_invariants();
    const RequestId request{static_cast<std::int32_t>(i / book_.groups)};
    const RowState& state = book_.states.of(request)[i % book_.groups];
    require_invariant(state.read_bias >= 0 && state.read_bias <= options_.drafts, "HashColumns",
                      "a bias is not in [0, drafts]");
  }
}

}  // namespace stateport::detail
