// SPDX-License-Identifier: Apache-2.0
// Positions that prompts name: Prompt::breakpoints.
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "random.hpp"
#include "serve_alone.hpp"
#include "state_world.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

using namespace stateport;
using stateport::test::columns;
using stateport::test::Combination;
using stateport::test::counting;
using stateport::test::every_combination;
using stateport::test::Random;
using stateport::test::serve_alone;
using stateport::test::slot_combinations;
using stateport::test::slots;
using stateport::test::small_cache;
using stateport::test::StateWorld;
using Tokens = StateWorld::Tokens;
using Positions = std::vector<std::int64_t>;

namespace {

/// How many tokens a prompt reuses that shares exactly the first `tokens` tokens of `prompt`.
std::int64_t shared_hit(RequestCache& cache, const Tokens& prompt, std::int64_t tokens) {
  Tokens other(prompt.begin(), prompt.begin() + tokens);
  other.push_back(5);
  const auto started = cache.start({.tokens = other});
  REQUIRE(started);
  cache.abort(started->request);
  return started->reused_tokens;
}

RequestCacheOptions random_cache(Random& random, Combination index) {
  RequestCacheOptions options = small_cache(index);
  if (in_columns(index)) {
    if (random.chance(30)) columns(options).mode = AlignMode::all;
    if (columns(options).mode == AlignMode::align && random.chance(50))
      columns(options).tail_tokens = random.between(1, 30);
    return options;
  }
  SlotLayout& layout = slots(options);
  layout.checkpoints = 64;
  layout.placement = static_cast<CheckpointPlacement>(random.between(0, 4));
  layout.scan_alignment_tokens = random.between32(-1, 9);
  if (layout.placement != CheckpointPlacement::every && random.chance(50)) layout.tail_tokens = random.between(1, 20);
  layout.breakpoint_saves = random.chance(50) ? random.between32(1, 8) : 0;
  layout.separate_checkpoints = random.chance(30);
  return options;
}

/// The pass of a cache that runs one request.
struct OnePass {
  std::vector<RefusedBreakpoint> refused;
  std::size_t saves = 0;
};

OnePass run_pass(RequestCache& cache, RequestId request, std::int32_t tokens) {
  const PassRow row{.request = request, .tokens = tokens};
  const PassPlan plan = cache.plan({&row, 1});
  REQUIRE(plan.rows_without_room == 0);
  OnePass pass{.refused = {}, .saves = plan.rows[0].states[0].saves.size()};
  const std::int32_t count = 0;
  const PassCommit commit = cache.commit(plan.pass, {&count, 1}, {});
  pass.refused.assign(commit.refused_breakpoints.begin(), commit.refused_breakpoints.end());
  return pass;
}

}  // namespace

TEST_CASE("a prompt that leaves another one at a named position continues from there") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    test::for_each_seed(300, [&](Random& random, std::uint64_t) {
      const RequestCacheOptions options = random_cache(random, index);
      const auto cache = make_request_cache(options);
      StateWorld world(options);
      const Tokens prompt = counting(random.between32(8, 80));
      std::set<std::int64_t> drawn;
      for (std::int64_t count = random.between(1, 8); count > 0; --count)
        drawn.insert(random.between(1, std::ssize(prompt)));
      const Positions named(drawn.begin(), drawn.end());
      const std::int64_t budget = random.between(in_columns(index) ? 24 : 1, 96);
      serve_alone(*cache, world, prompt, 1, RequestEnd::finished, budget, 0, named);
      const std::int64_t grid = in_columns(index) ? 24 : 4;
      std::set<std::int64_t> places;
      for (const std::int64_t at : named) {
        CAPTURE(at);
        REQUIRE(shared_hit(*cache, prompt, at) == at / grid * grid);
        if (at >= grid) places.insert(at / grid * grid);
      }
      REQUIRE(cache->stats().breakpoints_kept == std::ssize(places));
      REQUIRE(cache->stats().breakpoints_refused == 0);
    });
  }
}

