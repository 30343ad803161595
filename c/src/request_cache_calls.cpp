// SPDX-License-Identifier: Apache-2.0
// The one interface for each index and each layout.
#include <stateport/c/request_cache.h>
#include <stateport/core/serve/cache_metrics.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "arguments.hpp"
#include "cache_object.hpp"
#include "copies.hpp"
#include "eviction.hpp"
#include "guard.hpp"
#include "prefix_tree.hpp"
#include "read_prompt.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <string>

using namespace stateport;
using namespace stateport::c;

namespace {

static_assert(STATEPORT_FINISHED == static_cast<int>(RequestEnd::finished) &&
              STATEPORT_PREEMPTED == static_cast<int>(RequestEnd::preempted) &&
              STATEPORT_ABORTED == static_cast<int>(RequestEnd::aborted) &&
              STATEPORT_SEARCH_KNOWN == static_cast<int>(PromptSearch::known) &&
              STATEPORT_SEARCH_DEVICE == static_cast<int>(PromptSearch::device));

constexpr std::size_t events_at_once = 64;

using HeldCache = Held<CacheObject>;

[[noreturn]] void throw_no_room(const RequestCache& cache) {
  const bool numbers = cache.running_requests() == cache.options().max_requests;
  throw NoCapacity(numbers ? "requests" : "slots for running requests", 1, 0);
}

/// Room of a caller for the answers of each group: none of it, or all.
template <class Struct>
class GroupRoom {
 public:
  GroupRoom(Struct* groups, std::size_t count, std::size_t wanted)
      : to_(groups, groups == nullptr ? 0 : count, "groups") {
    require(groups == nullptr || count == wanted, "group_count", count, "must be the number of groups of the cache");
    is_wanted_ = groups != nullptr;
  }
  template <class Arrays>
  void write(const std::vector<Arrays>& groups) const noexcept {
    for (std::size_t group = 0; is_wanted_ && group < groups.size(); ++group) to_.write(group, groups[group].view());
  }

 private:
  OutArray<Struct> to_;
  bool is_wanted_;
};

/// Where a plan goes.
class PlanRoom {
 public:
  PlanRoom(stateport_pass_plan* out, const char* argument, std::size_t groups)
      : settings_(read_settings(out, argument)),
        to_(out, argument),
        groups_(settings_.groups, settings_.group_count, groups) {}

  void write(const PassPlanArrays& plan) const noexcept {
    groups_.write(plan.groups());
    stateport_pass_plan reported = plan.view();
    reported.groups = settings_.groups;
    reported.group_count = settings_.group_count;
    to_.write(reported);
  }

 private:
  stateport_pass_plan settings_;
  Out<stateport_pass_plan> to_;
  GroupRoom<stateport_group_plan> groups_;
};

/// Where a commit goes.
class CommitRoom {
 public:
  CommitRoom(stateport_pass_commit* out, const char* argument, std::size_t groups)
      : settings_(read_settings(out, argument)),
        to_(out, argument),
        groups_(settings_.groups, settings_.group_count, groups) {
    if (settings_.next != nullptr) next_.emplace(settings_.next, "next", groups);
  }
  [[nodiscard]] bool has_next() const noexcept { return next_.has_value(); }
  /// Of a commit of `rows` rows; empty: the caller gave none.
  [[nodiscard]] std::span<const std::int32_t> steps(std::size_t rows) const {
    return {settings_.steps, settings_.steps == nullptr ? 0 : rows};
  }

  void write(const PassCommit& commit, CacheObject& cache) const {
    for (std::size_t group = 0; group < commit.groups.size(); ++group) cache.commits[group].set(commit.groups[group]);
    groups_.write(cache.commits);
    cache.refused.clear();
    for (const RefusedBreakpoint& each : commit.refused_breakpoints)
      cache.refused.push_back({each.request.value(), each.tokens});
    cache.kv_moves.clear();
    for (const KvMove& move : commit.kv_moves) cache.kv_moves.push_back({move.src, move.dst});
    if (commit.next) {
      cache.plan.set(*commit.next, nullptr);
      next_->write(cache.plan);
    }
    stateport_pass_commit reported = {.groups = settings_.groups,
                                      .group_count = settings_.group_count,
                                      .next = settings_.next,
                                      .transfers = cache.keep(commit.transfers),
                                      .transfer_count = commit.transfers.size(),
                                      .has_next = commit.next ? 1 : 0,
                                      .published_states = commit.published_states,
                                      .dropped_states = commit.dropped_states,
                                      .refused_breakpoints = cache.refused.data(),
                                      .refused_breakpoint_count = cache.refused.size(),
                                      .steps = settings_.steps,
                                      .kv_moves = cache.kv_moves.data(),
                                      .kv_move_count = cache.kv_moves.size()};
    cache.commit_memory.set(commit.memory);
    cache.commit_memory.point(reported);
    to_.write(reported);
  }

