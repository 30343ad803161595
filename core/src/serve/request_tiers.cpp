// SPDX-License-Identifier: Apache-2.0
#include "serve/request_tiers.hpp"

#include <stateport/core/model/error.hpp>

#include "serve/request_options.hpp"

#include <algorithm>

namespace stateport::detail {
namespace {

TierSetup setup_of(const RequestCacheOptions& options, TierListener* listener) {
  TierSetup setup{.tiers = options.tiers,
                  .block_size_tokens = options.block_size_tokens,
                  .state_grid_tokens = state_grid_tokens(options),
                  .groups = group_count(options),
                  .states_apart = options.index == CacheIndex::hash && in_columns(options),
                  .device_blocks = static_cast<std::size_t>(kv_blocks(options)),
                  .states = static_cast<std::size_t>(checkpoint_slots(options)),
                  .requests = index_rows(options),
                  .request_blocks = static_cast<std::size_t>(options.max_request_tokens / options.block_size_tokens),
                  .eviction = options.eviction,
                  .eviction_options = options.eviction_options,
                  .memory = options.memory,
                  .listener = listener};
  TierOptions& tiers = setup.tiers;
  if (tiers.state_image_bytes == 0) tiers.state_image_bytes = options.memory.state_bytes;
  if (tiers.kv_image_bytes == 0) tiers.kv_image_bytes = options.memory.kv_bytes_per_token * options.block_size_tokens;
  if (tiers.kv_elsewhere != nullptr) tiers.kv_image_bytes = 0;
  check_tier_options(options.tiers, tiers.state_image_bytes, tiers.kv_image_bytes);
  return setup;
}

}  // namespace

RequestTiers::RequestTiers(RequestCache& cache, RequestBook& book, RequestIndex& device, TenantMarks* marks,
                           PrefixWaits* waits)
    : cache_(cache),
      device_(device),
      records_(book.records),
      opened_(book.opened),
      tails_(book.tails),
      stats_(book.stats),
      marks_(marks),
      checks_(book.checks ? &*book.checks : nullptr),
      waits_(waits),
      block_size_(book.options.block_size_tokens),
      index_(setup_of(book.options, book.news.listener())),
      requests_(records_.size()),
      load_slots_(book.groups) {
  load_blocks_.reserve(static_cast<std::size_t>(book.options.max_request_tokens / block_size_));
}

void RequestTiers::start(RequestId id, PromptSearch search, const OpenedPrompt& opened, StartedRequest& started) {
  const std::int64_t cached = std::max(opened.cached_tokens, opened.reused_tokens);
  Request& request = requests_[id.index()] = {.device_tokens = opened.reused_tokens,
                                              .cached_tokens = cached,
                                              .opened_tokens = cached,
                                              .lost = opened.lost,
                                              .stage = search == PromptSearch::known ? Stage::loads : Stage::states};
  if (search == PromptSearch::device)
    end_call();
  else
    look(id, cached);
  if (request.wait == Wait::answers) started.load = TierLoad{.medium = Medium::remote};
  if (request.wait == Wait::load)
    started.load = TierLoad{.tokens = request.hit.tokens, .bytes = request.hit.bytes, .medium = request.hit.medium};
  started.lost.reset();
  if (request.wait != Wait::nothing) return;
  started.lost = request.lost;
  if (request.lost) started.lost_tokens = request.cached_tokens - opened.reused_tokens;
}

/// Looks for the request's prompt below the device, which has `cached` tokens of it. Names finds or a load that the
/// request waits for, or neither.
void RequestTiers::look(RequestId id, std::int64_t cached) {
  Request& request = requests_[id.index()];
  const std::int64_t prompt = records_[id.index()].prompt_tokens;
  const auto prefixes = device_.hashes_of(id, prompt).prefixes();
  request.hit = index_.loads().find(prefixes, request.device_tokens, cached, prompt - 1);
  request.cached_tokens = std::max(cached, request.hit.walked_tokens);
  const PromptReach reach{.prefixes = prefixes,
                          .device_tokens = request.device_tokens,
                          .walked_tokens = request.cached_tokens,
                          .usable_tokens = prompt - 1,
                          .saved_s = request.hit.saved_s};
  request.wait = Wait::nothing;
  if (ask(id, reach)) {
    request.wait = Wait::answers;
    return end_call();
  }
  if (request.cached_tokens > request.opened_tokens) opened_[id.index()].cached_tokens = request.cached_tokens;
  if (!begin_load(id, cached)) return;
  request.wait = Wait::load;
  opened_[id.index()].loading_tokens = request.hit.tokens;
}

/// One round of finds at most: the next one follows when this one was answered.
bool RequestTiers::ask(RequestId id, const PromptReach& reach) {
  Stage& stage = requests_[id.index()].stage;
  while (stage != Stage::loads) {
    const bool states = stage == Stage::states;
    stage = states ? Stage::kv : Stage::loads;
    if (states ? index_.finds().ask_states(id, reach) : index_.finds().ask_kv(id, reach)) return true;
  }
  return false;
}

/// False: the request says why not, if more than the device's own hit is cached.
bool RequestTiers::begin_load(RequestId id, std::int64_t cached) {
  Request& request = requests_[id.index()];
  const TierHit& hit = request.hit;
  if (hit.costs_more) request.lost = LostHit::tier_costs_more;
  if (!request.lost && request.cached_tokens > request.opened_tokens) request.lost = LostHit::no_checkpoint;
  if (hit.tokens == 0) {
    end_call();
    return false;
  }
  if (records_[id.index()].holds_prefix && !prefix_loads_->may_load(id, hit.tokens, cached)) {
    end_call();
    return false;
  }
  const auto& prefixes = device_.hashes_of(id, hit.tokens).prefixes();
  index_.loads().hold(hit, prefixes, cached);
  load_blocks_.clear();
  const auto slots = std::span(load_slots_).first(hit.device_state ? 0 : load_slots_.size());
  device_.ask(id);
  if (!device_.reserve_load(id, hit.tokens, cached, load_blocks_, slots)) {
    index_.loads().let_go(hit, prefixes, cached);
    request.lost = LostHit::locked_pool;
    end_call();
    return false;
  }
  if (marks_ != nullptr) marks_->loading(load_blocks_, slots);
  end_call();  // the places of the load may hold contents that are to be stored first
  index_.loads().load(id, hit, prefixes, cached, load_blocks_, slots);
  return true;
}

/// The request has its answers. False: it waits for more.
bool RequestTiers::look_again(RequestId id) {
  if (!records_[id.index()].stale) {
    look(id, device_.cached_now(id));
    device_.note_memory(id);
    if (waits(id)) return false;
  }
  go_on(id);
  return true;
}

void RequestTiers::finish_load(RequestId id, bool done) {
  Request& request = requests_[id.index()];
  opened_[id.index()].loading_tokens = 0;
  device_.ask(id);
  const SlotId hit = device_.end_load(id, request.hit.tokens, done);
  if (done) opened_[id.index()].hit = hit;
  if (done) opened_[id.index()].reused_tokens = request.hit.tokens;
  device_.note_memory(id);
  if (done && marks_ != nullptr) marks_->loaded(id, records_[id.index()].kv, request.hit.tokens);
  if (done) {
    request.device_tokens = records_[id.index()].computed = request.hit.tokens;
    request.loaded_tokens = request.hit.gained_tokens;
  } else
    request.lost = LostHit::tier_failed;
  if (request.device_tokens == request.cached_tokens) request.lost.reset();
  go_on(id);
}

void RequestTiers::go_on(RequestId id) {
  Request& request = requests_[id.index()];
  request.wait = Wait::nothing;
  if (std::exchange(records_[id.index()].ending, false)) {
    if (records_[id.index()].holds_prefix) return prefix_loads_->end_load(id);
    cache_.end(id, RequestEnd::aborted);
    return;
  }
  tails_.look_at(records_[id.index()], opened_[id.index()]);
  if (waits_ != nullptr) waits_->consider(id);
}

/// The prompt of a fork is not looked up, so its policy hears of none.
void RequestTiers::fork(RequestId id) noexcept {
  const OpenedPrompt& opened = opened_[id.index()];
  requests_[id.index()] = {.device_tokens = opened.reused_tokens,
                           .cached_tokens = opened.cached_tokens,
                           .opened_tokens = opened.cached_tokens,
                           .reported = true};
}

void RequestTiers::refresh(RequestId id) noexcept {
  Request& request = requests_[id.index()];
  OpenedPrompt& opened = opened_[id.index()];
  request.device_tokens = opened.reused_tokens;
  request.cached_tokens = std::max(request.cached_tokens, opened.cached_tokens);
  if (opened.lost || request.device_tokens == request.cached_tokens) request.lost = opened.lost;
  opened.cached_tokens = request.cached_tokens;
  opened.lost = request.lost;
}

void RequestTiers::count(RequestId id) noexcept {
  const Request& request = requests_[id.index()];
  stats_.count_lookup(records_[id.index()].prompt_tokens, request.device_tokens, request.cached_tokens, request.lost);
  if (request.loaded_tokens > 0)
    stats_.loaded_tokens[static_cast<std::size_t>(request.hit.medium)] += request.loaded_tokens;
}

bool RequestTiers::end_later(RequestId id) noexcept {
  RequestRecord& record = records_[id.index()];
  record.ending = requests_[id.index()].wait == Wait::load;
  return record.ending;
}

void RequestTiers::stop_asking(RequestId id) noexcept {
  if (!waits(id)) return;
  index_.finds().forget(id);
  requests_[id.index()].wait = Wait::nothing;
}

void RequestTiers::report_prompt(RequestId id, double now_s) {
  Request& request = requests_[id.index()];
  if (std::exchange(request.reported, true)) return;
  const std::int64_t prompt = records_[id.index()].prompt_tokens;
  const auto blocks = [&](std::int64_t tokens) { return static_cast<std::int32_t>(tokens / block_size_); };
  const GrowingHashes& hashes = device_.hashes_of(id, prompt);
  const auto all = static_cast<std::size_t>(blocks(prompt));
  request.past = index_.report_prompt(hashes.keys().first(all), hashes.prefixes().first(all),
                                      {.usable_blocks = blocks(prompt - 1),
                                       .matched_blocks = blocks(request.cached_tokens),
                                       .hit_blocks = blocks(request.device_tokens),
                                       .tokens = prompt + 1,
                                       .hint = records_[id.index()].hint},
                                      now_s);
}

/// A prompt that continues the request continues from its last state. That is its own only if it is beyond the hit.
void RequestTiers::report_end(RequestId id, const ReuseHint& hint, double now_s) {
  const std::int64_t computed = records_[id.index()].computed;
  if (computed < records_[id.index()].prompt_tokens) return;
  report_prompt(id, now_s);
  const Request& request = requests_[id.index()];
  const GrowingHashes& hashes = device_.hashes_of(id, computed);
  const auto full = std::min(hashes.size(), static_cast<std::size_t>(computed / block_size_));
  const std::size_t last = index_.deepest_state(hashes.prefixes().first(full));
  if (static_cast<std::int64_t>(last) * block_size_ <= request.device_tokens) return;
  index_.report_prompt(hashes.keys().first(last), hashes.prefixes().first(last),
                       {.matched_blocks = static_cast<std::int32_t>(request.cached_tokens / block_size_),
                        .past = request.past,
                        .hint = hint},
                       now_s);
}

void RequestTiers::forget(const Forgotten& forgotten) {
  for (const RequestRecord& record : records_)
    if (record.running && record.stale) index_.finds().discard(record.id);
  index_.forget(forgotten);
}

SettledTransfers RequestTiers::settle(std::span<const TransferResult> results) {
  if (const TransferResult* const wrong = index_.find_wrong(results))
    require(false, "result.id", wrong->id, "is not under way");
  std::int32_t ready = 0;
  for (const TransferResult& result : results) {
    const auto end = index_.settle(result);
    if (!end) continue;
    const RequestId id = end->request;
    // Contents that a stale request loads were forgotten meanwhile: others must not find them.
    RequestRecord& record = records_[id.index()];
    if (!end->asked) finish_load(id, end->done && !record.stale && !std::exchange(record.lost_load, false));
    const bool goes_on = !end->asked || look_again(id);
    ready += goes_on && !records_[id.index()].holds_prefix;
  }
  end_call();
  return {.ready_requests = ready, .transfers = take_transfers()};
}

TransferPlan RequestTiers::take_transfers() {
  const TransferPlan taken = index_.take_transfers();
  for (std::size_t i = 0; checks_ != nullptr && i < taken.size(); ++i)
    if (const Transfer& store = taken[i];
        store.kind == Transfer::Kind::store && store.image.content == CacheContent::state)
      checks_->stored(static_cast<std::size_t>(store.image.group), SlotId{store.place}, store.image.prefix);
  return taken;
}

WaitingRequests RequestTiers::waiting() const noexcept {
  WaitingRequests waiting;
  for (std::size_t row = 0; row < requests_.size(); ++row) {
    if (!records_[row].running || records_[row].ending || records_[row].holds_prefix) continue;
    waiting.for_answers += requests_[row].wait == Wait::answers;
    waiting.for_loads += requests_[row].wait == Wait::load;
  }
  return waiting;
}

bool RequestTiers::is_loading(RequestId request) const {
  check_running(records_, request);
  return waits(request);
}

TransferPlan RequestTiers::drain() {
  require_state(index_.levels().has(index_.levels().durable()), "drain", "there is no file tier, nor a remote tier");
  index_.stores().drain();
  return take_transfers();
}

bool RequestTiers::attach(Medium medium, const ImageKey& image) {
  require(medium > Medium::device && medium <= Medium::remote && index_.levels().has(medium), "medium",
          static_cast<int>(medium), "is no tier of this cache");
  require(image.tokens > 0 && image.tokens % block_size_ == 0, "image.tokens", image.tokens, "must be whole blocks");
  require(image.content == CacheContent::state || cache_.options().tiers.kv_elsewhere == nullptr, "image.content",
          static_cast<int>(image.content), "is KV, which is kept elsewhere");
  const bool at_boundary =
      image.content != CacheContent::state || image.tokens % state_grid_tokens(cache_.options()) == 0;
  require(at_boundary, "image.tokens", image.tokens, "must be whole blocks of states, in every group");
  const bool has_group = image.group >= 0 && std::cmp_less(image.group, group_count(cache_.options()));
  require(has_group, "image.group", image.group, "is no group of this cache");
  return index_.attach(medium, image);
}

void RequestTiers::set_speeds(const TierSpeeds& speeds) {
  check_tier_speeds(speeds, "speeds");
  index_.set_speeds(speeds);
}

TierUsage RequestTiers::usage(Medium medium) const {
  return medium <= Medium::device || medium > Medium::remote ? TierUsage{} : index_.usage(medium);
}

}  // namespace stateport::detail
