// SPDX-License-Identifier: Apache-2.0
#include "request_engine_cache.hpp"

#include "combination.hpp"
#include "older_split.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace stateport::engine {

namespace {

Namespace name_of(std::size_t tenant) {
  return {.salt = tenant == 0 ? "even" : "odd"};
}

std::size_t tenant_of(const Sequence& sequence) {
  return static_cast<std::size_t>(sequence.id % 2);
}

std::uint64_t session_of(std::int32_t sequence) {
  return 1 + static_cast<std::uint64_t>(sequence) % 3;
}

}  // namespace

void RequestEngineCache::set_quotas(bool large) {
  const RequestCacheOptions& options = cache_->options();
  const std::int64_t bytes = options.memory.of(options.kv_tokens, 0);
  for (std::int64_t part = large ? 1 : 4; part <= 1024; part *= 2) {
    try {
      cache_->tenants()->set_quota({.salt = name_of(0).salt, .floor_bytes = bytes / part});
      break;
    } catch (const InvalidArgument&) {  // others could find no room: half of it, then
    }
  }
  cache_->tenants()->set_quota({.salt = name_of(1).salt, .most_bytes = bytes / 2});
}

bool RequestEngineCache::start(Sequence& sequence) {
  if (tiers_) tiers_->poll();
  Namespace name_space;
  if (options_.tenants) name_space = name_of(tenant_of(sequence));
  if (options_.held) hold(sequence, name_space);
  const auto started = cache_->start({.tokens = sequence.tokens,
                                      .name_space = name_space,
                                      .hint = {.session = options_.held ? session_of(sequence.id) : 0},
                                      .breakpoints = sequence.breakpoints});
  if (!started) return false;
  if (tiers_) tiers_->take_all(started->transfers);
  if (options_.tenants && !tiers_) check_own(sequence, started->reused_tokens);
  ids_[static_cast<std::size_t>(sequence.slot)] = started->request;
  has_begun_[static_cast<std::size_t>(sequence.slot)] = 0;
  if (options_.tenants) served_[tenant_of(sequence)].push_back(sequence.tokens);
  sequence.computed = started->reused_tokens;
  sequence.loading = started->load.has_value();
  sequence.scheduled = false;
  return true;
}

bool RequestEngineCache::fork(Sequence& sequence, const Sequence& other) {
  const auto own = std::span(sequence.tokens).subspan(static_cast<std::size_t>(sequence.fork_at));
  if (!cache_->fork(id(other), own, {&ids_[static_cast<std::size_t>(sequence.slot)], 1})) return false;
  if (options_.tenants) served_[tenant_of(sequence)].push_back(sequence.tokens);
  has_begun_[static_cast<std::size_t>(sequence.slot)] = 1;
  sequence.computed = sequence.fork_at;
  if (own.size() == 1) sequence.prefill = sequence.fork_at;  // it decodes
  sequence.loading = false;
  sequence.scheduled = true;
  return true;
}

bool RequestEngineCache::is_worked_in(const StateCheck& check) const {
  for (std::size_t slot = 0; slot < ids_.size(); ++slot) {
    if (has_begun_[slot] == 0) continue;
    const std::span<const std::int32_t> own = cache_->state(ids_[slot], static_cast<std::size_t>(check.group)).slots;
    if (std::ranges::find(own, check.slot.value()) != own.end()) return true;
  }
  return false;
}

/// What a pass has written that the cache does not know of yet would be damaged unseen.
bool RequestEngineCache::before_forward() {
  if (integrity_ && passes_.size() == 1)
    integrity_->damage([&](const StateCheck& check) { return is_worked_in(check); });
  if (integrity_) integrity_->begin_pass();
  const std::int32_t size = options_.block_size;
  for (const std::int32_t block : plan_.scrub.kv_blocks) kv_.forget(block * size, size);
  for (const SlotCopy& copy : plan_.fork_copies) kv_.copy(copy.src_slot * size, copy.dst_slot * size, size);
  counts_.copies += stores_.before(plan_, integrity_ ? &integrity_->sums() : nullptr);
  waits_ = false;
  if (!integrity_ || integrity_->end_pass()) return true;
  cancel(passes_.back());
  passes_.pop_back();
  return false;
}

void RequestEngineCache::cancel(PassId pass) {
  cache_->cancel(pass);
  if (integrity_) integrity_->cancel();
}

void RequestEngineCache::hold(const Sequence& sequence, const Namespace& name_space) {
  CachePrefixes& prefixes = *cache_->prefixes();
  const auto most = static_cast<std::size_t>(cache_->options().max_request_tokens - 1);
  const Prompt prompt{.tokens = std::span(sequence.tokens).first(std::min(sequence.tokens.size(), most)),
                      .name_space = name_space};
  if (sequence.id % 3 == 0) {
    if (std::ssize(pins_) == cache_->options().prefixes.pins) {
      static_cast<void>(prefixes.unpin(pins_.front()));
      pins_.pop_front();
    }
    const PinnedPrefix pinned = prefixes.pin(prompt, 0);
    if (pinned.pin > 0) pins_.push_back(pinned.pin);
  } else if (tiers_ && sequence.id % 3 == 1) {
    tiers_->take_all(prefixes.prefetch(prompt).transfers);
  }
  if (sequence.id % 5 == 0) static_cast<void>(cache_->sessions()->close(session_of(sequence.id + 1)));
}

