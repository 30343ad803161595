// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

#include "serve/request_book.hpp"

#include <algorithm>

// What a RequestBook does with the tiers below the device.
namespace stateport::detail {

/// True if more of the prompt is on its way. Else `below_` says what is lost, the tiers included.
bool RequestBook::start_load(RequestId id, const Opened& opened) {
  const Record& record = records_[id.index()];
  Below& below = below_[id.index()] = {
      .device_tokens = opened.reused_tokens, .cached_tokens = opened.cached_tokens, .lost = opened.lost};
  const auto& prefixes = hashes_of(id, record.prompt_tokens).prefixes();
  const std::int64_t cached = std::max(opened.cached_tokens, opened.reused_tokens);
  below.hit = tiers_->find(prefixes, opened.reused_tokens, cached, record.prompt_tokens - 1);
  below.cached_tokens = std::max(cached, below.hit.walked_tokens);
  if (below.cached_tokens > cached) note_cached(id, below.cached_tokens);
  const TierHit& hit = below.hit;
  if (hit.tokens == 0) {
    if (hit.costs_more) below.lost = LostHit::tier_costs_more;
    if (!below.lost && below.cached_tokens > opened.reused_tokens) below.lost = LostHit::no_checkpoint;
    end_call();
    return false;
  }
  tiers_->pin(hit, prefixes, cached);
  load_blocks_.clear();
  load_slots_.assign(groups_, SlotId{});
  if (!reserve_load(id, hit.tokens, cached, load_blocks_, load_slots_)) {
    tiers_->unpin(hit, prefixes, cached);
    below.lost = LostHit::locked_pool;
    end_call();
    return false;
  }
  end_call();  // the places of the load may hold what is to be stored first
  tiers_->load(id.value(), hit, hashes_of(id, record.prompt_tokens).prefixes(), cached, load_blocks_, load_slots_);
  below.loading = true;
  return true;
}

void RequestBook::finish_load(RequestId id, bool done) {
  Below& below = below_[id.index()];
  Record& record = records_[id.index()];
  below.loading = false;
  end_load(id, below.hit.tokens, done);
  if (done)
    record.computed = below.hit.tokens;
  else
    below.lost = LostHit::tier_failed;
  note_memory(id);
  if (done) below.device_tokens = below.hit.tokens;
  if (below.device_tokens == below.cached_tokens) below.lost.reset();
  stats_.count_lookup(record.prompt_tokens, record.computed, below.cached_tokens, below.lost);
  if (below.ended) close_request(id, RequestEnd::aborted, {});
}

/// As an index tells its own eviction policy: of a prompt once its states are made, and of what the request left.
void RequestBook::tell_tiers(RequestId id, bool ends, const ReuseHint& hint) {
  Below& below = below_[id.index()];
  if (!ends && below.told) return;
  const Record& record = records_[id.index()];
  const std::int64_t block = options_.block_size_tokens;
  const std::int64_t prompt = record.prompt_tokens;
  const auto blocks_of = [&](std::int64_t tokens) { return static_cast<std::int32_t>(tokens / block); };
  const GrowingHashes& hashes = hashes_of(id, ends ? record.computed : prompt);
  std::size_t count =
      std::min<std::size_t>(hashes.size(), static_cast<std::size_t>((ends ? record.computed : prompt) / block));
  const auto told = [&](std::size_t blocks, const PromptFacts& facts) {
    return tiers_->served(hashes.keys().first(blocks), hashes.prefixes().first(blocks), facts, now_s_);
  };
  if (!below.told)
    below.past = told(std::min(count, static_cast<std::size_t>(prompt / block)),
                      {.usable_blocks = blocks_of(prompt - 1),
                       .matched_blocks = blocks_of(below.cached_tokens),
                       .hit_blocks = blocks_of(below.device_tokens),
                       .tokens = prompt + 1,
                       .hint = record.hint});
  below.told = true;
  if (!ends) return;
  count = tiers_->deepest_state(hashes.prefixes().first(count));
  if (static_cast<std::int64_t>(count) * block <= below.device_tokens) return;
  told(count, {.matched_blocks = blocks_of(below.cached_tokens), .past = below.past, .hint = hint});
}

void RequestBook::check_taken(const char* call) const {
  require_state(!untaken_, call, "transfers of the last plan or commit were not taken");
}

TransferPlan RequestBook::take_transfers() {
  require_state(tiers_.has_value(), "take_transfers", "RequestCacheOptions::tiers is empty");
  untaken_ = false;
  return tiers_->take_transfers();
}

std::int32_t RequestBook::settle_transfers(std::span<const TransferResult> results) {
  require_state(tiers_.has_value(), "settle_transfers", "RequestCacheOptions::tiers is empty");
  std::int32_t loads = 0;
  for (const TransferResult& result : results) {
    const auto ended = tiers_->settle(result);
    if (!ended) continue;
    finish_load(RequestId{ended->request}, ended->done);
    ++loads;
  }
  end_call();
  return loads;
}

bool RequestBook::is_loading(RequestId request) const {
  static_cast<void>(checked(request));
  return tiers_ && below_[request.index()].loading;
}

void RequestBook::drain() {
  require_state(tiers_ && tiers_->has(Medium::file), "drain", "there is no file tier");
  tiers_->drain();
}

bool RequestBook::attach_image(Medium medium, const ImageKey& image) {
  require(tiers_ && medium != Medium::device && medium <= Medium::file && tiers_->has(medium), "medium",
          static_cast<int>(medium), "is no tier of this cache");
  require(image.tokens > 0 && image.tokens % options_.block_size_tokens == 0, "image.tokens", image.tokens,
          "must be whole blocks");
  return tiers_->attach(medium, image);
}

TierUsage RequestBook::tier_usage(Medium medium) const {
  if (!tiers_ || medium == Medium::device || medium > Medium::file) return {};
  return tiers_->usage(medium);
}

}  // namespace stateport::detail
