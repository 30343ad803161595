// SPDX-License-Identifier: Apache-2.0
// Namespaces learn whether their prompts leave states before tails: tail_tokens = 0.
#include <stateport/core/serve/request_cache.hpp>

#include "random.hpp"
#include "serve_alone.hpp"
#include "state_world.hpp"
#include "tier_server.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

using namespace stateport;
using stateport::test::columns;
using stateport::test::Combination;
using stateport::test::counting;
using stateport::test::every_combination;
using stateport::test::Random;
using stateport::test::slots;
using stateport::test::small_cache;
using Tokens = test::StateWorld::Tokens;

namespace {

constexpr std::int64_t tail = 64;
constexpr std::int32_t longest = 480;

/// In columns states lie at multiples of six blocks.
RequestCacheOptions roomy_cache(Combination index, std::int64_t tail_tokens, CheckpointPlacement placement,
                                std::int32_t block = 4) {
  RequestCacheOptions options = small_cache(index);
  options.max_request_tokens = longest;
  options.block_size_tokens = block;
  options.kv_tokens = 40'000 / block * block;
  if (in_columns(index)) {
    columns(options).groups[0].block_size_tokens = 3 * block;
    columns(options).groups[1].block_size_tokens = 6 * block;
    for (StateGroup& group : columns(options).groups) group.blocks = 4'000;
    columns(options).tail_tokens = tail_tokens;
    return options;
  }
  slots(options) = {.layout_fingerprint = 7, .checkpoints = 1'000, .placement = placement, .tail_tokens = tail_tokens};
  return options;
}

struct Served {
  std::int64_t reused = 0;
  std::int64_t cached = 0;
  std::int64_t first_chunk = 0;
  std::vector<std::int64_t> passes;  ///< where they began
};

/// Runs a prompt in passes of at most `budget` tokens, and ends it without an answer.
Served serve(RequestCache& cache, const Tokens& prompt, const std::string& salt, std::int64_t budget = longest) {
  const auto started = cache.start({.tokens = prompt, .name_space = {.salt = salt}});
  REQUIRE(started);
  Served served{.reused = started->reused_tokens,
                .cached = started->reused_tokens + started->lost_tokens,
                .first_chunk = cache.chunk(started->request, longest).tokens};
  for (std::int64_t at = served.reused; at < std::ssize(prompt);) {
    const std::int64_t left = std::min(std::ssize(prompt) - at, budget);
    const PassRow row{.request = started->request,
                      .tokens = static_cast<std::int32_t>(cache.chunk(started->request, left).tokens)};
    const PassPlan plan = cache.plan({&row, 1});
    REQUIRE(plan.rows_without_room == 0);
    constexpr std::int32_t none = 0;
    static_cast<void>(cache.commit(plan.pass, {&none, 1}, {}));
    served.passes.push_back(at);
    at += row.tokens;
  }
  cache.finish(started->request);
  return served;
}

/// A chat of `turns` prompts behind a system prompt. Each continues the one before, of which the template drops the
/// last `dropped` tokens.
std::vector<Tokens> chat(int turns, int dropped, Token first, std::int32_t system = 70) {
  std::vector<Tokens> prompts;
  Tokens prompt = counting(system, first);
  for (int turn = 0; turn < turns; ++turn) {
    for (int i = 0; i < 100; ++i) prompt.push_back(first + 10'000 + 100 * turn + i);
    prompts.push_back(prompt);
    prompt.resize(prompt.size() - static_cast<std::size_t>(dropped));
  }
  return prompts;
}

std::vector<std::int64_t> reused_by(RequestCache& cache, const std::vector<Tokens>& prompts, const std::string& salt) {
  std::vector<std::int64_t> reused;
  for (const Tokens& prompt : prompts) reused.push_back(serve(cache, prompt, salt).reused);
  cache.check_invariants();
  return reused;
}

constexpr std::array placements = {CheckpointPlacement::passes, CheckpointPlacement::last, CheckpointPlacement::branch,
                                   CheckpointPlacement::rungs};

}  // namespace

TEST_CASE("a namespace whose template rewrites the end of each turn gets tails from its second turn on") {
  for (const Combination index : every_combination)
    for (const CheckpointPlacement placement : placements) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(static_cast<int>(placement));
      const auto make = [&](std::int64_t asked) { return make_request_cache(roomy_cache(index, asked, placement)); };
      const auto learned = make(0);
      const auto always = make(tail);
      const auto never = make(-1);
      const std::vector<Tokens> prompts = chat(6, 40, 1);
      const auto by_learning = reused_by(*learned, prompts, "template");
      const auto with = reused_by(*always, prompts, "template");
      const auto without = reused_by(*never, prompts, "template");
      CHECK(by_learning[1] == without[1]);  // the first prompt knew nothing
      for (std::size_t turn = 2; turn < prompts.size(); ++turn) {
        CAPTURE(turn);
        CHECK(by_learning[turn] == with[turn]);
        CHECK(with[turn] >= without[turn]);
      }
      CHECK(with.back() > without.back());
      // Another namespace has learned nothing.
      const std::vector<Tokens> others = chat(4, 0, 100'000);
      CHECK(reused_by(*learned, others, "goes on") == reused_by(*never, others, "goes on"));
    }
}

TEST_CASE("a namespace whose prompts go on behind the end of earlier ones never gets tails") {
  for (const Combination index : every_combination)
    for (const CheckpointPlacement placement : placements) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(static_cast<int>(placement));
      const auto learned = make_request_cache(roomy_cache(index, 0, placement));
      const auto never = make_request_cache(roomy_cache(index, -1, placement));
      const auto always = make_request_cache(roomy_cache(index, tail, placement));
      const std::vector<Tokens> prompts = chat(4, 0, 1);
      const auto by_learning = reused_by(*learned, prompts, "");
      CHECK(by_learning == reused_by(*never, prompts, ""));
      CHECK(by_learning != reused_by(*always, prompts, ""));
    }
}

namespace {

/// A cache whose chunk() tells whether there is a tail.
RequestCacheOptions telling_cache(Combination index, CheckpointPlacement placement = CheckpointPlacement::passes,
                                  std::int32_t block = 4) {
  RequestCacheOptions options = roomy_cache(index, 0, placement, block);
  if (!in_columns(index)) slots(options).scan_alignment_tokens = -1;
  return options;
}

void start_and_abort(RequestCache& cache, const Tokens& prompt, const std::string& salt) {
  const auto started = cache.start({.tokens = prompt, .name_space = {.salt = salt}});
  REQUIRE(started);
  cache.abort(started->request);
}

/// Whether a new prompt, whose tokens begin with this one, has a tail. It does not run.
bool has_tail(RequestCache& cache, Token first) {
  const auto started =
      cache.start({.tokens = counting(200, first), .name_space = {.salt = ""}, .search = PromptSearch::device});
  REQUIRE(started);
  const std::int64_t chunk = cache.chunk(started->request, longest).tokens;
  cache.abort(started->request);
  return chunk == (in_columns(cache.options()) ? 120 : 136);
}

/// Whether the first pass over this prompt ends there.
bool first_chunk_ends(const RequestCache& cache, RequestId request, std::int64_t at) {
  return cache.computed(request) + cache.chunk(request, longest).tokens == at;
}

/// Runs a request that has started to its end.
void run(RequestCache& cache, const StartedRequest& started, const Tokens& prompt) {
  REQUIRE_FALSE(has_tail(cache, 1'000'000));
  test::finish_prompt(cache, started.request, std::ssize(prompt));
}

}  // namespace

TEST_CASE("a prompt teaches by what it finds until it runs, and nothing if it never runs") {
  enum class How { aborted, refreshed, waited };
  for (const Combination index : every_combination)
    for (const How how : {How::aborted, How::refreshed, How::waited}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(static_cast<int>(how));
      RequestCacheOptions options = telling_cache(index);
      if (how == How::waited) options.share_running = {.least_tokens = 16};
      const auto cache = make_request_cache(options);
      const std::vector<Tokens> prompts = chat(2, 40, 1, 72);
      serve(*cache, Tokens(prompts[0].begin(), prompts[0].begin() + 72), "");
      const auto first = cache->start({.tokens = prompts[0], .name_space = {.salt = ""}});
      REQUIRE(first);
      const auto early = cache->start({.tokens = prompts[1], .name_space = {.salt = ""}});
      REQUIRE(early);
      CHECK(early->waits_for.has_value() == (how == How::waited));
      test::finish_prompt(*cache, first->request, std::ssize(prompts[0]));
      if (how == How::aborted) {
        cache->abort(early->request);
        for (int i = 0; i < 5; ++i) start_and_abort(*cache, prompts[1], "");
        CHECK_FALSE(has_tail(*cache, 2'000'000));
        serve(*cache, prompts[1], "");
      } else {
        if (how == How::refreshed) {
          CHECK(cache->refresh(early->request).has_value());
          CHECK(first_chunk_ends(*cache, early->request, 168));  // 64 tokens before its end
        }
        run(*cache, *early, prompts[1]);
      }
      // The request that one waits for leaves a state for it: without a tail nothing is lost.
      CHECK(has_tail(*cache, 3'000'000) == (how != How::waited));
    }
}

TEST_CASE("a prompt whose beginning was loaded, or found in the remote tier, teaches as well") {
  for (const Combination index : every_combination)
    for (const bool is_remote : {false, true}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(is_remote);
      RequestCacheOptions options = telling_cache(index);
      options.kv_tokens = 2 * longest;
      options.memory = {.state_bytes = 100, .kv_bytes_per_token = 1};
      options.tiers = is_remote ? TierOptions{.remote_bytes = 1 << 20} : TierOptions{.host_bytes = 1 << 20};
      test::Server server(options);
      const std::vector<Tokens> prompts = chat(2, 40, 1, 72);
      server.serve(Tokens(prompts[0].begin(), prompts[0].begin() + 72), {.salt = ""});
      if (!is_remote) {
        server.serve(prompts[0], {.salt = ""});
        for (Token first = 1'000'000; first < 1'010'000; first += 1'000)
          server.serve(counting(longest - 20, first), {.salt = "other"});
      } else {
        constexpr std::array<std::int64_t, 1> named = {132};  // a look-up of the store finds KV up to a state
        const auto first = server.start({.tokens = prompts[0], .name_space = {.salt = ""}, .breakpoints = named});
        REQUIRE(first);
        server.move_all();
        server.run(first->request, prompts[0]);
        server.cache->finish(first->request);
        server.drain();
        server.move_all();
        server.cache->reset();  // the store keeps its objects
        server.move_all();
      }
      CHECK_FALSE(has_tail(*server.cache, 2'000'000));
      const auto loaded = server.start({.tokens = prompts[1], .name_space = {.salt = ""}});
      REQUIRE(loaded);
      REQUIRE(loaded->load);
      CHECK((loaded->load->tokens == 0) == is_remote);  // it asks first
      server.move_all();
      CHECK(server.cache->computed(loaded->request) >= 72);
      CHECK(first_chunk_ends(*server.cache, loaded->request, 168));
      CHECK_FALSE(has_tail(*server.cache, 2'500'000));
      server.run(loaded->request, prompts[1]);
      CHECK(has_tail(*server.cache, 3'000'000));
    }
}

TEST_CASE("a namespace unlearns its tails when its template changes") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(telling_cache(index));
    CHECK_FALSE(has_tail(*cache, 1'000'000));
    static_cast<void>(reused_by(*cache, chat(6, 40, 1, 68), ""));
    int chats = 0;
    while (has_tail(*cache, 2'000'000 + 1'000 * chats) && chats < 20)
      static_cast<void>(reused_by(*cache, chat(4, 0, 100'000 * ++chats, 68), ""));  // whole blocks leave an end
    CHECK(chats > 0);
    CHECK(chats < 20);
  }
}

namespace {

/// What is learned, told slowly: all prompts are kept, and compared token by token.
class TailModel {
 public:
  TailModel(Combination index, CheckpointPlacement placement, std::int64_t block)
      : in_columns_(in_columns(index)),
        placement_(placement),
        block_(block),
        grid_(in_columns_ ? 6 * block : block),
        key_grid_((tail + block - 1) / block * block) {}

  /// A prompt came, and of it `cached` tokens of KV were found, of which it reuses some.
  void came(const Tokens& prompt, const std::string& salt, std::int64_t cached, std::int64_t reused) {
    const Seen* seen = cached > 0 ? find(prompt, salt, cached) : nullptr;
    if (seen == nullptr && reused > 0) seen = find(prompt, salt, reused);
    if (seen == nullptr) return;
    const bool goes_on =
        std::ssize(prompt) > seen->usable &&
        std::equal(prompt.begin() + seen->place, prompt.begin() + seen->usable, seen->tokens.begin() + seen->place);
    Sums& sums = sums_[salt == "a" ? 0 : 1];
    if (goes_on)
      sums.lost_with += seen->usable - seen->place;
    else
      sums.lost_without += seen->place - seen->other;
    if (++sums.prompts < 256) return;
    sums.prompts = 128;
    sums.lost_with /= 2;
    sums.lost_without /= 2;
  }
  [[nodiscard]] bool has_tail(const std::string& salt) const {
    const Sums& sums = sums_[salt == "a" ? 0 : 1];
    return sums.lost_without > sums.lost_with;
  }
  [[nodiscard]] std::int64_t usable(std::int64_t prompt) const { return (prompt - 1) / grid_ * grid_; }
  [[nodiscard]] std::int64_t place(std::int64_t prompt, std::int64_t reused) const {
    const std::int64_t before = std::max<std::int64_t>(prompt - tail, 0) / grid_ * grid_;
    return before - reused >= grid_ ? before : usable(prompt);
  }
  void computed(const Tokens& prompt, const std::string& salt, const Served& served) {
    const std::int64_t length = std::ssize(prompt);
    Seen seen{.tokens = prompt, .salt = salt, .place = place(length, served.reused), .usable = usable(length)};
    if (seen.place >= seen.usable || seen.place / key_grid_ == 0) return;
    seen.other = served.reused;
    for (const std::int64_t pass : served.passes)
      if ((in_columns_ || placement_ == CheckpointPlacement::passes) && pass < seen.place)
        seen.other = std::max(seen.other, pass / grid_ * grid_);
    // A pass that can save nothing on its way leaves no state there, unless it ends there, or at whole blocks.
    if (!in_columns_ && length % block_ != 0 && served.passes.back() != seen.usable) seen.usable = longest;
    seen_.push_back(std::move(seen));
  }

 private:
  struct Seen {
    Tokens tokens;
    std::string salt;
    std::int64_t place = 0;
    std::int64_t usable = 0;
    std::int64_t other = 0;
  };
  struct Sums {
    std::int64_t lost_with = 0;
    std::int64_t lost_without = 0;
    int prompts = 0;
  };

  /// The last prompt whose tail begins within reach before this position, and which has the same 16 tokens there.
  [[nodiscard]] const Seen* find(const Tokens& prompt, const std::string& salt, std::int64_t tokens) const {
    for (std::int64_t at = tokens / key_grid_ * key_grid_; at > 0 && at >= tokens - (tail + grid_ + key_grid_);
         at -= key_grid_)
      for (auto seen = seen_.rbegin(); seen != seen_.rend(); ++seen) {
        if (seen->salt != salt || seen->place / key_grid_ * key_grid_ != at) continue;
        const std::int64_t first = at - 16;
        if (!std::equal(prompt.begin() + first, prompt.begin() + at, seen->tokens.begin() + first)) continue;
        if (tokens >= seen->place) return &*seen;
        break;
      }
    return nullptr;
  }

  bool in_columns_;
  CheckpointPlacement placement_;
  std::int64_t block_;
  std::int64_t grid_;      ///< of states
  std::int64_t key_grid_;  ///< of the places by which prompts are found
  std::vector<Seen> seen_;
  std::array<Sums, 2> sums_ = {};
};

/// A prompt that continues an earlier one, edits it, comes again, or is new.
Tokens draw_prompt(Random& random, const std::vector<Tokens>& before, Token& next) {
  Tokens prompt;
  if (!before.empty() && random.chance(90)) {
    prompt = before[static_cast<std::size_t>(
        random.between(std::max<std::int64_t>(std::ssize(before) - 4, 0), std::ssize(before) - 1))];
    const std::int64_t kept = random.chance(60)   ? std::ssize(prompt) - random.between(1, 80)
                              : random.chance(20) ? random.between(1, std::ssize(prompt))
                                                  : std::ssize(prompt);
    prompt.resize(static_cast<std::size_t>(std::max<std::int64_t>(kept, 1)));
    if (random.chance(10)) return prompt;
  }
  for (std::int64_t count = random.between(1, 120); count > 0 && std::ssize(prompt) < longest - 1; --count)
    prompt.push_back(++next);
  return prompt;
}

}  // namespace

namespace {

/// A cache beside the model. Both serve the same prompts.
class Twins {
 public:
  Twins(Combination index, CheckpointPlacement placement, std::int32_t block = 4)
      : index_(index), model_(index, placement, block) {
    cache_ = make_request_cache(telling_cache(index, placement, block));
  }

  void serve_both(const Tokens& prompt, const std::string& salt, std::int64_t budget) {
    if (served_ % 4 == 0) start_and_abort(*cache_, prompt, salt);
    const Served served = serve(*cache_, prompt, salt, in_columns(index_) ? longest : budget);
    model_.came(prompt, salt, served.cached, served.reused);
    const std::int64_t length = std::ssize(prompt);
    const std::int64_t place = model_.place(length, served.reused);
    const std::int64_t usable = model_.usable(length);
    const bool can_have = place < usable && place > served.reused;
    std::int64_t end = length;
    if (model_.has_tail(salt) && can_have)
      end = place;
    else if (in_columns(index_) && usable > served.reused)
      end = usable;
    REQUIRE(served.first_chunk == end - served.reused);
    if (can_have) ++(model_.has_tail(salt) ? with_tail : without);
    model_.computed(prompt, salt, served);
    if (++served_ % 40 == 0) cache_->check_invariants();
  }

  std::int64_t with_tail = 0;  ///< prompts
  std::int64_t without = 0;    ///< that could have had one

 private:
  Combination index_;
  TailModel model_;
  int served_ = 0;
  std::unique_ptr<RequestCache> cache_;
};

}  // namespace

TEST_CASE("what a cache learns of tails agrees with a slow model") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    std::int64_t with_tail = 0;
    std::int64_t without = 0;
    int caches = 0;
    test::for_each_seed(1000, [&](Random& random, std::uint64_t) {
      ++caches;
      constexpr std::array<std::int32_t, 4> blocks = {4, 5, 12, 80};
      const std::int32_t block = blocks[static_cast<std::size_t>(random.between(0, in_columns(index) ? 2 : 3))];
      Twins twins(index, placements[static_cast<std::size_t>(random.between(0, 3))], block);
      std::array<std::vector<Tokens>, 2> before;
      Token next = 0;
      for (int i = 0; i < 40; ++i) {
        CAPTURE(i);
        const std::size_t tenant = random.chance(50) ? 0 : 1;
        const std::size_t like = random.chance(20) ? 1 - tenant : tenant;  // tenants may have the same prompts
        before[tenant].push_back(draw_prompt(random, before[like], next));
        twins.serve_both(before[tenant].back(), tenant == 0 ? "a" : "b", random.between(40, longest));
      }
      with_tail += twins.with_tail;
      without += twins.without;
    });
    if (caches < 20) continue;
    CHECK(with_tail > caches);
    CHECK(without > caches);
  }
}

TEST_CASE("what a cache learned of tails long ago counts less") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Twins twins(index, CheckpointPlacement::passes);
    Token first = 1;
    const auto serve_chats = [&](int chats, int dropped) {
      for (; chats > 0; --chats, first += 20'000)
        for (const Tokens& prompt : chat(2, dropped, first, 68)) twins.serve_both(prompt, "a", longest);
    };
    serve_chats(200, 40);
    CHECK(twins.with_tail > 300);
    serve_chats(300, 0);
    const std::int64_t before = twins.with_tail;
    serve_chats(1, 0);
    CHECK(twins.with_tail == before);
  }
}