void RequestEngineCache::check_own(const Sequence& sequence, std::int64_t tokens) const {
  const auto prefix = std::span(sequence.tokens).first(static_cast<std::size_t>(tokens));
  const auto begins_so = [&](const std::vector<Token>& earlier) {
    return earlier.size() >= prefix.size() && std::ranges::equal(prefix, std::span(earlier).first(prefix.size()));
  };
  const auto runs_so = [&](const Sequence* other) {
    return other != nullptr && tenant_of(*other) == tenant_of(sequence) && begins_so(other->tokens);
  };
  if (tokens > 0 && std::ranges::none_of(served_[tenant_of(sequence)], begins_so) &&
      std::ranges::none_of(running_, runs_so))
    throw std::logic_error("request " + std::to_string(sequence.id) + " reuses a prefix that its tenant never had");
}

std::int64_t RequestEngineCache::chunk(const Sequence& sequence, std::int64_t tokens) {
  if (options_.fault != Fault::older_split) return cache_->chunk(id(sequence), tokens).tokens;
  return test::OlderSplit{.block = test::columns(cache_->options()).groups.back().block_size_tokens,
                          .prompt = sequence.prefill,
                          .total = sequence.prefill,
                          .drops_block = options_.drafts > 0,
                          .partial_hit_block = {},
                          .shared_boundary = {}}(sequence.computed, tokens);
}

/// In all mode all or none: a pass with fewer could not be told from a chunk, whose states are not kept one by one.
std::int64_t RequestEngineCache::drafts(std::int64_t drafts) {
  const RequestCacheOptions& options = cache_->options();
  return test::is_mode_all(options) && drafts != options.drafts ? 0 : drafts;
}

bool RequestEngineCache::plan(std::span<Row> rows) {
  std::vector<PassRow> batch;
  std::vector<std::int32_t> parents;
  for (const Row& row : rows) {
    batch.push_back({.request = id(*row.sequence),
                     .tokens = static_cast<std::int32_t>(row.scheduled),
                     .drafts = static_cast<std::int32_t>(row.drafts)});
    parents.insert(parents.end(), row.parents.begin(), row.parents.end());
  }
  for (const Row& row : rows) running_[static_cast<std::size_t>(row.sequence->slot)] = row.sequence;
  if (tiers_) tiers_->poll();
  if (waits_) {
    cancel(passes_.back());
    passes_.pop_back();
  }
  if (arena_) arena_->poll();
  PassPlan plan = plan_rows(batch, parents);
  // Room for a row may be on its way: given back first, and then mapped.
  for (int tries = 0; arena_ && plan.rows_without_room > 0 && tries < 4; ++tries) {
    arena_->settle_all();
    cancel(plan.pass);
    plan = plan_rows(batch, parents);
  }
  waits_ = true;
  counts_.planned_ahead += !passes_.empty();
  counts_.ready_ahead += !passes_.empty() && plan.ready;
  passes_.push_back(plan.pass);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].room = plan.rows[i].room;
  if (plan.ready) take(plan, rows);
  return plan.ready;
}

PassPlan RequestEngineCache::plan_rows(std::span<const PassRow> batch, std::span<const std::int32_t> parents) {
  const PassPlan plan = cache_->plan(batch, parents);
  if (integrity_) integrity_->begin();
  if (tiers_) tiers_->take(plan.transfers);
  if (arena_) arena_->take(plan.memory);
  if (integrity_) integrity_->end();
  return plan;
}

void RequestEngineCache::take(const PassPlan& plan, std::span<Row> rows) {
  plan_ = plan;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].sequence == nullptr || !rows[i].room) continue;
    rows[i].start = plan.rows[i].start;
    std::vector<KvIndex>& kv = rows[i].sequence->kv;
    kv.clear();
    for (std::int64_t at = 0; at < rows[i].start + rows[i].scheduled; ++at) kv.push_back(plan.rows[i].kv.at(at));
  }
}

void RequestEngineCache::after_forward(std::span<const Row> rows, std::span<Row> next) {
  std::vector<std::int32_t> counts;
  std::vector<Token> sampled;
  std::vector<std::int32_t> steps;
  const bool has_trees = std::ranges::any_of(rows, [](const Row& row) { return !row.parents.empty(); });
  for (const Row& row : rows) {
    if (has_trees) steps.push_back(row.step);
    counts.push_back(row.sequence == nullptr ? 0 : static_cast<std::int32_t>(row.sampled));
    for (std::int32_t i = 0; i < counts.back(); ++i)
      sampled.push_back(row.sequence->tokens[static_cast<std::size_t>(row.sampled_at + i)]);
  }
  const PassCommit commit = cache_->commit(passes_.front(), counts, sampled, steps);
  passes_.erase(passes_.begin());
  for (const Row& row : rows)
    if (row.sequence != nullptr) has_begun_[static_cast<std::size_t>(row.sequence->slot)] = 1;
  for (const KvMove& move : commit.kv_moves) kv_.copy(move.src, move.dst, 1);
  counts_.kv_moves += std::ssize(commit.kv_moves);
  if (integrity_) integrity_->begin();
  if (tiers_) tiers_->take(commit.transfers);
  counts_.copies += stores_.after(commit, integrity_ ? &integrity_->sums() : nullptr);
  if (arena_) arena_->take(commit.memory);
  if (integrity_) integrity_->end();
  if (commit.next) take(*commit.next, next);
}

