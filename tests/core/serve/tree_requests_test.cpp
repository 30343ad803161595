// SPDX-License-Identifier: Apache-2.0
#include "tree_requests.hpp"

#include <stateport/core/model/error.hpp>

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

using namespace stateport;
using stateport::test::CheckpointStyle;
using stateport::test::Random;
using stateport::test::TreeRequests;

namespace {

using Tokens = std::vector<Token>;

Tokens iota_tokens(std::size_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

struct Pools {
  explicit Pools(std::int32_t slots, std::int64_t kv_indices, std::int32_t page = 1, std::int32_t chunk = 4)
      : tree({.page_size = page, .slots = slots, .chunk_size = chunk, .kv_indices = kv_indices + page}),
        kv(kv_indices, page) {}
  PrefixTree tree;
  KvPagePool kv;
};

/// An engine whose states are lists of the tokens that they have seen.
class Engine {
 public:
  Engine(Random& random, CheckpointStyle style, std::int32_t page)
      : random_(random),
        pools_(random.between32(1, 12), random.between(20, 120), page, random.between32(1, 6)),
        cache_(pools_.tree, pools_.kv, {.style = style, .track_interval = page * random.between(1, 4)}) {}

  void step() {
    const std::int64_t dice = random_.between(0, 9);
    if (running_.empty() || dice < 2) return start();
    const std::size_t pick =
        static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(running_.size()) - 1));
    std::swap(running_[pick], running_.back());
    Live& live = running_.back();
    if (dice < 6 && live.computed < live.prompt) return extend(live);
    if (dice < 8 && live.computed >= live.prompt) return decode(live);
    if (dice == 8) end();
  }

  void finish() {
    while (!running_.empty()) end();
    check();
    Freed freed;
    pools_.tree.evict({.tokens = pools_.kv.capacity()}, freed);
    CHECK(pools_.kv.available() + static_cast<std::int64_t>(freed.kv.size()) == pools_.kv.capacity());
    CHECK(pools_.tree.slots().free_slots() == pools_.tree.slots().capacity_slots());
  }

  void check() {
    cache_.check_invariants();
    std::int64_t held_kv = 0;
    for (const Live& live : running_) {
      // A page that is open at the end of a row is the request's as a whole.
      const std::int64_t page = pools_.tree.page_size();
      const auto row = static_cast<std::int64_t>(cache_.kv_row(live.id).size());
      held_kv += (row + page - 1) / page * page - cache_.protected_tokens(live.id);
    }
    REQUIRE(pools_.kv.available() + pools_.tree.sizes().total_tokens() + held_kv == pools_.kv.capacity());
    for (const NodeInfo& node : pools_.tree.nodes()) {
      if (!node.slot.valid()) continue;
      REQUIRE(pools_.tree.slots().tag(node.slot) == pools_.tree.state_tag(states_[node.slot], node.name_space));
    }
  }

 private:
  struct Live {
    RequestId id;
    std::int64_t prompt = 0;
    std::int64_t computed = 0;
  };

