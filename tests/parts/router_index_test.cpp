// SPDX-License-Identifier: Apache-2.0
// The index of a router against a plain model.
#include <stateport/parts/router_index.hpp>

#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using namespace stateport;

namespace {

using Kind = CacheEvent::Kind;

PrefixHash router_prefix(std::uint64_t number) {
  return {{number % 5, number}};  // many with one first word
}

CacheEvent router_event(Kind kind, CacheContent content, std::uint64_t prefix, Medium medium = Medium::device,
                        std::int32_t group = 0) {
  return {.kind = kind, .content = content, .medium = medium, .group = group, .prefix = router_prefix(prefix)};
}
CacheEvent stored_kv(std::uint64_t prefix, Medium medium = Medium::device) {
  return router_event(Kind::stored, CacheContent::kv_block, prefix, medium);
}
CacheEvent stored_state(std::uint64_t prefix, Medium medium = Medium::device) {
  return router_event(Kind::stored, CacheContent::state, prefix, medium);
}

std::vector<RouterReach> find_in(RouterIndex& index, const std::vector<std::uint64_t>& blocks) {
  std::vector<PrefixHash> prefixes;
  for (const std::uint64_t block : blocks) prefixes.push_back(router_prefix(block));
  const auto found = index.find(prefixes);
  return {found.begin(), found.end()};
}

/// One worker as its events tell, block by block.
struct PlainWorker {
  using Content = std::tuple<std::uint64_t, int, int>;  // prefix, group of states (-1: KV), medium

  [[nodiscard]] bool has(std::uint64_t prefix, int group, int slowest) const {
    for (int medium = 0; medium <= slowest; ++medium)
      if (contents.contains({prefix, group, medium})) return true;
    return false;
  }
  [[nodiscard]] std::int32_t reach(const std::vector<std::uint64_t>& blocks, int slowest, int groups) const {
    std::int32_t best = 0;
    for (std::size_t end = 1; end <= blocks.size(); ++end) {
      if (!has(blocks[end - 1], -1, slowest)) break;
      bool usable = true;
      for (int group = 0; group < groups; ++group) usable = usable && has(blocks[end - 1], group, slowest);
      if (usable) best = static_cast<std::int32_t>(end);
    }
    return best;
  }

  std::set<Content> contents;
  std::vector<std::vector<CacheEvent>> sent;  ///< all messages since it joined; the first has the number `first`
  std::uint64_t first = 1;
  std::size_t heard = 0;  ///< messages, without a gap
  std::size_t came = 0;   ///< behind the last message that came
  bool joined = false;
};

class RouterWorld {
 public:
  RouterWorld(test::Random& random, std::int32_t workers, std::int32_t groups)
      : random_(random),
        groups_(groups),
        index_({.workers_max = workers, .prefixes_max = 1000, .blocks_max = 12, .state_groups = groups}),
        workers_(static_cast<std::size_t>(workers)) {}

  void step() {
    const std::int32_t number = random_.between32(0, static_cast<std::int32_t>(workers_.size()) - 1);
    PlainWorker& worker = workers_[static_cast<std::size_t>(number)];
    const std::int64_t what = random_.between(0, 99);
    if (!worker.joined || what == 0) {
      worker = {.first = static_cast<std::uint64_t>(random_.between(0, 5)), .joined = true};
      index_.join(number, worker.first);
    } else if (what == 1) {
      worker = {};
      index_.leave(number);
    } else if (what < 60) {
      send(number, worker);
    } else if (what < 70) {
      replay(number, worker);
    } else {
      check();
    }
  }

  void check() {
    std::vector<std::uint64_t> blocks;
    std::uint64_t prefix = 0;
    for (std::int64_t i = random_.between(0, 8); i > 0; --i)
      blocks.push_back(prefix = prefix * 3 + static_cast<std::uint64_t>(random_.between(1, 2)));
    std::vector<RouterReach> wanted;
    for (std::size_t number = 0; number < workers_.size(); ++number) {
      const PlainWorker& worker = workers_[number];
      const auto id = static_cast<std::int32_t>(number);
      const bool known = worker.joined && worker.heard >= worker.came;
      CHECK(index_.is_known(id) == known);
      CHECK(index_.next_sequence(id) == (worker.joined ? worker.first + worker.heard : 0));
      if (!known) continue;
      RouterReach reach{.worker = id};
      for (int medium = 0; medium < medium_count; ++medium)
        reach.blocks[static_cast<std::size_t>(medium)] = worker.reach(blocks, medium, groups_);
      if (reach.longest() > 0) wanted.push_back(reach);
      hits += reach.longest() > 0;
      slow_hits += reach.longest() > 0 && reach.medium() != Medium::device;
    }
    const std::uint64_t allocations = test::heap_allocations();
    std::array<PrefixHash, 8> prefixes;
    std::ranges::transform(blocks, prefixes.begin(), router_prefix);
    const auto found = index_.find(std::span(prefixes).first(blocks.size()));
    CHECK(test::heap_allocations() == allocations);
    CHECK(std::vector(found.begin(), found.end()) == wanted);
    std::set<std::uint64_t> held;
    for (const PlainWorker& worker : workers_)
      for (const auto& [prefix_number, group, medium] : worker.contents) held.insert(prefix_number);
    CHECK(index_.prefixes() == held.size());
    CHECK(index_.refused() == 0);
    index_.check_invariants();
  }

