// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/serve/request_cache.hpp>

#include <stateport/core/hash/block_hasher.hpp>
#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"
#include "random.hpp"
#include "random_engine.hpp"
#include "serve_alone.hpp"
#include "state_world.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace stateport;
using stateport::test::Below;
using stateport::test::by_tokens;
using stateport::test::columns;
using stateport::test::Combination;
using stateport::test::counting;
using stateport::test::every_combination;
using stateport::test::one_key;
using stateport::test::Random;
using stateport::test::random_options;
using stateport::test::RandomEngine;
using stateport::test::RandomRuns;
using stateport::test::serve_alone;
using stateport::test::slot_combinations;
using stateport::test::slots;
using stateport::test::small_cache;
using stateport::test::StateWorld;
using Tokens = StateWorld::Tokens;

TEST_CASE("a second request continues from the state of the first, with each index and layout") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const RequestCacheOptions options = small_cache(index);
    const auto cache = make_request_cache(options);
    StateWorld world(options);
    CHECK(serve_alone(*cache, world, counting(50), 3).reused_tokens == 0);
    const StartedRequest again = serve_alone(*cache, world, counting(50), 3);
    CHECK(again.reused_tokens == 48);
    CHECK(cache->stats().requests == 2);
    CHECK(cache->stats().hit_tokens == 48);
    CHECK(cache->running_requests() == 0);
    // Another tenant, or an image at the first token, shares nothing.
    const Tokens prompt = counting(50);
    const auto salted = cache->start({.tokens = prompt, .name_space = {.salt = "other"}});
    CHECK(salted->reused_tokens == 0);
    const std::array media = {MediaKey{.id = "image", .first_token = 0}};
    const auto seen = cache->start({.tokens = prompt, .media = media});
    CHECK(seen->reused_tokens == 0);
    cache->abort(salted->request);
    cache->abort(seen->request);
    cache->reset();
    CHECK(serve_alone(*cache, world, counting(50), 3).reused_tokens == 0);
  }
}

namespace {

/// Serves the prompt alone and decodes `output` tokens. Returns how many tokens of the prompt were reused.
std::int64_t serve_media(RequestCache& cache, const Tokens& prompt, std::span<const MediaKey> media, int output) {
  const auto started = cache.start({.tokens = prompt, .media = media});
  REQUIRE(started);
  std::int64_t computed = started->reused_tokens;
  while (computed < std::ssize(prompt) + output) {
    const auto tokens = static_cast<std::int32_t>(cache.chunk(started->request, 64).tokens);
    const PassRow row{.request = started->request, .tokens = computed < std::ssize(prompt) ? tokens : 1};
    computed += row.tokens;
    const PassPlan plan = cache.plan({&row, 1});
    REQUIRE(plan.rows[0].room);
    const std::int32_t count = computed >= std::ssize(prompt) ? 1 : 0;
    const Token sampled = 7;
    static_cast<void>(cache.commit(plan.pass, {&count, 1}, {&sampled, static_cast<std::size_t>(count)}));
  }
  cache.finish(started->request);
  return started->reused_tokens;
}

/// Events name the blocks of the prompt as BlockHasher does.
void check_events(RequestCache& cache, const Tokens& prompt, std::span<const MediaKey> media) {
  std::vector<ExtraKey> keys;
  for (const MediaKey& key : media)
    keys.push_back({.kind = ExtraKey::Kind::media, .id = key.id, .first_token = key.first_token});
  Tokens all = prompt;
  all.resize(52, 7);  // its last block is full once some tokens are decoded
  PromptHashes hashes;
  BlockHasher({.kind = cache.options().hash, .block_size_tokens = cache.options().block_size_tokens})
      .hash_prompt(all, keys, hashes);
  std::vector<CacheEvent> events(1000);
  events.resize(cache.take_events(events));
  for (const PrefixHash& block : hashes.prefixes)
    CHECK(std::ranges::any_of(events, [&](const CacheEvent& event) {
      return event.content == CacheContent::kv_block && event.prefix == block;
    }));
}

}  // namespace

TEST_CASE("two inputs that begin at one token are both part of the shared prefix") {
  for (const Combination index : every_combination)
    for (const std::int64_t at : {0, 5, 49}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(at);
      RequestCacheOptions options = small_cache(index);
      options.events = true;
      const auto cache = make_request_cache(options);
      const auto inputs = [at](const char* second) {
        return std::array{MediaKey{.id = "image", .first_token = at}, MediaKey{.id = second, .first_token = at}};
      };
      Tokens prompt = counting(50);  // the last block is not full
      CHECK(serve_media(*cache, prompt, inputs("sound"), 40) == 0);
      if (!by_tokens(index)) check_events(*cache, prompt, inputs("sound"));
      prompt.resize(90, 7);
      const std::int64_t with_other = by_tokens(index) ? 0 : at / 4 * 4;
      CHECK(serve_media(*cache, prompt, inputs("other sound"), 0) <= with_other);
      CHECK(serve_media(*cache, prompt, inputs("sound"), 0) > 48);
    }
}

