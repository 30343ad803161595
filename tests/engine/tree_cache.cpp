// SPDX-License-Identifier: Apache-2.0
#include "tree_cache.hpp"

#include <algorithm>

namespace stateport::engine {
namespace {

/// Slots that a running request holds: its live one and, when the forward writes checkpoints, two to write to.
std::int32_t slots_of(const CacheOptions& options, CheckpointStyle style) {
  const std::int32_t each = style == CheckpointStyle::copy_live ? 1 : 3;
  return options.max_running * each + options.checkpoints;
}

std::int32_t page_of(const CacheOptions& options, CheckpointStyle style) {
  return style == CheckpointStyle::copy_live ? 1 : options.block_size;
}

}  // namespace

TreeCache::TreeCache(const CacheOptions& options, CheckpointStyle style)
    : style_(style),
      tree_({.page_size = page_of(options, style),
             .slots = slots_of(options, style),
             .chunk_size = options.alignment,
             .layout_fingerprint = live_state_spec(options).fingerprint(),
             .kv_indices = options.kv_tokens + page_of(options, style)}),
      kv_(options.kv_tokens, page_of(options, style)),
      requests_(tree_, kv_, {.style = style, .track_interval = page_of(options, style)}),
      states_(options, slots_of(options, style)),
      running_(static_cast<std::size_t>(options.max_running)) {}

void TreeCache::count_freed() {
  counts_.evictions += std::ssize(freed_.slots);
  freed_.clear();
}

bool TreeCache::start(Sequence& sequence) {
  const auto started = requests_.start(sequence.tokens, {}, freed_);
  count_freed();
  if (!started) return false;
  request(sequence) = {.id = started->request, .restore = {}, .clear = {}, .track = {}};
  sequence.computed = started->prefix_tokens;
  counts_.lookup_tokens += sequence.known();
  counts_.hit_tokens += started->prefix_tokens;
  return true;
}

bool TreeCache::reserve_prompt(const Row& row, Request& request) {
  auto plan = requests_.extend(request.id, row.start + row.scheduled, freed_);
  if (!plan) return false;
  request.restore = plan->restore;
  request.clear = plan->clear;
  request.track = plan->track;
  return true;
}

bool TreeCache::reserve(const Row& row) {
  Request& r = request(*row.sequence);
  bool room = false;
  if (row.prefilling()) {
    room = reserve_prompt(row, r);
  } else if (const auto plan = requests_.plan_decode(r.id, row.drafts, freed_)) {
    room = true;
    r.track = plan->track;
  }
  freed_.clear();
  if (!room) return false;
  const auto kv = requests_.kv_row(r.id);
  row.sequence->kv.assign(kv.begin(), kv.end());
  return true;
}

void TreeCache::before_forward(std::span<const Row> rows) {
  std::vector<SlotCopy> copies;
  std::vector<SlotCopy> tracked;  // states that a pass begins with
  std::vector<SlotId> cleared;
  for (const Row& row : rows) {
    Request& r = request(*row.sequence);
    if (r.track && r.track->position == row.start)
      tracked.push_back(SlotCopy::whole(live(row).value(), r.track->slot.value()));
    if (r.restore) copies.push_back(*r.restore);
    if (r.clear) cleared.push_back(*r.clear);
    r.restore.reset();
    r.clear.reset();
  }
  counts_.copies += states_.copy(copies);
  states_.clear(cleared);
  counts_.copies += states_.copy(tracked);
}

void TreeCache::wrote_state(const Row& row, std::int64_t done, const ModelState& state) {
  states_.wrote_state(row, done, live(row), state);
  const auto& track = request(*row.sequence).track;
  if (track && row.drafts == 0 && track->position == row.start + done) states_.write(track->slot, state);
}

void TreeCache::after_forward(std::span<const Row> rows) {
  std::vector<SlotCopy> copies;
  for (const Row& row : rows) {
    if (row.prefilling())
      keep_chunk(row, copies);
    else
      accept_tokens(row);
    request(*row.sequence).track.reset();
  }
  states_.commit();
  counts_.copies += states_.copy(copies);
}

/// What a chunk of a prompt computed goes to the tree; its copies run after the last row's.
void TreeCache::keep_chunk(const Row& row, std::vector<SlotCopy>& copies) {
  const RequestId id = request(*row.sequence).id;
  const TreeRequests::Cached cached = requests_.cache_unfinished(id, row.sequence->prefilling(), freed_);
  count_freed();
  if (cached.checkpoint && cached.adopted) copies.push_back(*cached.checkpoint);
  const auto kv = requests_.kv_row(id);
  row.sequence->kv.assign(kv.begin(), kv.end());
  if (row.sampled > 0) requests_.append(id, {&row.sequence->tokens.back(), 1}, freed_);
}

void TreeCache::accept_tokens(const Row& row) {
  Request& r = request(*row.sequence);
  const auto sampled = std::span(row.sequence->tokens).last(static_cast<std::size_t>(row.sampled));
  const bool tracked = requests_.append(r.id, sampled, freed_);
  freed_.clear();
  if (tracked && row.drafts > 0)
    states_.accept(row, live(row), r.track->position, r.track->slot);
  else
    states_.accept(row, live(row));
}

void TreeCache::stop(Sequence& sequence, bool aborted) {
  if (aborted)
    requests_.abort(request(sequence).id, freed_);
  else
    requests_.finish(request(sequence).id, freed_);
  count_freed();
}

/// No request runs, so that all KV and slots are the tree's or free.
void TreeCache::reset() {
  freed_.clear();
  tree_.reset(freed_);
  kv_.release(freed_.kv);
  tree_.release_slots(freed_.slots);
  freed_.clear();
}

std::size_t TreeCache::kv_indices() const {
  return static_cast<std::size_t>(kv_.capacity() + kv_.page_size());
}

}  // namespace stateport::engine
