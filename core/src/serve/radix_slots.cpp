// SPDX-License-Identifier: Apache-2.0
#include "serve/radix_slots.hpp"

#include <stateport/core/model/error.hpp>

#include "serve/arena_sizes.hpp"
#include "serve/checkpoint_placement.hpp"
#include "serve/request_options.hpp"

#include <algorithm>
#include <utility>

namespace stateport::detail {
namespace {

/// Orders spare contents that the request used, which are locked until it ends; hix knows their worth.
bool spares_last_request(EvictionOrder order) {
  return order != EvictionOrder::hix;
}

}  // namespace

RadixSlots::RadixSlots(RequestBook& book)
    : RequestIndex(book),
      kv_(book, checkpoint_slots(options_), std::max(book_.slots.scan_alignment_tokens, 1), nullptr),
      requests_(index_rows(options_)) {
  positions_.reserve(request_blocks(options_));
  for (std::int32_t i = 0; book_.slots.separate_checkpoints && i < options_.max_requests; ++i)
    requests_[static_cast<std::size_t>(i)].columns[0] = i;
  book_.elastic = &kv_;
  if (book_.checks) withdrawn_.reserve(static_cast<std::size_t>(checkpoint_slots(options_)));
  if (book_.slots.tail_tokens >= 0) ends_.resize(static_cast<std::size_t>(checkpoint_slots(options_)), 0);
}

SlotId RadixSlots::take_slot() {
  if (taken_ >= book_.slots.checkpoints) return SlotId{};
  const SlotId slot = kv_.take_state();
  taken_ += std::int32_t{slot.valid()};
  if (slot.valid() && !ends_.empty()) ends_[slot.index()] = 0;
  return slot;
}

void RadixSlots::return_slot(SlotId slot) {
  kv_.return_state(slot);
  --taken_;
}

/// Another request has made the state after `tokens` tokens, the deepest that the pass would save, and a slot for it
/// would cost another state. The pass saves none then: one look at the tree decides for all of its checkpoints.
bool RadixSlots::is_made(RequestId id, std::int64_t tokens) {
  if (kv_.tree().slots().free_slots() > 0 || !kv_.has_state(id, tokens)) return false;
  requests_[id.index()].made_tokens = tokens;
  return true;
}

/// If the tree has the state after `tokens` tokens, the request reads the tree's KV up to there, and its own is free.
void RadixSlots::share_kv(RequestId id, std::int64_t tokens) {
  if (tokens > kv_.held_tokens(id) && kv_.has_state(id, tokens)) static_cast<void>(kv_.donate(id, {}, {}, tokens, {}));
}

std::optional<OpenedPrompt> RadixSlots::open(RequestId id, const PromptNames& names) {
  SlotId live{requests_[id.index()].columns[0]};
  const bool holds = book_.record(id).holds_prefix;
  const bool takes_slot = !book_.slots.separate_checkpoints && !holds;
  const std::optional<OpenedPrompt> opened = kv_.open(id, names, takes_slot ? &live : nullptr);
  if (!opened) return std::nullopt;
  requests_[id.index()] = {.columns = {live.value(), no_column}};
  if (!ends_.empty() && takes_slot) ends_[live.index()] = 0;
  begin_from(id, *opened);
  return opened;
}

std::optional<OpenedPrompt> RadixSlots::refresh(RequestId id) {
  const std::optional<OpenedPrompt> opened = kv_.refresh(id);
  if (opened && opened->reused_tokens > book_.opened_of(id).reused_tokens) begin_from(id, *opened);
  return opened;
}

bool RadixSlots::fork(RequestId id, RequestId point, bool takes_over) {
  Request& request = requests_[id.index()];
  Request& from = requests_[point.index()];
  if (takes_over) {
    std::swap(request, from);
    request.decoded.reset();  // its prompt may leave later checkpoints, and hold those
    kv_.fork(id, point, true);
    return true;
  }
  const SlotId live = book_.slots.separate_checkpoints ? SlotId{request.columns[0]} : kv_.take_state();
  if (!live.valid()) return false;
  if (!ends_.empty() && !book_.slots.separate_checkpoints) ends_[live.index()] = 0;
  request = {.columns = {live.value(), no_column}};
  kv_.fork(id, point, false);
  from.decoded.reset();  // the point holds another end of its path
  book_.states.of(id)[0] = read_point(request.columns, from.columns);
  return true;
}

void RadixSlots::begin_from(RequestId id, const OpenedPrompt& opened) {
  book_.states.of(id)[0] = {.read_column = opened.reused_tokens > 0 ? 0 : -1};
  if (!opened.hit.valid() || book_.record(id).holds_prefix) return;
  book_.note_reuse(id, opened.hit);
  if (!ends_.empty() && std::exchange(ends_[opened.hit.index()], std::uint8_t{0}) != 0)
    answers_.continued(book_.record(id).tag);
}

PromptChunk RadixSlots::split(const RequestRecord& record, std::int64_t start, std::int64_t tokens) const {
  return split_at_checkpoints(book_, record.id, start, tokens);
}

void RadixSlots::place(Pass& pass, std::size_t index) {
  const RowPlan& row = pass.rows[index];
  begin_live_slot(book_, pass, row.request);
  const std::size_t first = pass.saves.size();
  const RequestRecord& request = book_.record(row.request);
  if (!pass.inserts && !request.stale && row.start < request.prompt_tokens) plan_saves(pass, row);
  for (std::size_t i = first; i < pass.saves.size(); ++i) {
    StateSave& save = pass.saves[i];
    pass.save_slots.push_back(save.slot);
    if (book_.slots.separate_checkpoints) save = {save.offset, SlotId{static_cast<std::int32_t>(i)}, true};
  }
  pass.save_ranges[index] = {first, pass.saves.size()};
  pass.quiet &= !ends_on_checkpoint(book_, pass, row);
}

void RadixSlots::save(Pass& pass, const RowPlan& row, std::int64_t at) {
  const SlotId slot = take_slot();
  if (slot.valid())
    pass.saves.push_back({.offset = static_cast<std::int32_t>(at - row.start), .slot = slot});
  else
    ++pass.dropped;
}

/// If room is short, states that have names get it, then the deepest ones that are placed: they serve the prompts that
/// continue this one. That of the end takes its slot when the pass settles.
void RadixSlots::plan_saves(Pass& pass, const RowPlan& row) {
  const PromptCheckpoints placement = checkpoints_of(book_, row.request);
  const std::int64_t end = row.start + row.tokens;
  const bool by_pass = placement.placement == CheckpointPlacement::passes;
  const std::int32_t of_end = !by_pass && ends_on_checkpoint(book_, pass, row) ? 1 : 0;
  const auto first = static_cast<std::ptrdiff_t>(pass.saves.size());
  placement.saves(row.start, end, positions_);
  const bool made = !positions_.empty() && is_made(row.request, positions_.back());
  if (!by_pass) std::ranges::reverse(positions_);
  for (const bool named : {true, false})
    for (const std::int64_t at : positions_) {
      if (placement.is_named(at) != named || (made && (!named || kv_.has_state(row.request, at)))) continue;
      if (taken_ + of_end < book_.slots.checkpoints)
        save(pass, row, at);
      else
        ++pass.dropped;
    }
  if (placement.spare > 0 && !made) {
    // For one more state than those that are planned, without an eviction.
    const auto has_room = [&] {
      if (taken_ + of_end >= book_.slots.checkpoints || kv_.tree().slots().free_slots() <= of_end) return false;
      const CacheUsage now = usage();
      if (book_.slots.arena.bytes > 0) {
        const std::int32_t live = book_.slots.separate_checkpoints ? 0 : book_.running;
        return arena_holds(options_, now.kv_tokens, now.states + live + of_end + 1);
      }
      return book_.slots.budget_bytes == 0 ||
             options_.memory.of(now.kv_tokens, now.states + of_end + 1) <= book_.slots.budget_bytes;
    };
    for (std::int64_t at = floor_to(row.start, placement.spare) + placement.spare; at < end; at += placement.spare)
      if (placement.wants_if_spare(at) && placement.can_save(row.start, at) && has_room()) save(pass, row, at);
  }
  std::sort(pass.saves.begin() + first, pass.saves.end(),
            [](const StateSave& a, const StateSave& b) { return a.offset < b.offset; });
}

void RadixSlots::unplace(Pass& pass) {
  for (const SlotId slot : pass.save_slots) return_slot(slot);
  pass.saves.clear();
  pass.save_slots.clear();
}

void RadixSlots::settle(Pass& pass, std::size_t index, std::int32_t) {
  const RowPlan& row = pass.rows[index];
  Request& request = requests_[row.request.index()];
  const std::int64_t computed = book_.record(row.request).computed;
  book_.states.of(row.request)[0].read_column = 0;
  request.columns[1] = no_column;
  const auto [first, end] = pass.save_ranges[index];
  if (book_.record(row.request).stale) {  // its saves may have been planned before
    for (std::size_t i = first; i < end; ++i) return_slot(pass.save_slots[i]);
    return;
  }
  if (row.drafts > 0) return settle_steps(pass, index);
  for (std::size_t i = first; i < end; ++i) {
    const StateSave& save = pass.saves[i];
    const SlotId slot = pass.save_slots[i];
    const std::int64_t at = row.start + save.offset;
    const bool spare = book_.slots.spare_checkpoint_tokens > 0 && checkpoints_of(book_, row.request).wants_if_spare(at);
    if (kv_.donate(row.request, slot, {&slot, 1}, at, {.spare = spare})) {
      --taken_;
      if (save.in_scratch) book_.after[0].from_scratch.push_back(SlotCopy::whole(save.slot, slot));
    } else {
      return_slot(slot);
    }
  }
  if (request.made_tokens <= computed) share_kv(row.request, std::exchange(request.made_tokens, 0));
  if (!ends_on_checkpoint(book_, pass, row)) return;
  const bool in_prompt = computed <= book_.record(row.request).prompt_tokens;
  if (in_prompt && is_made(row.request, computed)) return share_kv(row.request, std::exchange(request.made_tokens, 0));
  if (const SlotId slot = publish_state(row.request, computed); slot.valid())
    book_.after[0].copies.push_back(SlotCopy::whole(request.columns[0], slot.value()));
}

/// Takes a slot for the state after `tokens` tokens and gives it to the tree. None: there is no room, or the tree has
/// this state already; then nothing is to be copied.
SlotId RadixSlots::publish_state(RequestId id, std::int64_t tokens) {
  Request& request = requests_[id.index()];
  // Where room is short, the checkpoint that decoding left before this one goes first, if no other request holds it.
  if (request.decoded && kv_.tree().slots().free_slots() == 0 && taken_ < book_.slots.checkpoints)
    kv_.drop_state(id, *request.decoded);
  const SlotId slot = take_slot();
  if (!slot.valid()) {
    ++book_.dropped;
    return slot;
  }
  const bool taken = kv_.donate(id, slot, {&slot, 1}, tokens, {});
  if (taken)
    --taken_;
  else
    return_slot(slot);
  request.decoded.reset();
  if (taken && tokens > book_.record(id).prompt_tokens) request.decoded = kv_.node(id);
  return taken ? slot : SlotId{};
}

void RadixSlots::settle_steps(const Pass& pass, std::size_t index) {
  const RowPlan& row = pass.rows[index];
  const std::int64_t at = checkpoint_of_steps(book_, row);
  if (at == 0) return;
  const SlotId slot = publish_state(row.request, at);
  if (!slot.valid()) return;
  StepCommit& step = book_.after[0].steps.back();
  step.kept_step = pass.kept_step(index, at - row.start - 1);
  step.kept_slot = slot;
}

/// Decoding does nothing for the tree between two checkpoints.
std::int64_t RadixSlots::quiet_until(RequestId request) const {
  const std::int64_t every = book_.slots.decode_checkpoint_tokens;
  return every > 0 ? floor_to(book_.record(request).computed, every) + every : INT64_MAX;
}

/// The slots of rows whose request ended while the pass ran are free again. A state that this commit made may have been
/// given up for a later one of it: no slot takes two copies.
void RadixSlots::publish(Pass& pass) {
  for (std::size_t i = 0; i < pass.rows.size() && !pass.saves.empty(); ++i) {
    if (pass.runs(i)) continue;
    const auto [first, end] = pass.save_ranges[i];
    for (std::size_t s = first; s < end; ++s) return_slot(pass.save_slots[s]);
  }
  RequestBook::After& after = book_.after[0];
  std::erase_if(after.from_scratch, [&](const SlotCopy& saved) {
    const auto is_target = [&](SlotId slot) { return slot.value() == saved.dst_slot; };
    return std::ranges::any_of(after.copies, is_target, [](const SlotCopy& copy) { return SlotId{copy.dst_slot}; }) ||
           std::ranges::any_of(after.steps, is_target, &StepCommit::kept_slot);
  });
}

bool RadixSlots::reserve_load(RequestId id, std::int64_t tokens, std::int64_t cached_tokens,
                              std::vector<std::int32_t>& kv_blocks, std::span<SlotId> slots) {
  if (!kv_.reserve_load(id, tokens, cached_tokens, kv_blocks)) return false;
  slots[0] = requests_[id.index()].loading = take_slot();
  if (slots[0].valid()) return true;
  static_cast<void>(kv_.end_load(id, tokens, false));
  return false;
}

SlotId RadixSlots::end_load(RequestId id, std::int64_t tokens, bool done) {
  const SlotId slot = std::exchange(requests_[id.index()].loading, SlotId{});
  if (done && kv_.donate(id, slot, {&slot, 1}, tokens, {}))
    --taken_;
  else
    return_slot(slot);
  if (done) book_.states.of(id)[0].read_column = 0;
  return kv_.end_load(id, tokens, done);
}

void RadixSlots::close(RequestId id, RequestEnd how, const ReuseHint& hint) {
  Request& request = requests_[id.index()];
  const std::int64_t computed = book_.record(id).computed;
  const SlotId live{request.columns[0]};
  std::int64_t kept = kv_.held_tokens(id);
  bool live_donated = false;
  if (how != RequestEnd::aborted && book_.record(id).begun) {
    // A pass that is under way may have changed the live state already.
    const bool ends_page =
        computed > 0 && computed % options_.block_size_tokens == 0 && !book_.passes.in_flight(id) && keeps_end(id, how);
    if (ends_page && !book_.slots.separate_checkpoints) {
      live_donated = kv_.donate(id, live, {&live, 1}, computed, {.ends = true, .hint = hint});
      if (live_donated && book_.record(id).tail_tokens > 0) ends_[live.index()] = 1;
      kept = std::max(kept, computed);
    } else if (ends_page && computed > kept && keep_copy(id, hint)) {
      kept = computed;
    } else {
      kv_.report_end(id, hint, options_.block_size_tokens, request.decoded.has_value());
    }
  }
  if (live.valid() && !live_donated && !book_.slots.separate_checkpoints) kv_.return_state(live);
  // The state that was donated just now lies beyond the path that is locked.
  if (shares_memory(book_.slots) && spares_last_request(options_.eviction) && kept > kv_.held_tokens(id))
    kv_.hold_path(id, kept);
  kv_.release_kv(id, kept);
  book_.ask_for_nobody();  // memory of others that run is not taken from the floor of this one's tenant
  if (spares_last_request(options_.eviction)) keep_to_budget();
  kv_.unlock(id);
  if (!spares_last_request(options_.eviction)) keep_to_budget();
  request.columns = {book_.slots.separate_checkpoints ? live.value() : no_column, no_column};
  if (!withdrawn_.empty()) return_withdrawn(id);
}

void RadixSlots::withdraw(std::size_t, SlotId slot) {
  kv_.withdraw(slot);
  withdrawn_.push_back(slot);
  return_withdrawn();
}

/// The first pass of a request reads its hit.
void RadixSlots::return_withdrawn(RequestId closing) {
  std::erase_if(withdrawn_, [&](SlotId slot) {
    const bool is_read = std::ranges::any_of(book_.records, [&](const RequestRecord& record) {
      return record.running && record.id != closing && !record.begun && !record.is_fork &&
             book_.opened_of(record.id).hit == slot;
    });
    if (!is_read) kv_.return_state(slot);
    return !is_read;
  });
}

void RadixSlots::forget_all() {
  for (const SlotId slot : withdrawn_) kv_.return_state(slot);
  withdrawn_.clear();
  kv_.forget_all();
}

/// Donates a copy of the live state, which the request ends with. False: there is no slot.
bool RadixSlots::keep_copy(RequestId id, const ReuseHint& hint) {
  const SlotId slot = take_slot();
  if (!slot.valid()) return false;
  if (kv_.donate(id, slot, {&slot, 1}, book_.record(id).computed, {.ends = true, .hint = hint})) {
    --taken_;
    if (book_.record(id).tail_tokens > 0) ends_[slot.index()] = 1;
    book_.end_copies.push_back(SlotCopy::whole(requests_[id.index()].columns[0], slot.value()));
  } else {
    return_slot(slot);
  }
  return true;
}

/// With a tail the state behind a whole answer is kept only where prompts continue answers.
bool RadixSlots::keeps_end(RequestId id, RequestEnd how) {
  const bool is_answer = how == RequestEnd::finished && book_.record(id).computed >= book_.record(id).prompt_tokens;
  return book_.record(id).tail_tokens == 0 || !is_answer || answers_.keeps(book_.record(id).tag);
}

void RadixSlots::keep_to_budget() {
  if (book_.slots.budget_bytes == 0) return;
  const auto excess_bytes = [this] {
    const CacheUsage now = usage();
    return options_.memory.of(now.kv_tokens, now.states) - book_.slots.budget_bytes;
  };
  std::int64_t excess = excess_bytes();
  while (excess > 0 && kv_.evict({.bytes = excess}) && book_.tenants) excess = excess_bytes();
}

CacheUsage RadixSlots::usage() const noexcept {
  CacheUsage usage = kv_.usage();
  usage.states += taken_;
  return usage;
}

void RadixSlots::check() const {
  constexpr const char* structure = "RadixSlots";
  const SlotPool& slots = kv_.tree().slots();
  std::size_t checkpoints = 0;
  for (const Request& request : requests_) checkpoints += std::size_t{request.loading.valid()};
  for (std::size_t p = 0; p < book_.passes.size(); ++p) checkpoints += book_.passes.at(p).save_slots.size();
  require_invariant(std::cmp_equal(checkpoints, taken_), structure, "a slot for a checkpoint is lost");
  std::int64_t live = 0;
  for (std::size_t i = 0; i < requests_.size() && !book_.slots.separate_checkpoints; ++i) {
    if (requests_[i].columns[0] < 0) continue;
    ++live;
    require_invariant(slots.owner(SlotId{requests_[i].columns[0]}) == SlotPool::caller, structure,
                      "the slot of a request has another owner");
  }
  const std::int64_t used = usage().states + live + std::ssize(withdrawn_);
  require_invariant(slots.free_slots() + slots.closed_slots() + used == slots.capacity_slots(), structure,
                    "a slot is lost");
  kv_.check();
}

}  // namespace stateport::detail
