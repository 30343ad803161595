// SPDX-License-Identifier: Apache-2.0
// Step 4: checkpoints. The engine executes the copies of plans and commits, and prompts that begin as earlier ones hit.
#include "engine.hpp"

using namespace toy;

namespace {

stateport::RequestCacheOptions options() {
  return {.index = stateport::CacheIndex::tree,
          .layout = stateport::SlotLayout{.layout_fingerprint = Engine::spec().fingerprint(), .checkpoints = 16},
          .max_requests = 1,
          .max_request_tokens = 128,
          .block_size_tokens = 16,
          .kv_tokens = 1024};
}

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
    // docs: before and after
    engine.clear(plan.groups[0].clear);
    engine.copy(plan.groups[0].copies);  // a checkpoint becomes the live state
    const std::optional<Token> token = engine.forward(plan.rows[0], cache.tokens(request));
    const std::int32_t count = token ? 1 : 0;
    const Token sampled = token.value_or(0);
    const stateport::PassCommit commit = cache.commit(plan.pass, {&count, 1}, {&sampled, token ? 1u : 0u});
    engine.copy(commit.groups[0].copies);  // live states become checkpoints
    // docs end
  }
  const auto tokens = cache.tokens(request);
  const Tokens result(tokens.begin() + std::ssize(prompt), tokens.end());
  cache.finish(request);
  return result;
}

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
  std::printf("step 4: %zu of %zu tokens computed\n", engine.computed, work.tokens);
  return engine.computed == 262 ? 0 : 1;  // as docs/integrating.md says
}
