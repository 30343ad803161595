// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "random.hpp"
#include "random_engine.hpp"
#include "serve_alone.hpp"
#include "tier_server.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

using namespace stateport;
using namespace stateport::test;
using Tokens = StateWorld::Tokens;

namespace {

const Namespace nobody;
const Namespace ann{.salt = "ann"};
const Namespace bob{.salt = "bob"};
const Namespace ann_poet{.extra_key = "poet", .salt = "ann"};
const Namespace bob_poet{.extra_key = "poet", .salt = "bob"};

/// Computes all of the prompt in one pass, and ends.
void serve(RequestCache& cache, const Tokens& prompt, const Namespace& name_space = {}) {
  const RequestId id = cache.start({.tokens = prompt, .name_space = name_space}).value().request;
  while (cache.computed(id) < std::ssize(prompt)) {
    const auto tokens = static_cast<std::int32_t>(cache.chunk(id, 96).tokens);
    const PassRow row{.request = id, .tokens = tokens};
    const PassPlan plan = cache.plan({&row, 1});
    REQUIRE(plan.rows_without_room == 0);
    const std::int32_t sampled = cache.computed(id) + tokens == std::ssize(prompt) ? 1 : 0;
    const Token token = 1;
    static_cast<void>(cache.commit(plan.pass, {&sampled, 1}, std::span(&token, static_cast<std::size_t>(sampled))));
  }
  cache.finish(id);
  cache.check_invariants();
}

/// How many tokens of the prompt a request finds.
std::int64_t found(RequestCache& cache, const Tokens& prompt, const Namespace& name_space = {}) {
  const StartedRequest started = cache.start({.tokens = prompt, .name_space = name_space}).value();
  cache.abort(started.request);
  return started.reused_tokens;
}

/// Names of the KV that the cache stored, or removed, since the last call.
std::set<std::array<std::uint64_t, 2>> kv_names(RequestCache& cache, CacheEvent::Kind kind = CacheEvent::Kind::stored) {
  std::set<std::array<std::uint64_t, 2>> names;
  std::array<CacheEvent, 64> events;
  while (const std::size_t count = cache.take_events(events))
    for (const CacheEvent& event : std::span(events).first(count))
      if (event.kind == kind && event.content == CacheContent::kv_block) names.insert(event.prefix.words);
  return names;
}

RequestCacheOptions with_events(Combination index) {
  RequestCacheOptions options = small_cache(index);
  options.events = true;
  if (!in_columns(index)) slots(options).checkpoints = 12;
  return options;
}

}  // namespace

TEST_CASE("a new epoch finds nothing that older weights made, and its own contents as before") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(with_events(index));
    const Tokens prompt = counting(49);
    serve(*cache, prompt);
    REQUIRE(found(*cache, prompt) == 48);
    const CacheUsage before = cache->usage();
    const auto old_names = kv_names(*cache);
    CHECK(cache->epochs().advance() == 1);
    CHECK(cache->epochs().current() == 1);
    CHECK(kv_names(*cache, CacheEvent::Kind::removed) == old_names);
    CHECK(cache->usage().kv_tokens == 0);
    CHECK(cache->usage().states == 0);
    CHECK(cache->usage().evicted_states == before.evicted_states);
    CHECK(cache->usage().evicted_kv_tokens == before.evicted_kv_tokens);
    CHECK(cache->stats().eviction_ages.total() == 0);
    CHECK(found(*cache, prompt) == 0);
    serve(*cache, prompt);
    CHECK(found(*cache, prompt) == 48);
    const auto new_names = kv_names(*cache);
    CHECK(new_names.size() == old_names.size());
    CHECK(std::ranges::none_of(new_names, [&](const auto& name) { return old_names.contains(name); }));
  }
}

