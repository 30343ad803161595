// SPDX-License-Identifier: Apache-2.0
// Step 3: a RequestCache plans the passes. It says which slot a request has and where its KV goes. There is no room for
// checkpoints yet, so no prompt hits.
#include "engine.hpp"

using namespace toy;

namespace {

// docs: options
stateport::RequestCacheOptions options() {
  return {.index = stateport::CacheIndex::tree,
          .layout = stateport::SlotLayout{.layout_fingerprint = Engine::spec().fingerprint(), .checkpoints = 0},
          .max_requests = 1,
          .max_request_tokens = 128,
          .block_size_tokens = 16,
          .kv_tokens = 1024};
}
// docs end

// docs: a request by plans
Tokens answer(stateport::RequestCache& cache, Engine& engine, const Tokens& prompt) {
  const auto started = cache.start({.tokens = prompt});
  expect(started.has_value(), "no room");
  const stateport::RequestId request = started->request;
  const std::int64_t end = std::ssize(prompt) + static_cast<std::int64_t>(answer_tokens);
  while (std::ssize(cache.tokens(request)) < end) {
    const std::int64_t budget = cache.computed(request) < std::ssize(prompt) ? 32 : 1;
    const stateport::PassRow row{.request = request,
                                 .tokens = static_cast<std::int32_t>(cache.chunk(request, budget).tokens)};
    const stateport::PassPlan plan = cache.plan({&row, 1});
    expect(plan.rows_without_room == 0, "no room");
    engine.clear(plan.groups[0].clear);
    const std::optional<Token> token = engine.forward(plan.rows[0], cache.tokens(request));
    const std::int32_t count = token ? 1 : 0;
    const Token sampled = token.value_or(0);
    static_cast<void>(cache.commit(plan.pass, {&count, 1}, {&sampled, token ? 1u : 0u}));
  }
  const auto tokens = cache.tokens(request);
  const Tokens result(tokens.begin() + std::ssize(prompt), tokens.end());
  cache.finish(request);
  return result;
}
// docs end

}  // namespace

int main() {
  const Work work;
  const auto cache = stateport::make_request_cache(options());
  // docs: sizes
  Engine engine(stateport::state_slots(options()),
                static_cast<std::size_t>(stateport::kv_blocks(options())) * 16);  // tokens of a block
  // docs end
  for (std::size_t i = 0; i < work.prompts.size(); ++i)
    expect(answer(*cache, engine, work.prompts[i]) == work.answers[i], "a wrong answer");
  std::printf("step 3: %zu of %zu tokens computed\n", engine.computed, work.tokens);
  return engine.computed == work.tokens ? 0 : 1;
}