TEST_CASE("a state is kept where a pass ends on the last full block of the prompt, or where a shared prefix ends") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = small_cache(index);
    if (in_columns(index))
      columns(options).groups = {{.block_size_tokens = 4, .blocks = 60, .layout_fingerprint = 7}};
    else
      slots(options).decode_checkpoint_tokens = 0;
    const auto cache = make_request_cache(options);
    StateWorld world(options);
    Tokens first = counting(26);
    static_cast<void>(serve_alone(*cache, world, first, 1, RequestEnd::aborted, 24));
    first.resize(24);
    first.push_back(7);
    CHECK(serve_alone(*cache, world, first, 1, RequestEnd::aborted).reused_tokens == 24);

    // The second prompt leaves the first one's KV after 12 tokens, where no state was kept; its own pass ends there.
    if (in_columns(index)) continue;
    Tokens second = counting(12);
    for (int i = 0; i < 12; ++i) second.push_back(5);
    CHECK(serve_alone(*cache, world, second, 1, RequestEnd::aborted, 12).reused_tokens == 0);
    second.resize(12);
    for (int i = 0; i < 12; ++i) second.push_back(6);
    CHECK(serve_alone(*cache, world, second, 1, RequestEnd::aborted).reused_tokens == 12);
  }
}

namespace {

/// The lengths of the states that were stored since the last call, in tokens, ascending.
std::vector<std::int64_t> stored_states(RequestCache& cache) {
  std::vector<std::int64_t> lengths;
  std::array<CacheEvent, 64> events;
  while (const std::size_t count = cache.take_events(events))
    for (const CacheEvent& event : std::span(events).first(count))
      if (event.kind == CacheEvent::Kind::stored && event.content == CacheEvent::Content::state)
        lengths.push_back(event.tokens);
  std::ranges::sort(lengths);
  return lengths;
}

}  // namespace

TEST_CASE("checkpoints lie where the placement says, in one pass or in many") {
  using Lengths = std::vector<std::int64_t>;
  struct Case {
    CheckpointPlacement placement;
    Lengths first;   ///< of 6 blocks
    Lengths second;  ///< of 8 blocks, 3 of them shared
  };
  const std::array cases = {Case{CheckpointPlacement::last, {24}, {32}},
                            Case{CheckpointPlacement::branch, {24}, {12, 32}},
                            Case{CheckpointPlacement::rungs, {8, 16, 20, 24}, {12, 16, 24, 28, 32}},
                            Case{CheckpointPlacement::every, {4, 8, 12, 16, 20, 24}, {16, 20, 24, 28, 32}}};
  for (const Combination index : slot_combinations)
    for (const Case& wanted : cases)
      for (const std::int64_t budget : {96, 5, 4}) {
        CAPTURE(static_cast<int>(index));
        CAPTURE(static_cast<int>(wanted.placement));
        CAPTURE(budget);
        RequestCacheOptions options = small_cache(index);
        slots(options).placement = wanted.placement;
        slots(options).decode_checkpoint_tokens = 0;
        slots(options).checkpoints = 20;
        options.events = true;
        const auto cache = make_request_cache(options);
        StateWorld world(options);
        serve_alone(*cache, world, counting(25), 1, RequestEnd::finished, budget);
        CHECK(stored_states(*cache) == wanted.first);
        Tokens second = counting(33, 500);
        std::ranges::copy(counting(12), second.begin());
        serve_alone(*cache, world, second, 1, RequestEnd::finished, budget);
        CHECK(stored_states(*cache) == wanted.second);
        CHECK(cache->usage().states == std::ssize(wanted.first) + std::ssize(wanted.second));
      }
}

TEST_CASE("where there is room a tree keeps further states, which go first") {
  using Lengths = std::vector<std::int64_t>;
  RequestCacheOptions options = small_cache(Combination::tree_slots);
  slots(options).placement = CheckpointPlacement::branch;
  slots(options).spare_checkpoint_tokens = 8;
  options.max_requests = 1;
  slots(options).decode_checkpoint_tokens = 0;
  slots(options).checkpoints = 5;
  options.eviction = EvictionOrder::hix;
  options.position_tokens = 4;
  options.events = true;
  const auto kept = [&](const RequestCacheOptions& wanted, std::int64_t budget) {
    const auto cache = make_request_cache(wanted);
    StateWorld world(wanted);
    std::vector<Lengths> stored;
    serve_alone(*cache, world, counting(25), 1, RequestEnd::finished, budget);
    stored.push_back(stored_states(*cache));
    Tokens second = counting(33, 500);
    std::ranges::copy(counting(12), second.begin());
    serve_alone(*cache, world, second, 1, RequestEnd::finished, budget);
    stored.push_back(stored_states(*cache));
    stored.push_back({serve_alone(*cache, world, counting(25), 1).reused_tokens});
    stored.push_back({serve_alone(*cache, world, second, 1).reused_tokens});
    return stored;
  };
  for (const std::int64_t budget : {96, 20}) {
    CAPTURE(budget);
    // Of the first prompt: 8, 16 and 24; of the second, which shares 12: 12 and 32, and one of 16 and 24.
    auto stored = kept(options, budget);
    CHECK(stored[0] == Lengths{8, 16, 24});
    CHECK(stored[1].front() == 12);
    CHECK(stored[1].back() == 32);
    CHECK(stored[2] == Lengths{24});
    CHECK(stored[3] == Lengths{32});
    slots(options).checkpoints = 3;
    stored = kept(options, budget);
    if (budget == 96) CHECK(stored[1] == Lengths{12, 32});  // no room for more
    slots(options).checkpoints = 20;
    options.memory = {.state_bytes = 10, .kv_bytes_per_token = 1};
    slots(options).budget_bytes = 28 + 2 * 10;  // seven blocks of KV with the answer, and two states
    stored = kept(options, budget);
    if (budget == 96) CHECK(stored[0] == Lengths{8, 24});
    CHECK(stored[2] == Lengths{24});
    slots(options).budget_bytes = 0;
    slots(options).checkpoints = 5;
  }
}