/// Of contents that were used at the same time the one with the smaller number goes first, and numbers differ.
TEST_CASE("in a new epoch prompts hit as often as in a new cache") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    std::int64_t hits_of_old = 0;
    std::int64_t hits_of_fresh = 0;
    std::uint64_t seeds = 0;
    for_each_seed(200, [&](Random& random, std::uint64_t) {
      ++seeds;
      RequestCacheOptions options = small_cache(index);
      options.kv_tokens = random.between(96, 256);
      const auto old = make_request_cache(options);
      const auto prompt = [&] {
        Tokens tokens;
        for (std::int64_t blocks = random.between(1, 11); blocks > 0; --blocks)
          tokens.insert(tokens.end(), 4, random.between32(0, 1));
        tokens.push_back(7);
        return tokens;
      };
      for (int i = 0; i < 30; ++i) serve(*old, prompt());
      static_cast<void>(old->epochs().advance());
      options.epoch = 1;
      const auto fresh = make_request_cache(options);
      for (int i = 0; i < 40; ++i) {
        const Tokens next = prompt();
        hits_of_old += found(*old, next);
        hits_of_fresh += found(*fresh, next);
        serve(*old, next);
        serve(*fresh, next);
      }
    });
    MESSAGE(hits_of_old, " tokens, and ", hits_of_fresh);
    if (seeds >= 200) CHECK(std::abs(hits_of_old - hits_of_fresh) * 200 < hits_of_fresh);
  }
}

TEST_CASE("equal epochs give contents equal names in every cache") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = with_events(index);
    const auto changed = make_request_cache(options);
    static_cast<void>(changed->epochs().advance());
    static_cast<void>(changed->epochs().advance());
    options.epoch = 2;
    const auto started_late = make_request_cache(options);
    for (const Namespace& name_space : {nobody, ann, bob_poet}) {
      serve(*changed, counting(24), name_space);
      serve(*started_late, counting(24), name_space);
    }
    const auto names = kv_names(*changed);
    CHECK(names.size() == 3 * 24 / 4);
    CHECK(names == kv_names(*started_late));
  }
}

TEST_CASE("an epoch leaves the KV and the state of a request that runs in place, until it ends") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const RequestCacheOptions options = with_events(index);
    const auto cache = make_request_cache(options);
    StateWorld world(options);
    const Tokens prompt = counting(49);
    serve_alone(*cache, world, prompt, 1);
    // It continues from a checkpoint, whose memory its first pass has yet to read.
    Tokens longer = prompt;
    longer.resize(60, 7);
    const StartedRequest started = cache->start({.tokens = longer}).value();
    REQUIRE(started.reused_tokens == 48);
    static_cast<void>(kv_names(*cache));
    static_cast<void>(cache->epochs().advance());
    cache->check_invariants();
    CHECK(cache->epochs().is_stale(started.request));
    CHECK(cache->usage().kv_tokens >= 48);
    CHECK(cache->computed(started.request) == 48);
    serve_alone(*cache, world, counting(40, 500), 1);
    Tokens tokens = longer;
    for (int step = 0; step < 20; ++step) {
      const std::int64_t computed = cache->computed(started.request);
      const PassRow row{.request = started.request, .tokens = step == 0 ? 12 : 1};
      const PassPlan plan = cache->plan({&row, 1});
      REQUIRE(plan.rows_without_room == 0);
      world.before(plan);
      const auto first = tokens.begin() + computed;
      world.run(0, plan.rows[0], {tokens.begin(), first}, {first, first + row.tokens});
      const std::int32_t sampled = 1;
      const Token token = 3;
      world.after(cache->commit(plan.pass, {&sampled, 1}, {&token, 1}));
      tokens.push_back(token);
      cache->check_invariants();
    }
    CHECK(found(*cache, tokens) == 0);
    const std::int64_t others = 40;
    cache->finish(started.request);
    cache->check_invariants();
    CHECK(cache->usage().kv_tokens <= others);
    CHECK(found(*cache, tokens) == 0);
    CHECK(found(*cache, longer) == 0);
    CHECK(found(*cache, counting(40, 500)) > 0);
  }
}