 private:
  stateport_pass_commit settings_;
  Out<stateport_pass_commit> to_;
  GroupRoom<stateport_group_commit> groups_;
  std::optional<PlanRoom> next_;
};

/// Answers the parents of the drafts.
std::span<const std::int32_t> read_rows(const stateport_pass_batch* batch, std::vector<PassRow>& rows) {
  const auto given = read_struct<stateport_pass_batch>(batch, "batch");
  const auto request = array(given.request, given.rows, "request");
  const auto tokens = array(given.tokens, given.rows, "tokens");
  rows.clear();
  for (std::size_t row = 0; row < given.rows; ++row)
    rows.push_back({RequestId{request[row]}, tokens[row], given.drafts == nullptr ? 0 : given.drafts[row]});
  return array(given.parents, given.parent_count, "parents");
}

/// Refuses all of them if the cache would refuse one, so that all end or none.
void check_running(const RequestCache& cache, std::span<const std::int64_t> requests) {
  for (const std::int64_t request : requests) static_cast<void>(cache.computed(RequestId{request}));
  std::vector<std::int64_t> sorted(requests.begin(), requests.end());
  std::ranges::sort(sorted);
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice != sorted.end()) require(false, "request", *twice, "is named twice");
}

/// `slots`: state_slots or checkpoint_slots.
stateport_status tell_slots(stateport_request_cache* cache, std::size_t group, std::int32_t* out,
                            std::int32_t (*slots)(const RequestCacheOptions&, std::size_t)) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    std::int32_t& reported = checked(out, "out");
    require(group < held->groups, "group", group, "is out of range");
    reported = slots(held->cache->options(), group);
  });
}

}  // namespace

stateport_status stateport_request_cache_create(const stateport_request_cache_options* options,
                                                stateport_request_cache** out) {
  return guarded([&] {
    create(out, [&] { return std::make_shared<CacheObject>(read_cache_options(options), read_kv_function(options)); });
  });
}

stateport_status stateport_request_cache_destroy(stateport_request_cache* cache) {
  return guarded([&] { destroy<CacheObject>(cache, "cache"); });
}

stateport_status stateport_request_cache_describe(stateport_request_cache* cache, stateport_request_cache_info* out) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const RequestCacheOptions& options = held->cache->options();
    const WaitingRequests waiting = held->cache->usage().waiting;
    Out(out, "out")
        .write(
            {.groups = held->groups,
             .kv_blocks = kv_blocks(options),
             .scratch_slots = scratch_slots(options),
             .running_requests = held->cache->running_requests(),
             .transfers_under_way = held->cache->tiers() == nullptr ? 0 : held->cache->tiers()->transfers_under_way(),
             .waiting_for_answers = waiting.for_answers,
             .waiting_for_loads = waiting.for_loads,
             .waiting_for_requests = waiting.for_requests});
  });
}

stateport_status stateport_request_cache_state_slots(stateport_request_cache* cache, size_t group, int32_t* out) {
  return tell_slots(cache, group, out, state_slots);
}

stateport_status stateport_request_cache_checkpoint_slots(stateport_request_cache* cache, size_t group, int32_t* out) {
  return tell_slots(cache, group, out, checkpoint_slots);
}

stateport_status stateport_request_cache_start(stateport_request_cache* cache, const stateport_prompt* prompts,
                                               size_t count, stateport_started_request* out, size_t* done) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    std::vector<ReadPrompt> wanted;
    for (const stateport_prompt& given : read_structs(prompts, count, "prompts")) wanted.emplace_back(given);
    const OutArray result(out, count, "out");
    std::size_t& started = checked(done, "done");
    started = 0;
    held->transfers.clear();
    for (const ReadPrompt& given : wanted) {
      const auto request = held->cache->start(given.prompt());
      if (!request) throw_no_room(*held->cache);
      result.write(started, held->with_transfers(to_c(*request), request->transfers));
      ++started;
    }
  });
}

