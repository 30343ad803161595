// SPDX-License-Identifier: Apache-2.0
#include "serve/hash_columns.hpp"

#include <stateport/core/model/error.hpp>

#include "align/state_hit.hpp"
#include "serve/request_options.hpp"

#include <algorithm>

namespace stateport::detail {

HashColumns::HashColumns(RequestBook& book)
    : RequestIndex(book), kv_(book), rows_(book, options_.eviction), found_(book.groups) {}

CacheUsage HashColumns::usage() const noexcept {
  CacheUsage usage{.kv_tokens = kv_.used_blocks() * options_.block_size_tokens,
                   .states = rows_.used(),
                   .evicted_kv_tokens = kv_.evicted_blocks() * options_.block_size_tokens};
  for (std::size_t g = 0; g < rows_.groups(); ++g) usage.evicted_states += rows_.blocks(g).evictions();
  return usage;
}

/// The block with the state after `tokens` tokens of the prompt; none if there is none.
BlockId HashColumns::find_state(RequestId request, std::size_t group, std::int64_t tokens) const {
  const GrowingHashes& hashes = kv_.hashes(request);
  const auto at = static_cast<std::size_t>(tokens / options_.block_size_tokens) - 1;
  return rows_.blocks(group).find(hashes.keys()[at], hashes.prefixes()[at], tokens);
}

/// Every group has the state after `tokens` tokens of the prompt.
bool HashColumns::has_states(RequestId request, std::int64_t tokens) const {
  for (std::size_t g = 0; g < rows_.groups(); ++g)
    if (!find_state(request, g, tokens).valid()) return false;
  return true;
}

/// The blocks with the states after `tokens` tokens of the prompt, which every group has. Valid until the next call.
std::span<const SlotId> HashColumns::states_at(RequestId request, std::int64_t tokens) {
  for (std::size_t g = 0; tokens > 0 && g < rows_.groups(); ++g)
    found_[g] = SlotId{find_state(request, g, tokens).value()};
  return found_;
}

std::optional<OpenedPrompt> HashColumns::open(RequestId id, const PromptNames& names) {
  kv_.hash(id, book_.record(id).tokens.all(), names);
  const std::span<const BlockId> cached = kv_.match(id);
  return take_hit(id, cached, longest_hit(id, cached));
}

std::optional<OpenedPrompt> HashColumns::refresh(RequestId id) {
  const std::span<const BlockId> cached = kv_.match(id);
  const std::int64_t reused_tokens = longest_hit(id, cached);
  const std::int64_t cached_tokens = std::ssize(cached) * options_.block_size_tokens;
  if (!book_.opened_of(id).is_less_than(reused_tokens, cached_tokens)) return std::nullopt;
  rows_.release(id);
  return take_hit(id, cached, reused_tokens);
}

bool HashColumns::fork(RequestId id, RequestId point, bool takes_over) {
  if (takes_over) {
    rows_.swap(id, point);
    kv_.swap(id, point);
    return true;
  }
  if (!rows_.fork(id, point)) return false;
  kv_.fork(id, point, book_.record(id).computed);
  return true;
}

/// How many tokens of a prompt with these cached blocks can be reused.
std::int64_t HashColumns::longest_hit(RequestId id, std::span<const BlockId> cached) const {
  if (book_.columns.mode == AlignMode::none) return 0;
  const std::int64_t grid = rows_.grid();
  const std::int64_t upto =
      std::min(book_.record(id).prompt_tokens - 1, std::ssize(cached) * options_.block_size_tokens);
  return longest_state_hit(upto, grid, grid, [&](std::int32_t column) { return has_states(id, (column + 1) * grid); })
      .tokens;
}

OpenedPrompt HashColumns::take_hit(RequestId id, std::span<const BlockId> cached, std::int64_t reused_tokens) {
  OpenedPrompt opened{.reused_tokens = reused_tokens, .cached_tokens = std::ssize(cached) * options_.block_size_tokens};
  kv_.begin(id, cached.first(static_cast<std::size_t>(reused_tokens / options_.block_size_tokens)));
  rows_.begin(id, reused_tokens, states_at(id, reused_tokens));
  for (std::size_t g = 0; reused_tokens > 0 && g < rows_.groups(); ++g) book_.note_shared_state(id, g, found_[g]);
  if (opened.cached_tokens > reused_tokens) opened.lost = why_lost(id, reused_tokens, cached);
  return opened;
}

/// A state that was there and could not be used says more than one that has gone.
LostHit HashColumns::why_lost(RequestId id, std::int64_t reused_tokens, std::span<const BlockId> cached) const {
  const std::int64_t block = options_.block_size_tokens;
  const std::int64_t grid = rows_.grid();
  const std::int64_t boundary = floor_to(std::ssize(cached) * block, grid);
  if (boundary == reused_tokens) return LostHit::off_grid;
  const bool keeps = book_.columns.mode != AlignMode::none;
  if (keeps && boundary == book_.record(id).prompt_tokens && has_states(id, boundary)) return LostHit::too_few_tokens;
  for (std::int64_t at = boundary; at > reused_tokens; at -= grid)
    if (kv_.had_state(cached[static_cast<std::size_t>(at / block) - 1]) && !has_states(id, at)) return LostHit::evicted;
  return LostHit::no_checkpoint;
}

void HashColumns::settle(Pass& pass, std::size_t index, std::int32_t sampled) {
  const RowPlan& row = pass.rows[index];
  const std::int64_t computed = book_.record(row.request).computed;
  const bool full = kv_.fills_block(row.request, computed);
  if (full)
    kv_.register_full(row.request, book_.record(row.request).tokens.first(computed), book_.record(row.request).names());
  rows_.settle(pass, index, sampled);
  if (!full || book_.columns.mode == AlignMode::none || book_.record(row.request).stale) return;
  for (std::size_t g = 0; g < rows_.groups(); ++g) publish_states(row, g);
}

/// Publishes the boundaries that the row passed, if their blocks hold the right states.
void HashColumns::publish_states(const RowPlan& row, std::size_t group) {
  StateBlocks& blocks = rows_.blocks(group);
  const std::int64_t size = blocks.block_size();
  const std::int64_t computed = book_.record(row.request).computed;
  const GrowingHashes& hashes = kv_.hashes(row.request);
  for (std::int64_t boundary = floor_to(row.start, size) + size; boundary <= computed; boundary += size) {
    const BlockId block = rows_.at(row.request, group, boundary);
    if (block.value() == null_block) continue;
    const auto at = static_cast<std::size_t>(boundary / options_.block_size_tokens) - 1;
    if (!blocks.publish(block, hashes.keys()[at], hashes.prefixes()[at], boundary, book_.record(row.request).tag))
      continue;
    ++book_.published;
    if (book_.sessions) book_.sessions->take_state(group, SlotId{block.value()}, kv_.blocks(row.request)[at].value());
    if (book_.checks) book_.checks->published(group, SlotId{block.value()}, row.request, hashes.prefixes()[at]);
    kv_.note_state(row.request, at);
  }
}

/// Without `slots` the state is on the device, and the load holds it.
bool HashColumns::reserve_load(RequestId id, std::int64_t tokens, std::int64_t cached_tokens,
                               std::vector<std::int32_t>& kv_blocks, std::span<SlotId> slots) {
  kv_.hold_cached(id, static_cast<std::size_t>(std::min(cached_tokens, tokens) / options_.block_size_tokens));
  if (!kv_.reserve(id, tokens)) return false;
  if (!slots.empty()) {
    if (!rows_.take_loading(id, slots)) return false;
  } else {
    if (!has_states(id, tokens)) return false;
    rows_.hold_loading(id, states_at(id, tokens));
  }
  const std::int64_t block = options_.block_size_tokens;
  for (std::int64_t at = cached_tokens; at < tokens; at += block)
    kv_blocks.push_back(kv_.blocks(id)[static_cast<std::size_t>(at / block)].value());
  return true;
}

SlotId HashColumns::end_load(RequestId id, std::int64_t tokens, bool done) {
  if (done) {
    kv_.register_full(id, book_.record(id).tokens.first(tokens), book_.record(id).names());
    const auto at = static_cast<std::size_t>(tokens / options_.block_size_tokens) - 1;
    const GrowingHashes& hashes = kv_.hashes(id);
    for (std::size_t g = 0; g < rows_.groups(); ++g) {
      const BlockId block{rows_.loading(id)[g].value()};
      rows_.blocks(g).publication().wrote(block, tokens);
      const bool is_new =
          rows_.blocks(g).publish(block, hashes.keys()[at], hashes.prefixes()[at], tokens, book_.record(id).tag);
      if (is_new && book_.sessions) book_.sessions->take_state(g, SlotId{block.value()}, kv_.blocks(id)[at].value());
      if (is_new && book_.checks) book_.checks->published(g, SlotId{block.value()}, id, hashes.prefixes()[at]);
      kv_.note_state(id, at);
    }
    rows_.release(id);
    rows_.begin(id, tokens, states_at(id, tokens));
  }
  rows_.release_loading(id);
  return SlotId{};
}

void HashColumns::close(RequestId id, RequestEnd, const ReuseHint&) {
  rows_.release(id);
  kv_.end(id);
}

void HashColumns::forget(const Forgotten& forgotten) {
  static_cast<void>(kv_.forget(forgotten));
  for (std::size_t g = 0; g < rows_.groups(); ++g) rows_.blocks(g).forget(forgotten);
}

void HashColumns::withdraw(std::size_t group, SlotId slot) {
  rows_.blocks(group).withdraw(BlockId{slot.value()});
  for (RequestRecord& record : book_.records)
    record.lost_load |= record.running && rows_.loading(record.id)[group] == slot;
}

void HashColumns::forget_all() {
  kv_.reset();
  rows_.reset();
}

/// Uses of KV and of states have clocks of their own. A state goes in each group, and the KV between two states.
bool HashColumns::evict_own() {
  bool evicted = false;
  for (std::size_t g = 0; g < rows_.groups(); ++g) evicted |= rows_.blocks(g).evict_one();
  for (std::int64_t tokens = 0; tokens < rows_.grid(); tokens += options_.block_size_tokens) evicted |= kv_.evict_one();
  return evicted;
}

void HashColumns::check() const {
  kv_.pool().check_invariants();
  rows_.check(no_references(options_));
}

}  // namespace stateport::detail