  void start() {
    Tokens prompt;
    if (!prompts_.empty() && random_.chance(60))
      prompt = prompts_[static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(prompts_.size()) - 1))];
    if (prompt.size() > 1 && random_.chance(40))
      prompt.resize(static_cast<std::size_t>(random_.between(1, static_cast<std::int64_t>(prompt.size()))));
    for (std::int64_t more = random_.between(prompt.empty() ? 1 : 0, 9); more > 0; --more)
      prompt.push_back(random_.between32(0, 2));
    if (prompt.size() > 40) prompt.resize(40);
    const TreeSizes before = pools_.tree.sizes();
    const auto started = cache_.start(prompt, {}, freed_);
    if (!started) {
      REQUIRE(pools_.tree.sizes().protected_tokens == before.protected_tokens);
      return;
    }
    prompts_.push_back(prompt);
    running_.push_back({started->request, static_cast<std::int64_t>(prompt.size()), started->prefix_tokens});
  }

  Tokens prefix(RequestId request, std::int64_t tokens) const {
    const auto all = cache_.tokens(request);
    return {all.begin(), all.begin() + tokens};
  }
  void note(const std::optional<TreeRequests::Track>& track, RequestId request) {
    if (track) states_[track->slot] = prefix(request, track->position);
  }

  void extend(Live& live) {
    const std::int64_t upto = random_.chance(40) ? live.prompt : random_.between(live.computed + 1, live.prompt);
    const auto plan = cache_.extend(live.id, upto, freed_);
    if (!plan) {
      REQUIRE(static_cast<std::int64_t>(cache_.kv_row(live.id).size()) == live.computed);
      return;
    }
    Tokens& state = states_[cache_.live_slot(live.id)];
    if (plan->clear) state.clear();
    if (plan->restore) state = states_.at(SlotId{plan->restore->src_slot});
    REQUIRE(plan->start == live.computed);
    REQUIRE(state == prefix(live.id, plan->start));  // the pass begins from the right state
    REQUIRE(plan->kv.size() == static_cast<std::size_t>(upto - plan->start));
    state = prefix(live.id, upto);
    if (plan->track) REQUIRE((plan->track->position >= live.computed && plan->track->position <= upto));
    live.computed = upto;
    note(plan->track, live.id);
    if (random_.chance(20)) return;
    const auto cached = cache_.cache_unfinished(live.id, upto < live.prompt, freed_);
    if (cached.checkpoint && cached.adopted)
      states_[SlotId{cached.checkpoint->dst_slot}] = states_.at(SlotId{cached.checkpoint->src_slot});
  }

  /// A pass over the last output token and drafts, of which some are kept; now and then it does not run.
  void decode(Live& live) {
    if (static_cast<std::int64_t>(cache_.tokens(live.id).size()) == live.computed) {
      const Tokens sampled = random_tokens(1);
      REQUIRE_FALSE(cache_.append(live.id, sampled, freed_));
      return;
    }
    const std::int64_t drafts = random_.chance(50) ? 0 : random_.between(1, 4);
    const auto plan = cache_.plan_decode(live.id, drafts, freed_);
    if (!plan) REQUIRE(static_cast<std::int64_t>(cache_.kv_row(live.id).size()) == live.computed);
    if (!plan || random_.chance(5)) return;
    REQUIRE(static_cast<std::int64_t>(plan->kv.size()) == 1 + drafts);
    const std::int64_t kept = random_.between(1, 1 + drafts);
    const Tokens sampled = random_tokens(kept);
    const bool tracked = cache_.append(live.id, sampled, freed_);
    live.computed += kept;
    REQUIRE(static_cast<std::int64_t>(cache_.kv_row(live.id).size()) == live.computed);
    REQUIRE(tracked == (plan->track && plan->track->position <= live.computed));
    states_[cache_.live_slot(live.id)] = prefix(live.id, live.computed);
    if (tracked) note(plan->track, live.id);
  }

  Tokens random_tokens(std::int64_t count) {
    Tokens tokens;
    while (std::ssize(tokens) < count) tokens.push_back(random_.between32(0, 2));
    return tokens;
  }

  void end() {
    const Tokens so_far = prefix(running_.back().id, running_.back().computed);
    if (random_.chance(70)) {
      cache_.finish(running_.back().id, freed_);
      if (!so_far.empty()) prompts_.push_back(so_far);
    } else {
      cache_.abort(running_.back().id, freed_);
    }
    running_.pop_back();
  }

  Random& random_;
  Pools pools_;
  TreeRequests cache_;
  Freed freed_;
  std::vector<Live> running_;
  std::vector<Tokens> prompts_;
  std::map<SlotId, Tokens> states_;
};

}  // namespace