TEST_CASE("the clock may begin again after a reset, and times go on") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = small_cache(index);
    if (index != Combination::hash_columns) options.eviction = EvictionOrder::hix;
    const auto cache = make_request_cache(options);
    StateWorld world(options);
    const Tokens prompt = counting(49);
    const auto serve_at = [&](double now_s) {
      return serve_alone(*cache, world, prompt, 1, RequestEnd::finished, 64, now_s);
    };
    for (const double begin_s : {1000.0, 5.0, 0.0}) {
      CHECK(serve_at(begin_s).reused_tokens == 0);
      const double before_s = cache->stats().reuse_ages.sum();
      CHECK(serve_at(begin_s + 3).reused_tokens > 0);
      if (index != Combination::hash_columns) CHECK(cache->stats().reuse_ages.sum() == doctest::Approx(before_s + 3));
      CHECK_THROWS_WITH_AS(static_cast<void>(cache->start({.tokens = prompt, .now_s = begin_s + 2})),
                           doctest::Contains("now_s"), InvalidArgument);
      cache->reset();
      world = StateWorld(options);
      cache->check_invariants();
    }
  }
}

TEST_CASE("a prompt of whole blocks that is cached to its end tells that the forward needs a token") {
  for (const Combination index : slot_combinations) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = small_cache(index);
    slots(options).placement = CheckpointPlacement::every;
    slots(options).checkpoints = 20;
    options.events = true;
    const auto cache = make_request_cache(options);
    StateWorld world(options);
    serve_alone(*cache, world, counting(16), 1);
    CHECK(stored_states(*cache).size() == 4);
    const StartedRequest again = serve_alone(*cache, world, counting(16), 1);
    CHECK(again.reused_tokens == 12);
    CHECK(again.lost_tokens == 4);
    CHECK(again.lost == LostHit::too_few_tokens);
    CHECK(stored_states(*cache).empty());
  }
}

TEST_CASE("a request that was preempted starts again where it was") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const RequestCacheOptions options = small_cache(index);
    const auto cache = make_request_cache(options);
    StateWorld world(options);
    Tokens tokens = counting(40);
    serve_alone(*cache, world, tokens, 17, RequestEnd::preempted);
    for (Token i = 0; i < 17; ++i) tokens.push_back(1000 + i);
    const StartedRequest again = serve_alone(*cache, world, tokens, 1);
    CHECK(again.reused_tokens == (in_columns(index) ? 48 : 56));
  }
}

TEST_CASE("the request cache refuses invalid arguments, names them, and changes nothing") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(small_cache(index, 2));
    const Tokens prompt = counting(9);
    const auto started = cache->start({.tokens = prompt, .now_s = 5});
    const RequestId id = started->request;
    const auto plan_of = [&](std::int32_t tokens, std::int32_t drafts = 0) {
      const std::array rows = {PassRow{.request = id, .tokens = tokens, .drafts = drafts}};
      return cache->plan(rows);
    };
    CHECK_THROWS_AS(static_cast<void>(cache->start({.tokens = {}})), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(cache->start({.tokens = counting(97), .now_s = 5})), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(cache->start({.tokens = prompt, .now_s = 4})), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(cache->start({.tokens = prompt, .hint = {.factor = 0}, .now_s = 5})),
                    InvalidArgument);
    const std::array media = {MediaKey{.id = "b", .first_token = 4}, MediaKey{.id = "a", .first_token = 3}};
    CHECK_THROWS_AS(static_cast<void>(cache->start({.tokens = prompt, .media = media, .now_s = 5})), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(cache->chunk(RequestId{3}, 4)), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(cache->chunk(id, -1)), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(plan_of(0)), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(plan_of(10)), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(plan_of(3, 1)), InvalidArgument);
    const std::array twice = {PassRow{.request = id, .tokens = 1}, PassRow{.request = id, .tokens = 1}};
    CHECK_THROWS_AS(static_cast<void>(cache->plan(twice)), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(cache->commit(1, {}, {})), InvalidState);
    CHECK_THROWS_AS(cache->cancel(1), InvalidState);
    CHECK_THROWS_WITH_AS(cache->epochs().forget({}, static_cast<ForgetBy>(4)), doctest::Contains("4"), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(cache->epochs().is_stale(RequestId{3})), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(cache->state(id, 2)), InvalidArgument);
    std::array<CacheEvent, 1> events;
    CHECK_THROWS_AS(static_cast<void>(cache->take_events(events)), InvalidState);

    const PassPlan plan = plan_of(9);
    const std::array<std::int32_t, 1> one = {1};
    const std::array<std::int32_t, 1> two = {2};
    const std::array<Token, 2> tokens = {1, 2};
    CHECK_THROWS_AS(static_cast<void>(cache->commit(plan.pass + 1, one, std::span(tokens).first(1))), InvalidState);
    CHECK_THROWS_AS(static_cast<void>(cache->commit(plan.pass, two, tokens)), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(cache->commit(plan.pass, one, tokens)), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(cache->commit(plan.pass, {}, {})), InvalidArgument);
    CHECK(cache->computed(id) == 0);
    static_cast<void>(cache->commit(plan.pass, one, std::span(tokens).first(1)));
    CHECK_THROWS_AS(static_cast<void>(cache->commit(plan.pass, one, std::span(tokens).first(1))), InvalidState);
    CHECK_THROWS_AS(static_cast<void>(plan_of(2)), InvalidArgument);
    CHECK_THROWS_AS(static_cast<void>(plan_of(4, 3)), InvalidArgument);
    CHECK(cache->computed(id) == 9);
    CHECK(std::ssize(cache->tokens(id)) == 10);
    CHECK_THROWS_AS(cache->end(id, static_cast<RequestEnd>(9)), InvalidArgument);
    cache->finish(id);
    CHECK_THROWS_AS(cache->finish(id), InvalidArgument);
    cache->check_invariants();
  }
}

