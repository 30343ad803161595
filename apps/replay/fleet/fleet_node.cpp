// SPDX-License-Identifier: Apache-2.0
#include "fleet/fleet_node.hpp"

#include <stateport/core/model/error.hpp>

#include "caches/cache.hpp"
#include "caches/served_cache.hpp"
#include "workload/sequence.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace stateport::replay {
namespace {

constexpr std::array tier_traffic = {&TierUsage::reads, &TierUsage::writes, &TierUsage::finds};

TierTraffic& operator+=(TierTraffic& sum, const TierTraffic& more) {
  sum.transfers += more.transfers;
  sum.bytes += more.bytes;
  for (std::size_t status = 0; status < sum.ended.size(); ++status) sum.ended[status] += more.ended[status];
  return sum;
}

TierUsage& operator+=(TierUsage& sum, const TierUsage& more) {
  for (const auto member :
       {&TierUsage::states, &TierUsage::kv_blocks, &TierUsage::bytes, &TierUsage::bytes_written, &TierUsage::bytes_read,
        &TierUsage::loads, &TierUsage::hit_tokens, &TierUsage::evicted_states, &TierUsage::dropped_states,
        &TierUsage::refused_images, &TierUsage::lost_images, &TierUsage::asked_images, &TierUsage::found_images})
    sum.*member += more.*member;
  for (const auto traffic : tier_traffic) sum.*traffic += more.*traffic;
  sum.saved_s += more.saved_s;
  return sum;
}

}  // namespace

FleetNode::FleetNode(const NodeSetup& setup, const Crowd& crowd, std::uint32_t number, FleetClock& clock,
                     RemoteDirectory& remote)
    : setup_(setup),
      crowd_(crowd),
      number_(number),
      clock_(clock),
      remote_(remote),
      cache_(make_request_cache(setup.cache)),
      link_(setup.speeds.remote_bytes_per_s, setup.speeds.remote_latency_s),
      host_(setup.speeds.host_bytes_per_s, 0),
      files_(setup.speeds.file_bytes_per_s, 0) {}

void FleetNode::add(double now_s, std::size_t request) {
  waiting_.push_back(request);
  admit(now_s);
  run(now_s);
}

void FleetNode::admit(double now_s) {
  while (!waiting_.empty() && std::cmp_less(serving_.size(), setup_.schedule.concurrency)) {
    const std::size_t index = waiting_.front();
    waiting_.pop_front();
    start(now_s, index);
  }
}

void FleetNode::start(double now_s, std::size_t index) {
  const Request& wanted = crowd_.workload.request(index);
  const std::span<const BlockIdentity> identities = crowd_.workload.blocks(index);
  const std::int64_t seen = tokens_seen(std::ssize(identities), wanted.input_tokens, setup_.block_size_tokens);
  Serving& serving =
      serving_.emplace_back(Serving{.request = {}, .tokens = seen, .admitted_s = now_s, .result = {.request = index}});
  if (seen > setup_.cache.max_request_tokens) return;
  const Sequence names(tokens_per_block, seen, identities, index);
  tokens_.clear();
  for (std::int64_t at = 0; at < seen; ++at) tokens_.push_back(names.token(at));
  cache_now_s_ = std::max(cache_now_s_, wanted.arrival_s());  // one that another node did not serve may come late
  const auto started = cache_->start({.tokens = tokens_, .hint = wanted.hint, .now_s = cache_now_s_});
  require_invariant(started.has_value(), "FleetNode", "a request finds no number though one is free");
  serving.request = started->request;
  serving.result.device_hit_tokens = real_tokens(started->reused_tokens);
  serving.result.lost = started->lost_tokens > 0 ? started->lost : std::nullopt;
  move(now_s, started->transfers);
  serving.loading = cache_->tiers() != nullptr && cache_->tiers()->is_loading(serving.request);
  if (!serving.loading) end_load(now_s, serving);
}

/// All that the request loads is there, or will not come.
void FleetNode::end_load(double now_s, Serving& serving) {
  ServedPrompt& result = serving.result;
  serving.loading = false;
  result.loaded_tokens = real_tokens(cache_->computed(serving.request)) - result.device_hit_tokens;
  result.load_failed = result.loaded_tokens == 0 && serving.medium != Medium::device;
  if (result.loaded_tokens > 0) result.medium = serving.medium;
  result.waited_s = now_s - serving.admitted_s;
}

