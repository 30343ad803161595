// SPDX-License-Identifier: Apache-2.0
#include "random_engine.hpp"

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace stateport::test {
namespace {

/// Of the tenant with a name, or of the one without. False: the quota was too large.
bool set_quota(Random& random, RequestCache& cache) {
  TenantQuota quota;
  if (random.chance(50)) quota.salt = salted();
  const std::int64_t bytes = cache.options().memory.of(cache.options().kv_tokens, 0);
  if (random.chance(70)) quota.floor_bytes = random.between(0, bytes);
  if (random.chance(50)) quota.most_bytes = quota.floor_bytes + random.between(0, bytes);
  const TenantUsage before = cache.tenants()->usage(quota.salt);
  try {
    cache.tenants()->set_quota(quota);
  } catch (const InvalidArgument&) {
    REQUIRE(cache.tenants()->usage(quota.salt) == before);
    return false;
  }
  return true;
}

bool is_load(const Transfer& transfer) {
  return transfer.kind == Transfer::Kind::load;
}

ReuseHint random_hint(Random& random) {
  return {.last_turn = random.chance(20),
          .expected_idle_s = random.chance(20) ? 30.0 : 0,
          .session = random.chance(60) ? 1u + static_cast<std::uint64_t>(random.between(0, 3)) : 0};
}

/// The answer of start() agrees with the statistics after the request ended, and names a reason if a whole block is
/// computed.
void check_loss(const RequestCache& cache, const StartedRequest& started, std::int64_t prompt,
                const CacheStats& before) {
  const std::int64_t usable = (prompt - 1) / cache.options().block_size_tokens * cache.options().block_size_tokens;
  REQUIRE(started.lost.has_value() == (started.reused_tokens < usable || started.lost_tokens > 0));
  REQUIRE((started.lost_tokens > 0) == (started.lost.value_or(LostHit::never_stored) != LostHit::never_stored));
  const CacheStats now = cache.stats();
  for (int i = 0; i < lost_hit_count; ++i) {
    const auto reason = static_cast<LostHit>(i);
    const std::int64_t tokens = now.of(reason).tokens - before.of(reason).tokens;
    if (reason == LostHit::never_stored)
      REQUIRE(tokens == prompt - started.reused_tokens - started.lost_tokens);
    else
      REQUIRE(tokens == (started.lost == reason ? started.lost_tokens : 0));
  }
}

std::vector<std::int64_t> on_grid(const RequestCacheOptions& options, std::span<const std::int64_t> named) {
  const std::int64_t grid =
      in_columns(options) ? columns(options).groups.back().block_size_tokens : options.block_size_tokens;
  std::vector<std::int64_t> positions;
  for (const std::int64_t at : named) positions.push_back(at / grid * grid);
  return positions;
}

std::vector<std::int64_t> random_breakpoints(Random& random, const RequestCacheOptions& options, std::int64_t prompt) {
  const bool keeps_none = in_columns(options) && columns(options).mode == AlignMode::none;
  if (keeps_none || random.chance(60)) return {};
  std::set<std::int64_t> named;
  for (std::int64_t count = random.between(1, 8); count > 0; --count) named.insert(random.between(1, prompt));
  return {named.begin(), named.end()};
}

/// The first pass of the prompt ends before a tail of 64 tokens, and nothing but a learned tail can be the reason.
bool ends_before_learned_tail(const RequestCache& cache, RequestId id, std::int64_t prompt) {
  const RequestCacheOptions& options = cache.options();
  if (options.share_running.least_tokens > 0) return false;
  const auto* const in_columns = std::get_if<ColumnLayout>(&options.layout);
  if ((in_columns != nullptr ? in_columns->tail_tokens : std::get<SlotLayout>(options.layout).tail_tokens) != 0)
    return false;
  const std::int64_t grid =
      in_columns != nullptr ? in_columns->groups.back().block_size_tokens : options.block_size_tokens;
  const std::int64_t at = std::max<std::int64_t>(prompt - 64, 0) / grid * grid;
  const std::int64_t first = cache.computed(id);
  return at > first && at < (prompt - 1) / grid * grid && first + cache.chunk(id, prompt).tokens == at;
}

/// A plan gives the request, a fork, the memory of the one that it goes on from: that has ended, and no other fork of
/// it waits. No outstanding pass runs the fork.
template <class Running, class Pass>
bool is_heir(RequestId id, const Running& running, const Pass& pass) {
  const RequestId point = running.at(id).point;
  if (!running.at(id).waits_for(point) || running.contains(point)) return false;
  const auto runs = [&](const auto& row) { return row.request == id && row.live && row.room; };
  if (pass && std::ranges::any_of(pass->rows, runs)) return false;
  return std::ranges::count_if(running, [&](const auto& each) { return each.second.waits_for(point); }) == 1;
}

}  // namespace

namespace {

constexpr std::array learned = {EvictionOrder::lru, EvictionOrder::hix, EvictionOrder::gdsf};
constexpr std::array plain = {EvictionOrder::lru, EvictionOrder::lfu, EvictionOrder::mru};

void draw_slots(Random& random, RequestCacheOptions& options, SlotLayout layout) {
  if (layout.scan_alignment_tokens == 0) layout.scan_alignment_tokens = -1;  // 0 is 1
  options.eviction = learned[static_cast<std::size_t>(random.between(0, 2))];
  layout.placement = static_cast<CheckpointPlacement>(random.between(0, 4));
  if (layout.placement != CheckpointPlacement::every && random.chance(40)) layout.tail_tokens = random.between(1, 12);
  if (random.chance(50)) layout.breakpoint_saves = random.between32(1, 8);
  if (options.index == CacheIndex::tree && layout.placement != CheckpointPlacement::passes && random.chance(50))
    layout.spare_checkpoint_tokens = random.between(1, 3) * options.block_size_tokens;
  options.position_tokens = random.between32(1, 8);
  options.memory = {.state_bytes = random.between(1, 40), .kv_bytes_per_token = random.between(1, 3)};
  if (random.chance(30)) layout.budget_bytes = random.between(1, 1000);
  layout.separate_checkpoints = layout.checkpoints > 0 && random.chance(30);
  options.layout = layout;
}

void draw_columns(Random& random, RequestCacheOptions& options, AlignMode mode) {
  const bool tree = options.index == CacheIndex::tree;
  ColumnLayout layout{.mode = tree && mode == AlignMode::none ? AlignMode::align : mode};
  if (layout.mode == AlignMode::align && random.chance(40)) layout.tail_tokens = random.between(1, 20);
  options.eviction = (tree ? learned : plain)[static_cast<std::size_t>(random.between(0, 2))];
  std::int32_t size = options.block_size_tokens;
  while (size <= 2 * options.drafts) size += options.block_size_tokens;
  for (std::int64_t groups = random.between(1, 2); groups > 0; --groups, size *= random.between32(1, 2))
    layout.groups.push_back({.block_size_tokens = size,
                             .blocks = static_cast<std::int32_t>(
                                 resident_blocks(layout.mode, options.max_request_tokens, size, options.drafts, 0) +
                                 (tree ? 2 : 1) + random.between(0, 20)),
                             .conv_window = 3 + options.drafts,
                             .layout_fingerprint = 5});
  options.layout = layout;
}

}  // namespace

RequestCacheOptions random_options(Random& random, Combination kind) {
  const auto mode = static_cast<AlignMode>(random.between(0, 2));
  const std::int64_t longest = random.chance(12) ? 240 : 90;  // only the longer ones learn whether prompts have tails
  RequestCacheOptions options{.index = index_of(kind),
                              .max_requests = random.between32(1, 4),
                              .max_request_tokens = longest,
                              .drafts = random.between32(0, 3),
                              .block_size_tokens = random.between32(1, 4),
                              .hash = BlockHashKind::xxh3_128};
  SlotLayout layout{
      .layout_fingerprint = 3, .checkpoints = random.between32(0, 6), .scan_alignment_tokens = random.between32(0, 3)};
  options.eviction_options.positions = 512;  // few, so that hix replaces some, and recounts are cheap
  options.overlap = random.chance(50);
  options.events = random.chance(50);
  options.kv_tokens = longest + 2 * options.block_size_tokens + random.between(0, longest + 30);
  layout.decode_checkpoint_tokens = random.between(0, 3) * options.block_size_tokens;
  if (in_columns(kind))
    draw_columns(random, options, mode);
  else
    draw_slots(random, options, layout);
  if (random.chance(25)) options.tenant_quotas = random.between32(1, 2);
  if (random.chance(40) && !(in_columns(kind) && columns(options).mode == AlignMode::none))
    options.share_running = {.least_tokens = random.between(1, 12), .longest_commits = random.between32(1, 30)};
  if (random.chance(40) && !(in_columns(kind) && columns(options).mode == AlignMode::none))
    options.prefixes = {.pins = random.between32(1, 4),
                        .pinned_bytes = options.memory.of(random.between(10, 200), random.between(1, 4))};
  if (random.chance(40))
    options.sessions = {.remembered = random.between32(1, 20),
                        .idle_s = random.chance(30) ? static_cast<double>(random.between(1, 40)) : 0,
                        .most_bytes = random.chance(30) ? options.memory.of(random.between(1, 100), 2) : 0};
  return options;
}

TierOptions random_tiers(Random& random, const RequestCacheOptions& options) {
  if (in_columns(options) && columns(options).mode == AlignMode::none) return {};
  const std::int64_t state = options.memory.state_bytes;
  const std::int64_t block = options.memory.kv_bytes_per_token * options.block_size_tokens;
  const auto room = [&] { return random.between(1, 8) * state + random.between(1, 40) * block; };
  TierOptions tiers;
  const std::int64_t kinds = random.between(1, 7);
  if ((kinds & 1) != 0) tiers.host_bytes = room();
  if ((kinds & 2) != 0) tiers.file_bytes = 2 * room();
  if ((kinds & 4) != 0) tiers.remote_bytes = 3 * room();
  tiers.write_through = kinds > 1 && random.chance(30);
  if (random.chance(20)) {
    const std::int32_t finds = random.between32(0, 8);
    tiers.max_finds = finds == 0 ? -1 : finds;
  }
  if (random.chance(20)) tiers.queue_bytes = room();
  if (random.chance(30)) {
    tiers.host_bytes_per_s = 100;
    tiers.file_bytes_per_s = static_cast<double>(random.between(1, 100));
    tiers.tokens_per_s = static_cast<double>(random.between(1, 100));
    tiers.remote_bytes_per_s = static_cast<double>(random.between(1, 100));
    tiers.remote_latency_s = static_cast<double>(random.between(0, 5)) / 10;
  }
  return tiers;
}

RandomEngine::RandomEngine(Random& random, const RequestCacheOptions& options, bool keeps_kv,
                           const MakeCache& make_cache)
    : random_(random),
      options_(options),
      world_(options),
      fail_per_cent_(random.chance(50) ? random.between32(1, 30) : 0) {
  if (keeps_kv) options_.tiers.kv_elsewhere = &world_;
  cache_ = make_cache(options_);
  if (cache_->arena() != nullptr) arena_.emplace(options_, *cache_->arena(), world_);
  prefixes_ = std::make_shared<Prefixes>(*this);
  checks_ = std::make_shared<Checks>(*this);
}

void RandomEngine::join(const RandomEngine& other) {
  world_.share_remote(other.world_);
  old_ = other.old_;
  versions_ = other.versions_;
}

void RandomEngine::step() {
  if (cache_->tenants() != nullptr && random_.chance(5)) quotas += set_quota(random_, *cache_);
  prefixes_->step();
  if (cache_->sessions() != nullptr && random_.chance(8))
    closed += cache_->sessions()->close(1 + static_cast<std::uint64_t>(random_.between(0, 3)));
  const std::int64_t dice = random_.between(0, 19);
  for (int count = habits.crowds ? random_.between32(0, 2) : static_cast<int>(dice < 4); count > 0; --count) start();
  if (dice >= 4 && dice < 7 && !running_.empty()) end(pick());
  if ((dice == 11 || dice == 12) && !pass_ && !planned_ && !running_.empty()) insert();
  if (dice >= (habits.crowds ? 4 : 13) && dice < 16 && !running_.empty()) refresh();
  if (habits.forks && dice >= 13 && !running_.empty() && random_.chance(70)) fork();
  if (habits.damages && !planned_ && !pass_ && random_.chance(25)) checks_->damage();
  plan();
  if (dice == 7 && planned_ && !second_) cancel();
  if (!pass_ || (planned_ && planned_->ready && random_.chance(50))) run();
  if (pass_ && random_.chance(70)) commit();
  if (!pass_) run();
  if (!options_.overlap && pass_) commit();
  if (dice == 8 && options_.tiers.file_bytes + options_.tiers.remote_bytes > 0) begin(cache_->tiers()->drain());
  if (dice == 9 && random_.chance(10)) world_.forget_kv();
  if (dice == 10) world_.change_remote(random_);
  const bool may_settle = options_.tiers.remote_bytes == 0 || may_begin();
  if (!under_way_.empty() && may_settle && random_.chance(60)) settle(static_cast<std::size_t>(random_.between(1, 20)));
  if (arena_) arena_->step(random_);
  if (habits.changes_weights && random_.chance(4)) forget();
  cache_->check_invariants();
  follow_events();
}

void RandomEngine::finish() {
  while (pass_ || planned_) {
    if (!pass_) run();
    if (pass_) commit();
  }
  while (!running_.empty()) end(running_.begin()->first);
  prefixes_->end_most();
  begin_rest();
  while (!under_way_.empty()) settle(under_way_.size());
  if (arena_) arena_->settle_all();
  cache_->check_invariants();
  follow_events();
  const bool holds = prefixes_->finish();
  check_tiers();
  if (!holds) check_usage();
  cache_->reset();
  prefixes_->clear();
  begin_rest();
  CHECK(world_.images(Medium::host) + world_.images(Medium::file) == 0);
  follow_events();
  CHECK(stored_.empty());
}

void RandomEngine::check_usage() const {
  const CacheUsage usage = cache_->usage();
  if (combination_of(options_) == Combination::hash_columns) return;
  REQUIRE(cache_->stats().eviction_ages.total() <= usage.evicted_states);
  if (!options_.tiers.enabled()) REQUIRE(cache_->stats().reuse_ages.total() == hits);
  // An order of a tree spares the request that ended last.
  const std::int64_t budget_bytes = slot_layout(options_).budget_bytes;
  if (budget_bytes > 0 && (options_.index == CacheIndex::hash || options_.eviction == EvictionOrder::hix))
    REQUIRE(options_.memory.of(usage.kv_tokens, usage.states) <= budget_bytes);
  if (!options_.events) return;
  const auto of = [&](CacheContent content) {
    return std::ranges::count_if(stored_, [&](const auto& stored) {
      return std::get<Medium>(stored) == Medium::device && std::get<CacheContent>(stored) == content;
    });
  };
  const std::int64_t states = of(CacheContent::state);
  const std::int64_t blocks = of(CacheContent::kv_block);
  const std::int64_t held = usage.kv_tokens / options_.block_size_tokens;
  // Two requests that made the same at a time may both have kept it: it is found once.
  REQUIRE((combination_of(options_) == Combination::hash_slots ? states <= usage.states : states == usage.states));
  REQUIRE((combination_of(options_) == Combination::hash_slots ? blocks <= held : blocks == held));
}

RequestId RandomEngine::pick() {
  auto at = running_.begin();
  std::advance(at, random_.between(0, static_cast<std::int64_t>(running_.size()) - 1));
  return at->first;
}

/// Often the beginning of one that runs, or of an older one, most often with its names.
RandomEngine::Old RandomEngine::random_prompt() {
  const std::int64_t longest = options_.max_request_tokens * 2 / 3;
  Old prompt;
  if (!running_.empty() && random_.chance(habits.crowds ? 70 : 15)) {
    const Live& live = running_.at(pick());
    prompt = {Tokens(live.tokens.begin(), live.tokens.begin() + live.prompt), live.names};
    if (random_.chance(60)) prompt.tokens.resize(static_cast<std::size_t>(random_.between(1, live.prompt)));
    if (prompt.names.media_at >= std::ssize(prompt.tokens)) prompt.names.media_at = -1;
    if (random_.chance(30)) return prompt;
  } else if (!old_->empty() && random_.chance(70)) {
    prompt = (*old_)[static_cast<std::size_t>(random_.between(0, std::ssize(*old_) - 1))];
    const std::int64_t tokens = std::ssize(prompt.tokens);
    const std::int64_t least =
        random_.chance(50) ? std::max<std::int64_t>(tokens - 64, 1) : 1;  // the cut lies in its tail
    prompt.tokens.resize(static_cast<std::size_t>(random_.between(least, tokens)));
  }
  if (prompt.tokens.empty() && random_.chance(30))
    for (const Token token : one_key[static_cast<std::size_t>(random_.between(0, 1))]) prompt.tokens.push_back(token);
  const bool is_first = prompt.tokens.empty();
  const std::int64_t own_most =
      is_first && longest >= 128 ? longest : longest / 3;  // the cache learns of tails behind 64 tokens
  for (std::int64_t own = random_.between(is_first ? 1 : 0, own_most); own > 0; --own)
    prompt.tokens.push_back(random_.between32(0, 2));
  if (std::ssize(prompt.tokens) > longest) prompt.tokens.resize(static_cast<std::size_t>(longest));
  if (options_.tiers.kv_elsewhere != nullptr) return prompt;
  const std::int64_t tokens = std::ssize(prompt.tokens);
  const bool many = marked_ != nullptr || options_.tenant_quotas > 0;
  if (random_.chance(many ? 50 : 15)) prompt.names.tenant = random_.between32(0, 2);
  if (random_.chance(10)) prompt.names.media_at = random_.between(-1, tokens - 1);
  if (prompt.names.media_at >= tokens) prompt.names.media_at = -1;
  return prompt;
}

RandomEngine::Tokens RandomEngine::seen(const Names& names, std::int64_t first, Tokens tokens) {
  constexpr Token tenants = 10'000'000;
  for (Token& token : tokens) {
    token += names.tenant * tenants;
    if (names.media_at >= 0 && first >= names.media_at) token += 3 * tenants;
    token += names.weights * 6 * tenants;
    ++first;
  }
  return tokens;
}

RandomEngine::Tokens RandomEngine::seen(const Live& live, std::int64_t first, std::int64_t end) {
  return seen(live.names, first, Tokens(live.tokens.begin() + first, live.tokens.begin() + end));
}

/// Asks the cache to start such a prompt.
std::optional<StartedRequest> RandomEngine::start(const Old& wanted, PromptSearch search,
                                                  std::span<const std::int64_t> named) {
  const Names& names = wanted.names;
  Prompt prompt = prefixes_->prompt_of(wanted);
  prompt.hint = random_hint(random_);
  prompt.search = search;
  prompt.breakpoints = named;
  const auto started = cache_->start(prompt);
  prefixes_->end_leases();
  if (!started) return std::nullopt;
  begin(started->transfers);
  if (search == PromptSearch::device) REQUIRE_FALSE((started->load || started->waits_for));
  if (search == PromptSearch::known && started->load) REQUIRE(started->load->tokens > 0);
  REQUIRE(std::ranges::equal(started->breakpoints, on_grid(options_, named)));
  hits += started->reused_tokens > 0;
  tenants_[started->request] = names.salted();
  return started;
}

void RandomEngine::start() {
  if (options_.tiers.enabled() && !may_begin()) return;
  Old wanted = random_prompt();
  wanted.names.weights = weights_of(wanted.names.tenant);
  const auto& [prompt, names] = wanted;
  PromptSearch search = PromptSearch::everywhere;
  if (options_.tiers.enabled()) search = static_cast<PromptSearch>(std::max(random_.between32(-5, 2), 0));
  const CacheStats before = cache_->stats();
  const std::vector<std::int64_t> named = random_breakpoints(random_, options_, std::ssize(prompt));
  const auto started = start(wanted, search, named);
  if (!started) return;
  if (options_.tiers.enabled()) REQUIRE(started->load.has_value() == cache_->tiers()->is_loading(started->request));
  REQUIRE(cache_->stats().requests == before.requests);
  if (started->load || started->waits_for) {
    REQUIRE(!started->lost);
    REQUIRE(started->lost_tokens == 0);
  }
  if (started->lost == LostHit::evicted) REQUIRE(cache_->usage().evicted_states + withdrawn > 0);
  running_[started->request] = {.tokens = prompt,
                                .names = names,
                                .read_back = prompt.size(),
                                .prompt = std::ssize(prompt),
                                .loading_tokens = started->load ? std::optional(started->load->tokens) : std::nullopt,
                                .reused_tokens = started->reused_tokens,
                                .lost_tokens = started->lost_tokens,
                                .named = on_grid(options_, named)};
  if (started->waits_for) note_wait(*started->waits_for, running_.at(started->request));
  if (started->load || started->waits_for) return;
  if (started->reused_tokens > 0) check_places(started->request);
  tails += named.empty() && ends_before_learned_tail(*cache_, started->request, std::ssize(prompt));
  if (!random_.chance(10)) return;
  end(started->request);
  check_loss(*cache_, *started, std::ssize(prompt), before);
}

/// The request that it waits for is another one, has more to compute, and has the same prefix.
void RandomEngine::note_wait(const PrefixWait& wait, Live& live) {
  const Live& other = running_.at(wait.request);
  REQUIRE(&other != &live);
  REQUIRE(wait.tokens >= live.reused_tokens + options_.share_running.least_tokens);
  REQUIRE((wait.tokens < live.prompt && wait.tokens <= other.prompt));
  REQUIRE(cache_->computed(wait.request) < wait.tokens);
  REQUIRE(seen(other, 0, wait.tokens) == seen(live, 0, wait.tokens));
  live.waits = true;
  ++waits;
}

/// Requests whose waits are over have what was cached then. No request waits too long.
void RandomEngine::follow_waits(bool committed) {
  for (auto& [id, live] : running_) {
    if (!live.waits) continue;
    const std::int64_t computed = cache_->computed(id);
    REQUIRE(computed >= live.reused_tokens);
    hits += computed > live.reused_tokens;
    if (computed > live.reused_tokens) live.lost_tokens = 0;
    live.reused_tokens = computed;
    live.waited_commits += committed;
    live.waits = cache_->chunk(id, options_.max_request_tokens) == PromptChunk{};
    REQUIRE((!live.waits || live.waited_commits < options_.share_running.longest_commits));
    if (!live.waits && computed > 0) check_places(id);
  }
}

/// Looks a request up again. Another request with the same prompt would find the same now.
void RandomEngine::refresh() {
  const RequestId id = pick();
  Live& live = running_.at(id);
  if (cache_->computed(id) != live.reused_tokens) return;
  for (const auto* batch : {&pass_, &planned_})
    if (*batch)
      for (const RunRow& row : (*batch)->rows)
        if (row.request == id) return;
  if (live.begun || live.is_fork) return;
  const CacheStats before = cache_->stats();
  const std::int64_t computed = live.reused_tokens;
  const std::optional<StartedRequest> more = cache_->refresh(id);
  REQUIRE(cache_->computed(id) == (more ? more->reused_tokens : computed));
  REQUIRE(cache_->stats().requests == before.requests);
  if (more) {
    REQUIRE(more->reused_tokens >= computed);
    if (more->reused_tokens == computed && !options_.tiers.enabled()) REQUIRE(more->lost_tokens > live.lost_tokens);
    if (more->reused_tokens > computed) ++hits;
    REQUIRE(!(more->load || more->waits_for));
    begin(more->transfers);
    live.reused_tokens = more->reused_tokens;
    live.lost_tokens = more->lost_tokens;
    follow_waits(false);
    ++refreshed;
    if (more->reused_tokens > 0) check_places(id);
  }
  const bool is_loading = options_.tiers.enabled() && cache_->tiers()->is_loading(id);
  if (is_loading || live.waits || cache_->epochs().is_stale(id) || !random_.chance(50)) return;
  if (options_.tiers.enabled() && !may_begin()) return;
  const Old same{Tokens(live.tokens.begin(), live.tokens.begin() + live.prompt), live.names};
  const auto started = start(same, PromptSearch::device, {});
  if (!started) return;
  // A prompt whose first block has the same key may have taken its place.
  const bool has_twin = std::ranges::any_of(one_key, [&](const auto& block) { return block[0] == same.tokens[0]; });
  if (started->lost != LostHit::locked_pool && !has_twin && checks_->has_intact_hit(id))
    REQUIRE(started->reused_tokens == live.reused_tokens);
  static_cast<void>(cache_->end(started->request, RequestEnd::aborted));
  follow_waits(false);
}

/// Of a request that has not run yet.
void RandomEngine::check_places(RequestId id) {
  const Tokens hit = seen(running_.at(id), 0, cache_->computed(id));
  for (std::size_t g = 0; checks_->has_intact_hit(id) && g < group_count(options_); ++g)
    world_.check(cache_->places(id, g), hit, g);
}

/// Another engine has computed some of a prompt.
void RandomEngine::insert() {
  const RequestId id = pick();
  const Live& live = running_.at(id);
  const std::int64_t first = cache_->computed(id);
  if (live.loading_tokens || live.waits || first >= live.prompt) return;
  std::int64_t tokens = random_.between(first + 1, live.prompt);
  const std::int64_t whole = tokens / options_.block_size_tokens * options_.block_size_tokens;
  if (whole > first && random_.chance(70)) tokens = whole;
  const bool takes_over = is_heir(id, running_, pass_);
  const std::optional<InsertedPrefix> inserted = cache_->insert(id, tokens);
  running_.at(id).begun |= takes_over;
  if (inserted) begin(inserted->plan.transfers, true);
  REQUIRE(cache_->computed(id) == (inserted ? tokens : first));
  if (!inserted && arena_) arena_->begin(cache_->arena()->take());
  if (!inserted) return;
  ++inserts;
  running_.at(id).begun = true;
  const RowPlan& row = inserted->plan.rows[0];
  world_.before(inserted->plan);
  if (marked_ != nullptr) marked_->before(inserted->plan);
  world_.insert(row, seen(live, 0, tokens));
  if (marked_ != nullptr) marked_->run(0, row, live.names.salted());
  world_.after(inserted->commit);
  checks_->end();
  if (arena_) arena_->begin(inserted->commit.memory);
  if (marked_ != nullptr) marked_->after(inserted->commit);
  follow_waits(true);
  for (std::size_t g = 0; g < group_count(options_); ++g)
    REQUIRE(world_.read(cache_->state(id, g), g) == seen(live, 0, tokens));
  if (tokens == live.prompt) end(id);  // it has no token to sample from
}

/// Forks go on from a request that has computed its prompt and that no outstanding pass has.
void RandomEngine::fork() {
  const RequestId id = pick();
  Live& live = running_.at(id);
  const std::int64_t computed = cache_->computed(id);
  std::array<RequestId, 3> forks;
  const auto count = static_cast<std::size_t>(random_.between(1, std::ssize(forks)));
  const std::int64_t each = random_.chance(60) ? 1 : random_.between(2, 12);
  if (computed + each + 20 > options_.max_request_tokens) return;
  Tokens tokens;
  for (std::int64_t i = static_cast<std::int64_t>(count) * each; i > 0; --i) tokens.push_back(random_.between32(0, 2));
  bool can_fork = computed >= live.prompt && (live.begun || live.reused_tokens < live.prompt);
  for (const auto* batch : {&pass_, &planned_})
    if (*batch)
      for (const RunRow& row : (*batch)->rows) can_fork &= row.request != id || !row.live || !row.room;
  can_fork &= !live.is_fork || live.begun;
  if (!can_fork) {
    REQUIRE_THROWS_AS(static_cast<void>(cache_->fork(id, tokens, std::span(forks).first(count))), InvalidState);
    return;
  }
  const bool has_numbers =
      cache_->running_requests() + std::ssize(std::span(forks).first(count)) <= options_.max_requests;
  REQUIRE(cache_->fork(id, tokens, std::span(forks).first(count)) == has_numbers);
  for (std::size_t i = 0; has_numbers && i < count; ++i) {
    Live fork{.tokens = Tokens(live.tokens.begin(), live.tokens.begin() + computed),
              .names = live.names,
              .reused_tokens = computed,
              .named = {},
              .is_fork = true,
              .point = id};
    const auto own = tokens.begin() + static_cast<std::ptrdiff_t>(i) * each;
    fork.tokens.insert(fork.tokens.end(), own, own + each);
    fork.read_back = fork.tokens.size();
    fork.prompt = each == 1 ? computed : std::ssize(fork.tokens);
    REQUIRE(cache_->computed(forks[i]) == computed);
    if (random_.chance(30)) REQUIRE(std::ranges::equal(cache_->tokens(forks[i]), fork.tokens));
    const Tokens before = seen(fork, 0, computed);
    for (std::size_t g = 0; g < group_count(options_); ++g)
      REQUIRE(world_.read(cache_->state(forks[i], g), g) == before);
    tenants_[forks[i]] = tenants_.at(id);
    running_[forks[i]] = fork;
  }
  if (has_numbers && random_.chance(40)) end(id);
}

/// The version of the weights of a tenant, as a small number.
int RandomEngine::weights_of(int tenant) {
  const Version& version = version_[static_cast<std::size_t>(tenant)];
  const auto at = std::ranges::find(*versions_, version);
  if (at == versions_->end()) versions_->push_back(version);
  return static_cast<int>(std::ranges::find(*versions_, version) - versions_->begin());
}

constexpr std::size_t versions_max = 30;  // numbers of tokens end

/// Tenant 1 has a salt, tenant 2 an extra key, tenant 0 neither.
void RandomEngine::forget() {
  if (versions_->size() + 3 > versions_max) return;
  ++forgotten;
  const std::int64_t dice = random_.between(0, 4);
  const auto renew = [&](int tenant) {
    version_[static_cast<std::size_t>(tenant)].second[{this, static_cast<int>(dice)}] = forgotten;
  };
  const auto renew_all = [&] {
    for (int tenant = 0; tenant < 3; ++tenant) renew(tenant);
  };
  static const std::string long_name(1500, 'n');
  const std::uint64_t epoch = cache_->epochs().current();
  if (dice == 0 && !running_.empty() && random_.chance(50)) {
    cache_->reset();
    REQUIRE(cache_->epochs().current() == epoch);
    renew_all();
  } else if (dice == 0 && random_.chance(30)) {
    cache_->epochs().forget({.extra_key = "any", .salt = "any"}, ForgetBy::all);
    renew_all();
  } else if (dice == 0) {
    const std::uint64_t wanted = random_.chance(50) ? 0 : epoch + 1 + random_.bits() % 2;
    const std::uint64_t next = wanted == 0 ? epoch + 1 : wanted;
    REQUIRE(cache_->epochs().advance(wanted) == next);
    // Names that were this cache's alone stay so.
    for (Version& version : version_) version.first = next;
  } else if (dice == 1) {
    cache_->epochs().forget({.extra_key = "another", .salt = long_name}, ForgetBy::salt);
    renew(1);
  } else if (dice == 2) {
    cache_->epochs().forget({.extra_key = "two", .salt = "another"}, ForgetBy::extra_key);
    renew(2);
  } else if (dice == 3) {
    cache_->epochs().forget({});
    renew(0);
  } else {
    cache_->epochs().forget({}, ForgetBy::salt);  // of all that have none
    renew(0);
    renew(2);
  }
  check_stale(dice == 0);
}

void RandomEngine::adopt(const RandomEngine& other) {
  if (versions_->size() + 3 > versions_max) return;
  REQUIRE(cache_->epochs().adopt(other.cache_->epochs().forgotten()));
  for (std::size_t tenant = 0; tenant < version_.size(); ++tenant)
    for (const auto& [of, call] : other.version_[tenant].second) {
      std::int64_t& known = version_[tenant].second[of];
      known = std::max(known, call);
    }
  ++adopted;
  check_stale(false);
}

void RandomEngine::check_stale(bool forgot_all) {
  const bool loads = prefixes_->forget();
  for (const auto& [id, live] : running_)
    REQUIRE(cache_->epochs().is_stale(id) == (live.names.weights != weights_of(live.names.tenant)));
  if (!forgot_all || cache_->running_requests() > 0 || pass_ || planned_ || loads) return;
  CHECK(cache_->usage().kv_tokens == 0);
  if (!in_columns(options_)) CHECK(cache_->usage().states == 0);
}

void RandomEngine::end(RequestId id) {
  Live& live = running_.at(id);
  live.tokens.resize(live.read_back);
  old_->push_back({live.tokens, live.names});
  for (auto* batch : {&pass_, &planned_})
    if (*batch)
      for (RunRow& row : (*batch)->rows) row.live &= row.request != id;
  if (options_.tiers.kv_elsewhere != nullptr && random_.chance(70)) world_.keep_kv(seen(live, 0, cache_->computed(id)));
  const std::int32_t running = cache_->running_requests();
  const EndedRequest ended = cache_->end(id, static_cast<RequestEnd>(random_.between(0, 2)), random_hint(random_));
  end_copies += std::ssize(ended.copies);
  begin(ended.transfers, true);
  world_.after_end(ended.copies);
  checks_->end();
  if (marked_ != nullptr) marked_->after_end(ended.copies);
  running_.erase(id);
  forked_ended += habits.forks && !options_.tiers.enabled() && cache_->running_requests() == running;
  follow_waits(false);
}

void RandomEngine::plan() {
  if (planned_ || (pass_ && !options_.overlap)) return;
  std::vector<PassRow> rows;
  for (const auto& [id, live] : running_) {
    if (habits.crowds && random_.chance(70)) continue;
    if (habits.forks && (random_.chance(30) || cache_->chunk(id, 1) == PromptChunk{})) continue;
    const std::int64_t budget = random_.between(0, options_.max_request_tokens / 3);
    const PassRow* under_way = nullptr;
    PassRow pending;
    if (pass_)
      for (const RunRow& row : pass_->rows)
        if (row.request == id && row.live && row.room) {
          pending = {.request = id, .tokens = row.tokens, .drafts = row.drafts};
          under_way = &pending;
        }
    const std::int64_t low = cache_->computed(id) + (under_way ? under_way->tokens - under_way->drafts : 0);
    if (low < live.prompt) {
      const PromptChunk chunk = cache_->chunk(id, budget);
      REQUIRE((chunk.tokens > 0) == (chunk.least_budget > 0 && budget >= chunk.least_budget));
      auto tokens = static_cast<std::int32_t>(chunk.tokens);
      // In slots a pass may end anywhere.
      if (tokens > 0 && !in_columns(options_) && random_.chance(10))
        tokens = static_cast<std::int32_t>(std::min(budget, live.prompt - low));
      if (tokens > 0) rows.push_back({.request = id, .tokens = tokens});
    } else if (low + 2 * (1 + options_.drafts) + 1 < options_.max_request_tokens) {
      std::int32_t drafts = random_.between32(0, options_.drafts);
      if (is_mode_all(options_) && drafts < options_.drafts) drafts = 0;
      rows.push_back({.request = id, .tokens = 1 + drafts, .drafts = drafts});
    }
  }
  std::vector<std::int32_t> parents;
  if (habits.trees && !in_columns(options_) && random_.chance(80))
    for (const PassRow& row : rows)
      for (std::int32_t draft = 0; draft < row.drafts; ++draft) parents.push_back(random_.between32(0, draft));
  std::vector<std::size_t> heirs;
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (is_heir(rows[i].request, running_, pass_)) heirs.push_back(i);
  const std::int32_t running = cache_->running_requests();
  const PassPlan plan = cache_->plan(rows, parents);
  REQUIRE(cache_->running_requests() == running - std::ssize(heirs));
  for (const std::size_t heir : heirs) running_.at(rows[heir].request).begun = true;
  taken_over += std::ssize(heirs);
  begin(plan.transfers, true);
  if (arena_) arena_->begin(plan.memory);
  planned_.emplace();
  planned_->pass = plan.pass;
  for (std::size_t i = 0; i < rows.size(); ++i)
    planned_->rows.push_back(
        {.request = rows[i].request, .drafts = rows[i].drafts, .tokens = rows[i].tokens, .room = plan.rows[i].room});
  for (std::size_t i = 0, first = 0; i < rows.size() && !parents.empty(); ++i) {
    const auto of_row = parents.begin() + static_cast<std::ptrdiff_t>(first);
    planned_->rows[i].parents.assign(of_row, of_row + rows[i].drafts);
    first += static_cast<std::size_t>(rows[i].drafts);
  }
  planned_->has_parents = !parents.empty();
  take(plan);
  ahead += pass_.has_value();
  checks_->end();
  checks_->end_readers();
}

void RandomEngine::take(const PassPlan& plan) {
  planned_->ready = plan.ready;
  if (plan.ready) plan_ = plan;
}

void RandomEngine::cancel() {
  cache_->cancel(planned_->pass);
  planned_.reset();
}

void RandomEngine::run() {
  if (pass_ || !planned_) {
    // Two passes run before the first is read back.
    if (!pass_ || !planned_ || !planned_->ready || second_) return;
    run_rows();
    second_ = true;
    ++ran_ahead;
    return;
  }
  run_rows();
  pass_ = std::move(planned_);
  planned_.reset();
}

void RandomEngine::run_rows() {
  if (arena_) arena_->check(plan_.groups[0]);
  world_.before(plan_);
  if (marked_ != nullptr) marked_->before(plan_);
  for (std::size_t i = 0; i < planned_->rows.size(); ++i) {
    RunRow& row = planned_->rows[i];
    if (!row.room || !row.live) continue;
    Live& live = running_.at(row.request);
    const RowPlan& plan = plan_.rows[i];
    if (arena_) arena_->check(plan);
    const auto start = static_cast<std::ptrdiff_t>(plan.start);
    const std::ptrdiff_t given = row.tokens - row.drafts;
    REQUIRE(start + given <= std::ssize(live.tokens));
    Tokens fed(live.tokens.begin() + start, live.tokens.begin() + start + given);
    for (std::int32_t d = 0; d < row.drafts; ++d) fed.push_back(random_.between32(0, 2));
    stale_rows += cache_->epochs().is_stale(row.request);
    if (row.parents.empty())
      world_.run(i, plan, seen(live, 0, start), seen(live.names, start, fed));
    else
      world_.run_tree(i, plan, seen(live, 0, start), seen(live.names, start, fed), row.parents);
    if (marked_ != nullptr) marked_->run(i, plan, live.names.salted());
    row.sampled_at = live.tokens.size();
    if (start + given < live.prompt) continue;
    // The first drafts are accepted, and one token more is sampled.
    std::int32_t accepted = row.parents.empty() ? random_.between32(0, row.drafts) : 0;
    for (std::int32_t d = 0; d < accepted; ++d) live.tokens.push_back(fed[static_cast<std::size_t>(given + d)]);
    for (std::int32_t d = 0; std::cmp_less(d, row.parents.size()); ++d) {
      // One more step of the path, or another child of the same step later.
      if (row.parents[static_cast<std::size_t>(d)] != row.step || random_.chance(40)) continue;
      row.step = d + 1;
      ++accepted;
      live.tokens.push_back(fed[static_cast<std::size_t>(given + d)]);
    }
    live.tokens.push_back(random_.between32(0, 2));
    row.sampled = accepted + 1;
  }
}

void RandomEngine::commit() {
  std::vector<std::int32_t> counts;
  Tokens sampled;
  for (const RunRow& row : pass_->rows) {
    counts.push_back(row.live ? row.sampled : 0);
    if (counts.back() == 0) continue;
    Live& live = running_.at(row.request);
    const auto first = live.tokens.begin() + static_cast<std::ptrdiff_t>(row.sampled_at);
    sampled.insert(sampled.end(), first, first + row.sampled);
    live.read_back = row.sampled_at + static_cast<std::size_t>(row.sampled);
  }
  for (RunRow& row : pass_->rows)
    if (row.live) row.computed = cache_->computed(row.request);
  const CacheStats before = cache_->stats();
  std::vector<std::int32_t> steps;
  for (std::size_t i = 0; i < pass_->rows.size() && pass_->has_parents; ++i) steps.push_back(pass_->rows[i].step);
  const PassCommit commit = cache_->commit(pass_->pass, counts, sampled, steps);
  kv_moves += std::ssize(commit.kv_moves);
  const std::vector<RunRow> rows = pass_->rows;
  check_named(commit, rows, before);
  const std::vector<RefusedBreakpoint> refused(commit.refused_breakpoints.begin(), commit.refused_breakpoints.end());
  if (arena_) arena_->check(commit);
  world_.move_kv(commit.kv_moves);
  begin(commit.transfers, true);
  PassCommit rest = commit;
  rest.kv_moves = {};
  world_.after(rest);
  checks_->end();
  if (arena_) arena_->begin(commit.memory);
  if (marked_ != nullptr) marked_->after(commit);
  for (const RunRow& row : pass_->rows)
    if (row.live && row.room) {
      Live& live = running_.at(row.request);
      forks += live.is_fork && !live.begun;
      live.begun = true;
    }
  follow_waits(true);
  for (const RunRow& row : pass_->rows) {
    if (!row.live || !row.room || second_) continue;
    const Live& live = running_.at(row.request);
    const Tokens computed = seen(live, 0, cache_->computed(row.request));
    for (std::size_t g = 0; g < group_count(options_); ++g)
      REQUIRE(world_.read(cache_->state(row.request, g), g) == computed);
  }
  pass_.reset();
  if (commit.next) take(*commit.next);
  if (second_) {
    pass_ = std::move(planned_);
    planned_.reset();
    second_ = false;
  }
  checks_->end_readers();
  // The plan of the next pass may have taken the places of these checkpoints.
  if (commit.next || arena_ || (options_.tiers.enabled() && !may_begin())) return;
  for (const RunRow& row : rows) {
    if (!row.live || !row.room || !running_.contains(row.request) || !random_.chance(30)) continue;
    for (const std::int64_t at : running_.at(row.request).named)
      if (at > row.computed && at <= row.computed + row.tokens &&
          std::ranges::find(refused, RefusedBreakpoint{row.request, at}) == refused.end())
        return hit_named(row, at);
  }
}

/// Each named position that the pass ran over is counted once, and named if it got no checkpoint.
void RandomEngine::check_named(const PassCommit& commit, const std::vector<RunRow>& rows, const CacheStats& before) {
  std::set<std::pair<RequestId, std::int64_t>> passed;
  for (const RunRow& row : rows) {
    if (!row.live || !row.room) continue;
    for (const std::int64_t at : running_.at(row.request).named)
      if (at > row.computed && at <= row.computed + row.tokens) passed.emplace(row.request, at);
  }
  const CacheStats& now = cache_->stats();
  const std::int64_t refused = now.breakpoints_refused - before.breakpoints_refused;
  REQUIRE(std::ssize(commit.refused_breakpoints) == refused);
  REQUIRE(now.breakpoints_kept - before.breakpoints_kept + refused == std::ssize(passed));
  for (const RefusedBreakpoint& each : commit.refused_breakpoints)
    REQUIRE(passed.erase({each.request, each.tokens}) == 1);
}

/// A prompt that leaves the one of the row at a named position with a checkpoint continues from there.
void RandomEngine::hit_named(const RunRow& row, std::int64_t at) {
  const Live& live = running_.at(row.request);
  if (live.names.media_at >= at || cache_->epochs().is_stale(row.request)) return;
  Old wanted{Tokens(live.tokens.begin(), live.tokens.begin() + at), live.names};
  wanted.tokens.push_back(5);  // which no other prompt has
  const auto started = start(wanted, PromptSearch::device, {});
  if (!started) return;
  // The live slot of the request may be the only one that could be freed.
  const bool no_live_slot = started->lost == LostHit::locked_pool && options_.index == CacheIndex::tree &&
                            !in_columns(options_) && !has_separate_checkpoints(options_);
  REQUIRE((started->reused_tokens == at || no_live_slot));
  named_hits += started->reused_tokens == at;
  running_[started->request] = {.tokens = wanted.tokens,
                                .names = wanted.names,
                                .read_back = wanted.tokens.size(),
                                .prompt = at + 1,
                                .loading_tokens = std::nullopt,
                                .reused_tokens = started->reused_tokens,
                                .named = {}};
  if (started->reused_tokens > 0) check_places(started->request);
}

/// Those of calls whose answers have no transfers.
void RandomEngine::begin_rest() {
  if (options_.tiers.enabled()) begin(cache_->tiers()->settle({}).transfers);
}

/// The transfers take effect now. The cache hears of their results later.
void RandomEngine::begin(TransferPlan transfers, bool more_work) {
  checks_->begin();
  for (const Transfer& transfer : transfers) {
    if (arena_) arena_->check(transfer);
    world_.begin(transfer);
    if (marked_ != nullptr) marked_->begin(transfer);
    if (transfer.kind != Transfer::Kind::drop) under_way_.push_back(transfer);
    if (is_load(transfer) && transfer.image.content == CacheContent::state) checks_->loads(transfer);
  }
  if (!more_work) checks_->end();
}

void RandomEngine::settle(std::size_t most) {
  constexpr std::array reasons = {TransferStatus::no_room, TransferStatus::gone, TransferStatus::damaged,
                                  TransferStatus::failed};
  std::vector<TransferResult> results;
  for (; most > 0 && !under_way_.empty(); --most) {
    const auto at = under_way_.begin() + random_.between(0, std::ssize(under_way_) - 1);
    const bool is_find = at->kind == Transfer::Kind::find;
    const bool fails = random_.chance(fail_per_cent_) || (is_find ? !world_.has(*at) : world_.is_gone(*at));
    const auto reason = reasons[static_cast<std::size_t>(random_.between(0, std::ssize(reasons) - 1))];
    world_.end(*at, !fails);
    const bool reads_tier = at->kind == Transfer::Kind::load || at->kind == Transfer::Kind::copy;
    const bool is_below = at->from == Medium::host || at->from == Medium::file;
    const bool finds_none = reason == TransferStatus::gone || reason == TransferStatus::damaged;
    if (fails && reads_tier && is_below && finds_none && random_.chance(50)) world_.lose(*at);
    if (marked_ != nullptr) marked_->end(*at, !fails, is_load(*at) ? tenants_.at(at->request) : 0);
    results.push_back({.id = at->id, .status = fails ? reason : TransferStatus::done});
    traffic_.end(*at, results.back().status);
    under_way_.erase(at);
  }
  begin(cache_->tiers()->settle(results).transfers);
  traffic_.check(*cache_, under_way_, std::ranges::count_if(running_, [&](const auto& live) {
    return cache_->tiers()->is_loading(live.first);
  }));
  follow_loads();
  prefixes_->follow();
}

/// A load brings all that was announced, or nothing.
void RandomEngine::follow_loads() {
  for (auto& [id, live] : running_) {
    if (!live.loading_tokens || cache_->tiers()->is_loading(id)) continue;
    const std::int64_t computed = cache_->computed(id);
    if (*live.loading_tokens == 0) {
      REQUIRE(computed >= live.reused_tokens);
      found_loads += computed > live.reused_tokens;
    } else {
      REQUIRE((computed == *live.loading_tokens || computed == live.reused_tokens));
      ++(computed == *live.loading_tokens ? loads : failed_loads);
    }
    live.loading_tokens.reset();
    live.reused_tokens = computed;
    live.waits = cache_->chunk(id, options_.max_request_tokens) == PromptChunk{};
    waits += live.waits;
  }
}

/// No transfer is under way: each tier holds the images that the cache lists.
void RandomEngine::check_tiers() const {
  if (!options_.tiers.enabled()) return;
  for (const Medium medium : {Medium::host, Medium::file, Medium::remote}) {
    const TierUsage usage = cache_->tiers()->usage(medium);
    const auto groups = static_cast<std::int64_t>(group_count(options_));
    const std::int64_t images = usage.states * groups + usage.kv_blocks;
    REQUIRE((options_.tiers.kv_elsewhere == nullptr || usage.kv_blocks == 0));
    REQUIRE((medium == Medium::remote || world_.images(medium) == images));
    if (options_.events)
      REQUIRE(std::ranges::count_if(stored_, [&](const auto& stored) { return std::get<Medium>(stored) == medium; }) ==
              images);
  }
}

void RandomEngine::follow_events() {
  if (!options_.events) return;
  std::array<CacheEvent, 7> events;
  while (const std::size_t count = cache_->take_events(events)) {
    for (const CacheEvent& event : std::span(events).first(count)) {
      REQUIRE(event.sequence == ++sequence_);
      const auto key = std::tuple(event.medium, event.content, event.group, event.prefix.words);
      if (event.kind == CacheEvent::Kind::cleared) stored_.clear();
      if (event.kind == CacheEvent::Kind::stored) REQUIRE(stored_.insert(key).second);
      if (event.kind == CacheEvent::Kind::stored && event.medium == Medium::remote)
        REQUIRE(world_.was_remote(
            {.prefix = event.prefix, .tokens = event.tokens, .content = event.content, .group = event.group}));
      if (event.kind == CacheEvent::Kind::removed) REQUIRE(stored_.erase(key) == 1);
    }
  }
}

}  // namespace stateport::test
