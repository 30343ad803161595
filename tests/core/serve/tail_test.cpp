// SPDX-License-Identifier: Apache-2.0
// The state that a prompt leaves before its tail: SlotLayout::tail_tokens, ColumnLayout::tail_tokens.
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "serve_alone.hpp"
#include "state_world.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <vector>

using namespace stateport;
using stateport::test::columns;
using stateport::test::Combination;
using stateport::test::counting;
using stateport::test::every_combination;
using stateport::test::serve_alone;
using stateport::test::slot_combinations;
using stateport::test::slots;
using stateport::test::small_cache;
using stateport::test::StateWorld;
using Tokens = StateWorld::Tokens;

namespace {

constexpr std::array placements = {CheckpointPlacement::passes, CheckpointPlacement::last, CheckpointPlacement::branch,
                                   CheckpointPlacement::rungs};

/// A cache of one layout whose prompts leave states before their last `tail` tokens.
RequestCacheOptions tail_cache(Combination index, std::int64_t tail, CheckpointPlacement placement) {
  RequestCacheOptions options = small_cache(index);
  if (in_columns(index)) {
    columns(options).tail_tokens = tail;
    return options;
  }
  slots(options).decode_checkpoint_tokens = 0;
  slots(options).tail_tokens = tail;
  slots(options).placement = placement;
  return options;
}

/// How many tokens a prompt reuses that leaves `prompt` after `tokens` tokens.
std::int64_t left_after(RequestCache& cache, const Tokens& prompt, std::int64_t tokens) {
  Tokens other(prompt.begin(), prompt.begin() + tokens);
  other.push_back(5);
  const auto started = cache.start({.tokens = other});
  REQUIRE(started);
  cache.abort(started->request);
  return started->reused_tokens;
}

}  // namespace

TEST_CASE("a prompt that leaves another one in its tail continues from before it, and the same prompt from its end") {
  for (const Combination index : every_combination)
    for (const CheckpointPlacement placement : placements) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(static_cast<int>(placement));
      const RequestCacheOptions options = tail_cache(index, 20, placement);
      const auto cache = make_request_cache(options);
      StateWorld world(options);
      const Tokens prompt = counting(61);
      const std::int64_t place = in_columns(index) ? 24 : 40;
      const std::int64_t usable = in_columns(index) ? 48 : 60;
      CHECK(serve_alone(*cache, world, prompt, 1, RequestEnd::aborted).reused_tokens == 0);
      CHECK(left_after(*cache, prompt, 60) == place);
      CHECK(left_after(*cache, prompt, 41) == place);
      CHECK(serve_alone(*cache, world, prompt, 1, RequestEnd::aborted).reused_tokens == place);
      for (int again = 0; again < 3; ++again)
        CHECK(serve_alone(*cache, world, prompt, 1, RequestEnd::aborted).reused_tokens == usable);
    }
}

TEST_CASE("a prompt that leaves another one in its tail leaves no state of its own there") {
  for (const Combination index : slot_combinations)
    for (const CheckpointPlacement placement : placements) {
      if (placement == CheckpointPlacement::rungs) continue;  // it adds others
      CAPTURE(static_cast<int>(index));
      CAPTURE(static_cast<int>(placement));
      const RequestCacheOptions options = tail_cache(index, 20, placement);
      const auto cache = make_request_cache(options);
      StateWorld world(options);
      Tokens prompt = counting(61);
      static_cast<void>(serve_alone(*cache, world, prompt, 1, RequestEnd::aborted));
      prompt.resize(52);
      for (Token token = 0; token < 40; ++token) prompt.push_back(token);
      CHECK(serve_alone(*cache, world, prompt, 1, RequestEnd::aborted).reused_tokens == 40);
      CHECK(cache->usage().states == 2);  // at 40 and 72
      CHECK(left_after(*cache, prompt, 91) == 72);
    }
}

TEST_CASE("a prompt that is no longer than its tail and a step leaves its state at its last whole block") {
  for (const Combination index : every_combination)
    for (const CheckpointPlacement placement : placements) {
      CAPTURE(static_cast<int>(index));
      const RequestCacheOptions options = tail_cache(index, 64, placement);
      const auto cache = make_request_cache(options);
      StateWorld world(options);
      const std::int64_t usable = in_columns(index) ? 48 : 60;
      serve_alone(*cache, world, counting(61), 1, RequestEnd::aborted);
      CHECK(left_after(*cache, counting(61), 60) == usable);
    }
}

