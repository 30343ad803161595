// SPDX-License-Identifier: Apache-2.0
// Prompts that reuse earlier ones give the logits of a context without a cache that runs the same passes, bit for bit.
#include "engine.hpp"
#include "prompts.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace stateport;
using namespace stateport::test;

namespace {

/// The passes of `before` up to the hit, then those of the request.
std::vector<std::int64_t> ends_of(const Answer& before, const Answer& hit) {
  std::vector<std::int64_t> ends;
  for (const std::int64_t end : before.ends)
    if (end <= hit.reused) ends.push_back(end);
  REQUIRE(ends.back() == hit.reused);
  ends.insert(ends.end(), hit.ends.begin(), hit.ends.end());
  return ends;
}

template <class Body>
void for_each_architecture(Body&& body) {
  for (const std::string& architecture : architectures()) {
    CAPTURE(architecture);
    const Model model = load(architecture);
    body(model.get());
  }
}

}  // namespace

TEST_CASE("a prompt goes on where an earlier one is left") {
  for_each_architecture([](llama_model* model) {
    CachedEngine engine(model, {.memory_bytes = 64 << 20, .checkpoint_tokens = 64});
    PlainEngine plain(model);
    const Tokens shared = random_prompt(model, 150, 1);
    const Answer cold = engine.serve(joined(shared, random_prompt(model, 50, 2)));
    CHECK(cold.reused == 0);
    CHECK(cold.logits[0] == plain.run(cold.prompt, cold.ends));

    const Answer branch = engine.serve(joined(shared, random_prompt(model, 70, 3)));
    CHECK(branch.reused == 128);  // a checkpoint on the way
    const llamacpp::ImageWork work = engine.cache().image_work();
    CHECK(work.restored_states == 1);
    CHECK(work.restored_blocks == 0);  // the sequence of the first prompt has them
    CHECK(work.saved_blocks == 12 + 5);
    CHECK(work.saved_states == 3 + 3);
    CHECK(work.save_s > 0);
    CHECK(work.restore_s > 0);
    CHECK(branch.logits[0] == plain.run(branch.prompt, ends_of(cold, branch)));
    const Answer again = engine.serve(branch.prompt);
    CHECK(again.reused == 208);  // the last block's end before the last token
    CHECK(again.logits[0] == branch.logits[0]);
    const Answer other = engine.serve(joined(shared, random_prompt(model, 60, 4)));
    CHECK(other.reused == 144);  // where the second prompt left the first
    CHECK(other.logits[0] != branch.logits[0]);
  });
}

TEST_CASE("the next turn goes on behind the answer") {
  for_each_architecture([](llama_model* model) {
    CachedEngine engine(model);
    PlainEngine plain(model);
    const Answer turn = engine.serve(random_prompt(model, 100, 5), 40);
    Tokens history = joined(turn.prompt, turn.output);
    const std::int64_t before = engine.decoded_tokens();
    const Answer next = engine.serve(joined(history, random_prompt(model, 2, 6)));
    CHECK(next.reused == 139);  // all but the last token of the answer
    CHECK(engine.decoded_tokens() - before == 3);
    CHECK(largest_difference(plain, next) < rounding);
  });
}

TEST_CASE("another process goes on alike") {
  for_each_architecture([](llama_model* model) {
    const Folder folder;
    const llamacpp::CacheOptions options{.memory_bytes = 64 << 20, .checkpoint_tokens = 64, .files = folder.files()};
    const Tokens shared = random_prompt(model, 150, 7);
    Answer cold;
    {
      CachedEngine engine(model, options);
      cold = engine.serve(joined(shared, random_prompt(model, 50, 8)));
      engine.cache().drain();
    }
    CachedEngine engine(model, options);
    PlainEngine plain(model);
    const Answer moved = engine.serve(joined(shared, random_prompt(model, 33, 9)));
    CHECK(moved.reused == 128);
    CHECK(moved.logits[0] == plain.run(moved.prompt, ends_of(cold, moved)));
    const TierUsage files = engine.cache().files();
    CHECK(files.loads == 1);
    CHECK(files.hit_tokens == 128);
  });
}

TEST_CASE("requests with a common prefix run side by side") {
  for_each_architecture([](llama_model* model) {
    CachedEngine engine(model, {.sequences = 3, .memory_bytes = 64 << 20, .checkpoint_tokens = 64});
    PlainEngine plain(model);
    const Tokens shared = random_prompt(model, 150, 10);
    static_cast<void>(engine.serve(shared));
    for (std::uint64_t i = 0; i < 3; ++i) REQUIRE(engine.start(joined(shared, random_prompt(model, 40, 11 + i)), 5));
    CHECK(!engine.start(shared));
    while (!engine.running().empty()) engine.step(500);
    const std::vector<Answer> answers = engine.take();
    REQUIRE(answers.size() == 3);
    for (const Answer& answer : answers) {
      CHECK(answer.reused >= 128);
      CHECK(largest_difference(plain, answer) < rounding);
    }
  });
}