TEST_CASE("a second turn starts from the end of the first") {
  Pools pools(8, 100);
  TreeRequests cache(pools.tree, pools.kv, {.style = CheckpointStyle::copy_live});
  Freed freed;
  const auto first = cache.start(iota_tokens(10), {}, freed);
  REQUIRE(first);
  CHECK_FALSE(first->restore);
  const auto plan = cache.extend(first->request, 10, freed);
  REQUIRE(plan);
  CHECK(plan->clear == first->live_slot);
  const auto cached = cache.cache_unfinished(first->request, false, freed);
  CHECK(cached.protected_tokens == 10);
  CHECK(cached.adopted);
  CHECK_FALSE(cache.append(first->request, Tokens{10}, freed));
  CHECK(cache.plan_decode(first->request, 0, freed)->kv.size() == 1);
  CHECK_FALSE(cache.append(first->request, Tokens{11}, freed));
  cache.finish(first->request, freed);

  const auto second = cache.start(iota_tokens(15), {}, freed);
  REQUIRE(second);
  CHECK(second->prefix_tokens == 11);
  CHECK(second->restore == SlotCopy::whole(first->live_slot, second->live_slot));
  CHECK(cache.extend(second->request, 15, freed)->restore == second->restore);
  cache.abort(second->request, freed);
  cache.check_invariants();
}

TEST_CASE("a request that is said to be the last of its kind is evicted before another that is not") {
  Pools pools(4, 1000);
  TreeRequests cache(pools.tree, pools.kv, {.style = CheckpointStyle::copy_live});
  Freed freed;
  const auto serve = [&](Token first, const ReuseHint& hint) {
    Tokens prompt(128, first);
    const auto started = cache.start(prompt, {}, freed);
    REQUIRE(started);
    REQUIRE(cache.extend(started->request, 128, freed));
    cache.finish(started->request, freed, hint);
  };
  serve(1, {.last_turn = true});
  serve(2, {});
  serve(3, {.last_turn = true});
  // Among states with equal hints, the least recently used is evicted first.
  for (const Token gone : {1, 3, 2}) {
    CHECK(pools.tree.evict({.states = 1}, freed).states == 1);
    CHECK(pools.tree.match(Tokens(128, gone), {}, {}, Lookup::again).tokens == 0);
  }
  CHECK(pools.tree.sizes().total_states() == 0);

  const auto started = cache.start(Tokens(8, 4), {}, freed);
  REQUIRE(started);
  CHECK_THROWS_AS(cache.finish(started->request, freed, {.factor = 0}), InvalidArgument);
  cache.abort(started->request, freed);
  cache.check_invariants();
}

TEST_CASE("the KV of drafts that are not kept is given back, and a track beyond the kept tokens does not count") {
  Pools pools(4, 40, 4);
  TreeRequests cache(pools.tree, pools.kv, {.track_interval = 8});
  Freed freed;
  const auto started = cache.start(iota_tokens(6), {}, freed);
  REQUIRE(cache.extend(started->request, 6, freed));
  CHECK_THROWS_AS(cache.plan_decode(started->request, 0, freed), InvalidState);
  CHECK_THROWS_AS(cache.append(started->request, Tokens{6, 7}, freed), InvalidArgument);
  CHECK_FALSE(cache.append(started->request, Tokens{6}, freed));
  CHECK_THROWS_AS(cache.append(started->request, Tokens{7}, freed), InvalidState);  // nothing was fed
  CHECK_THROWS_AS(cache.plan_decode(started->request, -1, freed), InvalidArgument);

  const auto plan = cache.plan_decode(started->request, 4, freed);
  REQUIRE(plan);
  CHECK(plan->kv.size() == 5);
  REQUIRE(plan->track);
  CHECK(plan->track->position == 8);
  CHECK(pools.kv.available() == 40 - 12);
  CHECK_THROWS_AS(cache.append(started->request, Tokens{}, freed), InvalidArgument);
  CHECK_THROWS_AS(cache.append(started->request, Tokens(6, 1), freed), InvalidArgument);
  CHECK_FALSE(cache.append(started->request, Tokens{7}, freed));
  CHECK(cache.kv_row(started->request).size() == 7);
  CHECK(pools.kv.available() == 40 - 8);

  REQUIRE(cache.plan_decode(started->request, 1, freed)->track);
  CHECK(cache.append(started->request, Tokens{8, 9}, freed));
  cache.check_invariants();
  REQUIRE(cache.plan_decode(started->request, 3, freed));
  cache.finish(started->request, freed);  // that pass did not run
  CHECK(pools.tree.sizes() == TreeSizes{8, 0, 1, 0});
  CHECK(pools.kv.available() == 40 - 8);
}

