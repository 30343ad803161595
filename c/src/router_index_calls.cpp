// SPDX-License-Identifier: Apache-2.0
// The contents of the caches of many workers, for a router.
#include <stateport/c/router_index.h>
#include <stateport/parts/router_index.hpp>

#include "arguments.hpp"
#include "guard.hpp"
#include "handle_table.hpp"
#include "transfers.hpp"

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

using namespace stateport;
using namespace stateport::c;

namespace {

static_assert(sizeof(stateport_router_reach) == 24 &&
              sizeof(stateport_router_reach::blocks) == medium_count * sizeof(std::int32_t));

struct RouterObject final : Object {
  static constexpr Kind kind = Kind::router_index;
  explicit RouterObject(const RouterIndexOptions& options) : Object(kind), index(options) {}

  RouterIndex index;
  // Of the last call.
  std::vector<CacheEvent> events;
  std::vector<PrefixHash> prefixes;
};

using HeldRouter = Held<RouterObject>;

std::size_t size_of(std::int64_t given, std::size_t usual, const char* argument) {
  require(given >= 0, argument, given, "must not be negative");
  return given == 0 ? usual : static_cast<std::size_t>(given);
}

RouterIndexOptions read_options(const stateport_router_options* options) {
  const auto given = read_struct<stateport_router_options>(options, "options");
  RouterIndexOptions wanted{.state_groups = given.state_groups};
  if (given.workers_max != 0) wanted.workers_max = given.workers_max;
  wanted.prefixes_max = size_of(given.prefixes_max, wanted.prefixes_max, "prefixes_max");
  wanted.blocks_max = size_of(given.blocks_max, wanted.blocks_max, "blocks_max");
  return wanted;
}

CacheEvent from_c(const stateport_cache_event& event) {
  return {.sequence = event.sequence,
          .kind = enumerator(event.kind, CacheEvent::Kind::cleared, "kind"),
          .content = enumerator(event.content, CacheContent::state, "content"),
          .medium = medium_from_c(event.medium, "medium"),
          .group = event.group,
          .prefix = {{event.prefix[0], event.prefix[1]}},
          .parent = {{event.parent[0], event.parent[1]}},
          .tokens = event.tokens};
}

/// Calls `take(index, events)` and answers whether the worker is known.
template <class Take>
stateport_status hear(stateport_router_index* index, const stateport_cache_event* events, std::size_t count,
                      stateport_flag* known, Take&& take) {
  return guarded([&] {
    const HeldRouter held(index, "index");
    stateport_flag& result = checked(known, "known");
    held->events.clear();
    for (const stateport_cache_event& event : read_structs(events, count, "events"))
      held->events.push_back(from_c(event));
    result = take(held->index, std::span<const CacheEvent>(held->events)) ? 1 : 0;
  });
}

}  // namespace

stateport_status stateport_router_index_create(const stateport_router_options* options, stateport_router_index** out) {
  return guarded([&] { create(out, [&] { return std::make_shared<RouterObject>(read_options(options)); }); });
}

stateport_status stateport_router_index_destroy(stateport_router_index* index) {
  return guarded([&] { destroy<RouterObject>(index, "index"); });
}

stateport_status stateport_router_index_check(stateport_router_index* index) {
  return guarded([&] { HeldRouter(index, "index")->index.check_invariants(); });
}

stateport_status stateport_router_index_join(stateport_router_index* index, int32_t worker, uint64_t next_sequence) {
  return guarded([&] { HeldRouter(index, "index")->index.join(worker, next_sequence); });
}

stateport_status stateport_router_index_leave(stateport_router_index* index, int32_t worker) {
  return guarded([&] { HeldRouter(index, "index")->index.leave(worker); });
}

stateport_status stateport_router_index_hear(stateport_router_index* index, int32_t worker,
                                             const stateport_cache_event* events, size_t count, stateport_flag* known) {
  return hear(index, events, count, known,
              [&](RouterIndex& of, std::span<const CacheEvent> heard) { return of.hear(worker, heard); });
}

stateport_status stateport_router_index_hear_message(stateport_router_index* index, int32_t worker, uint64_t sequence,
                                                     const stateport_cache_event* events, size_t count,
                                                     stateport_flag* known) {
  return hear(index, events, count, known,
              [&](RouterIndex& of, std::span<const CacheEvent> heard) { return of.hear(worker, sequence, heard); });
}

stateport_status stateport_router_index_worker(stateport_router_index* index, int32_t worker, uint64_t* next_sequence,
                                               stateport_flag* known) {
  return guarded([&] {
    const HeldRouter held(index, "index");
    std::uint64_t& next = checked(next_sequence, "next_sequence");
    stateport_flag& is_known = checked(known, "known");
    next = held->index.next_sequence(worker);
    is_known = held->index.is_known(worker) ? 1 : 0;
  });
}

stateport_status stateport_router_index_find(stateport_router_index* index, const uint64_t* prefixes, size_t blocks,
                                             stateport_router_reach* out, size_t capacity, size_t* count) {
  return guarded([&] {
    const HeldRouter held(index, "index");
    const std::uint64_t* const words = array(prefixes, blocks, "prefixes").data();
    const std::span room = array(out, capacity, "out");
    std::size_t& reported = checked(count, "count");
    held->prefixes.resize(blocks);
    for (std::size_t i = 0; i < blocks; ++i) held->prefixes[i] = {{words[2 * i], words[2 * i + 1]}};
    const std::span<const RouterReach> found = held->index.find(held->prefixes);
    for (std::size_t i = 0; i < std::min(found.size(), capacity); ++i) {
      room[i] = {.worker = found[i].worker, .medium = static_cast<std::int32_t>(found[i].medium()), .blocks = {}};
      std::ranges::copy(found[i].blocks, room[i].blocks);
    }
    reported = found.size();
  });
}

stateport_status stateport_router_index_usage(stateport_router_index* index, stateport_router_usage* out) {
  return guarded([&] {
    const HeldRouter held(index, "index");
    const Out result(out, "out");
    result.write({.prefixes = static_cast<std::int64_t>(held->index.prefixes()),
                  .refused = static_cast<std::int64_t>(held->index.refused())});
  });
}