void RequestEngineCache::final_state(const Sequence& sequence, ModelState& state) {
  std::vector<RowState> states;
  for (std::size_t g = 0; g < group_count(cache_->options()); ++g) states.push_back(cache_->state(id(sequence), g));
  stores_.read(states, state);
}

void RequestEngineCache::stop(Sequence& sequence, RequestEnd how) {
  if (options_.tenants) served_[tenant_of(sequence)].push_back(sequence.tokens);
  running_[static_cast<std::size_t>(sequence.slot)] = nullptr;
  has_begun_[static_cast<std::size_t>(sequence.slot)] = 0;
  cache_->end(id(sequence), how);
  if (integrity_) integrity_->begin();
  if (integrity_) integrity_->end();
}

void RequestEngineCache::forget(std::optional<std::int32_t> tenant) {
  if (tenant)
    cache_->epochs().forget(name_of(static_cast<std::size_t>(*tenant)));
  else
    static_cast<void>(cache_->epochs().advance());
  if (tiers_) tiers_->settle();
}

std::optional<bool> RequestEngineCache::is_stale(const Sequence& sequence) const {
  return cache_->epochs().is_stale(id(sequence));
}

void RequestEngineCache::reset() {
  if (tiers_) tiers_->wait_for_all();
  cache_->reset();
  if (tiers_) tiers_->settle();
  passes_.clear();
  waits_ = false;
}

/// Whether that for which a sequence waits has ended, with or without success. A sequence that is scheduled for the
/// first time is looked up again.
bool RequestEngineCache::ready(Sequence& sequence) {
  const RequestId request = id(sequence);
  if (sequence.scheduled) return cache_->chunk(request, 1) != PromptChunk{};  // its forks may not have begun
  if (tiers_ && cache_->tiers()->is_loading(request)) return false;
  if (cache_->chunk(request, sequence.prefill) == PromptChunk{}) return false;
  if (options_.refresh)
    if (const auto more = cache_->refresh(request); more && tiers_) tiers_->take_all(more->transfers);
  sequence.computed = cache_->computed(request);
  if (options_.tenants && !tiers_) check_own(sequence, sequence.computed);
  sequence.loading = false;
  sequence.scheduled = true;
  return true;
}

void RequestEngineCache::shut_down(bool keep) {
  if (!tiers_) return;
  if (keep) return tiers_->drain();
  if (options_.damage > 0) {  // a crash before a withdrawal is settled may leave the wrong image in files
    tiers_->wait_for_all();
    tiers_->settle();
  }
  tiers_->break_off();
}

void RequestEngineCache::check_invariants() const {
  cache_->check_invariants();
  if (tiers_) tiers_->check_invariants();
}

CacheCounts RequestEngineCache::counts() const {
  CacheCounts counts = counts_;
  counts.lookup_tokens = cache_->stats().prompt_tokens;
  counts.hit_tokens = cache_->stats().hit_tokens;
  counts.awaited_tokens = cache_->stats().awaited_tokens;
  counts.forks = cache_->stats().forks;
  counts.evictions = cache_->usage().evicted_states;
  if (arena_) counts.memory_moves = arena_->moves();
  if (arena_) counts.kv_copies = arena_->copies();
  if (!tiers_) return counts;
  counts.tiers.host_hits = cache_->tiers()->usage(Medium::host).loads;
  counts.tiers.file_hits = cache_->tiers()->usage(Medium::file).loads;
  return counts;
}

RequestEngineCache::RequestEngineCache(std::string_view name, const CacheOptions& options, const std::string& folder)
    : options_(options),
      cache_(make_request_cache(request_cache_options(name, options))),
      stores_(options, cache_->options()),
      kv_(kv_memory_, static_cast<std::size_t>(kv_blocks(cache_->options()) * options.block_size),
          Model::attention_layers, options.type),
      ids_(static_cast<std::size_t>(options.max_running)),
      running_(ids_.size(), nullptr),
      has_begun_(ids_.size(), 0) {
  if (options.integrity) integrity_.emplace(options, *cache_, stores_.stores(), counts_);
  if (options.tiers.any())
    tiers_.emplace(options, folder, *cache_, stores_.stores(), kv_.blocks(options.block_size), counts_.tiers,
                   integrity_ ? &*integrity_ : nullptr);
  if (cache_->arena() != nullptr) arena_.emplace(options, *cache_, kv_, stores_);
  if (cache_->tenants() != nullptr) set_quotas(options.checkpoints % 2 == 0);
}

}  // namespace stateport::engine
