// SPDX-License-Identifier: Apache-2.0
// Hits on content that is cached, or could be.
#include <stateport/core/serve/request_cache.hpp>

#include "combination.hpp"
#include "serve_alone.hpp"
#include "state_world.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace stateport {
namespace {

using namespace test;
using Tokens = StateWorld::Tokens;

constexpr std::array every_placement = {CheckpointPlacement::passes, CheckpointPlacement::last,
                                        CheckpointPlacement::branch, CheckpointPlacement::rungs,
                                        CheckpointPlacement::every};

RequestCacheOptions roomy_cache(Combination index, std::int32_t block) {
  RequestCacheOptions options = small_cache(index);
  options.block_size_tokens = block;
  options.kv_tokens = 1024;
  if (in_columns(index))
    columns(options).groups = {{.block_size_tokens = block, .blocks = 400, .conv_window = 3, .layout_fingerprint = 7}};
  else
    options.layout = SlotLayout{.layout_fingerprint = 7, .checkpoints = 200};
  return options;
}

/// Requests that run in one cache, each with the tokens that it knows.
class Batch {
 public:
  struct Request {
    RequestId id;
    Tokens tokens;
  };

  Batch(RequestCache& cache, StateWorld& world) : cache_(cache), world_(world) {}

  void start(const Tokens& prompt) {
    const auto started = cache_.start({.tokens = prompt});
    REQUIRE(started);
    requests.push_back({started->request, prompt});
  }
  /// Runs all known tokens of these requests, in passes as the cache wants them, and samples one token each.
  void run(std::span<Request> rows, Token sampled) {
    for (bool done = false; !done;) done = run_pass(rows, sampled);
    for (Request& request : rows) request.tokens.push_back(sampled);
  }
  void end(RequestEnd how) {
    for (const Request& request : requests) world_.after_end(cache_.end(request.id, how, {}).copies);
    requests.clear();
    cache_.check_invariants();
  }
  /// How much of the tokens a request would reuse now. It does not run.
  [[nodiscard]] std::int64_t reused(const Tokens& tokens) {
    const auto started = cache_.start({.tokens = tokens});
    REQUIRE(started);
    cache_.abort(started->request);
    return started->reused_tokens;
  }

  std::vector<Request> requests;
  std::int64_t published = 0;  ///< states, by all passes

 private:
  /// Returns whether the rows have no token left to run.
  bool run_pass(std::span<Request> rows, Token sampled) {
    std::vector<PassRow> wanted;
    for (const Request& request : rows) {
      const std::int64_t left = std::ssize(request.tokens) - cache_.computed(request.id);
      wanted.push_back({request.id, static_cast<std::int32_t>(cache_.chunk(request.id, left).tokens)});
    }
    const PassPlan plan = cache_.plan(wanted);
    REQUIRE(plan.rows_without_room == 0);
    world_.before(plan);
    bool done = true;
    std::vector<std::int32_t> counts;
    Tokens samples;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto fed = rows[i].tokens.begin() + cache_.computed(rows[i].id);
      const auto end = fed + wanted[i].tokens;
      world_.run(i, plan.rows[i], {rows[i].tokens.begin(), fed}, {fed, end});
      done &= end == rows[i].tokens.end();
      counts.push_back(end == rows[i].tokens.end() ? 1 : 0);
      if (counts.back() == 1) samples.push_back(sampled);
    }
    const PassCommit commit = cache_.commit(plan.pass, counts, samples);
    published += commit.published_states;
    world_.after(commit);
    cache_.check_invariants();
    return done;
  }

  RequestCache& cache_;
  StateWorld& world_;
};

}  // namespace