/// The first pass of a request is about to be planned: others may have computed more of its prompt.
void FleetNode::look_up_again(Serving& serving) {
  if (setup_.schedule.refresh) static_cast<void>(cache_->refresh(serving.request));
  serving.computed = cache_->computed(serving.request);
  serving.result.device_hit_tokens = real_tokens(serving.computed) - serving.result.loaded_tokens;
}

/// Chooses the rows of a pass. One request at a time runs in one pass.
void FleetNode::schedule() {
  const ScheduleOptions& schedule = setup_.schedule;
  constexpr std::int64_t whole = std::numeric_limits<std::int32_t>::max();
  std::int64_t budget = schedule.concurrency == 1
                            ? whole
                            : std::min(schedule.step_tokens_max / setup_.block_size_tokens * tokens_per_block, whole);
  const std::int64_t running_max = schedule.running_max > 0 ? schedule.running_max : schedule.concurrency;
  std::int64_t running = std::ranges::count(serving_, true, &Serving::scheduled);
  for (std::size_t i = 0; i < serving_.size() && budget > 0; ++i) {
    Serving& serving = serving_[i];
    if (serving.loading || (!serving.scheduled && running == running_max)) continue;
    std::int64_t tokens = serving.tokens;
    if (serving.request.valid()) {
      tokens = cache_->chunk(serving.request, budget).tokens;
      if (tokens > 0 && !serving.scheduled) {
        look_up_again(serving);
        tokens = cache_->chunk(serving.request, budget).tokens;
      }
    }
    if (tokens == 0) continue;
    rows_.push_back({.serving = i, .tokens = tokens});
    budget -= std::min(tokens, budget);
    running += !serving.scheduled;
  }
}

/// Begins a pass, if none runs and a request has something to compute.
void FleetNode::run(double now_s) {
  if (!rows_.empty()) return;
  schedule();
  if (rows_.empty() || !plan(now_s)) return;
  clock_.set({.at_s = now_s + pass_tokens() / setup_.speeds.tokens_per_s,
              .kind = FleetEvent::Kind::pass_ended,
              .node = number_,
              .life = life_});
}

/// Plans the rows. False: none finds room before a load ends.
bool FleetNode::plan(double now_s) {
  batch_.clear();
  for (const Row& row : rows_)
    if (serving_[row.serving].request.valid())
      batch_.push_back({.request = serving_[row.serving].request, .tokens = static_cast<std::int32_t>(row.tokens)});
  pass_ = 0;
  std::size_t planned = 0;
  std::int64_t without_room = 0;
  if (!batch_.empty()) {
    const PassPlan plan = cache_->plan(batch_);
    pass_ = plan.pass;
    without_room = plan.rows_without_room;
    for (Row& row : rows_)
      if (serving_[row.serving].request.valid() && !plan.rows[planned++].room) row.tokens = 0;
    move(now_s, plan.transfers);
  }
  if (std::cmp_equal(without_room, rows_.size())) {
    require_invariant(std::ranges::any_of(serving_, &Serving::loading), "FleetNode",
                      "a prompt finds no room though no load is under way");
    cache_->cancel(pass_);
    rows_.clear();
    return false;
  }
  for (const Row& row : rows_)
    if (row.tokens > 0) serving_[row.serving].scheduled = true;
  return true;
}

double FleetNode::prompt_tokens(const Serving& serving, std::int64_t seen) const {
  if (seen == serving.tokens) return static_cast<double>(crowd_.workload.request(serving.result.request).input_tokens);
  return static_cast<double>(seen * setup_.block_size_tokens) / tokens_per_block;
}

/// Of the model.
double FleetNode::pass_tokens() const {
  double tokens = 0;
  for (const Row& row : rows_) {
    const Serving& serving = serving_[row.serving];
    if (row.tokens > 0)
      tokens += prompt_tokens(serving, serving.computed + row.tokens) - prompt_tokens(serving, serving.computed);
  }
  return tokens;
}