TEST_CASE("a stale request asks for no copy when it ends") {
  RequestCacheOptions options = with_events(Combination::tree_slots);
  slots(options).separate_checkpoints = true;
  slots(options).decode_checkpoint_tokens = 0;
  for (const bool stale : {false, true}) {
    CAPTURE(stale);
    const auto cache = make_request_cache(options);
    const RequestId id = cache->start({.tokens = counting(22)}).value().request;
    for (const std::int32_t tokens : {22, 1, 1}) {
      const PassRow row{.request = id, .tokens = tokens};
      const std::int32_t sampled = 1;
      const Token token = 1;
      static_cast<void>(cache->commit(cache->plan({&row, 1}).pass, {&sampled, 1}, {&token, 1}));
    }
    REQUIRE(cache->computed(id) == 24);
    if (stale) static_cast<void>(cache->epochs().advance());
    CHECK(cache->finish(id).copies.empty() == stale);
    cache->check_invariants();
  }
}

TEST_CASE("forget() compares the names that it is told to compare, and leaves all others") {
  struct Case {
    Namespace which;
    ForgetBy by;
    std::array<bool, 5> gone;  // of nobody, ann, bob, ann_poet, bob_poet
  };
  const std::array cases = {Case{nobody, ForgetBy::name_space, {true, false, false, false, false}},
                            Case{ann, ForgetBy::name_space, {false, true, false, false, false}},
                            Case{ann, ForgetBy::salt, {false, true, false, true, false}},
                            Case{ann_poet, ForgetBy::extra_key, {false, false, false, true, true}},
                            Case{nobody, ForgetBy::extra_key, {true, true, true, false, false}},
                            Case{bob_poet, ForgetBy::name_space, {false, false, false, false, true}},
                            Case{bob_poet, ForgetBy::all, {true, true, true, true, true}}};
  const std::array<Namespace, 5> all = {nobody, ann, bob, ann_poet, bob_poet};
  for (const Combination index : every_combination)
    for (std::size_t c = 0; c < cases.size(); ++c) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(c);
      const auto cache = make_request_cache(with_events(index));
      const Tokens prompt = counting(25);
      for (const Namespace& name_space : all) serve(*cache, prompt, name_space);
      std::array<RequestId, 5> running;
      for (std::size_t i = 0; i < 4; ++i)
        running[i] = cache->start({.tokens = prompt, .name_space = all[i]}).value().request;
      cache->epochs().forget(cases[c].which, cases[c].by);
      cache->check_invariants();
      for (std::size_t i = 0; i < 4; ++i) CHECK(cache->epochs().is_stale(running[i]) == cases[c].gone[i]);
      for (std::size_t i = 0; i < 4; ++i) cache->finish(running[i]);
      for (std::size_t i = 0; i < 5; ++i) CHECK(found(*cache, prompt, all[i]) == (cases[c].gone[i] ? 0 : 24));
      CHECK(cache->usage().kv_tokens == 24 * std::ranges::count(cases[c].gone, false));
      CHECK(cache->epochs().current() == 0);
      for (const Namespace& name_space : all) serve(*cache, prompt, name_space);
      for (const Namespace& name_space : all) CHECK(found(*cache, prompt, name_space) == 24);
    }
}

TEST_CASE("two caches that forgot the same namespace share no later names of it") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto one = make_request_cache(with_events(index));
    const auto other = make_request_cache(with_events(index));
    for (RequestCache* const cache : {one.get(), other.get()}) {
      cache->epochs().forget(ann);
      serve(*cache, counting(25), ann);
    }
    const auto names = kv_names(*one);
    CHECK(names.size() == 6);
    CHECK(std::ranges::none_of(kv_names(*other), [&](const auto& name) { return names.contains(name); }));
  }
}