TEST_CASE("the number of a request that ended is refused while another request has its row, and changes nothing") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = small_cache(index, 2);
    options.max_requests = 1;
    const auto cache = make_request_cache(options);
    const Tokens prompt = counting(9);
    const RequestId old = cache->start({.tokens = prompt})->request;
    cache->finish(old);
    cache->reset();
    const RequestId id = cache->start({.tokens = prompt})->request;
    CHECK(id != old);
    CHECK(id.index() == old.index());
    const auto refuses = [&](const auto& call) {
      try {
        call();
        FAIL("a request that ended is not refused");
      } catch (const InvalidArgument& problem) {
        CHECK(problem.value() == std::to_string(old.value()));
      }
    };
    const auto refuse_all = [&](std::int32_t tokens) {
      for (const RequestEnd how : {RequestEnd::finished, RequestEnd::preempted, RequestEnd::aborted})
        refuses([&] { cache->end(old, how); });
      refuses([&] { static_cast<void>(cache->chunk(old, 4)); });
      refuses([&] { static_cast<void>(cache->tokens(old)); });
      refuses([&] { static_cast<void>(cache->computed(old)); });
      refuses([&] { static_cast<void>(cache->kv(old)); });
      refuses([&] { static_cast<void>(cache->state(old)); });
      refuses([&] { static_cast<void>(cache->plan(std::array{PassRow{.request = old, .tokens = tokens}})); });
    };
    refuse_all(9);
    const auto run = [&](std::int32_t tokens) {
      const PassPlan plan = cache->plan(std::array{PassRow{.request = id, .tokens = tokens}});
      CHECK(plan.rows[0].request == id);
      static_cast<void>(cache->commit(plan.pass, std::array{1}, std::array{Token{1}}));
    };
    run(9);
    for (int i = 0; i < 3; ++i) {  // some of these steps change nothing but counts
      refuse_all(1);
      run(1);
    }
    CHECK(cache->computed(id) == 12);
    CHECK(cache->running_requests() == 1);
    cache->check_invariants();
    cache->finish(id);
  }
}

TEST_CASE("the number of a request comes again after 2^31 requests of its row") {
  constexpr RequestId first{7};
  static_assert(first.next().value() == (std::int64_t{1} << 32) + 7);
  static_assert(first.next().index() == 7);
  constexpr RequestId last{std::numeric_limits<std::int64_t>::max() - 0xffffffff + 7};
  static_assert(last.valid() && last.index() == 7);
  static_assert(last.next() == first);
}

TEST_CASE("a request whose prompt gave no token cannot decode yet") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(small_cache(index, 2));
    const Tokens prompt = counting(9);
    const RequestId id = cache->start({.tokens = prompt})->request;
    const std::array<std::int32_t, 1> none = {0};
    const std::array whole = {PassRow{.request = id, .tokens = 9}};
    static_cast<void>(cache->commit(cache->plan(whole).pass, none, {}));
    const std::array decode = {PassRow{.request = id, .tokens = 1}};
    CHECK_THROWS_AS(static_cast<void>(cache->plan(decode)), InvalidState);
    cache->check_invariants();
    cache->finish(id);
  }
}

namespace {

template <class Change>
RequestCacheOptions refused_options(Combination index, const Change& change) {
  RequestCacheOptions options = small_cache(index, 2);
  change(options);
  CHECK_THROWS_AS(static_cast<void>(make_request_cache(options)), InvalidArgument);
  return options;
}

/// Sizes do not wrap: a caller that asks for them first is refused alike.
template <class Change>
void refused_sizes(Combination index, const Change& change) {
  const RequestCacheOptions options = refused_options(index, change);
  CHECK_THROWS_AS(static_cast<void>(kv_blocks(options)), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(state_slots(options)), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(checkpoint_slots(options)), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(scratch_slots(options)), InvalidArgument);
}

}  // namespace

