// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "arena_world.hpp"
#include "combination.hpp"
#include "random_engine.hpp"
#include "serve_alone.hpp"
#include "tier_server.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace stateport;
using namespace stateport::test;

namespace {

enum class Damaged : std::uint8_t { device, tiers, arena, forks, weights };

/// Images of a remote store cannot be withdrawn.
TierOptions local_tiers(Random& random, const RequestCacheOptions& options) {
  TierOptions tiers = random_tiers(random, options);
  if (tiers.remote_bytes > 0) {
    tiers.host_bytes += tiers.remote_bytes;
    tiers.remote_bytes = 0;
    tiers.write_through = tiers.write_through && tiers.file_bytes > 0;
  }
  return tiers;
}

using CheckedPrompt = StateWorld::Tokens;

RequestCacheOptions checked_cache(Combination index) {
  RequestCacheOptions options = small_cache(index);
  options.integrity = true;
  return options;
}

std::vector<StateCheck> taken(RequestCache& cache) {
  const CheckPlan checks = cache.integrity()->take();
  return {checks.begin(), checks.end()};
}

/// Computes a prompt and ends its request; answers all checks.
std::vector<StateCheck> serve_checked(RequestCache& cache, const CheckedPrompt& prompt) {
  const RequestId request = cache.start({.tokens = prompt}).value().request;
  finish_prompt(cache, request, std::ssize(prompt));
  return taken(cache);
}

/// Its hit has another content than was published.
StateFault changed(const StateCheck& check) {
  return {.kind = StateFault::Kind::changed, .tensor = 0, .check = check};
}

}  // namespace

TEST_CASE("a checkpoint is checked when it is published, and in the first pass of each request that reads it") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(checked_cache(index));
    const std::size_t groups = group_count(cache->options());
    const CheckedPrompt prompt = counting(49);
    const RequestId first = cache->start({.tokens = prompt}).value().request;
    CHECK(taken(*cache).empty());
    std::vector<StateCheck> published;
    for (std::int64_t left = 49; left > 0;) {
      const PassRow row{.request = first, .tokens = static_cast<std::int32_t>(cache->chunk(first, left).tokens)};
      const PassPlan plan = cache->plan({&row, 1});
      CHECK(taken(*cache).empty());
      constexpr std::int32_t none = 0;
      const PassCommit commit = cache->commit(plan.pass, {&none, 1}, {});
      left -= row.tokens;
      const std::vector<StateCheck> checks = taken(*cache);
      for (const StateCheck& check : checks) {
        CHECK(check.kind == StateCheck::Kind::published);
        CHECK(check.request == first);
        CHECK(check.pass == plan.pass);
        CHECK(std::ranges::find(published, check.content, &StateCheck::content) == published.end());
        published.push_back(check);
      }
      if (!by_tokens(index) || !in_columns(index)) CHECK(std::ssize(checks) == commit.published_states);
    }
    cache->finish(first);
    CHECK(published.size() >= groups);
    CHECK(cache->integrity()->usage().published == std::ssize(published));
    static_cast<void>(taken(*cache));

    for (int readers = 1; readers <= 2; ++readers) {
      const StartedRequest second = cache->start({.tokens = prompt}).value();
      REQUIRE(second.reused_tokens == 48);
      CHECK(taken(*cache).empty());
      const PassRow row{.request = second.request, .tokens = 1};
      const PassPlan plan = cache->plan({&row, 1});
      const std::vector<StateCheck> read = taken(*cache);
      REQUIRE(read.size() == groups);
      for (std::size_t g = 0; g < groups; ++g) {
        CHECK(read[g].kind == StateCheck::Kind::read);
        CHECK(read[g].group == static_cast<std::int32_t>(g));
        CHECK(read[g].slot == cache->places(second.request, g).state);
        CHECK(read[g].request == second.request);
        CHECK(read[g].pass == plan.pass);
        const auto same = std::ranges::find(published, read[g].content, &StateCheck::content);
        REQUIRE(same != published.end());
        CHECK(same->slot == read[g].slot);
      }
      constexpr std::int32_t none = 0;
      static_cast<void>(cache->commit(plan.pass, {&none, 1}, {}));
      cache->finish(second.request);
      CHECK(taken(*cache).empty());
      CHECK(cache->integrity()->usage().reads == readers * std::ssize(read));
    }
    CHECK(cache->integrity()->usage().unchecked_states == 0);
  }
}