std::vector<ServedPrompt> FleetNode::pass_ended(double now_s) {
  if (pass_ != 0) {
    const std::vector<std::int32_t> sampled(batch_.size(), 0);
    begin(now_s, cache_->commit(pass_, sampled, {}).transfers);
    begin(now_s, settle());
  }
  for (const Row& row : rows_) serving_[row.serving].computed += row.tokens;
  rows_.clear();
  std::vector<ServedPrompt> done;
  for (const Serving& serving : serving_) {
    if (serving.computed < serving.tokens) continue;
    finish(now_s, serving);
    done.push_back(serving.result);
  }
  std::erase_if(serving_, [](const Serving& serving) { return serving.computed == serving.tokens; });
  move(now_s, settle());
  admit(now_s);
  run(now_s);
  return done;
}

void FleetNode::finish(double now_s, const Serving& serving) {
  const Request& wanted = crowd_.workload.request(serving.result.request);
  ++counts_.requests;
  counts_.input_tokens += wanted.input_tokens;
  if (!serving.request.valid()) return;
  begin(now_s, cache_->finish(serving.request, wanted.hint).transfers);
  begin(now_s, rest());
  move(now_s, settle());
}

/// Carries the transfers out, and all that follow from their ends.
void FleetNode::move(double now_s, TransferPlan transfers) {
  while (!transfers.empty()) {
    begin(now_s, transfers);
    transfers = settle();
  }
}

void FleetNode::begin(double now_s, TransferPlan transfers) {
  for (const Transfer& transfer : transfers) carry_out(now_s, transfer);
}

/// Transfers of calls whose answers name none.
TransferPlan FleetNode::rest() {
  CacheTiers* const tiers = cache_->tiers();
  return tiers == nullptr ? TransferPlan{} : tiers->settle({}).transfers;
}

/// Tells the cache which transfers have ended at once. Returns those that it decides then.
TransferPlan FleetNode::settle() {
  if (answers_.empty()) return {};
  const TransferPlan next = cache_->tiers()->settle(answers_).transfers;
  answers_.clear();
  return next;
}

void FleetNode::carry_out(double now_s, const Transfer& transfer) {
  if (transfer.kind == Transfer::Kind::drop) return note_file(transfer, false);
  const bool within = transfer.from != Medium::remote && transfer.to != Medium::remote;
  if (within && transfer.kind != Transfer::Kind::load) {
    note_file(transfer, true);
    answers_.push_back({.id = transfer.id});
    return;
  }
  if (transfer.kind == Transfer::Kind::load) {
    Serving& serving = *std::ranges::find(serving_, transfer.request, &Serving::request);
    serving.medium = std::max(serving.loads++ == 0 ? Medium::device : serving.medium, transfer.from);
  }
  under_way_[transfer.id] = transfer;
  clock_.set({.at_s = arrival_s(now_s, transfer),
              .kind = FleetEvent::Kind::transfer_ended,
              .node = number_,
              .life = life_,
              .transfer = transfer.id});
}

double FleetNode::arrival_s(double now_s, const Transfer& transfer) {
  const std::int64_t bytes = bytes_of(transfer.image);
  if (transfer.from == Medium::host && transfer.to == Medium::device) return host_.send(now_s, bytes);
  if (transfer.from == Medium::file && transfer.to == Medium::device) return files_.send(now_s, bytes);
  // A find, a store of an image that is there, and a load of one that is not, move no bytes.
  const bool there = remote_.has(transfer.image);
  const bool no_bytes = transfer.kind == Transfer::Kind::find || there == (transfer.to == Medium::remote);
  return no_bytes ? link_.ask(now_s) : link_.send(now_s, bytes);
}

void FleetNode::transfer_ended(double now_s, TransferId id) {
  const auto found = under_way_.find(id);
  const Transfer transfer = found->second;
  under_way_.erase(found);
  if (transfer.kind == Transfer::Kind::load) --std::ranges::find(serving_, transfer.request, &Serving::request)->loads;
  const TransferResult result{.id = id, .status = status_of(transfer)};
  move(now_s, cache_->tiers()->settle({&result, 1}).transfers);
  for (Serving& serving : serving_)
    if (serving.loading && !cache_->tiers()->is_loading(serving.request)) end_load(now_s, serving);
  run(now_s);
}