stateport_status stateport_request_cache_refresh(stateport_request_cache* cache, int64_t request,
                                                 stateport_started_request* out, uint8_t* found) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const Out result(out, "out");
    std::uint8_t& reported = checked(found, "found");
    const auto refreshed = held->cache->refresh(RequestId{request});
    reported = refreshed ? 1 : 0;
    held->transfers.clear();
    if (refreshed) result.write(held->with_transfers(to_c(*refreshed), refreshed->transfers));
  });
}

stateport_status stateport_request_cache_fork(stateport_request_cache* cache, int64_t request, const int32_t* tokens,
                                              size_t count, int64_t* forks, size_t fork_count) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const auto given = array(tokens, count, "tokens");
    const auto room = array(forks, fork_count, "forks");
    std::vector<RequestId> started(fork_count);
    if (!held->cache->fork(RequestId{request}, given, started))
      throw NoCapacity("requests", static_cast<std::int64_t>(fork_count),
                       held->cache->options().max_requests - held->cache->running_requests());
    std::ranges::transform(started, room.begin(), &RequestId::value);
  });
}

stateport_status stateport_request_cache_chunk(stateport_request_cache* cache, const int64_t* requests,
                                               const int64_t* budgets, size_t count, int64_t* tokens,
                                               int64_t* least_budgets) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const auto named = array(requests, count, "requests");
    const auto given = array(budgets, count, "budgets");
    const auto room = array(tokens, count, "tokens");
    std::vector<PromptChunk> chunks;
    for (std::size_t i = 0; i < count; ++i) chunks.push_back(held->cache->chunk(RequestId{named[i]}, given[i]));
    std::ranges::transform(chunks, room.begin(), &PromptChunk::tokens);
    if (least_budgets != nullptr) std::ranges::transform(chunks, least_budgets, &PromptChunk::least_budget);
  });
}

stateport_status stateport_request_cache_plan(stateport_request_cache* cache, const stateport_pass_batch* batch,
                                              stateport_pass_plan* out) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const PlanRoom room(out, "out", held->groups);
    const std::span<const std::int32_t> parents = read_rows(batch, held->rows);
    const PassPlan plan = held->cache->plan(held->rows, parents);
    held->transfers.clear();
    held->plan.set(plan, held->keep(plan.transfers));
    room.write(held->plan);
  });
}

stateport_status stateport_request_cache_cancel(stateport_request_cache* cache, uint64_t pass) {
  return guarded([&] { HeldCache(cache, "cache")->cache->cancel(pass); });
}

stateport_status stateport_request_cache_commit(stateport_request_cache* cache, uint64_t pass, const int32_t* counts,
                                                size_t rows, const int32_t* sampled, size_t sampled_count,
                                                stateport_pass_commit* out) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const CommitRoom room(out, "out", held->groups);
    require(room.has_next() || !held->cache->options().overlap, "next", "null",
            "must point to room for a plan, because the cache overlaps passes");
    const PassCommit commit = held->cache->commit(pass, array(counts, rows, "counts"),
                                                  array(sampled, sampled_count, "sampled"), room.steps(rows));
    held->transfers.clear();
    room.write(commit, *held);
  });
}

stateport_status stateport_request_cache_places(stateport_request_cache* cache, int64_t request, size_t group,
                                                stateport_hit_places* out) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const Out result(out, "out");
    const HitPlaces places = held->cache->places(RequestId{request}, group);
    result.write({.tokens = places.tokens,
                  .kv = places.kv.ids.data(),
                  .kv_count = places.kv.ids.size(),
                  .kv_tokens_per_id = places.kv.tokens_per_id,
                  .state = places.state.value()});
  });
}

stateport_status stateport_request_cache_insert(stateport_request_cache* cache, int64_t request, int64_t tokens,
                                                stateport_pass_plan* plan, stateport_pass_commit* commit) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const PlanRoom before(plan, "plan", held->groups);
    const CommitRoom after(commit, "commit", held->groups);
    const auto inserted = held->cache->insert(RequestId{request}, tokens);
    if (!inserted) throw NoCapacity("blocks of KV or states", 1, 0);
    held->transfers.clear();
    held->plan.set(inserted->plan, held->keep(inserted->plan.transfers));
    before.write(held->plan);
    after.write(inserted->commit, *held);
  });
}