TEST_CASE("a request that cannot have its slots does not start") {
  Pools pools(2, 100);
  TreeRequests cache(pools.tree, pools.kv, {.track_interval = 4});
  Freed freed;
  CHECK_FALSE(cache.start(iota_tokens(4), {}, freed));
  CHECK(pools.tree.slots().free_slots() == 2);
  cache.check_invariants();
}

TEST_CASE("a request that cannot have its KV stays where it is") {
  Pools pools(4, 8);
  TreeRequests cache(pools.tree, pools.kv, {.track_interval = 4});
  Freed freed;
  const auto started = cache.start(iota_tokens(9), {}, freed);
  REQUIRE(started);
  CHECK_FALSE(cache.extend(started->request, 9, freed));
  CHECK(cache.kv_row(started->request).empty());
  REQUIRE(cache.extend(started->request, 8, freed));
  CHECK_FALSE(cache.extend(started->request, 9, freed));
  cache.abort(started->request, freed);
  CHECK(pools.kv.available() == 8);
}

TEST_CASE("a chunk that is shorter than the grid tracks the state that it begins with") {
  Pools pools(6, 40, 4, 6);  // grid 12
  TreeRequests cache(pools.tree, pools.kv, {.track_interval = 4});
  Freed freed;
  const auto started = cache.start(iota_tokens(20), {}, freed);
  CHECK(cache.extend(started->request, 8, freed)->track->position == 0);
  CHECK_FALSE(cache.cache_unfinished(started->request, true, freed).adopted);
  CHECK(cache.extend(started->request, 16, freed)->track->position == 8);
  CHECK(cache.cache_unfinished(started->request, true, freed).protected_tokens == 8);
}

TEST_CASE("a checkpoint without a slot is dropped and counted") {
  Pools pools(3, 20);
  TreeRequests cache(pools.tree, pools.kv, {.track_interval = 4});
  Freed freed;
  const auto started = cache.start(iota_tokens(8), {}, freed);
  REQUIRE(cache.extend(started->request, 8, freed)->track);
  CHECK_FALSE(cache.cache_unfinished(started->request, false, freed).adopted);
  CHECK(cache.dropped_checkpoints() == 1);
  cache.check_invariants();
}

/// Starts a request that hits an earlier request's prefix and has not run a pass yet.
static RequestId start_over_hit(TreeRequests& cache, Freed& freed) {
  const auto first = cache.start(iota_tokens(6), {}, freed);
  REQUIRE(cache.extend(first->request, 6, freed));
  cache.finish(first->request, freed);
  const auto second = cache.start(iota_tokens(8), {}, freed);
  REQUIRE(second->restore);
  return second->request;
}

TEST_CASE("a request that has not been restored donates nothing") {
  Pools pools(4, 40);
  TreeRequests cache(pools.tree, pools.kv, {.style = CheckpointStyle::copy_live});
  Freed freed;
  const RequestId second = start_over_hit(cache, freed);
  cache.finish(second, freed);  // its live slot holds anything
  CHECK(pools.tree.sizes() == TreeSizes{6, 0, 1, 0});
  CHECK(pools.tree.slots().free_slots() == 3);
}