TEST_CASE("caches with the same records find each other's contents, and none that was forgotten") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto one = make_request_cache(with_events(index));
    const auto other = make_request_cache(with_events(index));
    const Tokens prompt = counting(25);
    for (RequestCache* const cache : {one.get(), other.get()})
      for (const Namespace& name_space : {ann, bob_poet, ann_poet}) serve(*cache, prompt, name_space);
    CHECK(one->epochs().forgotten().empty());
    one->epochs().forget(ann, ForgetBy::salt);
    one->epochs().forget({.extra_key = "poet"}, ForgetBy::extra_key);
    other->epochs().forget({.extra_key = "poet"}, ForgetBy::extra_key);
    other->epochs().forget({.extra_key = "poet"}, ForgetBy::extra_key);
    REQUIRE(other->epochs().forgotten().size() == 1);
    CHECK(other->epochs().forgotten()[0].call == 2);
    const RequestId running = other->start({.tokens = prompt, .name_space = ann}).value().request;
    CHECK(found(*other, prompt, ann) == 24);
    CHECK(other->epochs().adopt(one->epochs().forgotten()));
    CHECK(other->epochs().is_stale(running));
    other->finish(running);
    CHECK(found(*other, prompt, ann) == 0);
    CHECK(one->epochs().adopt(other->epochs().forgotten()));
    for (RequestCache* const cache : {one.get(), other.get()}) {
      static_cast<void>(kv_names(*cache));
      for (const Namespace& name_space : {ann, bob_poet, ann_poet, bob}) serve(*cache, prompt, name_space);
    }
    const auto names = kv_names(*one);
    CHECK(names.size() == 4 * 6);
    CHECK(names == kv_names(*other));
    // Again: all is known, and nothing goes.
    const std::vector<ForgetRecord> records(one->epochs().forgotten().begin(), one->epochs().forgotten().end());
    CHECK(records.size() == 3);
    for (RequestCache* const cache : {one.get(), other.get()}) {
      CHECK(cache->epochs().adopt(records));
      CHECK(found(*cache, prompt, ann_poet) == 24);
    }
    // A later process, which has read them somewhere, in another order.
    const auto later = make_request_cache(with_events(index));
    CHECK(later->epochs().adopt(std::vector(records.rbegin(), records.rend())));
    for (const Namespace& name_space : {ann, bob_poet, ann_poet, bob}) serve(*later, prompt, name_space);
    CHECK(kv_names(*later) == names);
  }
}

TEST_CASE("a record that no cache has made is refused, and nothing is forgotten") {
  const auto cache = make_request_cache(with_events(Combination::tree_slots));
  serve(*cache, counting(25));
  cache->epochs().forget(ann);
  const ForgetRecord own = cache->epochs().forgotten()[0];
  const ForgetRecord good{.cache = 7, .call = 1, .by = ForgetBy::all};
  for (const ForgetRecord& bad : {ForgetRecord{.cache = 7, .call = 0, .by = ForgetBy::all},
                                  ForgetRecord{.cache = 7, .call = 1, .by = static_cast<ForgetBy>(4)},
                                  ForgetRecord{.cache = 7, .call = 1, .extra_key = 1, .by = ForgetBy::salt},
                                  ForgetRecord{.cache = 7, .call = 1, .salt = 1, .by = ForgetBy::extra_key},
                                  ForgetRecord{.cache = own.cache, .call = 2, .by = ForgetBy::all}}) {
    CHECK_THROWS_WITH_AS(cache->epochs().adopt(std::array{good, bad}), doctest::Contains("records = 1"),
                         InvalidArgument);
    CHECK(found(*cache, counting(25)) == 24);
    CHECK(std::ranges::equal(cache->epochs().forgotten(), std::array{own}));
  }
  CHECK(cache->epochs().adopt(std::array{own, own}));
  CHECK(found(*cache, counting(25)) == 24);
  CHECK(cache->epochs().adopt(std::array{good, good}));
  CHECK(found(*cache, counting(25)) == 0);
  CHECK(cache->epochs().forgotten().size() == 2);
}

