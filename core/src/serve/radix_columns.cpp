// SPDX-License-Identifier: Apache-2.0
#include "serve/radix_columns.hpp"

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

#include "serve/request_options.hpp"

#include <algorithm>
#include <utility>

namespace stateport::detail {
namespace {

/// The tree holds a block of each group for a state, and no block twice.
std::int32_t states_max(const RequestCacheOptions& options) {
  return std::ranges::min(column_layout(options).groups, {}, &StateGroup::blocks).blocks;
}

}  // namespace

RadixColumns::RadixColumns(RequestBook& book)
    : RequestIndex(book),
      rows_(book),
      kv_(book, states_max(options_), static_cast<std::int32_t>(rows_.grid()), this),
      published_(book.groups) {}

/// The tree gave a state up. A running request may still hold some of its blocks.
void RadixColumns::on_freed(std::span<const SlotId> places) {
  for (std::size_t g = 0; g < places.size(); ++g) {
    const BlockId block{places[g].value()};
    rows_.blocks(g).release({&block, 1});
  }
}

std::optional<OpenedPrompt> RadixColumns::open(RequestId id, const PromptNames& names) {
  const OpenedPrompt opened = *kv_.open(id, names, nullptr);
  if (opened.hit.valid()) book_.note_reuse(id, opened.hit);
  return take_hit(id, opened);
}

std::optional<OpenedPrompt> RadixColumns::refresh(RequestId id) {
  const std::optional<OpenedPrompt> opened = kv_.refresh(id);
  if (!opened) return std::nullopt;
  if (opened->reused_tokens > book_.opened_of(id).reused_tokens) book_.note_reuse(id, opened->hit);
  rows_.release(id);
  return take_hit(id, *opened);
}

/// Evicts states until `take` finds a block in each group. Nothing is evicted if that would not be enough.
template <class Take>
bool RadixColumns::evict_until(Take&& take) {
  for (std::size_t g = 0; g < rows_.groups(); ++g)
    if (!can_free(g, 1 - rows_.blocks(g).available())) return false;
  while (!take())
    if (!kv_.evict({.states = 1})) return false;
  return true;
}

bool RadixColumns::fork(RequestId id, RequestId point, bool takes_over) {
  if (takes_over)
    rows_.swap(id, point);
  else if (!evict_until([&] { return rows_.fork(id, point); }))
    return false;
  kv_.fork(id, point, takes_over);
  return true;
}

OpenedPrompt RadixColumns::take_hit(RequestId id, OpenedPrompt opened) {
  rows_.begin(id, opened.reused_tokens, opened.hit.valid() ? kv_.places(opened.hit) : std::span<const SlotId>{});
  opened.hit = SlotId{};
  return opened;
}

/// Evictions can free this number of blocks of the group: those of states that nobody has locked, and whose block no
/// running request holds.
bool RadixColumns::can_free(std::size_t group, std::int64_t blocks) const {
  const SlotPool& states = kv_.tree().slots();
  for (std::int32_t i = 0; blocks > 0 && i < states.capacity_slots(); ++i) {
    const SlotId state{i};
    if (states.is_free(state) || states.owner(state) == SlotPool::caller || states.lock_count(state) > 0) continue;
    blocks -= rows_.blocks(group).ref_count(BlockId{kv_.places(state)[group].value()}) == 1;
  }
  return blocks <= 0;
}

/// Nothing is evicted if that would not be enough.
bool RadixColumns::reserve(RequestId id, std::int64_t upto) {
  if (!kv_.reserve(id, upto)) return false;
  rows_.release_passed(id);
  if (rows_.reserve(id, upto)) return true;
  for (std::size_t g = 0; g < rows_.groups(); ++g)
    if (!can_free(g, rows_.missing(id, g, upto))) return false;
  while (!rows_.reserve(id, upto))
    if (!kv_.evict({.states = 1})) return false;
  return true;
}

void RadixColumns::settle(Pass& pass, std::size_t index, std::int32_t sampled) {
  const RowPlan& row = pass.rows[index];
  rows_.settle(pass, index, sampled);
  if (book_.record(row.request).stale) return;
  const std::int64_t grid = rows_.grid();
  const std::int64_t computed = book_.record(row.request).computed;
  for (std::int64_t boundary = floor_to(row.start, grid) + grid; boundary <= computed; boundary += grid)
    if (holds_states(row.request, boundary)) donate(row.request, boundary);
}

/// Every group has the state at the boundary. Fills in `published_`.
bool RadixColumns::holds_states(RequestId request, std::int64_t boundary) {
  for (std::size_t g = 0; g < rows_.groups(); ++g) {
    const BlockId block = rows_.at(request, g, boundary);
    if (block.value() == null_block || rows_.blocks(g).publication().tokens(block) != boundary) return false;
    published_[g] = SlotId{block.value()};
  }
  return true;
}

/// Gives the blocks of `published_` to the tree, which holds them from now on unless it has the state already. The tree
/// has fewer states than a group has blocks, so that there is a number for another one.
void RadixColumns::donate(RequestId request, std::int64_t boundary) {
  const SlotId state = kv_.take_state();
  require_invariant(state.valid(), "RadixColumns", "blocks outside the tree, and no number for their state");
  if (!kv_.donate(request, state, published_, boundary, {})) return kv_.return_state(state);
  for (std::size_t g = 0; g < rows_.groups(); ++g) rows_.blocks(g).retain(BlockId{published_[g].value()});
}

bool RadixColumns::reserve_load(RequestId id, std::int64_t tokens, std::int64_t cached_tokens,
                                std::vector<std::int32_t>& kv_blocks, std::span<SlotId> slots) {
  if (!kv_.reserve_load(id, tokens, cached_tokens, kv_blocks)) return false;
  if (evict_until([&] { return rows_.take_loading(id, slots); })) return true;
  static_cast<void>(kv_.end_load(id, tokens, false));
  return false;
}

SlotId RadixColumns::end_load(RequestId id, std::int64_t tokens, bool done) {
  if (done) {
    std::ranges::copy(rows_.loading(id), published_.begin());
    for (std::size_t g = 0; g < rows_.groups(); ++g)
      rows_.blocks(g).publication().wrote(BlockId{published_[g].value()}, tokens);
    donate(id, tokens);
  }
  const SlotId hit = kv_.end_load(id, tokens, done);
  if (done) {
    rows_.release(id);
    rows_.begin(id, tokens, kv_.places(hit));
  }
  rows_.release_loading(id);
  return SlotId{};
}

void RadixColumns::close(RequestId id, RequestEnd how, const ReuseHint& hint) {
  if (how != RequestEnd::aborted && book_.record(id).begun)
    kv_.report_end(id, hint, rows_.grid(), kv_.held_tokens(id) > book_.record(id).prompt_tokens);
  rows_.release(id);
  kv_.release_kv(id, kv_.held_tokens(id));
  kv_.unlock(id);
}

void RadixColumns::withdraw(std::size_t group, SlotId slot) {
  const SlotPool& states = kv_.tree().slots();
  for (std::int32_t i = 0; i < states.capacity_slots(); ++i)
    if (const SlotId state{i};
        !states.is_free(state) && states.owner(state) != SlotPool::caller && kv_.places(state)[group] == slot) {
      kv_.withdraw(state);
      return kv_.return_state(state);
    }
}

void RadixColumns::forget_all() {
  kv_.forget_all();
  rows_.reset();
}

CacheUsage RadixColumns::usage() const noexcept {
  CacheUsage usage = kv_.usage();
  usage.states = rows_.used();
  usage.evicted_states *= static_cast<std::int64_t>(rows_.groups());
  return usage;
}

void RadixColumns::check() const {
  kv_.check();
  std::vector<std::vector<std::int32_t>> held = no_references(options_);
  for (const NodeInfo& node : kv_.tree().nodes()) {
    for (std::size_t g = 0; node.slot.valid() && g < rows_.groups(); ++g) {
      const BlockId block{kv_.places(node.slot)[g].value()};
      ++held[g][block.index()];
      require_invariant(rows_.blocks(g).publication().tokens(block) == node.end_tokens, "RadixColumns",
                        "a block of the tree has another state");
    }
  }
  rows_.check(std::move(held));
}

}  // namespace stateport::detail