/// The status of a transfer that took time; updates the remote store.
TransferStatus FleetNode::status_of(const Transfer& transfer) {
  const std::int64_t bytes = bytes_of(transfer.image);
  if (transfer.kind == Transfer::Kind::find) {
    ++counts_.asked_images;
    if (!remote_.has(transfer.image)) return TransferStatus::gone;
    ++counts_.found_images;
    return TransferStatus::done;
  }
  if (transfer.kind == Transfer::Kind::load) {
    if (transfer.from != Medium::remote) return TransferStatus::done;
    if (!remote_.get(transfer.image)) {
      ++counts_.lost_images;
      return TransferStatus::gone;
    }
    counts_.read_bytes += bytes;
    return TransferStatus::done;
  }
  const RemoteDirectory::Put put = remote_.put(transfer.image, bytes);
  if (put == RemoteDirectory::Put::added) counts_.stored_bytes += bytes;
  counts_.stored_again += put == RemoteDirectory::Put::was_there;
  return put == RemoteDirectory::Put::no_room ? TransferStatus::no_room : TransferStatus::done;
}

void FleetNode::note_file(const Transfer& transfer, bool there) {
  if (!setup_.keeps_files || transfer.to != Medium::file) return;
  if (there)
    kept_files_[transfer.image] = ++written_files_;
  else
    kept_files_.erase(transfer.image);
}

std::vector<std::size_t> FleetNode::fail() {
  count_life();
  std::vector<std::size_t> unserved;
  for (const Serving& serving : serving_) unserved.push_back(serving.result.request);
  unserved.insert(unserved.end(), waiting_.begin(), waiting_.end());
  waiting_.clear();
  serving_.clear();
  rows_.clear();
  under_way_.clear();
  cache_.reset();
  ++life_;
  ++counts_.failures;
  return unserved;
}

void FleetNode::restart(double now_s) {
  cache_ = make_request_cache(setup_.cache);
  cache_now_s_ = 0;
  link_.clear();
  host_.clear();
  files_.clear();
  std::vector<std::pair<std::uint64_t, ImageKey>> files;
  for (const auto& [image, written] : kept_files_) files.emplace_back(written, image);
  std::ranges::sort(files, {}, &std::pair<std::uint64_t, ImageKey>::first);
  for (const auto& [written, image] : files)
    if (!cache_->tiers()->attach(Medium::file, image)) kept_files_.erase(image);
  move(now_s, rest());
}

void FleetNode::take_events(std::vector<CacheEvent>& events) {
  constexpr std::size_t at_once = 256;
  for (std::size_t taken = at_once; taken == at_once;) {
    const std::size_t had = events.size();
    events.resize(had + at_once);
    taken = cache_->take_events(std::span(events).subspan(had));
    events.resize(had + taken);
  }
}

/// Keeps the counts of the cache before it is destroyed.
void FleetNode::count_life() {
  counts_ = counts();
  for (TierUsage& tier : counts_.tiers) {
    tier.states = tier.kv_blocks = tier.bytes = 0;
    for (const auto traffic : tier_traffic) (tier.*traffic).transfers = (tier.*traffic).bytes = 0;
  }
}

NodeCounts FleetNode::counts() const {
  NodeCounts counts = counts_;
  counts.link_bytes = link_.bytes();
  counts.link_busy_s = link_.busy_s();
  if (!is_up()) return counts;
  counts.hit_tokens += real_tokens(cache_->stats().hit_tokens);
  counts.awaited_tokens += real_tokens(cache_->stats().awaited_tokens);
  counts.evicted_states += cache_->usage().evicted_states;
  const auto usages = tier_usages(*cache_, setup_.block_size_tokens);
  for (std::size_t medium = 0; medium < usages.size(); ++medium) counts.tiers[medium] += usages[medium];
  return counts;
}

void FleetNode::check_invariants() const {
  if (!is_up()) return;
  cache_->check_invariants();
  require_invariant(cache_->tiers() == nullptr || under_way_.size() == cache_->tiers()->transfers_under_way(),
                    "FleetNode", "transfers under way are not those of the cache");
  if (!setup_.keeps_files) return;
  const TierUsage files = cache_->tiers()->usage(Medium::file);
  require_invariant(std::cmp_equal(kept_files_.size(), files.states + files.kv_blocks), "FleetNode",
                    "the files that would outlive a failure are not those of the cache");
}

}  // namespace stateport::replay