TEST_CASE("without the option there are no checks") {
  for (const Combination index : every_combination)
    CHECK(make_request_cache(small_cache(index))->integrity() == nullptr);
}

TEST_CASE("a checkpoint that was withdrawn is found no more, and can be made again") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(checked_cache(index));
    const CheckedPrompt prompt = counting(49);
    const std::vector<StateCheck> published = serve_checked(*cache, prompt);
    const std::int64_t kv_tokens = cache->usage().kv_tokens;
    const RequestId holder = cache->start({.tokens = prompt}).value().request;
    REQUIRE(cache->computed(holder) == 48);
    const HitPlaces hit = cache->places(holder);
    const auto wrong = std::ranges::find(published, hit.state, &StateCheck::slot);
    REQUIRE(wrong != published.end());
    const StateFault fault = changed(*wrong);
    CHECK(cache->integrity()->withdraw({&fault, 1}) == 1);
    cache->check_invariants();
    CHECK(cache->usage().kv_tokens == kv_tokens);
    CHECK(cache->usage().evicted_states == 0);

    // The request that holds it reads it still, with a check, and nobody else has its place.
    const RequestId other = cache->start({.tokens = prompt}).value().request;
    CHECK(cache->computed(other) < 48);
    finish_prompt(*cache, other, 49);
    CHECK(cache->places(holder).state == hit.state);
    const std::vector<StateCheck> again = taken(*cache);
    for (const StateCheck& check : again) CHECK((check.slot != hit.state || check.group != wrong->group));
    const PassRow row{.request = holder, .tokens = 1};
    const PassPlan plan = cache->plan({&row, 1});
    const std::vector<StateCheck> read = taken(*cache);
    CHECK(std::ranges::find(read, wrong->content, &StateCheck::content) != read.end());
    cache->cancel(plan.pass);

    // It was made again while the wrong one was held.
    const RequestId later = cache->start({.tokens = prompt}).value().request;
    CHECK(cache->computed(later) == 48);
    CHECK(cache->places(later).state != hit.state);
    CHECK(cache->integrity()->withdraw({&fault, 1}) == 0);
    CHECK(cache->places(later).tokens == 48);
    static_cast<void>(cache->end(later, RequestEnd::aborted));
    static_cast<void>(cache->preempt(holder));
    cache->check_invariants();
    const IntegrityUsage& usage = cache->integrity()->usage();
    CHECK(usage.withdrawn_states == 1);
    CHECK(usage.faults == std::array<std::int64_t, 3>{2, 0, 0});
    cache->reset();
    cache->check_invariants();
    CHECK(cache->usage().states == 0);
  }
}

TEST_CASE("nobody gets the place of a checkpoint that was withdrawn before its last reader has ended") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(checked_cache(index));
    const std::vector<StateCheck> published = serve_checked(*cache, counting(49));
    const RequestId holder = cache->start({.tokens = counting(49)}).value().request;
    const SlotId place = cache->places(holder).state;
    const auto is_there = [&](const StateCheck& check) { return check.group == 0 && check.slot == place; };
    const auto wrong = std::ranges::find_if(published, is_there);
    REQUIRE(wrong != published.end());
    const StateFault fault = changed(*wrong);
    REQUIRE(cache->integrity()->withdraw({&fault, 1}) == 1);
    const auto is_taken = [&] {
      bool taken = false;
      for (Token first = 1000; first < 9000; first += 100)
        taken |= std::ranges::any_of(serve_checked(*cache, counting(49, first)), is_there);
      return taken;
    };
    CHECK_FALSE(is_taken());
    static_cast<void>(cache->preempt(holder));
    CHECK(is_taken());
    finish_prompt(*cache, cache->start({.tokens = counting(49)}).value().request, 49);
    cache->reset();
    CHECK(taken(*cache).empty());
  }
}