  std::int64_t hits = 0;
  std::int64_t slow_hits = 0;
  std::int64_t gaps = 0;
  std::int64_t replays = 0;

 private:
  /// A message of some events. It may be lost on its way.
  void send(std::int32_t number, PlainWorker& worker) {
    std::vector<CacheEvent>& message = worker.sent.emplace_back();
    for (std::int64_t i = random_.between(0, 4); i > 0; --i) message.push_back(random_event(worker));
    if (random_.chance(97)) hear(number, worker, worker.sent.size() - 1);
  }
  /// All messages from some place before the first missing one.
  void replay(std::int32_t number, PlainWorker& worker) {
    replays += worker.heard < worker.came;
    const auto from = static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(worker.heard)));
    for (std::size_t i = from; i < worker.sent.size(); ++i) hear(number, worker, i);
  }
  void hear(std::int32_t number, PlainWorker& worker, std::size_t message) {
    worker.came = std::max(worker.came, message + 1);
    const std::vector<CacheEvent>& events = worker.sent[message];
    const bool clears = std::ranges::find(events, Kind::cleared, &CacheEvent::kind) != events.end();
    if (message == worker.heard || (clears && message > worker.heard)) {
      for (const CacheEvent& event : events) apply(worker, event);
      worker.heard = message + 1;
    }
    gaps += message > worker.heard;
    const std::uint64_t allocations = test::heap_allocations();
    const bool known = index_.hear(number, worker.first + message, events);
    CHECK(test::heap_allocations() == allocations);
    CHECK(known == (worker.heard >= worker.came));
  }
  static void apply(PlainWorker& worker, const CacheEvent& event) {
    if (event.kind == Kind::cleared) return worker.contents.clear();
    const PlainWorker::Content content = {
        event.prefix.words[1], event.content == CacheContent::state ? event.group : -1, static_cast<int>(event.medium)};
    if (event.kind == Kind::stored)
      worker.contents.insert(content);
    else
      worker.contents.erase(content);
  }
  CacheEvent random_event(const PlainWorker& worker) {
    if (random_.chance(1)) return {};
    if (!worker.contents.empty() && random_.chance(30)) {
      auto held = worker.contents.begin();
      std::advance(held, random_.between(0, std::ssize(worker.contents) - 1));
      const auto& [prefix, group, medium] = *held;
      return router_event(Kind::removed, group < 0 ? CacheContent::kv_block : CacheContent::state, prefix,
                          static_cast<Medium>(medium), std::max(group, 0));
    }
    std::uint64_t prefix = 0;
    for (std::int64_t i = random_.between(1, 6); i > 0; --i)
      prefix = prefix * 3 + static_cast<std::uint64_t>(random_.between(1, 2));
    const auto medium = static_cast<Medium>(random_.chance(50) ? 0 : random_.between(0, medium_count - 1));
    const bool is_state = groups_ > 0 && random_.chance(40);
    return router_event(random_.chance(95) ? Kind::stored : Kind::removed,
                        is_state ? CacheContent::state : CacheContent::kv_block, prefix, medium,
                        is_state ? random_.between32(0, groups_ - 1) : 0);
  }

  test::Random& random_;
  std::int32_t groups_;
  RouterIndex index_;
  std::vector<PlainWorker> workers_;
};

}  // namespace

TEST_CASE("random events of many workers are answered as a plain model says, and no call allocates") {
  std::int64_t hits = 0;
  std::int64_t slow_hits = 0;
  std::int64_t gaps = 0;
  std::int64_t replays = 0;
  std::int64_t runs = 0;
  test::for_each_seed(400, [&](test::Random& random, std::uint64_t) {
    RouterWorld world(random, random.chance(80) ? random.between32(1, 6) : random.between32(60, 200),
                      random.between32(0, 2));
    for (std::int64_t i = random.between(10, 400); i > 0; --i) world.step();
    world.check();
    hits += world.hits;
    slow_hits += world.slow_hits;
    gaps += world.gaps;
    replays += world.replays;
    ++runs;
  });
  MESSAGE(hits << " hits, " << slow_hits << " of them below the device; " << gaps << " gaps, " << replays
               << " replays");
  CHECK(hits > 10 * runs);
  CHECK(slow_hits > runs);
  CHECK(gaps > runs / 2);
  CHECK(replays > runs / 4);
}