TEST_CASE("a cache with too many records forgets everything, and adopts none from then on") {
  for (const bool adopts : {false, true}) {
    CAPTURE(adopts);
    const auto cache = make_request_cache(with_events(Combination::hash_slots));
    std::vector<ForgetRecord> records;
    for (std::uint32_t i = 1; i <= CacheEpochs::records_max; ++i)
      records.push_back({.cache = 1, .call = i, .salt = i, .by = ForgetBy::salt});
    CHECK(cache->epochs().adopt(records));
    CHECK(std::ranges::equal(cache->epochs().forgotten(), records));
    serve(*cache, counting(25), bob);
    const auto names = kv_names(*cache);
    const ForgetRecord more{.cache = 2, .call = 1, .salt = 1, .by = ForgetBy::salt};
    if (adopts)
      CHECK_FALSE(cache->epochs().adopt(std::array{more, more}));
    else
      cache->epochs().forget(ann);
    CHECK(found(*cache, counting(25), bob) == 0);
    REQUIRE(cache->epochs().forgotten().size() == 1);
    CHECK(cache->epochs().forgotten()[0].by == ForgetBy::all);
    serve(*cache, counting(25), bob);
    CHECK(std::ranges::none_of(kv_names(*cache), [&](const auto& name) { return names.contains(name); }));
    CHECK_FALSE(cache->epochs().adopt(records));
    CHECK(cache->epochs().forgotten().size() == 1);
    CHECK(found(*cache, counting(25), bob) == 24);
    cache->epochs().forget(bob);
    CHECK(found(*cache, counting(25), bob) == 0);
  }
}

TEST_CASE("with more forgotten namespaces than are remembered all are forgotten") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(with_events(index));
    const Tokens prompt = counting(25);
    serve(*cache, prompt, bob);
    const RequestId running = cache->start({.tokens = prompt, .name_space = bob}).value().request;
    for (int i = 0; i < 1024; ++i) cache->epochs().forget({.salt = std::to_string(i)});
    cache->epochs().forget({.salt = "7"});  // is remembered already
    CHECK_FALSE(cache->epochs().is_stale(running));
    CHECK(found(*cache, prompt, bob) == 24);
    const auto names = kv_names(*cache);
    cache->epochs().forget({.salt = "one more"});
    CHECK(cache->epochs().current() == 0);
    CHECK(cache->epochs().is_stale(running));
    CHECK(found(*cache, prompt, bob) == 0);
    cache->finish(running);
    CHECK(cache->usage().kv_tokens == 0);
    serve(*cache, prompt, bob);
    CHECK(found(*cache, prompt, bob) == 24);
    CHECK(std::ranges::none_of(kv_names(*cache), [&](const auto& name) { return names.contains(name); }));
  }
}

TEST_CASE("reset() while a request runs forgets everything, and the weights keep their number") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(with_events(index));
    const Tokens prompt = counting(25);
    serve(*cache, prompt);
    const auto plain = kv_names(*cache);
    cache->reset();
    CHECK(found(*cache, prompt) == 0);
    serve(*cache, prompt);
    CHECK(kv_names(*cache) == plain);
    const RequestId running = cache->start({.tokens = prompt}).value().request;
    cache->reset();
    CHECK(cache->epochs().current() == 0);
    CHECK(cache->epochs().is_stale(running));
    CHECK(found(*cache, prompt) == 0);
    cache->finish(running);
    // Another cache may have contents of plain names that this one was told to forget.
    serve(*cache, prompt);
    const auto own = kv_names(*cache);
    CHECK(own.size() == plain.size());
    CHECK(std::ranges::none_of(own, [&](const auto& name) { return plain.contains(name); }));
    CHECK(cache->epochs().advance(5) == 5);
    CHECK_THROWS_WITH_AS(static_cast<void>(cache->epochs().advance(5)), doctest::Contains("epoch = 5"),
                         InvalidArgument);
    CHECK(cache->epochs().advance(UINT64_MAX) == UINT64_MAX);
    CHECK_THROWS_AS(static_cast<void>(cache->epochs().advance()), InvalidArgument);
    CHECK(cache->epochs().current() == UINT64_MAX);
  }
}