TEST_CASE("a checkpoint that was withdrawn is not stored, and leaves the tiers that have it") {
  for (const Combination index : every_combination)
    for (const bool is_stored : {false, true}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(is_stored);
      TierOptions tiers{.host_bytes = 4000};
      if (is_stored) tiers = {.file_bytes = 4000, .write_through = true};
      RequestCacheOptions options = small(index, tiers);
      set_checkpoints(options, 6, 24);
      options.integrity = true;
      Server server(options);
      const CheckedPrompt prompt = prompt_of(34, 0);
      server.serve(prompt);
      server.serve(prompt_of(34, 5000));  // a later call writes the states of the one before through
      server.move();
      const CheckPlan checks = server.cache->integrity()->take();
      std::vector<StateFault> faults;
      for (const StateCheck& check : checks)
        if (check.kind == StateCheck::Kind::published) faults.push_back(changed(check));
      const std::int64_t states = server.cache->tiers()->usage(Medium::file).states;
      CHECK((states > 0) == is_stored);
      CHECK(server.cache->integrity()->withdraw(faults) > 0);
      server.move();
      CHECK(server.cache->tiers()->usage(Medium::file).states < std::max<std::int64_t>(states, 1));
      push_down(server);
      CHECK_FALSE(server.serve(prompt).load);
    }
}

TEST_CASE("what a transfer stores is checked, and a wrong image leaves its tier") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = small(index, {.host_bytes = 4000});
    options.integrity = true;
    Server server(options);
    const CheckedPrompt prompt = prompt_of(34, 0);
    server.serve(prompt);
    std::vector<StateCheck> published = taken(*server.cache);
    std::vector<StateFault> faults;
    for (Token first = 1000; first < 1800; first += 100) {
      server.serve(prompt_of(33, first));
      const std::vector<StateCheck> checks = taken(*server.cache);
      // The slots of these may be published anew in the same answer.
      CHECK(std::ranges::is_partitioned(checks, [](const StateCheck& check) { return !check.request.valid(); }));
      for (const StateCheck& check : checks) {
        if (check.kind == StateCheck::Kind::published || check.request.valid()) continue;
        CHECK(check.pass == 0);
        if (std::ranges::find(published, check.content, &StateCheck::content) != published.end())
          faults.push_back(changed(check));
      }
    }
    REQUIRE(!faults.empty());
    const std::int64_t states = server.cache->tiers()->usage(Medium::host).states;
    CHECK(server.cache->integrity()->withdraw(faults) == 0);  // the device has it no more
    server.move();
    CHECK(server.cache->tiers()->usage(Medium::host).states < states);
    CHECK_FALSE(server.serve(prompt).load);
  }
}

TEST_CASE("a pin of a checkpoint ends when that is withdrawn") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = checked_cache(index);
    options.prefixes = {.pins = 2, .pinned_bytes = 100};
    options.memory = {.state_bytes = 1, .kv_bytes_per_token = 1};
    const auto cache = make_request_cache(options);
    const std::vector<StateCheck> published = serve_checked(*cache, counting(49));
    const PinnedPrefix pinned = cache->prefixes()->pin({.tokens = counting(49)});
    REQUIRE(pinned.tokens == 48);
    std::vector<StateFault> faults;
    for (const StateCheck& check : published) faults.push_back(changed(check));
    CHECK(cache->integrity()->withdraw(faults) > 0);
    CHECK(cache->prefixes()->usage().pins == 0);
    CHECK_FALSE(cache->prefixes()->unpin(pinned.pin));
    cache->check_invariants();
    CHECK(cache->computed(cache->start({.tokens = counting(49)}).value().request) == 0);
  }
}