stateport_status stateport_request_cache_end(stateport_request_cache* cache, const int64_t* requests, size_t count,
                                             int32_t how, const stateport_reuse_hint* hints,
                                             stateport_ended_requests* out) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const auto named = array(requests, count, "requests");
    const RequestEnd end = enumerator(how, RequestEnd::aborted, "how");
    std::vector<ReuseHint> known(count);
    if (hints != nullptr)
      std::ranges::transform(read_structs(hints, count, "hints"), known.begin(),
                             [](const stateport_reuse_hint& hint) { return from_c(hint); });
    check_running(*held->cache, named);
    const RequestCacheOptions& options = held->cache->options();
    const bool copies =
        options.index == CacheIndex::tree && slot_layout(options).separate_checkpoints && end != RequestEnd::aborted;
    require(count <= 1 || !copies, "count", count, "must be 1 with index tree and separate_checkpoints");
    require(out != nullptr || !copies, "out", "null", "must be given with index tree and separate_checkpoints");
    std::optional<Out<stateport_ended_requests>> result;
    if (out != nullptr) result.emplace(out, "out");
    EndedRequest ended;
    for (std::size_t i = 0; i < count; ++i) ended = held->cache->end(RequestId{named[i]}, end, known[i]);
    held->transfers.clear();
    to_c(ended.copies, held->end_copies);
    if (!result) return;
    result->write(held->with_transfers(
        stateport_ended_requests{.copies = held->end_copies.data(), .copy_count = held->end_copies.size()},
        ended.transfers));
  });
}

stateport_status stateport_request_cache_request(stateport_request_cache* cache, int64_t request,
                                                 stateport_running_request* out) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const Out result(out, "out");
    const RequestId id{request};
    const auto tokens = held->cache->tokens(id);
    const KvRow kv = held->cache->kv(id);
    result.write({.tokens = tokens.data(),
                  .count = tokens.size(),
                  .computed = held->cache->computed(id),
                  .kv = kv.ids.data(),
                  .kv_count = kv.ids.size(),
                  .kv_tokens_per_id = kv.tokens_per_id});
  });
}

stateport_status stateport_request_cache_state(stateport_request_cache* cache, int64_t request, size_t group,
                                               stateport_group_plan* out) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const Out result(out, "out");
    require(group < held->groups, "group", group, "is out of range");
    const RowState state = held->cache->state(RequestId{request}, group);
    held->state.clear();
    held->state.add(0, state);
    result.write(held->state.view());
  });
}

stateport_status stateport_request_cache_reset(stateport_request_cache* cache) {
  return guarded([&] { HeldCache(cache, "cache")->cache->reset(); });
}

stateport_status stateport_request_cache_stats(stateport_request_cache* cache, stateport_cache_stats* out) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    Out(out, "out").write(to_c(held->cache->stats(), held->cache->usage()));
  });
}

stateport_status stateport_request_cache_prometheus(stateport_request_cache* cache, const char* prefix, char* text,
                                                    size_t capacity, size_t* bytes) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    write_text(text, capacity, bytes, [&] { return to_prometheus(*held->cache, prefix_of(prefix)); });
  });
}

stateport_status stateport_request_cache_take_events(stateport_request_cache* cache, stateport_cache_event* out,
                                                     size_t capacity, size_t* count) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const OutArray result(out, capacity, "out");
    std::size_t& reported = checked(count, "count");
    std::array<CacheEvent, events_at_once> events;
    std::size_t taken = 0;
    std::size_t got = 0;
    do {
      got = held->cache->take_events(std::span(events).first(std::min(events.size(), capacity - taken)));
      for (std::size_t i = 0; i < got; ++i) result.write(taken + i, to_c(events[i]));
      taken += got;
    } while (got > 0 && taken < capacity);
    reported = taken;
  });
}

stateport_status stateport_request_cache_check(stateport_request_cache* cache) {
  return guarded([&] { HeldCache(cache, "cache")->cache->check_invariants(); });
}