TEST_CASE("no adapter has the name of an epoch") {
  RequestCacheOptions options = with_events(Combination::hash_slots);
  options.epoch = 1;
  const auto later = make_request_cache(options);
  serve(*later, counting(25));
  options.epoch = 0;
  const auto first = make_request_cache(options);
  std::string forged = "stateport\n";
  forged += '\1';
  forged.resize(30, '\0');
  serve(*first, counting(25), {.extra_key = forged});
  const auto names = kv_names(*later);
  CHECK(names.size() == 6);
  CHECK(std::ranges::none_of(kv_names(*first), [&](const auto& name) { return names.contains(name); }));
}

TEST_CASE("a stale request takes no room for checkpoints from others") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = with_events(index);
    if (!in_columns(index)) slots(options).checkpoints = 3, slots(options).placement = CheckpointPlacement::every;
    const auto cache = make_request_cache(options);
    const RequestId running = cache->start({.tokens = counting(60, 900)}).value().request;
    static_cast<void>(cache->epochs().advance());
    const Tokens prompt = counting(25);
    serve(*cache, prompt);
    const std::int64_t before = found(*cache, prompt);
    REQUIRE(before > 0);
    static_cast<void>(kv_names(*cache));
    for (std::int64_t done = 0; done < 60;) {
      const std::int64_t tokens = cache->chunk(running, 24).tokens;
      const PassRow row{.request = running, .tokens = static_cast<std::int32_t>(tokens)};
      const PassPlan plan = cache->plan({&row, 1});
      REQUIRE(plan.rows_without_room == 0);
      done += tokens;
      const std::int32_t sampled = done == 60 ? 1 : 0;
      const Token token = 1;
      const PassCommit commit =
          cache->commit(plan.pass, {&sampled, 1}, std::span(&token, static_cast<std::size_t>(sampled)));
      CHECK(commit.published_states == 0);
    }
    cache->finish(running);
    cache->check_invariants();
    CHECK(kv_names(*cache).empty());
    CHECK(found(*cache, prompt) == before);
  }
}

TEST_CASE("what is forgotten leaves the host and files at once, and nothing of it is loaded") {
  for (const Combination index : every_combination)
    for (const bool forget : {false, true}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(forget);
      TierOptions tiers{.host_bytes = 400, .file_bytes = 4000};
      PushedDown server(small(index, tiers));
      REQUIRE(server.world.images(Medium::host) + server.world.images(Medium::file) > 8);
      if (forget)
        server.cache->epochs().forget({});
      else
        static_cast<void>(server.cache->epochs().advance());
      server.move();
      CHECK(server.world.images(Medium::host) == 0);
      CHECK(server.world.images(Medium::file) == 0);
      CHECK(server.cache->tiers()->usage(Medium::host).bytes == 0);
      CHECK(server.cache->tiers()->usage(Medium::file).bytes == 0);
      const StartedRequest again = server.serve(server.prompt);
      CHECK_FALSE(again.load);
      CHECK(again.reused_tokens == 0);
    }
}

TEST_CASE("a load of forgotten contents brings its request nothing that others find") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    PushedDown server(small(index, host));
    const StartedRequest started = server.start({.tokens = server.prompt}).value();
    REQUIRE(started.load);
    static_cast<void>(server.cache->epochs().advance());
    server.move();
    CHECK_FALSE(server.cache->tiers()->is_loading(started.request));
    CHECK(server.cache->computed(started.request) == 0);
    CHECK(server.cache->epochs().is_stale(started.request));
    server.move();
    CHECK(server.world.images(Medium::host) == 0);
    server.cache->finish(started.request);
    CHECK(server.cache->usage().kv_tokens == 0);
  }
}

