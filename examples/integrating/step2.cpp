// SPDX-License-Identifier: Apache-2.0
// Step 2: the state lies in a slot of a store, which the forward pass reads and writes.
#include "engine.hpp"

using namespace toy;

namespace {

// docs: a request in a slot
Tokens answer(Engine& engine, stateport::SlotId slot, const Tokens& prompt) {
  Tokens tokens = prompt;
  std::vector<Kv> kv;
  engine.clear({&slot, 1});  // the empty state
  while (tokens.size() < prompt.size() + answer_tokens) {
    State state = engine.load(slot);
    for (std::size_t next = kv.size(); next < tokens.size(); ++next) {
      feed(state, tokens[next]);
      kv.push_back(kv_of(tokens[next]));
      ++engine.computed;
    }
    engine.store(slot, state);
    tokens.push_back(sample(state, std::reduce(kv.begin(), kv.end())));
  }
  return {tokens.begin() + std::ssize(prompt), tokens.end()};
}
// docs end

}  // namespace

int main() {
  const Work work;
  Engine engine(4, 0);
  for (std::size_t i = 0; i < work.prompts.size(); ++i)
    expect(answer(engine, stateport::SlotId{2}, work.prompts[i]) == work.answers[i], "a wrong answer");
  std::printf("step 2: %zu of %zu tokens computed\n", engine.computed, work.tokens);
  return 0;
}