TEST_CASE("the same prompt hits from the second time on, whatever its length and the placement") {
  for (const Combination index : every_combination)
    for (const CheckpointPlacement placement : every_placement)
      for (const std::int32_t block : {1, 4, 16}) {
        if (in_columns(index) && placement != CheckpointPlacement::passes) continue;
        for (const std::int32_t tokens : {5, 31, 32, 33, 47, 48, 49}) {
          for (const std::int64_t budget : {96, 20}) {
            CAPTURE(static_cast<int>(index));
            CAPTURE(static_cast<int>(placement));
            CAPTURE(block);
            CAPTURE(tokens);
            CAPTURE(budget);
            RequestCacheOptions options = roomy_cache(index, block);
            if (!in_columns(index)) slots(options).placement = placement;
            const auto cache = make_request_cache(options);
            StateWorld world(options);
            const std::int64_t usable = (tokens - 1) / block * block;
            CHECK(serve_alone(*cache, world, counting(tokens), 1, RequestEnd::aborted, budget).reused_tokens == 0);
            for (int time = 2; time <= 5; ++time)
              CHECK(serve_alone(*cache, world, counting(tokens), 1, RequestEnd::finished, budget).reused_tokens ==
                    usable);
          }
        }
      }
}

TEST_CASE("a prompt of whole pages hits from the third time on, where the scan stops seldomer than pages end") {
  RequestCacheOptions options = roomy_cache(Combination::tree_slots, 4);
  slots(options).scan_alignment_tokens = 16;
  const auto cache = make_request_cache(options);
  StateWorld world(options);
  // The first pass cannot stop at 28 tokens, and the state after 32 is of no use to the same prompt.
  CHECK(serve_alone(*cache, world, counting(32), 1).reused_tokens == 0);
  CHECK(serve_alone(*cache, world, counting(32), 1).reused_tokens == 0);
  CHECK(serve_alone(*cache, world, counting(32), 1).reused_tokens == 16);
}

TEST_CASE("a prompt whose KV was evicted is said not to be stored, by the request and by the statistics") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = roomy_cache(index, 4);
    options.kv_tokens = 64;
    options.max_request_tokens = 64;
    const auto cache = make_request_cache(options);
    StateWorld world(options);
    CHECK(serve_alone(*cache, world, counting(33), 1).lost == LostHit::never_stored);
    CHECK(serve_alone(*cache, world, counting(33), 1).lost == std::nullopt);
    for (const Token other : {7, 8}) static_cast<void>(serve_alone(*cache, world, Tokens(60, other), 1));
    const std::int64_t before = cache->stats().of(LostHit::never_stored).tokens;
    const StartedRequest again = serve_alone(*cache, world, counting(33), 1);
    CHECK(again.reused_tokens == 0);
    CHECK(again.lost_tokens == 0);
    CHECK(again.lost == LostHit::never_stored);
    CHECK(cache->stats().of(LostHit::never_stored).tokens == before + 33);
  }
}

TEST_CASE("a budget that runs nothing is answered with the one that does") {
  RequestCacheOptions options = roomy_cache(Combination::hash_columns, 16);
  const auto cache = make_request_cache(options);
  const auto started = cache->start({.tokens = counting(40)});
  REQUIRE(started);
  CHECK(cache->chunk(started->request, 15) == PromptChunk{.tokens = 0, .least_budget = 16});
  CHECK(cache->chunk(started->request, 16) == PromptChunk{.tokens = 16, .least_budget = 16});
  for (const Combination index : slot_combinations) {
    options = roomy_cache(index, 16);
    const auto other = make_request_cache(options);
    const auto first = other->start({.tokens = counting(40)});
    REQUIRE(first);
    CHECK(other->chunk(first->request, 0) == PromptChunk{.tokens = 0, .least_budget = 1});
    CHECK(other->chunk(first->request, 15) == PromptChunk{.tokens = 15, .least_budget = 1});
  }
}

TEST_CASE("where the scan cannot stop before the last block, the end of a prompt of whole blocks is kept") {
  for (const Combination index : slot_combinations)
    for (const CheckpointPlacement placement : every_placement)
      for (const std::int32_t alignment : {-1, 8}) {
        CAPTURE(static_cast<int>(index));
        CAPTURE(static_cast<int>(placement));
        CAPTURE(alignment);
        RequestCacheOptions options = roomy_cache(index, 4);
        slots(options).placement = placement;
        slots(options).scan_alignment_tokens = alignment;
        const auto cache = make_request_cache(options);
        StateWorld world(options);
        static_cast<void>(serve_alone(*cache, world, counting(32), 1, RequestEnd::aborted));
        CHECK(serve_alone(*cache, world, counting(33), 1).reused_tokens == 32);
      }
}