TEST_CASE("images of earlier processes go with the first forgotten namespace, unless a request has used them") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    PushedDown server(small(index, {.file_bytes = 4000}));
    const ImageKey unknown{.prefix = {{1, 2}}, .tokens = 4, .content = CacheContent::kv_block};
    REQUIRE(server.cache->tiers()->attach(Medium::file, unknown));
    const TierUsage before = server.cache->tiers()->usage(Medium::file);
    server.cache->epochs().forget(ann);
    CHECK(server.cache->tiers()->usage(Medium::file).kv_blocks == before.kv_blocks - 1);
    CHECK(server.cache->tiers()->usage(Medium::file).states == before.states);
    server.cache->check_invariants();
  }
}

TEST_CASE("images of an earlier process stay once a request has used them") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const RequestCacheOptions options = small(index, {.file_bytes = 4000});
    PushedDown first(options);
    Server later(options);
    for (const ImageKey& image : first.world.keys(Medium::file))
      REQUIRE(later.cache->tiers()->attach(Medium::file, image));
    later.world.take_images(first.world);
    REQUIRE(later.serve(first.prompt).load);
    push_down(later);
    later.cache->epochs().forget(ann);
    CHECK(later.serve(first.prompt).load);
    later.cache->check_invariants();
  }
}

namespace {

enum class Kind : std::uint8_t { device, tiers, states_alone, arena };

}  // namespace

TEST_CASE("however often weights change, no pass reads what other weights made") {
  for (const Combination index : every_combination)
    for (const Kind kind : {Kind::device, Kind::tiers, Kind::states_alone, Kind::arena}) {
      if (kind == Kind::arena && in_columns(index)) continue;
      CAPTURE(static_cast<int>(index));
      CAPTURE(static_cast<int>(kind));
      RandomRuns runs;
      for_each_seed(100, [&](Random& random, std::uint64_t) {
        RequestCacheOptions options = random_options(random, index);
        options.epoch = static_cast<std::uint64_t>(random.between(0, 2));
        options.scrub = random.chance(20);
        if (kind == Kind::arena) draw_arena(random, options);
        if (kind != Kind::device && (kind != Kind::arena || random.chance(50)))
          options.tiers = random_tiers(random, options);
        RandomEngine engine(random, options, kind == Kind::states_alone && options.tiers.enabled());
        engine.habits.changes_weights = true;
        for (int step = 0; step < 200; ++step) engine.step();
        runs.add(engine);
        ++runs.seeds;
      });
      if (runs.seeds < 100) continue;
      CHECK(runs.hits > 100);
      CHECK(runs.forgotten > 500);
      CHECK(runs.stale_rows > 500);
      if (kind == Kind::tiers) CHECK(runs.loads + runs.found_loads > 5);
    }
}

TEST_CASE("nor over one remote tier, where each cache forgets on its own, or adopts what another has forgotten") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RandomRuns runs;
    for_each_seed(100, [&](Random& random, std::uint64_t seed) {
      RequestCacheOptions options = random_options(random, index);
      options.tiers = random_tiers(random, options);
      ++runs.seeds;
      if (!options.tiers.enabled()) return;
      if (options.tiers.remote_bytes == 0)
        options.tiers.remote_bytes = 2 * (options.tiers.host_bytes + options.tiers.file_bytes);
      RandomEngine one(random, options);
      std::vector<std::unique_ptr<RandomEngine>> processes;
      RandomEngine* other = nullptr;
      const auto start_other = [&] {
        other = processes.emplace_back(std::make_unique<RandomEngine>(random, options)).get();
        other->join(one);
        other->habits.changes_weights = true;
      };
      start_other();
      one.habits.changes_weights = true;
      for (int step = 0; step < 200; ++step) {
        one.step();
        other->step();
        if (seed % 2 == 0) continue;
        if (random.chance(5)) one.adopt(*other);
        if (random.chance(5)) other->adopt(one);
        if (step == 100) {  // another process takes its place
          one.adopt(*other);
          runs.add(*other);
          start_other();
          other->adopt(one);
        }
      }
      runs.add(one);
      runs.add(*other);
    });
    if (runs.seeds < 100) continue;
    CHECK(runs.forgotten > 500);
    CHECK(runs.adopted > 300);
    CHECK(runs.loads + runs.found_loads > 5);
  }
}