TEST_CASE("the answer of start says where named positions lie, and a pass ends there or saves its state on its way") {
  for (const Combination index : slot_combinations) {
    CAPTURE(static_cast<int>(index));
    for (const std::int32_t saves : {0, 2}) {
      RequestCacheOptions options = small_cache(index);
      slots(options).placement = CheckpointPlacement::last;
      slots(options).scan_alignment_tokens = 8;
      slots(options).breakpoint_saves = saves;
      const auto cache = make_request_cache(options);
      const Tokens prompt = counting(40);
      const Positions named = {3, 8, 18, 21, 27, 40};
      const auto started = cache->start({.tokens = prompt, .breakpoints = named});
      const RequestId id = started->request;
      CHECK(std::ranges::equal(started->breakpoints, Positions{0, 8, 16, 20, 24, 40}));
      // The scan can stop at 8 and 16. At 20 it cannot.
      const std::int64_t first = saves > 0 ? 20 : 8;
      CHECK(cache->chunk(id, 96) == PromptChunk{.tokens = first, .least_budget = 1});
      CHECK(cache->chunk(id, 5).tokens == 5);
      CHECK(cache->chunk(id, 0) == PromptChunk{.tokens = 0, .least_budget = 1});
      CHECK(run_pass(*cache, id, static_cast<std::int32_t>(first)).saves == static_cast<std::size_t>(saves));
      CHECK(cache->stats().breakpoints_kept == (saves > 0 ? 3 : 1));
      if (saves == 0) continue;
      // From 20 on the scan stops at 28 and 36: not at 24, and not at n.
      CHECK(cache->chunk(id, 96).tokens == 4);
      CHECK(run_pass(*cache, id, 4).refused.empty());
      CHECK(cache->chunk(id, 96).tokens == 16);
      CHECK(run_pass(*cache, id, 16).refused.empty());
      CHECK(cache->stats().breakpoints_kept == 5);
      cache->abort(id);
      for (const std::int64_t at : {8, 16, 20, 24, 40}) CHECK(shared_hit(*cache, prompt, at) == at);
    }
  }
}

TEST_CASE("a named position that a pass runs over without a checkpoint is named and counted") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = small_cache(index);
    if (!in_columns(index)) slots(options).scan_alignment_tokens = -1;
    const auto cache = make_request_cache(options);
    const Tokens prompt = counting(60);
    const Positions named = {24, 48};
    const RequestId id = cache->start({.tokens = prompt, .breakpoints = named})->request;
    // The engine asks no chunk().
    const OnePass pass = run_pass(*cache, id, 48);
    CHECK(pass.refused == std::vector{RefusedBreakpoint{.request = id, .tokens = 24}});
    CHECK(cache->stats().breakpoints_refused == 1);
    CHECK(cache->stats().breakpoints_kept == 1);
    CHECK(run_pass(*cache, id, 4).refused.empty());
    cache->abort(id);
    CHECK(shared_hit(*cache, prompt, 24) == 0);
    CHECK(shared_hit(*cache, prompt, 48) == 48);
  }
}

TEST_CASE("where room is short, named positions come first, and those that found none are named") {
  for (const Combination index : slot_combinations)
    for (const bool separate : {false, true}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(separate);
      RequestCacheOptions options = small_cache(index);
      slots(options) = {.layout_fingerprint = 7,
                        .checkpoints = 2,
                        .separate_checkpoints = separate,
                        .placement = CheckpointPlacement::every,
                        .breakpoint_saves = 8};
      const auto cache = make_request_cache(options);
      const Tokens prompt = counting(43);
      const Positions named = {8, 16, 24};
      const RequestId id = cache->start({.tokens = prompt, .breakpoints = named})->request;
      const OnePass pass = run_pass(*cache, id, 42);
      CHECK(pass.refused == std::vector{RefusedBreakpoint{.request = id, .tokens = 8}});
      CHECK(cache->usage().states == 2);
      cache->abort(id);
      CHECK(shared_hit(*cache, prompt, 8) == 0);
      CHECK(shared_hit(*cache, prompt, 16) == 16);
      CHECK(shared_hit(*cache, prompt, 40) == 24);
    }
}

TEST_CASE("positions that a prompt cannot name are refused, and change nothing") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = small_cache(index);
    const Tokens prompt = counting(30);
    const auto refuses = [&](const RequestCacheOptions& made, const Positions& named, const char* text) {
      const auto cache = make_request_cache(made);
      CHECK_THROWS_WITH_AS(static_cast<void>(cache->start({.tokens = prompt, .breakpoints = named})), text,
                           InvalidArgument);
      CHECK(cache->running_requests() == 0);
      cache->check_invariants();
    };
    constexpr const char* order = "must be ascending positions from 1 to the prompt's length";
    refuses(options, {1, 2, 3, 4, 5, 6, 7, 8, 9}, "breakpoints = 9 (positions are more than a prompt can name)");
    refuses(options, {0}, (std::string("breakpoints = 0 (") + order + ")").c_str());
    refuses(options, {4, 4}, (std::string("breakpoints = 4 (") + order + ")").c_str());
    refuses(options, {4, 31}, (std::string("breakpoints = 31 (") + order + ")").c_str());
    if (index != Combination::hash_columns) continue;
    columns(options).mode = AlignMode::none;
    refuses(options, {4}, "breakpoints = 1 (positions are named, and mode none keeps no state that is found again)");
  }
  RequestCacheOptions options = small_cache(Combination::hash_slots);
  for (const std::int32_t saves : {-1, 9}) {
    slots(options).breakpoint_saves = saves;
    CHECK_THROWS_AS(static_cast<void>(make_request_cache(options)), InvalidArgument);
  }
}
