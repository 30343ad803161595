// SPDX-License-Identifier: Apache-2.0
// Prompts that reuse earlier ones give the logits of a context without a cache that runs the same passes, bit for bit.
#include "engine.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace stateport;
using namespace stateport::test;

namespace {

Tokens prompt_of(std::int32_t words, std::int64_t length, std::int64_t shared, int question) {
  Tokens tokens(static_cast<std::size_t>(length));
  for (std::int64_t i = 0; i < length; ++i)
    tokens[static_cast<std::size_t>(i)] =
        static_cast<llama_token>((i * i * 31 + 17 * i + (i < shared ? 3 : 5 + 101 * question)) % words);
  return tokens;
}

}  // namespace

TEST_CASE("a hit goes on as the passes that left it") {
  for (const std::string& architecture : architectures()) {
    CAPTURE(architecture);
    const Model model = load(architecture);
    const std::int32_t words = vocabulary(model.get());
    CachedEngine engine(model.get(), {.memory_bytes = 64 << 20, .checkpoint_tokens = 64});
    PlainEngine plain(model.get(), 2048);
    const Tokens first = prompt_of(words, 200, 150, 0);
    const CachedEngine::Answer cold = engine.serve(first);
    MESSAGE(architecture << " state " << engine.cache().state_bytes() << " kv " << engine.cache().kv_block_bytes());
    for (auto e : cold.ends) MESSAGE("end " << e);
    CHECK(cold.reused == 0);
    CHECK(cold.logits == plain.run(first, cold.ends));
    const Tokens second = prompt_of(words, 220, 150, 1);
    const CachedEngine::Answer hit = engine.serve(second);
    MESSAGE("reused " << hit.reused);
    std::vector<std::int64_t> ends;
    for (const std::int64_t end : cold.ends)
      if (end <= hit.reused) ends.push_back(end);
    ends.insert(ends.end(), hit.ends.begin(), hit.ends.end());
    CHECK(hit.logits == plain.run(second, ends));
    const CachedEngine::Answer again = engine.serve(second);
    MESSAGE("again reused " << again.reused << " diff " << largest_difference(again.logits, hit.logits));
    const CachedEngine::Answer third = engine.serve(prompt_of(words, 220, 150, 2));
    MESSAGE("third reused " << third.reused);
  }
}