TEST_CASE("a withdrawal refuses what cannot be, and changes nothing") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(checked_cache(index));
    const StateCheck right = serve_checked(*cache, counting(49)).front();
    const auto refuses = [&](const char* name, auto change) {
      std::vector<StateFault> faults = {changed(right), changed(right)};
      change(faults[1]);
      try {
        cache->integrity()->withdraw(faults);
        FAIL("accepted");
      } catch (const InvalidArgument& error) {
        CHECK(std::string(error.what()).starts_with(name));
      }
    };
    refuses("faults.kind = 3", [](StateFault& fault) { fault.kind = static_cast<StateFault::Kind>(3); });
    refuses("faults.check.group = -1", [](StateFault& fault) { fault.check.group = -1; });
    refuses("faults.check.group = 2", [](StateFault& fault) { fault.check.group = 2; });
    refuses("faults.check.slot = -1", [](StateFault& fault) { fault.check.slot = SlotId{-1}; });
    refuses("faults.check.slot = 2147483647",
            [](StateFault& fault) { fault.check.slot = SlotId{std::numeric_limits<std::int32_t>::max()}; });
    CHECK(cache->integrity()->usage().faults == std::array<std::int64_t, 3>{});
    CHECK(cache->computed(cache->start({.tokens = counting(49)}).value().request) == 48);
  }
}

TEST_CASE("checkpoints beyond the list of checks stay without checks, and are counted") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(checked_cache(index));
    for (Token first = 0; first < 2'000'000 && cache->integrity()->usage().unchecked_states == 0; first += 100) {
      const RequestId request = cache->start({.tokens = counting(49, first)}).value().request;
      finish_prompt(*cache, request, 49);
    }
    CHECK(cache->integrity()->usage().unchecked_states > 0);
    const CheckedPrompt last = counting(49, 5'000'000);
    finish_prompt(*cache, cache->start({.tokens = last}).value().request, 49);
    // Of each place the last one is checked.
    const std::vector<StateCheck> checks = taken(*cache);
    CHECK(!checks.empty());
    std::set<std::pair<std::int32_t, SlotId>> places;
    for (const StateCheck& check : checks) CHECK(places.insert({check.group, check.slot}).second);
    const RequestId again = cache->start({.tokens = last}).value().request;
    REQUIRE(cache->computed(again) == 48);
    const PassRow row{.request = again, .tokens = 1};
    const PassPlan plan = cache->plan({&row, 1});
    CHECK(taken(*cache).empty());  // its publication found no room
    cache->cancel(plan.pass);
  }
}

TEST_CASE("the end of a pin may evict what is withdrawn") {
  for (const Combination index : slot_combinations)
    for (const EvictionOrder order : {EvictionOrder::lru, EvictionOrder::hix})
      for (const std::int64_t budget : {60, 100, 150, 200}) {
        CAPTURE(static_cast<int>(index));
        CAPTURE(budget);
        RequestCacheOptions options = checked_cache(index);
        options.eviction = order;
        options.memory = {.state_bytes = 10, .kv_bytes_per_token = 1};
        options.prefixes = {.pins = 2, .pinned_bytes = 1000};
        slots(options).budget_bytes = budget;
        slots(options).placement = CheckpointPlacement::last;
        const auto cache = make_request_cache(options);
        const std::vector<StateCheck> published = serve_checked(*cache, counting(33));
        if (cache->prefixes()->pin({.tokens = counting(33)}).pin == 0) continue;
        std::int64_t prompt = 90;
        for (const Token first : {5000, 9000}) {
          const RequestId request =
              cache->start({.tokens = counting(static_cast<std::int32_t>(prompt), first)})->request;
          const PassRow row{.request = request,
                            .tokens = static_cast<std::int32_t>(cache->chunk(request, prompt).tokens)};
          constexpr std::int32_t none = 0;
          const PassPlan plan = cache->plan({&row, 1});
          static_cast<void>(cache->commit(plan.pass, {&none, 1}, {}));
          prompt -= 30;
        }
        const StateFault fault = changed(published.back());
        CHECK_NOTHROW(cache->integrity()->withdraw({&fault, 1}));
        CHECK(cache->prefixes()->usage().pins == 0);
        cache->check_invariants();
        // Evictions count again.
        const std::int64_t evicted = cache->usage().evicted_states;
        for (Token first = 20'000; first < 40'000; first += 1000) serve_checked(*cache, counting(33, first));
        CHECK(cache->usage().evicted_states > evicted);
      }
}

