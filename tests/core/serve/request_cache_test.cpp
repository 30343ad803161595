// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/serve/request_cache.hpp>

#include <stateport/core/hash/block_hasher.hpp>
#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"
#include "random.hpp"
#include "state_world.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

using namespace stateport;
using stateport::test::Random;
using stateport::test::StateWorld;
using Tokens = StateWorld::Tokens;

namespace {

RequestCacheOptions small(CacheIndex index, std::int32_t drafts = 0, bool overlap = false) {
  RequestCacheOptions options{.index = index,
                              .max_requests = 4,
                              .max_request_tokens = 96,
                              .drafts = drafts,
                              .block_size_tokens = 4,
                              .kv_tokens = 256,
                              .checkpoints = 8,
                              .decode_checkpoint_tokens = 8,
                              .hash = BlockHashKind::xxh3_128,
                              .overlap = overlap};
  if (index != CacheIndex::align) {
    options.layout_fingerprint = 7;
    return options;
  }
  options.groups = {{.block_size_tokens = 12, .blocks = 40, .conv_window = 3 + drafts, .layout_fingerprint = 7},
                    {.block_size_tokens = 24, .blocks = 30, .conv_window = 3 + drafts, .layout_fingerprint = 8}};
  return options;
}

/// Two first blocks of four tokens with one 63-bit key under xxh3_128, and different digests. They were found by
/// following the key of a block to the block that it numbers, and so on, some 2^32 times (Pollard's rho).
constexpr std::array<std::array<Token, 4>, 2> one_key = {{{1977724, 1278635, 517372, 1}, {1596476, 103655, 356537, 1}}};

constexpr std::array every_index = {CacheIndex::slots, CacheIndex::tree, CacheIndex::align};

Tokens counting(std::int32_t count, Token first = 100) {
  Tokens tokens;
  for (std::int32_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

/// Serves one prompt alone, in passes of at most `budget` tokens, then `output` tokens.
StartedRequest serve_alone(RequestCache& cache, StateWorld& world, const Tokens& prompt, std::int32_t output,
                           RequestEnd how = RequestEnd::finished, std::int64_t budget = 96) {
  const auto started = cache.start({.tokens = prompt});
  REQUIRE(started);
  Tokens tokens = prompt;
  std::int64_t computed = started->reused_tokens;
  for (std::int32_t sampled = 0; sampled < output;) {
    const std::int64_t left = std::ssize(prompt) - computed;
    const auto count = static_cast<std::int32_t>(left > 0 ? cache.chunk(started->request, std::min(left, budget)) : 1);
    const std::array rows = {PassRow{.request = started->request, .tokens = count}};
    const PassPlan plan = cache.plan(rows);
    REQUIRE(plan.rows_without_room == 0);
    world.before(plan);
    const auto first = tokens.begin() + computed;
    world.run(0, plan.rows[0], Tokens(tokens.begin(), first), Tokens(first, first + count));
    computed += count;
    const std::int32_t samples = computed >= std::ssize(prompt) ? 1 : 0;
    const Token token = 1000 + sampled;
    world.after(cache.commit(plan.pass, {&samples, 1}, std::span(&token, static_cast<std::size_t>(samples))));
    if (samples == 1) tokens.push_back(token);
    sampled += samples;
    cache.check_invariants();
  }
  cache.end(started->request, how);
  cache.check_invariants();
  return *started;
}

}  // namespace

TEST_CASE("a second request continues from the state of the first, with every index") {
  for (const CacheIndex index : every_index) {
    CAPTURE(static_cast<int>(index));
    const RequestCacheOptions options = small(index);
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

TEST_CASE("a state is kept where a pass ends on the last full block of the prompt, or where a shared prefix ends") {
  for (const CacheIndex index : every_index) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = small(index);
    options.decode_checkpoint_tokens = 0;
    if (index == CacheIndex::align) options.groups = {{.block_size_tokens = 4, .blocks = 60, .layout_fingerprint = 7}};
    const auto cache = make_request_cache(options);
    StateWorld world(options);
    Tokens first = counting(26);
    static_cast<void>(serve_alone(*cache, world, first, 1, RequestEnd::aborted, 24));
    first.resize(24);
    first.push_back(7);
    CHECK(serve_alone(*cache, world, first, 1, RequestEnd::aborted).reused_tokens == 24);

    // The second prompt leaves the first one's KV after 12 tokens, where nobody kept a state; its own pass ends there.
    if (index == CacheIndex::align) continue;
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
  for (const CacheIndex index : {CacheIndex::slots, CacheIndex::tree})
    for (const Case& wanted : cases)
      for (const std::int64_t budget : {96, 5, 4}) {
        CAPTURE(static_cast<int>(index));
        CAPTURE(static_cast<int>(wanted.placement));
        CAPTURE(budget);
        RequestCacheOptions options = small(index);
        options.placement = wanted.placement;
        options.decode_checkpoint_tokens = 0;
        options.checkpoints = 20;
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
  RequestCacheOptions options = small(CacheIndex::tree);
  options.placement = CheckpointPlacement::branch;
  options.spare_checkpoint_tokens = 8;
  options.max_requests = 1;
  options.decode_checkpoint_tokens = 0;
  options.checkpoints = 5;
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
    options.checkpoints = 3;
    stored = kept(options, budget);
    if (budget == 96) CHECK(stored[1] == Lengths{12, 32});  // no room for more
    options.checkpoints = 20;
    options.memory = {.state_bytes = 10, .kv_bytes_per_token = 1};
    options.budget_bytes = 28 + 2 * 10;  // seven blocks of KV with the answer, and two states
    stored = kept(options, budget);
    if (budget == 96) CHECK(stored[0] == Lengths{8, 24});
    CHECK(stored[2] == Lengths{24});
    options.budget_bytes = 0;
    options.checkpoints = 5;
  }
}

TEST_CASE("a prompt of whole blocks that is cached to its end tells that the forward needs a token") {
  for (const CacheIndex index : {CacheIndex::slots, CacheIndex::tree}) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = small(index);
    options.placement = CheckpointPlacement::every;
    options.checkpoints = 20;
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
  for (const CacheIndex index : every_index) {
    CAPTURE(static_cast<int>(index));
    const RequestCacheOptions options = small(index);
    const auto cache = make_request_cache(options);
    StateWorld world(options);
    Tokens tokens = counting(40);
    serve_alone(*cache, world, tokens, 17, RequestEnd::preempted);
    for (Token i = 0; i < 17; ++i) tokens.push_back(1000 + i);
    const StartedRequest again = serve_alone(*cache, world, tokens, 1);
    CHECK(again.reused_tokens == (index == CacheIndex::align ? 48 : 56));
  }
}

TEST_CASE("the request cache refuses what cannot be, names it, and changes nothing") {
  for (const CacheIndex index : every_index) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(small(index, 2));
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
    CHECK_THROWS_AS(cache->reset(), InvalidState);
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

TEST_CASE("a request whose prompt gave no token cannot decode yet") {
  for (const CacheIndex index : every_index) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(small(index, 2));
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

TEST_CASE("options that cannot be are refused") {
  const auto refused = [](CacheIndex index, auto&& change) {
    RequestCacheOptions options = small(index, 2);
    change(options);
    CHECK_THROWS_AS(static_cast<void>(make_request_cache(options)), InvalidArgument);
  };
  for (const CacheIndex index : every_index) {
    CAPTURE(static_cast<int>(index));
    refused(index, [](auto& options) { options.max_requests = 0; });
    refused(index, [](auto& options) { options.max_request_tokens = 0; });
    refused(index, [](auto& options) { options.drafts = -1; });
    refused(index, [](auto& options) { options.block_size_tokens = 0; });
    refused(index, [](auto& options) { options.kv_tokens = 95; });
    refused(index, [](auto& options) { options.checkpoints = -1; });
    refused(index, [](auto& options) { options.scan_alignment_tokens = -1; });
    refused(index, [](auto& options) { options.decode_checkpoint_tokens = 6; });
    refused(index, [](auto& options) { options.placement = static_cast<CheckpointPlacement>(5); });
    refused(index, [](auto& options) { options.budget_bytes = -1; });
    refused(index, [](auto& options) { options.position_tokens = 0; });
    refused(index, [](auto& options) { options.checkpoints = INT32_MAX - 1; });
    refused(index, [](auto& options) { options.memory.state_bytes = INT64_MAX / 4; });
    refused(index, [](auto& options) { options.memory.kv_bytes_per_token = INT64_MAX / 4; });
    refused(index, [](auto& options) { options.memory.state_bytes = 0; });
    refused(index, [](auto& options) { options.cost.linear = std::numeric_limits<double>::quiet_NaN(); });
    refused(index, [](auto& options) {
      options.layout_fingerprint = 0;
      for (StateGroup& group : options.groups) group.layout_fingerprint = 0;
    });
    RequestCacheOptions unchecked = small(index);
    unchecked.layout_fingerprint = 0;
    unchecked.unchecked_layout = true;
    CHECK(make_request_cache(unchecked) != nullptr);
  }
  refused(CacheIndex::slots, [](auto& options) {
    options.placement = CheckpointPlacement::every;
    options.max_requests = 1 << 12;
    options.max_request_tokens = options.kv_tokens = 1 << 22;
  });
  refused(CacheIndex::tree, [](auto& options) { options.groups = small(CacheIndex::align).groups; });
  const auto spare = [](CheckpointPlacement placement, std::int64_t tokens) {
    return [=](auto& options) {
      options.placement = placement;
      options.spare_checkpoint_tokens = tokens;
    };
  };
  refused(CacheIndex::tree, spare(CheckpointPlacement::passes, 8));
  refused(CacheIndex::tree, spare(CheckpointPlacement::branch, 6));
  refused(CacheIndex::tree, spare(CheckpointPlacement::branch, -8));
  refused(CacheIndex::slots, spare(CheckpointPlacement::branch, 8));
  refused(CacheIndex::align, [](auto& options) { options.groups.clear(); });
  refused(CacheIndex::align, [](auto& options) { options.placement = CheckpointPlacement::branch; });
  refused(CacheIndex::align, [](auto& options) { options.budget_bytes = 1; });
  refused(CacheIndex::align, [](auto& options) { options.eviction = EvictionOrder::hix; });
  refused(CacheIndex::align, [](auto& options) { options.eviction = EvictionOrder::gdsf; });
  refused(CacheIndex::align, [](auto& options) { options.groups[0].block_size_tokens = 6; });
  refused(CacheIndex::align, [](auto& options) { options.groups[1].block_size_tokens = 16; });
  refused(CacheIndex::align, [](auto& options) { options.groups[0].blocks = 3; });
  refused(CacheIndex::align, [](auto& options) { options.groups[0].conv_window = 2; });
}

TEST_CASE("what finds no room is named, and the rest of the batch runs") {
  for (const CacheIndex index : every_index) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = small(index);
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

/// Serves three prompts, of which two states can be kept beside that of a fourth. Which of them can be continued then?
/// `decoded`: what a request leaves is a state of its output, else one of its prompt.
std::vector<bool> kept_of_three(CacheIndex index, bool decoded, bool at_start, const std::array<ReuseHint, 3>& hints) {
  RequestCacheOptions options = small(index);
  options.max_requests = 1;
  options.kv_tokens = 1000;
  options.checkpoints = 3;
  options.scan_alignment_tokens = decoded ? 0 : 1;
  options.eviction = EvictionOrder::hix;
  options.eviction_options.samples = 0;
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

TEST_CASE("what is said of a request's end decides whose state goes, with every index that has an order") {
  using Kept = std::vector<bool>;
  for (const CacheIndex index : {CacheIndex::slots, CacheIndex::tree})
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
    RequestCacheOptions options = small(CacheIndex::align);
    // A request that goes into its second block holds two; one more can be cached then.
    options.groups = {{.block_size_tokens = 12, .blocks = 3, .layout_fingerprint = 7}};
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
  for (const CacheIndex index : {CacheIndex::slots, CacheIndex::align}) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = small(index);
    if (index == CacheIndex::align) options.groups = {{.block_size_tokens = 4, .blocks = 40, .layout_fingerprint = 7}};
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
    // Neither KV nor state of the other one; and what it leaves takes the place of the first, whichever comes next.
    for (const std::size_t which : {1u, 0u, 1u}) {
      const StartedRequest other = serve_alone(*cache, world, prompt(which, 6), 2);
      CHECK(other.reused_tokens == 0);
      CHECK(!other.lost);
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
  RequestCacheOptions options = small(CacheIndex::align);
  options.max_requests = 2;
  // One request that goes into its next block, which holds two, and one that does so two tokens later.
  options.groups = {{.block_size_tokens = 12, .blocks = 3, .layout_fingerprint = 7}};
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

/// An engine that does everything that RequestCache allows, in random order.
class RandomEngine {
 public:
  RandomEngine(Random& random, const RequestCacheOptions& options)
      : random_(random), options_(options), cache_(make_request_cache(options)), world_(options) {}

  void step() {
    const std::int64_t dice = random_.between(0, 19);
    if (dice < 4) start();
    if (dice >= 4 && dice < 7 && !running_.empty()) end(pick());
    plan();
    if (dice == 7 && planned_ && !second_) cancel();
    if (!pass_ || (planned_ && planned_->ready && random_.chance(50))) run();
    if (pass_ && random_.chance(70)) commit();
    if (!pass_) run();
    if (!options_.overlap && pass_) commit();
    cache_->check_invariants();
    follow_events();
  }

  void finish() {
    while (pass_ || planned_) {
      if (!pass_) run();
      if (pass_) commit();
    }
    while (!running_.empty()) end(running_.begin()->first);
    cache_->check_invariants();
    follow_events();
    check_usage();
    cache_->reset();
    follow_events();
    CHECK(stored_.empty());
  }

  /// Nothing runs.
  void check_usage() const {
    const CacheUsage usage = cache_->usage();
    if (options_.index == CacheIndex::align) return;
    REQUIRE(cache_->stats().eviction_ages.total() <= usage.evicted_states);
    REQUIRE(cache_->stats().reuse_ages.total() == hits);
    // An order of a tree spares the request that ended last.
    if (options_.budget_bytes > 0 && (options_.index == CacheIndex::slots || options_.eviction == EvictionOrder::hix))
      REQUIRE(options_.memory.of(usage.kv_tokens, usage.states) <= options_.budget_bytes);
    if (!options_.events) return;
    const auto states = std::ranges::count_if(stored_, [](const auto& stored) {
      return std::get<CacheEvent::Content>(stored) == CacheEvent::Content::state;
    });
    const std::int64_t blocks = std::ssize(stored_) - states;
    const std::int64_t held = usage.kv_tokens / options_.block_size_tokens;
    // Two requests that made the same at a time may both have kept it: it is found once.
    REQUIRE((options_.index == CacheIndex::slots ? states <= usage.states : states == usage.states));
    REQUIRE((options_.index == CacheIndex::slots ? blocks <= held : blocks == held));
  }

  std::int64_t hits = 0;
  std::int64_t ran_ahead = 0;
  std::int64_t ahead = 0;

 private:
  struct Live {
    Tokens tokens;  ///< with those that the host has not read back
    std::size_t told = 0;
    std::int64_t prompt = 0;
  };
  struct RunRow {
    RequestId request;
    std::int32_t drafts = 0;
    std::int32_t tokens = 0;
    bool room = false;
    bool live = true;
    std::size_t sampled_at = 0;
    std::int32_t sampled = 0;
  };
  struct Batch {
    PassId pass = 0;
    bool ready = false;
    std::vector<RunRow> rows;
  };

  RequestId pick() {
    auto at = running_.begin();
    std::advance(at, random_.between(0, static_cast<std::int64_t>(running_.size()) - 1));
    return at->first;
  }

  ReuseHint random_hint() {
    return {.last_turn = random_.chance(20),
            .expected_idle_s = random_.chance(20) ? 30.0 : 0,
            .session = random_.chance(20) ? 1u + static_cast<std::uint64_t>(random_.between(0, 3)) : 0};
  }

  void start() {
    Tokens prompt;
    if (!old_.empty() && random_.chance(70)) {
      prompt = old_[static_cast<std::size_t>(random_.between(0, std::ssize(old_) - 1))];
      prompt.resize(static_cast<std::size_t>(random_.between(1, std::ssize(prompt))));
    }
    if (prompt.empty() && random_.chance(30))
      for (const Token token : one_key[static_cast<std::size_t>(random_.between(0, 1))]) prompt.push_back(token);
    for (std::int64_t own = random_.between(prompt.empty() ? 1 : 0, 20); own > 0; --own)
      prompt.push_back(random_.between32(0, 2));
    if (prompt.size() > 60) prompt.resize(60);
    const auto started = cache_->start({.tokens = prompt, .hint = random_hint(), .now_s = now_s_ += 1});
    if (!started) return;
    hits += started->reused_tokens > 0;
    if (started->lost == LostHit::evicted) REQUIRE(cache_->usage().evicted_states > 0);
    running_[started->request] = {.tokens = prompt, .told = prompt.size(), .prompt = std::ssize(prompt)};
  }

  void end(RequestId id) {
    Live& live = running_.at(id);
    live.tokens.resize(live.told);
    old_.push_back(live.tokens);
    for (auto* batch : {&pass_, &planned_})
      if (*batch)
        for (RunRow& row : (*batch)->rows) row.live &= row.request != id;
    cache_->end(id, static_cast<RequestEnd>(random_.between(0, 2)), random_hint());
    running_.erase(id);
  }

  void plan() {
    if (planned_ || (pass_ && !options_.overlap)) return;
    std::vector<PassRow> rows;
    for (const auto& [id, live] : running_) {
      const std::int64_t budget = random_.between(0, 30);
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
        const auto tokens = static_cast<std::int32_t>(cache_->chunk(id, budget));
        if (tokens > 0) rows.push_back({.request = id, .tokens = tokens});
      } else if (low + 2 * (1 + options_.drafts) + 1 < options_.max_request_tokens) {
        std::int32_t drafts = random_.between32(0, options_.drafts);
        if (options_.align_mode == AlignMode::all && drafts < options_.drafts) drafts = 0;
        rows.push_back({.request = id, .tokens = 1 + drafts, .drafts = drafts});
      }
    }
    const PassPlan plan = cache_->plan(rows);
    planned_.emplace();
    planned_->pass = plan.pass;
    for (std::size_t i = 0; i < rows.size(); ++i)
      planned_->rows.push_back(
          {.request = rows[i].request, .drafts = rows[i].drafts, .tokens = rows[i].tokens, .room = plan.rows[i].room});
    take(plan);
    ahead += pass_.has_value();
  }

  void take(const PassPlan& plan) {
    planned_->ready = plan.ready;
    if (plan.ready) plan_ = plan;
  }

  void cancel() {
    cache_->cancel(planned_->pass);
    planned_.reset();
  }

  void run() {
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

  void run_rows() {
    world_.before(plan_);
    for (std::size_t i = 0; i < planned_->rows.size(); ++i) {
      RunRow& row = planned_->rows[i];
      if (!row.room || !row.live) continue;
      Live& live = running_.at(row.request);
      const RowPlan& plan = plan_.rows[i];
      const auto start = static_cast<std::ptrdiff_t>(plan.start);
      const std::ptrdiff_t given = row.tokens - row.drafts;
      REQUIRE(start + given <= std::ssize(live.tokens));
      Tokens fed(live.tokens.begin() + start, live.tokens.begin() + start + given);
      for (std::int32_t d = 0; d < row.drafts; ++d) fed.push_back(random_.between32(0, 2));
      world_.run(i, plan, Tokens(live.tokens.begin(), live.tokens.begin() + start), fed);
      row.sampled_at = live.tokens.size();
      if (start + given < live.prompt) continue;
      // The first drafts are accepted, and one token more is sampled.
      const std::int32_t accepted = random_.between32(0, row.drafts);
      for (std::int32_t d = 0; d < accepted; ++d) live.tokens.push_back(fed[static_cast<std::size_t>(given + d)]);
      live.tokens.push_back(random_.between32(0, 2));
      row.sampled = accepted + 1;
    }
  }

  void commit() {
    std::vector<std::int32_t> counts;
    Tokens sampled;
    for (const RunRow& row : pass_->rows) {
      counts.push_back(row.live ? row.sampled : 0);
      if (counts.back() == 0) continue;
      Live& live = running_.at(row.request);
      const auto first = live.tokens.begin() + static_cast<std::ptrdiff_t>(row.sampled_at);
      sampled.insert(sampled.end(), first, first + row.sampled);
      live.told = row.sampled_at + static_cast<std::size_t>(row.sampled);
    }
    const PassCommit commit = cache_->commit(pass_->pass, counts, sampled);
    world_.after(commit);
    for (const RunRow& row : pass_->rows) {
      if (!row.live || !row.room || second_) continue;
      const Live& live = running_.at(row.request);
      const Tokens computed(live.tokens.begin(), live.tokens.begin() + cache_->computed(row.request));
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
  }

  void follow_events() {
    if (!options_.events) return;
    std::array<CacheEvent, 7> events;
    while (const std::size_t count = cache_->take_events(events)) {
      for (const CacheEvent& event : std::span(events).first(count)) {
        REQUIRE(event.sequence == ++sequence_);
        const auto key = std::tuple(event.content, event.group, event.prefix.words);
        if (event.kind == CacheEvent::Kind::cleared) stored_.clear();
        if (event.kind == CacheEvent::Kind::stored) REQUIRE(stored_.insert(key).second);
        if (event.kind == CacheEvent::Kind::removed) REQUIRE(stored_.erase(key) == 1);
      }
    }
  }

  Random& random_;
  RequestCacheOptions options_;
  std::unique_ptr<RequestCache> cache_;
  StateWorld world_;
  std::map<RequestId, Live> running_;
  std::vector<Tokens> old_;
  std::optional<Batch> pass_;     ///< that ran and is not read back
  std::optional<Batch> planned_;  ///< the next one
  bool second_ = false;           ///< it ran, too
  PassPlan plan_;
  double now_s_ = 0;
  std::uint64_t sequence_ = 0;
  std::set<std::tuple<CacheEvent::Content, std::int32_t, std::array<std::uint64_t, 2>>> stored_;
};

RequestCacheOptions random_options(Random& random, CacheIndex index) {
  RequestCacheOptions options{.index = index,
                              .align_mode = static_cast<AlignMode>(random.between(0, 2)),
                              .max_requests = random.between32(1, 4),
                              .max_request_tokens = 90,
                              .drafts = random.between32(0, 3),
                              .block_size_tokens = random.between32(1, 4),
                              .checkpoints = random.between32(0, 6),
                              .scan_alignment_tokens = random.between32(0, 3),
                              .hash = BlockHashKind::xxh3_128,
                              .overlap = random.chance(50),
                              .events = random.chance(50)};
  options.kv_tokens = 90 + 2 * options.block_size_tokens + random.between(0, 120);
  options.decode_checkpoint_tokens = random.between(0, 3) * options.block_size_tokens;
  options.layout_fingerprint = 3;
  if (index != CacheIndex::align) {
    options.align_mode = AlignMode::align;
    constexpr std::array orders = {EvictionOrder::lru, EvictionOrder::hix, EvictionOrder::gdsf};
    options.eviction = orders[static_cast<std::size_t>(random.between(0, 2))];
    options.placement = static_cast<CheckpointPlacement>(random.between(0, 4));
    if (index == CacheIndex::tree && options.placement != CheckpointPlacement::passes && random.chance(50))
      options.spare_checkpoint_tokens = random.between(1, 3) * options.block_size_tokens;
    options.position_tokens = random.between32(1, 8);
    options.memory = {.state_bytes = random.between(1, 40), .kv_bytes_per_token = random.between(1, 3)};
    if (random.chance(30)) options.budget_bytes = random.between(1, 1000);
    return options;
  }
  constexpr std::array orders = {EvictionOrder::lru, EvictionOrder::lfu, EvictionOrder::mru};
  options.eviction = orders[static_cast<std::size_t>(random.between(0, 2))];
  std::int32_t size = options.block_size_tokens;
  while (size <= 2 * options.drafts) size += options.block_size_tokens;
  for (std::int64_t groups = random.between(1, 2); groups > 0; --groups, size *= random.between32(1, 2))
    options.groups.push_back(
        {.block_size_tokens = size,
         .blocks = static_cast<std::int32_t>(resident_blocks(options.align_mode, 90, size, options.drafts, 0) + 1 +
                                             random.between(0, 20)),
         .conv_window = 3 + options.drafts,
         .layout_fingerprint = 5});
  return options;
}

}  // namespace

TEST_CASE("whatever an engine does, every pass reads the state and the KV of its own tokens") {
  for (const CacheIndex index : every_index) {
    CAPTURE(static_cast<int>(index));
    std::int64_t hits = 0;
    std::int64_t ran_ahead = 0;
    std::int64_t ahead = 0;
    std::uint64_t seeds = 0;
    test::for_each_seed(250, [&](Random& random, std::uint64_t) {
      RandomEngine engine(random, random_options(random, index));
      for (int step = 0; step < 200; ++step) engine.step();
      engine.finish();
      hits += engine.hits;
      ran_ahead += engine.ran_ahead;
      ahead += engine.ahead;
      ++seeds;
    });
    if (seeds < 250) continue;
    CHECK(hits > 500);
    CHECK(ahead > 2000);
    CHECK(ran_ahead > 100);
  }
}

TEST_CASE("a warm request cache allocates nothing for decode steps") {
  for (const CacheIndex index : every_index) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = small(index, 2);
    options.max_request_tokens = 500;
    options.kv_tokens = 4000;
    if (index == CacheIndex::align)
      for (StateGroup& group : options.groups) group.blocks = 200;
    const auto cache = make_request_cache(options);
    const auto run = [&] {
      std::array<PassRow, 4> rows;
      std::array<std::int32_t, 4> counts;
      std::array<Token, 12> sampled = {};
      std::uint64_t allocations = 0;
      for (int request = 0; request < 4; ++request) {
        const Tokens prompt = counting(9, 1000 * request);
        const auto started = cache->start({.tokens = prompt});
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
    CHECK(run() > 0);
    cache->reset();
    static_cast<void>(run());
    cache->reset();
    CHECK(run() == 0);
  }
}