/// Eight prompts of 128 tokens are cached. Two of 200 tokens are then sampled n times each: all start at once, and
/// compute their prompts one after the other.
TEST_CASE("copies of one content take no room from others") {
  constexpr std::int32_t short_prompt = 128, long_prompt = 200, prompts = 8;
  for (const Combination index : every_combination)
    for (const int samples : {1, 2, 4, 8}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(samples);
      RequestCacheOptions options = roomy_cache(index, 4);
      options.max_requests = 16;
      options.max_request_tokens = 256;
      // Room for the cached prompts, and for one more while it is computed.
      options.kv_tokens = prompts * short_prompt + 3 * (long_prompt + 4) + 25 * 4;
      // A running request holds one block; a prompt leaves a state every 64 tokens.
      constexpr std::int32_t blocks = 16 + 16 + 2 * 3 + 4;
      if (in_columns(index)) {
        columns(options).groups = {
            {.block_size_tokens = 64, .blocks = blocks, .conv_window = 3, .layout_fingerprint = 7}};
      } else {
        slots(options).placement = CheckpointPlacement::last;
        slots(options).checkpoints = prompts + 2;
      }
      const auto cache = make_request_cache(options);
      StateWorld world(options);
      Batch batch(*cache, world);
      for (std::int32_t i = 0; i < prompts; ++i)
        static_cast<void>(
            serve_alone(*cache, world, counting(short_prompt + 1, 1000 * i), 1, RequestEnd::aborted, 256));
      for (int i = 0; i < 2 * samples; ++i) batch.start(counting(long_prompt, 20000 + 1000 * (i % 2)));
      for (std::size_t i = 0; i < batch.requests.size(); ++i)
        batch.run(std::span(batch.requests).subspan(i, 1), static_cast<Token>(50000 + i));
      CHECK(batch.published == 2);  // of the first copies
      for (Token token = 0; token < 3; ++token) batch.run(batch.requests, 60000 + token);
      batch.end(RequestEnd::aborted);
      // A tree has the KV up to its last state.
      std::int64_t cached = long_prompt;
      if (index == Combination::tree_slots) cached = long_prompt - 4;
      if (index == Combination::tree_columns) cached = long_prompt / 64 * 64;
      CHECK(cache->usage().kv_tokens == prompts * short_prompt + 2 * cached);
      for (std::int32_t i = 0; i < prompts; ++i)
        CHECK(batch.reused(counting(short_prompt + 1, 1000 * i)) == short_prompt);
      for (std::int32_t i = 0; i < 2; ++i) CHECK(batch.reused(counting(long_prompt, 20000 + 1000 * i)) >= 192);
    }
}

TEST_CASE("decoding publishes a state at every multiple when it reaches it, whatever becomes of the request") {
  constexpr std::int32_t prompt = 8, answer = 25;
  for (const Combination index : slot_combinations)
    for (const bool separate : {false, true})
      for (const RequestEnd how : {RequestEnd::finished, RequestEnd::preempted, RequestEnd::aborted}) {
        CAPTURE(static_cast<int>(index));
        CAPTURE(separate);
        CAPTURE(static_cast<int>(how));
        RequestCacheOptions options = roomy_cache(index, 4);
        slots(options).decode_checkpoint_tokens = 4;
        slots(options).separate_checkpoints = separate;
        const auto cache = make_request_cache(options);
        StateWorld world(options);
        Batch batch(*cache, world);
        batch.start(counting(prompt));
        for (Token i = 0; i < answer; ++i) {
          batch.run(batch.requests, 1000 + i);
          const Tokens tokens = batch.requests[0].tokens;
          if (std::ssize(tokens) > prompt + 4) CHECK(batch.reused(tokens) == (std::ssize(tokens) - 1) / 4 * 4);
        }
        const Tokens all = batch.requests[0].tokens;
        batch.end(how);
        for (std::int32_t cut = prompt + 5; cut <= std::ssize(all); cut += 4)
          CHECK(batch.reused({all.begin(), all.begin() + cut}) == cut - 1);
        CHECK(batch.reused(all) == 32);
      }
}