TEST_CASE("options that cannot be are refused") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    refused_sizes(index, [](auto& options) { options.max_requests = 0; });
    refused_options(index, [](auto& options) { options.max_request_tokens = 0; });
    refused_options(index, [](auto& options) { options.drafts = -1; });
    refused_sizes(index, [](auto& options) { options.block_size_tokens = 0; });
    refused_sizes(index, [](auto& options) { options.kv_tokens = 95; });
    refused_sizes(index, [](auto& options) { options.kv_tokens = std::int64_t{1} << 36; });
    refused_sizes(index, [](auto& options) { options.kv_tokens = -4; });
    refused_sizes(index, [](auto& options) { options.max_request_tokens = INT64_MAX; });
    refused_options(index, [](auto& options) { options.position_tokens = 0; });
    refused_sizes(index, [](auto& options) { options.index = static_cast<stateport::CacheIndex>(2); });
    refused_options(index, [](auto& options) { options.memory.state_bytes = INT64_MAX / 4; });
    refused_options(index, [](auto& options) { options.memory.kv_bytes_per_token = INT64_MAX / 4; });
    refused_options(index, [](auto& options) { options.memory.state_bytes = 0; });
    refused_options(index, [](auto& options) { options.cost.linear = std::numeric_limits<double>::quiet_NaN(); });
    RequestCacheOptions unchecked = refused_options(index, [&](auto& options) {
      if (in_columns(index))
        for (StateGroup& group : columns(options).groups) group.layout_fingerprint = 0;
      else
        slots(options).layout_fingerprint = 0;
      CHECK(kv_blocks(options) > 0);  // a store with a fingerprint is made for sizes
      CHECK(state_slots(options) > 0);
    });
    unchecked.unchecked_layout = true;
    CHECK(make_request_cache(unchecked) != nullptr);
  }
}

TEST_CASE("slots that cannot be are refused") {
  for (const Combination index : slot_combinations) {
    CAPTURE(static_cast<int>(index));
    refused_sizes(index, [](auto& options) { slots(options).checkpoints = -1; });
    refused_options(index, [](auto& options) { slots(options).scan_alignment_tokens = -2; });
    refused_options(index, [](auto& options) { slots(options).decode_checkpoint_tokens = 6; });
    refused_options(index, [](auto& options) { slots(options).placement = static_cast<CheckpointPlacement>(5); });
    refused_options(index, [](auto& options) { slots(options).budget_bytes = -1; });
    refused_sizes(index, [](auto& options) { slots(options).checkpoints = INT32_MAX - 1; });
    refused_options(index,
                    [](auto& options) { slots(options) = {.layout_fingerprint = 7, .separate_checkpoints = true}; });
  }
  refused_options(Combination::hash_slots, [](auto& options) {
    slots(options).placement = CheckpointPlacement::every;
    options.max_requests = 1 << 12;
    options.max_request_tokens = options.kv_tokens = 1 << 22;
  });
  const auto spare = [](CheckpointPlacement placement, std::int64_t tokens) {
    return [=](auto& options) {
      slots(options).placement = placement;
      slots(options).spare_checkpoint_tokens = tokens;
    };
  };
  refused_options(Combination::tree_slots, spare(CheckpointPlacement::passes, 8));
  refused_options(Combination::tree_slots, spare(CheckpointPlacement::branch, 6));
  refused_options(Combination::tree_slots, spare(CheckpointPlacement::branch, -8));
  refused_options(Combination::hash_slots, spare(CheckpointPlacement::branch, 8));
}

TEST_CASE("columns that cannot be are refused") {
  refused_options(Combination::hash_columns, [](auto& options) { columns(options).groups.clear(); });
  refused_options(Combination::hash_columns, [](auto& options) { columns(options).mode = static_cast<AlignMode>(3); });
  refused_sizes(Combination::hash_columns, [](auto& options) { options.eviction = EvictionOrder::hix; });
  refused_sizes(Combination::hash_columns, [](auto& options) { options.eviction = EvictionOrder::gdsf; });
  refused_options(Combination::hash_columns, [](auto& options) { columns(options).groups[0].block_size_tokens = 6; });
  refused_options(Combination::hash_columns, [](auto& options) { columns(options).groups[1].block_size_tokens = 16; });
  refused_sizes(Combination::hash_columns, [](auto& options) { columns(options).groups[0].blocks = 3; });
  refused_sizes(Combination::hash_columns, [](auto& options) { columns(options).groups[0].blocks = INT32_MAX - 1; });
  refused_options(Combination::hash_columns, [](auto& options) { columns(options).groups[0].conv_window = 2; });
}