TEST_CASE("a worker reuses a prompt up to its last state that has all KV before it") {
  RouterIndex index({.workers_max = 3});
  for (const std::int32_t worker : {0, 1, 2}) index.join(worker);
  CHECK(index.hear(0, 1, std::array{stored_kv(1), stored_kv(2), stored_kv(3), stored_state(2)}));
  CHECK(index.hear(1, 1, std::array{stored_kv(1), stored_kv(2, Medium::file), stored_state(2, Medium::host)}));
  CHECK(index.hear(2, 1, std::array{stored_kv(1), stored_kv(3), stored_state(3)}));  // KV is missing
  CHECK(find_in(index, {1, 2, 3}) ==
        std::vector<RouterReach>{{.worker = 0, .blocks = {2, 2, 2, 2}}, {.worker = 1, .blocks = {0, 0, 2, 2}}});
  CHECK(find_in(index, {1, 2, 3})[1].medium() == Medium::file);
  CHECK(index.hear(1, 2, std::array{stored_state(1)}));
  CHECK(find_in(index, {1, 2})[1] == RouterReach{.worker = 1, .blocks = {1, 1, 2, 2}});
  CHECK(find_in(index, {1})[0] == RouterReach{.worker = 1, .blocks = {1, 1, 1, 1}});
  CHECK(find_in(index, {2, 3}).empty() == false);  // a prefix is named with all before it: the caller's blocks count
  index.leave(0);
  CHECK(find_in(index, {1, 2, 3}).size() == 1);
}

TEST_CASE("events with numbers of their own leave a gap, and cleared ends it") {
  RouterIndex index({.workers_max = 1});
  index.join(0, 7);
  std::array events = {stored_kv(1), stored_state(1), stored_kv(2)};
  events[0].sequence = 7;
  events[1].sequence = 8;
  events[2].sequence = 10;
  CHECK_FALSE(index.hear(0, events));
  CHECK(index.next_sequence(0) == 9);
  CHECK(find_in(index, {1}).empty());
  CacheEvent cleared;
  cleared.sequence = 12;
  CHECK(index.hear(0, std::array{cleared}));
  CHECK(index.prefixes() == 0);
  CHECK(index.next_sequence(0) == 13);
}

TEST_CASE("a full index refuses prefixes, counts them, and takes others when there is room") {
  RouterIndex index({.workers_max = 1, .prefixes_max = 2, .blocks_max = 2});
  index.join(0);
  index.hear(0, 1, std::array{stored_kv(1), stored_state(1), stored_kv(2), stored_kv(3), stored_state(3)});
  CHECK(index.refused() == 2);
  CHECK(find_in(index, {1, 2})[0].longest() == 1);
  index.hear(0, 2, std::array{router_event(Kind::removed, CacheContent::kv_block, 2), stored_kv(4), stored_state(4)});
  CHECK(index.refused() == 2);
  CHECK(find_in(index, {1, 4, 4})[0].longest() == 2);  // blocks_max
  index.check_invariants();
}

TEST_CASE("a router's index refuses what it has no room for, and changes nothing") {
  CHECK_THROWS_WITH_AS(RouterIndex({.workers_max = 0}), "workers_max = 0 (must be from 1 to 65536)", InvalidArgument);
  CHECK_THROWS_WITH_AS(RouterIndex({.prefixes_max = 0}), "prefixes_max = 0 (must be from 1 to 2^31)", InvalidArgument);
  CHECK_THROWS_WITH_AS(RouterIndex({.blocks_max = 0}), "blocks_max = 0 (must be from 1 to 2^24)", InvalidArgument);
  CHECK_THROWS_WITH_AS(RouterIndex({.state_groups = 16}), "state_groups = 16 (must be from 0 to 15)", InvalidArgument);
  RouterIndex index({.workers_max = 2});
  CHECK_THROWS_WITH_AS(index.join(2), "worker = 2 (must be from 0 to workers_max - 1)", InvalidArgument);
  CHECK_THROWS_WITH_AS(index.hear(1, 1, {}), "worker = 1 (has not joined)", InvalidArgument);
  index.join(1);
  const std::array events = {stored_kv(1), router_event(Kind::stored, CacheContent::state, 1, Medium::device, 1)};
  CHECK_THROWS_WITH_AS(index.hear(1, 1, events), "group = 1 (must be from 0 to state_groups - 1)", InvalidArgument);
  CHECK(index.next_sequence(1) == 1);
  CHECK(index.prefixes() == 0);
}
