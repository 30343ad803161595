// SPDX-License-Identifier: Apache-2.0
// Orders of calls that an engine may choose, and that are not those of a loop over one request.
#include <stateport/core/model/error.hpp>

#include "engine.hpp"
#include "prompts.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>

using namespace stateport;
using namespace stateport::test;

namespace {

void decode_pass(CachedEngine& engine, std::span<const PassRow> rows) {
  REQUIRE(llama_decode(engine.context(), engine.cache().plan(rows).batch) == 0);
}

}  // namespace

TEST_CASE("a request that ends while its pass runs takes nothing from the others") {
  const Model model = load("granitehybrid");
  CachedEngine engine(model.get(), {.sequences = 2, .memory_bytes = 64 << 20});
  PlainEngine plain(model.get());
  llamacpp::Cache& cache = engine.cache();
  const Tokens prompt = random_prompt(model.get(), 60, 1);
  const auto gone = cache.start({.tokens = random_prompt(model.get(), 60, 2)});
  const auto other = cache.start({.tokens = prompt});
  REQUIRE((gone && other));
  decode_pass(engine, std::array{PassRow{.request = gone->request, .tokens = 48},
                                 PassRow{.request = other->request, .tokens = 48}});
  cache.end(gone->request, RequestEnd::aborted);
  cache.commit(std::array{0, 0}, {});
  cache.end(other->request, RequestEnd::preempted);
  CHECK(cache.image_work().saved_blocks == 3);
  CHECK(cache.image_work().saved_states == 1);
  static_cast<void>(engine.serve(random_prompt(model.get(), 60, 3)));
  static_cast<void>(engine.serve(random_prompt(model.get(), 60, 4)));  // both sequences have other tokens
  const Answer answer = engine.serve(prompt, 3);
  CHECK(answer.reused == 48);
  CHECK(largest_difference(plain, answer) < rounding);
}

TEST_CASE("a request that ends behind a pass that was not committed leaves no tokens of it") {
  const Model model = load("granitehybrid");
  for (const RequestEnd how : {RequestEnd::finished, RequestEnd::preempted, RequestEnd::aborted}) {
    CAPTURE(static_cast<int>(how));
    CachedEngine engine(model.get());
    PlainEngine plain(model.get());
    llamacpp::Cache& cache = engine.cache();
    const Tokens prompt = random_prompt(model.get(), 100, 1);
    const auto started = cache.start({.tokens = prompt});
    REQUIRE(started);
    const PassRow row{.request = started->request, .tokens = 40};
    decode_pass(engine, {&row, 1});
    cache.commit(std::array{0}, {});
    decode_pass(engine, {&row, 1});
    cache.end(started->request, how);
    cache.commit(std::array{0}, {});
    CHECK(largest_difference(plain, engine.serve(prompt, 3)) < rounding);
  }
}

TEST_CASE("a chunk is no longer than its budget on a sequence that goes on") {
  const Model model = load("granitehybrid");
  CachedEngine engine(model.get());
  PlainEngine plain(model.get());
  llamacpp::Cache& cache = engine.cache();
  const Answer turn = engine.serve(random_prompt(model.get(), 100, 1), 40);
  const Tokens prompt = joined(joined(turn.prompt, turn.output), random_prompt(model.get(), 20, 2));
  const auto started = cache.start({.tokens = prompt});
  REQUIRE(started);
  const RequestId request = started->request;
  CHECK(started->reused_tokens == 139);
  CHECK(cache.chunk(request, 0) == 0);
  CHECK(cache.chunk(request, 5) == 5);
  CHECK(cache.chunk(request, INT64_MAX) == 144 - 139);
  CHECK_THROWS_AS(static_cast<void>(cache.chunk(request, -1)), InvalidArgument);
  for (int i = 0; i < 2; ++i) {  // the second plan replaces the first
    const PassRow row{.request = request, .tokens = 3};
    const llamacpp::Pass& pass = cache.plan({&row, 1});
    CHECK(pass.batch.n_tokens == 3);
    CHECK(pass.batch.pos[0] == 139);
  }
  const PassRow row{.request = request, .tokens = 3};
  decode_pass(engine, {&row, 1});
  cache.commit(std::array{0}, {});
  CHECK(cache.computed(request) == 142);
  CHECK(cache.chunk(request, INT64_MAX) == 144 - 142);
  cache.end(request, RequestEnd::preempted);
  const Answer answer = engine.serve(prompt, 3);
  CHECK(answer.reused == 142);
  CHECK(largest_difference(plain, answer) < rounding);
}