TEST_CASE("rows without room are named, and the rest of the batch runs") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = small_cache(index);
    options.kv_tokens = 96;
    const auto cache = make_request_cache(options);
    const Tokens first = counting(60);
    const Tokens second = counting(60, 500);
    const auto a = cache->start({.tokens = first});
    const auto b = cache->start({.tokens = second});
    const std::array rows = {PassRow{.request = a->request, .tokens = 48},
                             PassRow{.request = b->request, .tokens = 60}};
    const PassPlan plan = cache->plan(rows);
    CHECK(plan.rows_without_room == 1);
    CHECK(plan.rows[0].room);
    CHECK(!plan.rows[1].room);
    CHECK(plan.rows[1].states.empty());
    const std::array<std::int32_t, 2> counts = {0, 0};
    static_cast<void>(cache->commit(plan.pass, counts, {}));
    CHECK(cache->computed(a->request) == 48);
    CHECK(cache->computed(b->request) == 0);
    cache->check_invariants();
  }
}

namespace {

/// Serves three prompts in a cache with room for two of their states beside the state of a fourth prompt, then serves
/// the fourth. Returns which of the three still hit. `decoded`: a request leaves a state of its output, else one of its
/// prompt.
std::vector<bool> kept_of_three(Combination index, bool decoded, bool at_start, const std::array<ReuseHint, 3>& hints) {
  RequestCacheOptions options = small_cache(index);
  options.max_requests = 1;
  options.kv_tokens = 1000;
  slots(options).checkpoints = 3;
  slots(options).scan_alignment_tokens = decoded ? -1 : 1;
  options.eviction = EvictionOrder::hix;
  options.eviction_options.samples = -1;
  const auto cache = make_request_cache(options);
  double now_s = 0;
  const auto serve = [&](Token first, const ReuseHint& hint) {
    const Tokens prompt = counting(70, first);
    const auto started = cache->start({.tokens = prompt, .hint = at_start ? hint : ReuseHint{}, .now_s = now_s += 10});
    std::array rows = {PassRow{.request = started->request, .tokens = 70}};
    const std::int32_t count = 1;
    const Token token = 7;
    for (int pass = 0; pass < (decoded ? 4 : 1); ++pass, rows[0].tokens = 1)
      static_cast<void>(cache->commit(cache->plan(rows).pass, {&count, 1}, {&token, 1}));
    cache->finish(started->request, at_start ? ReuseHint{} : hint);
    cache->check_invariants();
  };
  for (std::size_t i = 0; i < 3; ++i) serve(1000 * static_cast<Token>(i), hints[i]);
  serve(9000, {});
  std::vector<bool> kept;
  for (Token i = 0; i < 3; ++i) {
    Tokens prompt = counting(70, 1000 * i);
    prompt.insert(prompt.end(), 4, 7);
    const auto started = cache->start({.tokens = prompt, .now_s = now_s += 10});
    kept.push_back(started->reused_tokens > 0);
    cache->abort(started->request);
  }
  return kept;
}

}  // namespace

TEST_CASE("the hint at a request's end decides the victim, with every index that has an order") {
  using Kept = std::vector<bool>;
  for (const Combination index : slot_combinations)
    for (const bool decoded : {false, true})
      for (const bool at_start : {false, true}) {
        CAPTURE(static_cast<int>(index));
        CAPTURE(decoded);
        CAPTURE(at_start);
        const auto kept = [&](const std::array<ReuseHint, 3>& hints) {
          return kept_of_three(index, decoded, at_start, hints);
        };
        CHECK(kept({}) == Kept{false, true, true});
        CHECK(kept({ReuseHint{}, ReuseHint{.last_turn = true}, ReuseHint{}}) == Kept{true, false, true});
        CHECK(kept({ReuseHint{}, ReuseHint{}, ReuseHint{.expected_idle_s = 1e6}}) == Kept{true, true, false});
        CHECK(kept({ReuseHint{.tool_call_pending = true}, ReuseHint{}, ReuseHint{}}) == Kept{true, false, true});
      }
}

TEST_CASE("a state that lost its place to others is a hit lost to eviction, and the order says which one that is") {
  for (const EvictionOrder order : {EvictionOrder::lru, EvictionOrder::fifo, EvictionOrder::mru}) {
    CAPTURE(name(order));
    RequestCacheOptions options = small_cache(Combination::hash_columns);
    // A request that goes into its second block holds two; one more can be cached then.
    columns(options).groups = {{.block_size_tokens = 12, .blocks = 3, .layout_fingerprint = 7}};
    options.eviction = order;
    const auto cache = make_request_cache(options);
    StateWorld world(options);
    const Tokens first = counting(13);
    const Tokens second = counting(13, 300);
    serve_alone(*cache, world, first, 1);
    serve_alone(*cache, world, second, 1);
    CHECK(serve_alone(*cache, world, first, 1).reused_tokens == 12);
    serve_alone(*cache, world, counting(13, 600), 1);
    CHECK(cache->usage().evicted_states == 1);
    const bool first_goes = order != EvictionOrder::lru;
    for (const bool is_first : {true, false}) {
      const auto started = cache->start({.tokens = is_first ? first : second});
      CHECK((started->reused_tokens == 0) == (is_first == first_goes));
      CHECK((started->lost == LostHit::evicted) == (is_first == first_goes));
      CHECK(started->lost_tokens == (is_first == first_goes ? 12 : 0));
      cache->abort(started->request);
    }
    CHECK(cache->stats().of(LostHit::evicted).tokens == 12);
    // The KV is cached, and no state was at its end.
    const auto off_grid = cache->start({.tokens = std::span(first).first(9)});
    CHECK(off_grid->lost == LostHit::off_grid);
    cache->abort(off_grid->request);
  }
}