namespace {

/// A tree that is short of room, its memory, and one request that decodes.
struct ShortTree {
  ShortTree(std::int32_t requests, std::int32_t checkpoints, std::int64_t every)
      : options(options_of(requests, checkpoints, every)), cache(make_request_cache(options)), world(options) {
    batch.start(counting(10));
  }
  void decode(int tokens) {
    for (; tokens > 0; --tokens) batch.run(batch.requests, next++);
  }
  /// The tokens of the request, which ends.
  Tokens end(RequestEnd how) {
    const Tokens all = batch.requests[0].tokens;
    batch.end(how);
    return all;
  }
  void serve(const Tokens& prompt) { static_cast<void>(serve_alone(*cache, world, prompt, 1, RequestEnd::aborted)); }

  static RequestCacheOptions options_of(std::int32_t requests, std::int32_t checkpoints, std::int64_t every) {
    RequestCacheOptions options = roomy_cache(Combination::tree_slots, 4);
    slots(options).decode_checkpoint_tokens = every;
    options.max_requests = requests;
    slots(options).checkpoints = checkpoints;
    return options;
  }

  RequestCacheOptions options;
  std::unique_ptr<RequestCache> cache;
  StateWorld world;
  Batch batch{*cache, world};
  Token next = 1000;
};

}  // namespace

TEST_CASE("where room is short, decoding in a tree gives up its own checkpoints before those of others") {
  ShortTree tree(2, 2, 4);
  tree.serve(counting(33, 500));
  tree.decode(50);
  const Tokens all = tree.end(RequestEnd::aborted);
  CHECK(tree.batch.reused(counting(33, 500)) == 32);
  CHECK(tree.batch.reused(all) == 56);
}

TEST_CASE("the last checkpoint of decoding in a tree is as recent as the end of its request") {
  ShortTree tree(2, 2, 8);
  tree.decode(8);  // a state after 16 tokens
  tree.serve(counting(9, 300));
  tree.decode(1);
  const Tokens all = tree.end(RequestEnd::finished);
  for (const Token first : {400, 500}) tree.serve(counting(9, first));
  CHECK(tree.batch.reused(all) == 16);
  CHECK(tree.batch.reused(counting(9, 300)) == 0);
}

TEST_CASE("under pressure a prompt leaves the states that another one has made, and makes those that are missing") {
  constexpr std::array<std::int32_t, every_placement.size()> states_of_prompt = {1, 1, 1, 4, 8};
  for (std::size_t p = 0; p < every_placement.size(); ++p) {
    CAPTURE(p);
    RequestCacheOptions options = roomy_cache(Combination::tree_slots, 4);
    slots(options).placement = every_placement[p];
    options.max_requests = 2;
    slots(options).checkpoints = states_of_prompt[p];
    const auto cache = make_request_cache(options);
    StateWorld world(options);
    Batch batch(*cache, world);
    for (int copy = 0; copy < 2; ++copy) batch.start(counting(34));
    for (std::size_t i = 0; i < 2; ++i) batch.run(std::span(batch.requests).subspan(i, 1), 1000);
    CHECK(cache->usage().evicted_states == 0);
    CHECK(cache->usage().kv_tokens == 32 + 2 * 4);  // and a page of each request
    batch.end(RequestEnd::aborted);
    CHECK(batch.reused(counting(34)) == 32);
    static_cast<void>(serve_alone(*cache, world, counting(34, 500), 1, RequestEnd::aborted));
    CHECK(batch.reused(counting(34, 500)) == 32);
  }
}

}  // namespace stateport