TEST_CASE(
    "the state before the tail is saved where the scan can stop, and a pass that cannot stop before it ends there") {
  for (const Combination index : slot_combinations)
    for (const CheckpointPlacement placement : placements) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(static_cast<int>(placement));
      RequestCacheOptions options = tail_cache(index, 10, placement);
      for (const std::int32_t scan : {16, -1}) {
        CAPTURE(scan);
        slots(options).scan_alignment_tokens = scan;
        const auto cache = make_request_cache(options);
        StateWorld world(options);
        const Tokens prompt = counting(70);
        const auto started = cache->start({.tokens = prompt});
        // From 0 the scan can stop at 48.
        const std::int64_t chunk = scan == -1 ? 60 : 70;
        CHECK(cache->chunk(started->request, 96).tokens == chunk);
        cache->abort(started->request);
        serve_alone(*cache, world, prompt, 1, RequestEnd::aborted);
        CHECK(left_after(*cache, prompt, 69) == (scan == -1 ? 60 : 48));
        CHECK(cache->usage().states == 1);
      }
    }
}

TEST_CASE("a named position in the tail takes the place of the state before it") {
  for (const Combination index : slot_combinations)
    for (const CheckpointPlacement placement : placements) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(static_cast<int>(placement));
      if (placement == CheckpointPlacement::rungs) continue;  // it adds others
      const RequestCacheOptions options = tail_cache(index, 20, placement);
      const auto cache = make_request_cache(options);
      StateWorld world(options);
      const std::vector<std::int64_t> named = {54};
      serve_alone(*cache, world, counting(61), 1, RequestEnd::aborted, 96, 0, named);
      CHECK(cache->usage().states == 1);
      CHECK(left_after(*cache, counting(61), 60) == 52);
    }
}

TEST_CASE("with a tail the state behind an answer is kept only in namespaces whose prompts continue answers") {
  for (const std::int64_t tail : {0, 8}) {
    CAPTURE(tail);
    RequestCacheOptions options = small_cache(Combination::tree_slots);
    options.block_size_tokens = 1;
    options.kv_tokens = 40'000;
    slots(options) = {.layout_fingerprint = 7, .checkpoints = 1000, .tail_tokens = tail};
    const auto cache = make_request_cache(options);
    StateWorld world(options);
    const auto serve = [&](const Tokens& prompt, const char* tenant) {
      const auto started = cache->start({.tokens = prompt, .name_space = {.salt = tenant}});
      for (std::int64_t computed = started->reused_tokens; computed < std::ssize(prompt) + 4;) {
        const bool decodes = computed >= std::ssize(prompt);
        const PassRow row{.request = started->request,
                          .tokens = decodes ? 1 : static_cast<std::int32_t>(cache->chunk(started->request, 96).tokens)};
        computed += row.tokens;
        const std::int32_t count = computed >= std::ssize(prompt) ? 1 : 0;
        const Token token = 7;
        const PassPlan plan = cache->plan({&row, 1});
        static_cast<void>(cache->commit(plan.pass, {&count, 1}, {&token, static_cast<std::size_t>(count)}));
      }
      cache->finish(started->request);
      return started->reused_tokens;
    };
    // A tenant whose prompts never continue answers: 64 states behind answers show it, then one answer of 16 keeps one.
    for (int i = 0; i < 100; ++i) CHECK(serve(counting(20, 1000 * (i + 1)), "swaps") == 0);
    CHECK(cache->usage().states == (tail == 0 ? 200 : 100 + 64 + 2));
    // One whose prompts do.
    for (int i = 0; i < 30; ++i) {
      Tokens prompt = counting(20, 1000 * (i + 1));
      std::int64_t computed = 0;
      for (int turn = 0; turn < 4; ++turn) {
        CHECK(serve(prompt, "continues") == computed);
        computed = std::ssize(prompt) + 4;
        prompt.insert(prompt.end(), 5, 7);
        prompt.push_back(3);
      }
    }
    cache->check_invariants();
  }
}

TEST_CASE("tails that cannot be are refused") {
  RequestCacheOptions options = small_cache(Combination::hash_slots);
  const auto refuses = [&](const char* text) {
    CHECK_THROWS_WITH_AS(static_cast<void>(make_request_cache(options)), text, InvalidArgument);
  };
  slots(options).tail_tokens = -2;
  refuses("tail_tokens = -2 (must be at least -1)");
  slots(options).tail_tokens = 64;
  slots(options).placement = CheckpointPlacement::every;
  refuses("tail_tokens = 64 (moves the last state of a prompt, and placement every keeps all)");
  options = small_cache(Combination::hash_columns);
  columns(options).tail_tokens = -2;
  refuses("tail_tokens = -2 (must be at least -1)");
  columns(options).tail_tokens = 64;
  for (const AlignMode mode : {AlignMode::none, AlignMode::all}) {
    columns(options).mode = mode;
    refuses("tail_tokens = 64 (is for mode align, in which the ends of passes decide where states are kept)");
  }
}