TEST_CASE("prompts whose blocks have the same key share nothing") {
  BlockHasher hasher({.kind = BlockHashKind::xxh3_128, .block_size_tokens = 4});
  const BlockDigest first = hasher.hash_block({}, one_key[0]);
  const BlockDigest second = hasher.hash_block({}, one_key[1]);
  REQUIRE(first.key() == second.key());
  REQUIRE(first.prefix() != second.prefix());
  for (const Combination index : {Combination::hash_slots, Combination::hash_columns}) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = small_cache(index);
    if (in_columns(index)) columns(options).groups = {{.block_size_tokens = 4, .blocks = 40, .layout_fingerprint = 7}};
    options.events = true;
    const auto cache = make_request_cache(options);
    StateWorld world(options);
    const auto prompt = [](std::size_t which, std::int32_t more) {
      Tokens tokens(one_key[which].begin(), one_key[which].end());
      for (Token i = 0; i < more; ++i) tokens.push_back(i);
      return tokens;
    };
    CHECK(serve_alone(*cache, world, prompt(0, 1), 1).reused_tokens == 0);
    CHECK(serve_alone(*cache, world, prompt(0, 1), 1).reused_tokens == 4);
    // Neither prompt hits KV or states of the other. The prefix that is served replaces the other one, in either order.
    for (const std::size_t which : {1u, 0u, 1u}) {
      const StartedRequest other = serve_alone(*cache, world, prompt(which, 6), 2);
      CHECK(other.reused_tokens == 0);
      CHECK(other.lost == LostHit::never_stored);
      CHECK(serve_alone(*cache, world, prompt(which, 6), 2).reused_tokens == 8);
    }
    CHECK(cache->stats().hit_tokens == 4 + 3 * 8);
    std::array<CacheEvent, 100> events;
    std::set<std::tuple<CacheEvent::Content, std::array<std::uint64_t, 2>>> found;
    for (const CacheEvent& event : std::span(events).first(cache->take_events(events))) {
      const auto key = std::tuple(event.content, event.prefix.words);
      if (event.kind == CacheEvent::Kind::stored)
        CHECK(found.insert(key).second);
      else
        CHECK(found.erase(key) == 1);
    }
    CHECK(found.contains(std::tuple(CacheEvent::Content::kv_block, second.prefix().words)));
    CHECK(!found.contains(std::tuple(CacheEvent::Content::kv_block, first.prefix().words)));
  }
}

TEST_CASE("a request that decodes inside a block of states holds its window alone") {
  RequestCacheOptions options = small_cache(Combination::hash_columns);
  options.max_requests = 2;
  // One request that goes into its next block, which holds two, and one that does so two tokens later.
  columns(options).groups = {{.block_size_tokens = 12, .blocks = 3, .layout_fingerprint = 7}};
  const auto cache = make_request_cache(options);
  const Tokens first = counting(5);
  const Tokens second = counting(3, 500);
  std::array rows = {PassRow{.request = cache->start({.tokens = first})->request, .tokens = 5},
                     PassRow{.request = cache->start({.tokens = second})->request, .tokens = 3}};
  const std::array<std::int32_t, 2> counts = {1, 1};
  const std::array<Token, 2> sampled = {7, 7};
  for (int step = 0; step < 80; ++step) {
    const PassPlan plan = cache->plan(rows);
    REQUIRE(plan.rows_without_room == 0);
    static_cast<void>(cache->commit(plan.pass, counts, sampled));
    cache->check_invariants();
    for (PassRow& row : rows) row.tokens = 1;
  }
}

namespace {

RandomRuns run_random_engines(std::uint64_t seeds, Combination index, Below below) {
  RandomRuns runs;
  test::for_each_seed(seeds, [&](Random& random, std::uint64_t) {
    RequestCacheOptions options = random_options(random, index);
    if (below != Below::nothing) options.tiers = random_tiers(random, options);
    RandomEngine engine(random, options, below == Below::states_alone && options.tiers.enabled());
    for (int step = 0; step < 200; ++step) engine.step();
    ++runs.seeds;
    runs.add(engine);
  });
  return runs;
}

/// Two caches over one remote tier, which serve the same prompts.
RandomRuns run_random_pairs(std::uint64_t seeds, Combination index, Below below) {
  RandomRuns runs;
  test::for_each_seed(seeds, [&](Random& random, std::uint64_t) {
    RequestCacheOptions options = random_options(random, index);
    options.tiers = random_tiers(random, options);
    ++runs.seeds;
    if (!options.tiers.enabled()) return;
    if (options.tiers.remote_bytes == 0)
      options.tiers.remote_bytes = 2 * (options.tiers.host_bytes + options.tiers.file_bytes);
    RandomEngine one(random, options, below == Below::states_alone);
    RandomEngine other(random, options, below == Below::states_alone);
    other.join(one);
    for (int step = 0; step < 200; ++step) {
      one.step();
      other.step();
    }
    runs.add(one);
    runs.add(other);
  });
  return runs;
}

}  // namespace

