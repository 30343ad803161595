// SPDX-License-Identifier: Apache-2.0
// Random conversations against a context that knows no cache.
#include "engine.hpp"
#include "prompts.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <string>

using namespace stateport;
using namespace stateport::test;

namespace {

class Conversations {
 public:
  Conversations(Random& random, llama_model* model)
      : random_(random), model_(model), plain_(model), with_files_(random.chance(50)) {
    options_ = {.sequences = random.between32(1, 3),
                .request_tokens = 400,
                .block_tokens = random.between32(8, 24),
                .checkpoint_tokens = 0};
    if (random.chance(70)) options_.checkpoint_tokens = options_.block_tokens * random.between(1, 8);
    if (with_files_) options_.files = folder_.files();
    make_engine();
  }

  void step() {
    if (random_.chance(40) && std::ssize(engine_->running()) < options_.sequences) {
      REQUIRE(engine_->start(prompt(), random_.between(1, 12)));
    } else if (!engine_->running().empty() && random_.chance(5)) {
      engine_->abort(index(engine_->running().size()));
    } else if (!engine_->running().empty()) {
      engine_->step(random_.between(options_.block_tokens, 200));
      check();
    } else if (random_.chance(5)) {
      restart();
    }
  }
  void finish() {
    while (!engine_->running().empty()) engine_->step();
    check();
  }

  std::int64_t reused = 0, answers = 0;
  float worst = 0;

 private:
  std::size_t index(std::size_t size) {
    return static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(size) - 1));
  }
  void make_engine() {
    // One request's KV, and little more: contents are evicted.
    const std::int64_t bytes = random_.chance(50) ? 3 << 20 : 32 << 20;
    options_.memory_bytes = bytes;
    engine_.emplace(model_, options_, 2048);
  }
  void restart() {
    if (!with_files_) return;
    engine_->cache().drain();
    engine_.reset();
    engine_.emplace(model_, options_, 2048);
  }
  Tokens prompt() {
    const Tokens fresh = random_prompt(model_, random_.between(1, 120), random_.bits());
    if (histories_.empty() || random_.chance(15)) return fresh;
    const Tokens& history = histories_[index(histories_.size())];
    Tokens tokens = random_.chance(60) ? history : first(history, random_.between(1, std::ssize(history)));
    if (random_.chance(80)) tokens = joined(tokens, fresh);  // else: once more
    if (std::ssize(tokens) > 380) tokens.resize(380);
    return tokens;
  }
  void check() {
    for (const Answer& answer : engine_->take()) {
      reused += answer.reused;
      ++answers;
      const float difference = largest_difference(plain_, answer);
      CHECK(difference < rounding);
      worst = std::max(worst, difference);

      Tokens history = joined(answer.prompt, answer.output);
      if (histories_.size() < 8)
        histories_.push_back(std::move(history));
      else
        histories_[index(histories_.size())] = std::move(history);
    }
  }

  Random& random_;
  llama_model* model_;
  PlainEngine plain_;
  Folder folder_;
  bool with_files_;
  llamacpp::CacheOptions options_;
  std::optional<CachedEngine> engine_;
  std::vector<Tokens> histories_;
};

}  // namespace

TEST_CASE("random conversations get the answers of a context without a cache") {
  for (const std::string& architecture : architectures()) {
    CAPTURE(architecture);
    const Model model = load(architecture);
    std::int64_t reused = 0, answers = 0;
    float worst = 0;
    for_each_seed(5, [&](Random& random, std::uint64_t) {
      Conversations conversations(random, model.get());
      for (int i = 0; i < 200; ++i) conversations.step();
      conversations.finish();
      reused += conversations.reused;
      answers += conversations.answers;
      worst = std::max(worst, conversations.worst);
    });
    MESSAGE(architecture << ": " << answers << " answers, " << reused << " tokens reused, logits differ by " << worst
                         << " at most");
    CHECK(reused > 0);
  }
}