TEST_CASE("a chunk ends at the next named position on a sequence that goes on") {
  const Model model = load("granitehybrid");
  CachedEngine engine(model.get());
  llamacpp::Cache& cache = engine.cache();
  const Answer turn = engine.serve(random_prompt(model.get(), 100, 1), 40);
  const Tokens prompt = joined(joined(turn.prompt, turn.output), random_prompt(model.get(), 200, 2));
  // The sequence has 139 tokens, of which the cache knows fewer.
  for (const auto& [named, next] : {std::pair<std::vector<std::int64_t>, std::int64_t>{{144}, 144},
                                    {{176, 240}, 176},
                                    {{112, 176}, 176},
                                    {{128, 139, 150, 240}, 144},
                                    {{}, 336}}) {
    CAPTURE(next);
    const auto started = cache.start({.tokens = prompt, .breakpoints = named});
    REQUIRE(started);
    CHECK(started->reused_tokens == 139);
    CHECK(cache.chunk(started->request, INT64_MAX) == next - 139);
    CHECK(cache.chunk(started->request, next - 139 - 1) == next - 139 - 1);
    cache.end(started->request, RequestEnd::preempted);
  }
}

TEST_CASE("a sequence that has the state of a hit is not restored") {
  const Model model = load("granitehybrid");
  CachedEngine engine(model.get());
  const Answer turn = engine.serve(random_prompt(model.get(), 60, 1), 5);  // 64 tokens, and one that was not decoded
  const Answer next = engine.serve(joined(joined(turn.prompt, turn.output), random_prompt(model.get(), 20, 2)));
  CHECK(next.reused == 64);
  CHECK(engine.cache().decisions().stats().hit_tokens == 64);  // the cache has the state, too
  CHECK(engine.cache().image_work().restored_states == 0);
}

TEST_CASE("prompts of different namespaces share nothing") {
  const Model model = load("granitehybrid");
  CachedEngine engine(model.get());
  llamacpp::Cache& cache = engine.cache();
  const Answer turn = engine.serve(random_prompt(model.get(), 60, 1), 4);
  const Tokens next = joined(joined(turn.prompt, turn.output), random_prompt(model.get(), 20, 2));
  Prompt prompt{.tokens = next, .name_space = {.extra_key = NameKey("an adapter")}};
  const auto started = cache.start(prompt);
  REQUIRE(started);
  CHECK(started->reused_tokens == 0);
  const PassRow row{.request = started->request, .tokens = 64};
  CHECK(cache.plan({&row, 1}).batch.n_tokens == 64);
  CHECK(cache.image_work().restored_blocks == 0);
  cache.end(started->request, RequestEnd::preempted);
  const MediaKey picture{.id = NameKey("a picture"), .first_token = 1};
  prompt.media = {&picture, 1};
  CHECK_THROWS_AS(static_cast<void>(cache.start(prompt)), InvalidArgument);
}

TEST_CASE("conversations that take turns stay on sequences of their own") {
  const Model model = load("granitehybrid");
  CachedEngine engine(model.get(), {.sequences = 2, .memory_bytes = 64 << 20});
  const Tokens shared = random_prompt(model.get(), 40, 1);
  std::array<Tokens, 2> histories = {joined(shared, random_prompt(model.get(), 20, 2)),
                                     joined(shared, random_prompt(model.get(), 20, 3))};
  for (std::uint64_t turn = 0; turn < 3; ++turn) {
    for (Tokens& history : histories) {
      const Answer answer = engine.serve(history, 5);
      if (turn > 0) CHECK(answer.reused == std::ssize(history) - 7 - 1);
      history = joined(joined(history, answer.output), random_prompt(model.get(), 7, 4 + turn));
    }
  }
  CHECK(engine.cache().image_work().restored_states == 0);
}

TEST_CASE("a request that ends while it loads does not keep its sequence") {
  const Model model = load("granitehybrid");
  const Folder folder;
  const llamacpp::CacheOptions options{.memory_bytes = 64 << 20, .files = folder.files()};
  const Tokens prompt = random_prompt(model.get(), 200, 1);
  {
    CachedEngine engine(model.get(), options);
    static_cast<void>(engine.serve(prompt));
    engine.cache().drain();
  }
  for (const RequestEnd how : {RequestEnd::preempted, RequestEnd::aborted}) {
    CachedEngine engine(model.get(), options);
    PlainEngine plain(model.get());
    const auto started = engine.cache().start({.tokens = prompt});
    REQUIRE(started);
    REQUIRE(started->loads);
    engine.cache().end(started->request, how);
    const Answer answer = engine.serve(prompt, 3);
    CHECK(answer.reused == 192);
    CHECK(largest_difference(plain, answer) < rounding);
  }
}