TEST_CASE("whatever an engine does, every pass reads the state and the KV of its own tokens") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const RandomRuns runs = run_random_engines(300, index, Below::nothing);
    if (runs.seeds < 300) continue;
    CHECK(runs.hits > 500);
    CHECK(runs.ahead > 2000);
    CHECK(runs.ran_ahead > 100);
    CHECK(runs.inserts > 150);
    CHECK(runs.named_hits > 100);
    CHECK((runs.end_copies > 20) == (index == Combination::tree_slots));
  }
}

TEST_CASE("with learned tails, too, whatever an engine does, every pass reads the state and the KV of its own tokens") {
  std::int64_t tails = 0, enough_seeds = 0;
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RandomRuns runs;
    test::for_each_seed(100, [&](Random& random, std::uint64_t) {
      RequestCacheOptions options;
      const auto can_learn = [&] {
        return options.max_request_tokens >= 128 && (!in_columns(index) || columns(options).mode == AlignMode::align) &&
               (in_columns(index) || slots(options).placement != CheckpointPlacement::every);
      };
      do options = random_options(random, index);
      while (!can_learn());
      (in_columns(index) ? columns(options).tail_tokens : slots(options).tail_tokens) = 0;
      if (random.chance(50)) options.tiers = random_tiers(random, options);
      if (random.chance(70)) options.share_running = {};
      RandomEngine engine(random, options);
      engine.habits = {.changes_weights = random.chance(20), .forks = random.chance(30), .trees = random.chance(30)};
      for (int step = 0; step < 600; ++step) engine.step();
      ++runs.seeds;
      runs.add(engine);
    });
    tails += runs.tails;
    if (runs.seeds < 100) continue;
    ++enough_seeds;
    CHECK(runs.hits > 400);
    CHECK(runs.forks > 50);
    CHECK(runs.loads + runs.found_loads > 10);
  }
  if (enough_seeds == 4) CHECK(tails > 50);
}

TEST_CASE("with tiers, too, whatever an engine does, every pass reads the state and the KV of its own tokens") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const RandomRuns runs = run_random_engines(400, index, Below::tiers);
    if (runs.seeds < 400) continue;
    CHECK(runs.loads + runs.found_loads > 100);
    CHECK(runs.failed_loads > 5);
  }
}

TEST_CASE("with states alone in tiers, too, every pass of any engine reads its own states") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const RandomRuns runs = run_random_engines(300, index, Below::states_alone);
    if (runs.seeds < 300) continue;
    CHECK(runs.loads + runs.found_loads > 100);
    CHECK(runs.failed_loads > 5);
  }
}

TEST_CASE("of two caches with one remote tier, too, every pass reads the state and the KV of its own tokens") {
  for (const Combination index : every_combination) {
    for (const Below below : {Below::tiers, Below::states_alone}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(static_cast<int>(below));
      const RandomRuns runs = run_random_pairs(300, index, below);
      if (runs.seeds < 300) continue;
      CHECK(runs.loads > 30);
      CHECK(runs.found_loads > 150);
    }
  }
}

namespace {

void check_decode_allocations(Combination index, bool scrub) {
  CAPTURE(static_cast<int>(index));
  CAPTURE(scrub);
  RequestCacheOptions options = small_cache(index, 2);
  options.scrub = scrub;
  options.max_request_tokens = 500;
  options.kv_tokens = 4000;
  if (in_columns(index))
    for (StateGroup& group : columns(options).groups) group.blocks = 200;
  const auto cache = make_request_cache(options);
  const auto run = [&] {
    std::array<PassRow, 4> rows;
    std::array<std::int32_t, 4> counts;
    std::array<Token, 12> sampled = {};
    std::uint64_t allocations = 0;
    for (int request = 0; request < 4; ++request) {
      const Tokens prompt = counting(9, 1000 * request);
      const auto started = cache->start({.tokens = prompt, .name_space = {.salt = request % 2 == 0 ? "one" : "two"}});
      rows[static_cast<std::size_t>(request)] = {.request = started->request,
                                                 .tokens = static_cast<std::int32_t>(9 - started->reused_tokens)};
    }
    for (int step = 0; step < 100; ++step) {
      const std::uint64_t before = test::heap_allocations();
      const PassPlan plan = cache->plan(rows);
      std::size_t sum = 0;
      for (std::size_t i = 0; i < 4; ++i) {
        counts[i] = rows[i].drafts > 0 ? 1 + (step + static_cast<int>(i)) % 3 : 1;
        sum += static_cast<std::size_t>(counts[i]);
        rows[i].drafts = 2;
        rows[i].tokens = 3;
      }
      static_cast<void>(cache->commit(plan.pass, counts, std::span(sampled).first(sum)));
      allocations += test::heap_allocations() - before;
    }
    for (const PassRow& row : rows) cache->finish(row.request);
    return allocations;
  };
  CHECK(run() == 0);
  cache->reset();
  CHECK(run() == 0);
}

}  // namespace

TEST_CASE("a request cache allocates nothing for decode steps, not even for the first ones") {
  for (const Combination index : every_combination)
    for (const bool scrub : {false, true}) check_decode_allocations(index, scrub);
}
