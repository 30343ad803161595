// SPDX-License-Identifier: Apache-2.0
// Contexts that cannot be served, and calls at a wrong time.
#include <stateport/core/model/error.hpp>

#include "engine.hpp"
#include "prompts.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace stateport;
using namespace stateport::test;

namespace {

constexpr const char* architecture = "granitehybrid";

std::string refusal(const llama_context_params& params, const llamacpp::CacheOptions& options) {
  const Model model = load(architecture);
  const Context context(llama_init_from_model(model.get(), params));
  REQUIRE(context != nullptr);
  try {
    const llamacpp::Cache cache(context.get(), params, "random weights", options);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("contexts and options that cannot be served are refused") {
  llama_context_params params = parameters(2048, 3);
  const llamacpp::CacheOptions options{.sequences = 2, .memory_bytes = 64 << 20};
  CHECK(refusal(params, options) == "none");
  const auto with = [&](auto member, auto value) {
    llamacpp::CacheOptions changed = options;
    changed.*member = value;
    return refusal(params, changed);
  };
  CHECK(with(&llamacpp::CacheOptions::sequences, 0) == "sequences = 0 (must be at least 1)");
  CHECK(with(&llamacpp::CacheOptions::sequences, 3) ==
        "context.n_seq_max = 3 (must be one more than sequences, or larger)");
  CHECK(with(&llamacpp::CacheOptions::block_tokens, 0) == "block_tokens = 0 (must be at least 1)");
  CHECK(with(&llamacpp::CacheOptions::block_tokens, 24) == "checkpoint_tokens = 512 (must be whole blocks)");
  CHECK(with(&llamacpp::CacheOptions::checkpoint_tokens, 20) == "checkpoint_tokens = 20 (must be whole blocks)");
  CHECK(with(&llamacpp::CacheOptions::state_share, 1.0) == "state_share = 1 (must lie between 0 and 1)");
  CHECK(with(&llamacpp::CacheOptions::request_tokens, 1025) ==
        "request_tokens = 1025 (must be more than a block, and with all sequences at most context.n_ctx)");
  const std::string memory = with(&llamacpp::CacheOptions::memory_bytes, 100'000);
  CHECK(memory.starts_with("memory_bytes = 100000 (must hold a state of "));
  CHECK(memory.find("64 blocks of ") != std::string::npos);
  params.n_ctx = 512;
  CHECK(refusal(params, {.memory_bytes = 64 << 20, .block_tokens = 171, .checkpoint_tokens = 0}) ==
        "context.n_ctx = 512 (must be more than three blocks)");
  params.n_batch = 8;
  CHECK(refusal(params, options) == "context.n_batch = 8 (must be a block or more)");
  params = parameters(2048, 3);
  params.kv_unified = false;
  CHECK(refusal(params, options) == "context.kv_unified = 0 (must be set)");
}

TEST_CASE("a context with sliding windows is refused") {
  const Model model = load("refused/lfm2-windows");
  REQUIRE(llama_model_n_swa(model.get()) > 0);
  const llama_context_params params = parameters(2048, 2);
  const Context context(llama_init_from_model(model.get(), params));
  REQUIRE(context != nullptr);
  CHECK_THROWS_WITH_AS(llamacpp::Cache(context.get(), params, "random weights", {.memory_bytes = 64 << 20}),
                       doctest::Contains("its states grow from "), InvalidArgument);
  CHECK(llama_memory_seq_pos_max(llama_get_memory(context.get()), 0) == -1);  // it can be used without a cache
}

TEST_CASE("a context whose memory is in use is refused") {
  const Model model = load(architecture);
  const llama_context_params params = parameters(2048, 2);
  const Context context(llama_init_from_model(model.get(), params));
  llama_token token = 3;
  REQUIRE(llama_decode(context.get(), llama_batch_get_one(&token, 1)) == 0);
  CHECK_THROWS_WITH_AS(llamacpp::Cache(context.get(), params, "random weights", {.memory_bytes = 64 << 20}),
                       "context = a sequence (has tokens already)", InvalidArgument);
}

TEST_CASE("calls at a wrong time are refused, and change nothing") {
  const Model model = load(architecture);
  CachedEngine engine(model.get());
  llamacpp::Cache& cache = engine.cache();
  const Tokens prompt = random_prompt(model.get(), 40, 1);
  const auto started = cache.start({.tokens = prompt});
  REQUIRE(started);
  const RequestId other{99};
  CHECK_THROWS_AS(static_cast<void>(cache.chunk(other, 10)), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(cache.is_loading(other)), InvalidArgument);
  CHECK_THROWS_AS(cache.end(other, RequestEnd::finished), InvalidArgument);
  CHECK_THROWS_AS(cache.commit({}, {}), InvalidState);
  CHECK_THROWS_AS(cache.cancel(), InvalidState);
  const PassRow drafts{.request = started->request, .tokens = 2, .drafts = 1};
  CHECK_THROWS_AS(static_cast<void>(cache.plan({&drafts, 1})), InvalidArgument);
  const PassRow long_row{.request = started->request, .tokens = 600};
  CHECK_THROWS_AS(static_cast<void>(cache.plan({&long_row, 1})), InvalidArgument);
  const PassRow row{.request = started->request, .tokens = 32};
  REQUIRE(cache.plan({&row, 1}).batch.n_tokens == 32);
  cache.cancel();  // it did not run
  REQUIRE(cache.plan({&row, 1}).batch.n_tokens == 32);
  REQUIRE(llama_decode(engine.context(), cache.plan({&row, 1}).batch) == 0);
  const std::int32_t none = 0;
  cache.commit({&none, 1}, {});
  cache.end(started->request, RequestEnd::preempted);
  CHECK(engine.serve(prompt).reused == 32);
}

TEST_CASE("a pass that llama.cpp gives up leaves nothing behind") {
  const Model model = load(architecture);
  CachedEngine engine(model.get());
  PlainEngine plain(model.get());
  llamacpp::Cache& cache = engine.cache();
  const Answer first = engine.serve(random_prompt(model.get(), 60, 1), 4);
  const Tokens prompt = joined(joined(first.prompt, first.output), random_prompt(model.get(), 300, 2));
  const auto started = cache.start({.tokens = prompt});
  REQUIRE(started);
  const PassRow row{.request = started->request,
                    .tokens = static_cast<std::int32_t>(cache.chunk(started->request, 300))};
  llama_set_abort_callback(
      engine.context(), [](void*) { return true; }, nullptr);
  CHECK(llama_decode(engine.context(), cache.plan({&row, 1}).batch) == 2);
  llama_set_abort_callback(engine.context(), nullptr, nullptr);
  cache.end(started->request, RequestEnd::aborted);
  const Answer answer = engine.serve(prompt, 3);
  CHECK(answer.reused == 48);
  CHECK(largest_difference(plain, answer) < rounding);
}