TEST_CASE("a request that has not been restored donates nothing, even if its tree was reset meanwhile") {
  Pools pools(4, 40);
  TreeRequests cache(pools.tree, pools.kv, {.style = CheckpointStyle::copy_live});
  Freed freed;
  const RequestId second = start_over_hit(cache, freed);
  // The prefix comes back without its state: now the tree would take any state of it.
  freed.clear();
  pools.tree.reset(freed);
  pools.tree.release_slots(freed.slots);
  const Tokens prefix = iota_tokens(6);
  const std::vector<KvIndex> kv = freed.kv;
  pools.tree.insert({.tokens = prefix, .kv = kv}, freed);
  cache.finish(second, freed);
  CHECK(pools.tree.sizes() == TreeSizes{6, 0, 0, 0});
  CHECK(pools.tree.slots().free_slots() == 4);
  cache.check_invariants();
}

TEST_CASE("a request cache refuses bad input") {
  Pools pools(4, 40, 4);
  Freed freed;
  const auto options = [](CheckpointStyle style, std::int64_t interval) {
    return TreeRequests::Options{.style = style, .track_interval = interval};
  };
  CHECK_THROWS_AS(TreeRequests(pools.tree, pools.kv, options(CheckpointStyle::copy_live, 4)), InvalidArgument);
  CHECK_THROWS_AS(TreeRequests(pools.tree, pools.kv, options(CheckpointStyle::donate_tracked, 6)), InvalidArgument);
  CHECK_THROWS_AS(TreeRequests(pools.tree, pools.kv, options(CheckpointStyle::donate_tracked, 0)), InvalidArgument);
  KvPagePool other(40, 2);
  CHECK_THROWS_AS(TreeRequests(pools.tree, other, options(CheckpointStyle::donate_tracked, 4)), InvalidArgument);
  TreeRequests cache(pools.tree, pools.kv, options(CheckpointStyle::donate_tracked, 4));
  CHECK_THROWS_AS(cache.start({}, {}, freed), InvalidArgument);
  CHECK_THROWS_AS(cache.extend(RequestId{0}, 1, freed), InvalidArgument);
  const auto started = cache.start(iota_tokens(8), {}, freed);
  CHECK_THROWS_AS(cache.extend(started->request, 0, freed), InvalidArgument);
  CHECK_THROWS_AS(cache.extend(started->request, 9, freed), InvalidArgument);
  CHECK_THROWS_AS(cache.append(started->request, Tokens{1}, freed), InvalidState);
  CHECK_THROWS_AS(cache.plan_decode(started->request, 0, freed), InvalidState);
  CHECK_THROWS_AS(cache.finish(RequestId{1}, freed), InvalidArgument);
  CHECK_THROWS_AS(cache.finish(RequestId{}, freed), InvalidArgument);
  cache.finish(started->request, freed);
  CHECK_THROWS_AS(cache.abort(started->request, freed), InvalidArgument);
  const auto next = cache.start(iota_tokens(8), {}, freed);
  CHECK(next->request.index() == started->request.index());
  CHECK_THROWS_AS(cache.abort(started->request, freed), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(cache.tokens(started->request)), InvalidArgument);
  cache.abort(next->request, freed);
  CHECK_THROWS_AS(cache.abort(next->request, freed), InvalidArgument);
  CHECK(cache.start(iota_tokens(8), {}, freed)->request != next->request);
}

TEST_CASE("random request lives start from right states and leak nothing") {
  test::for_each_seed(2000, [](Random& random, std::uint64_t seed) {
    const bool copies = seed % 2 == 0;
    Engine engine(random, copies ? CheckpointStyle::copy_live : CheckpointStyle::donate_tracked,
                  copies ? 1 : random.between32(1, 4));
    for (int step = 0; step < 100; ++step) {
      CAPTURE(step);
      engine.step();
      engine.check();
    }
    engine.finish();
  });
}