TEST_CASE("a load of KV for a state that was withdrawn meanwhile brings no hit") {
  RequestCacheOptions options = checked_cache(Combination::hash_columns);
  options.max_request_tokens = 48;
  options.kv_tokens = 96;
  options.memory = {.state_bytes = 10, .kv_bytes_per_token = 1};
  columns(options).groups.resize(1);
  columns(options).groups[0].blocks = 60;
  options.tiers = {.host_bytes = 100'000};
  Server server(options);
  const CheckedPrompt prompt = prompt_of(37, 0);
  server.serve(prompt);
  std::vector<StateFault> faults;
  for (const StateCheck& check : taken(*server.cache))
    if (check.kind == StateCheck::Kind::published) faults.push_back(changed(check));
  for (Token first = 1000; first < 4000; first += 1000) server.serve(prompt_of(37, first));
  static_cast<void>(taken(*server.cache));
  const StartedRequest started = server.start({.tokens = prompt}).value();
  REQUIRE(started.load);
  CHECK(server.cache->integrity()->withdraw(faults) > 0);
  server.move();
  CHECK(server.cache->computed(started.request) == 0);
  for (const StateCheck& check : taken(*server.cache)) CHECK(check.kind != StateCheck::Kind::published);
  static_cast<void>(server.cache->preempt(started.request));
  CHECK(server.cache->computed(server.start({.tokens = prompt}).value().request) == 0);
  server.cache->check_invariants();
}

TEST_CASE("a plan that does not run leaves no checks") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(checked_cache(index));
    serve_checked(*cache, counting(49));
    const RequestId request = cache->start({.tokens = counting(49)}).value().request;
    const PassRow row{.request = request, .tokens = 1};
    cache->cancel(cache->plan({&row, 1}).pass);
    CHECK(taken(*cache).empty());
    static_cast<void>(cache->plan({&row, 1}));
    const PassPlan plan = cache->plan({&row, 1});  // replaces the one before
    const std::vector<StateCheck> checks = taken(*cache);
    CHECK(checks.size() == group_count(cache->options()));
    for (const StateCheck& check : checks) CHECK(check.pass == plan.pass);
  }
}

TEST_CASE("the slot of a withdrawn state is free when the last request that reads it ends") {
  RequestCacheOptions options = checked_cache(Combination::tree_slots);
  options.max_requests = 1;
  slots(options).checkpoints = 1;
  slots(options).placement = CheckpointPlacement::last;
  const auto cache = make_request_cache(options);
  const CheckedPrompt prompt = counting(33);
  serve_checked(*cache, prompt);
  for (int round = 0; round < 3; ++round) {
    const RequestId reader = cache->start({.tokens = prompt}).value().request;
    REQUIRE(cache->computed(reader) == 32);
    const PassRow row{.request = reader, .tokens = 1};
    const PassPlan plan = cache->plan({&row, 1});
    const StateFault fault = changed(taken(*cache).front());
    cache->cancel(plan.pass);
    CHECK(cache->integrity()->withdraw({&fault, 1}) == 1);
    static_cast<void>(cache->preempt(reader));
    CHECK(cache->usage().states == 0);
    CHECK(!serve_checked(*cache, prompt).empty());
    CHECK(cache->usage().states == 1);
  }
}

