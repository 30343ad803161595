// SPDX-License-Identifier: Apache-2.0
#include "serve/request_lookups.hpp"

#include <stateport/core/align/align_rules.hpp>

namespace stateport::detail {

RequestLookups::RequestLookups(RequestBook& book, RequestIndex& index) : book_(book), index_(index) {
  if (book.options.share_running.least_tokens > 0) waits_.emplace(book, index);
}

StartedRequest RequestLookups::start(RequestId id, PromptSearch search, const OpenedPrompt& opened) {
  RequestRecord& record = book_.records[id.index()];
  record.computed = opened.reused_tokens;
  book_.opened[id.index()] = opened;
  if (waits_) waits_->start(id);
  StartedRequest started{.request = id, .reused_tokens = opened.reused_tokens, .lost = opened.lost};
  if (tiers_ != nullptr)
    tiers_->start(id, search, opened, started);
  else if (opened.lost)
    started.lost_tokens = opened.cached_tokens - opened.reused_tokens;
  book_.tails.look_at(record, book_.opened_of(id));
  if (waits_ && !started.load && search != PromptSearch::device) {
    waits_->consider(id);
    if (waits_->waits(id)) started.waits_for = waits_->wait_of(id);
  }
  return answer(started);
}

std::optional<StartedRequest> RequestLookups::refresh(RequestId id) {
  if (waits(id) || !look_up_again(id)) return std::nullopt;
  const OpenedPrompt& opened = book_.opened_of(id);
  StartedRequest started{.request = id, .reused_tokens = opened.reused_tokens, .lost = opened.lost};
  if (opened.lost) started.lost_tokens = opened.cached_tokens - opened.reused_tokens;
  end_waits();
  return answer(started);
}

StartedRequest RequestLookups::answer(StartedRequest started) const {
  const RequestRecord& record = book_.record(started.request);
  const std::int64_t usable_tokens = floor_to(record.prompt_tokens - 1, std::int64_t{book_.options.block_size_tokens});
  if (!started.lost && !started.load && started.reused_tokens < usable_tokens) started.lost = LostHit::never_stored;
  if (started.waits_for) {
    started.lost.reset();
    started.lost_tokens = 0;
  }
  index_.note_memory(started.request);
  if (tiers_ != nullptr) started.transfers = tiers_->take_transfers();
  started.breakpoints = book_.asked_breakpoints_of(started.request);
  return started;
}

/// False: no more of the prompt is cached than the request reuses already.
bool RequestLookups::look_up_again(RequestId id) {
  RequestRecord& record = book_.records[id.index()];
  const std::optional<OpenedPrompt> opened = index_.refresh(id);
  if (!opened) return false;
  book_.opened[id.index()] = *opened;
  if (tiers_ != nullptr) tiers_->refresh(id);
  record.computed = opened->reused_tokens;
  book_.tails.look_at(record, book_.opened_of(id));
  index_.note_memory(id);
  return true;
}

void RequestLookups::begin(RequestId id) noexcept {
  count(id);
  book_.tails.learn(book_.record(id));
}

void RequestLookups::count(RequestId id) noexcept {
  if (tiers_ != nullptr) return tiers_->count(id);
  const OpenedPrompt& opened = book_.opened_of(id);
  book_.stats.count_lookup(book_.record(id).prompt_tokens, opened.reused_tokens, opened.cached_tokens, opened.lost);
}

void RequestLookups::end(RequestId id) {
  if (!waits_) return;
  waits_->end(id);
  end_waits();
}

void RequestLookups::commit() {
  if (!waits_) return;
  waits_->count_commit();
  end_waits();
}

/// Requests whose waits are over continue from their hits of now, unless they have to wait for others.
void RequestLookups::end_waits() {
  while (const std::optional<RequestId> id = waits_ ? waits_->take_over() : std::nullopt) {
    const std::int64_t before = book_.record(*id).computed;
    static_cast<void>(look_up_again(*id));
    book_.stats.awaited_tokens += book_.record(*id).computed - before;
    waits_->consider(*id);
  }
}

void RequestLookups::check() const {
  if (waits_) waits_->check();
}

}  // namespace stateport::detail