TEST_CASE("withdrawn checkpoints do not count as evicted") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(checked_cache(index));
    std::vector<StateFault> faults;
    for (const StateCheck& check : serve_checked(*cache, counting(49))) faults.push_back(changed(check));
    CHECK(cache->integrity()->withdraw(faults) > 0);
    CHECK(cache->usage().evicted_states == 0);
    CHECK(cache->usage().states == 0);
  }
}

TEST_CASE("a refresh that finds a withdrawn checkpoint made anew counts no second hit") {
  for (const Combination index : slot_combinations) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(checked_cache(index));
    const auto withdraw = [&](const StateFault& fault) { CHECK(cache->integrity()->withdraw({&fault, 1}) == 1); };
    const StateFault first = changed(serve_checked(*cache, counting(33)).back());
    const CheckedPrompt longer = counting(49);
    const RequestId waiting = cache->start({.tokens = longer}).value().request;
    REQUIRE(cache->computed(waiting) == 32);
    const SlotId withdrawn = cache->places(waiting, 0).state;
    withdraw(first);
    CHECK(!serve_checked(*cache, counting(33)).empty());
    withdraw(changed(serve_checked(*cache, counting(41)).back()));  // its KV stays: the refresh finds more
    const std::int64_t ages = cache->stats().reuse_ages.total();
    const std::optional<StartedRequest> more = cache->refresh(waiting);
    REQUIRE(more);
    CHECK(more->reused_tokens == 32);
    CHECK(cache->places(waiting, 0).state != withdrawn);
    CHECK(cache->stats().reuse_ages.total() == ages);
    cache->check_invariants();
  }
}

TEST_CASE("a checkpoint whose key names another one by now is not there to be withdrawn") {
  const auto cache = make_request_cache(checked_cache(Combination::hash_slots));
  std::vector<StateFault> first;
  for (const auto& block : one_key) {
    CheckedPrompt prompt(block.begin(), block.end());
    prompt.push_back(1);
    const std::vector<StateCheck> published = serve_checked(*cache, prompt);
    REQUIRE(!published.empty());
    if (first.empty()) first.push_back(changed(published.front()));
  }
  CHECK(cache->integrity()->withdraw(first) == 0);
  cache->check_invariants();
}

TEST_CASE("whoever writes to checkpoints, no pass reads a wrong state, and nothing else is called wrong") {
  for (const Combination index : every_combination)
    for (const Damaged kind : {Damaged::device, Damaged::tiers, Damaged::arena, Damaged::forks, Damaged::weights}) {
      if (kind == Damaged::arena && in_columns(index)) continue;
      CAPTURE(static_cast<int>(index));
      CAPTURE(static_cast<int>(kind));
      RandomRuns runs;
      for_each_seed(100, [&](Random& random, std::uint64_t) {
        RequestCacheOptions options = random_options(random, index);
        options.integrity = true;
        options.scrub = random.chance(20);
        if (kind == Damaged::arena) draw_arena(random, options);
        if (kind == Damaged::tiers || random.chance(30)) options.tiers = local_tiers(random, options);
        RandomEngine engine(random, options);
        engine.habits = {.changes_weights = kind == Damaged::weights,
                         .crowds = random.chance(30),
                         .forks = kind == Damaged::forks,
                         .trees = random.chance(30),
                         .damages = true};
        for (int step = 0; step < 200; ++step) engine.step();
        runs.add(engine);
        ++runs.seeds;
      });
      if (runs.seeds < 100) continue;
      CHECK(runs.checks > 100);
      CHECK(runs.damaged > 100);
      CHECK(runs.faults > 10);
      CHECK(runs.withdrawn > 10);
    }
}
