// SPDX-License-Identifier: Apache-2.0
// A fleet of real caches whose events an index hears: what it predicts against what they reuse.
#include <stateport/core/hash/block_hasher.hpp>
#include <stateport/core/serve/request_cache.hpp>
#include <stateport/parts/router_index.hpp>

#include "combination.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace stateport;

namespace {

using test::Combination;

constexpr std::int32_t fleet_block_tokens = 16;
constexpr std::int32_t fleet_tokens_max = 512;

RequestCacheOptions fleet_cache(Combination index, bool tiers) {
  RequestCacheOptions options{.index = test::index_of(index),
                              .max_requests = 1,
                              .max_request_tokens = fleet_tokens_max,
                              .block_size_tokens = fleet_block_tokens,
                              .kv_tokens = 8192,
                              .eviction = EvictionOrder::lru,
                              .memory = {.state_bytes = 1000, .kv_bytes_per_token = 1},
                              .hash = BlockHashKind::xxh3_128,
                              .events = true};
  if (tiers) options.tiers = {.host_bytes = 40'000};
  if (test::in_columns(index))
    options.layout =
        ColumnLayout{.groups = {{.block_size_tokens = 16, .blocks = 90, .conv_window = 3, .layout_fingerprint = 7},
                                {.block_size_tokens = 32, .blocks = 60, .conv_window = 3, .layout_fingerprint = 8}}};
  else
    options.layout = SlotLayout{.layout_fingerprint = 7, .checkpoints = 40};
  return options;
}

/// One cache, whose transfers take no time.
class FleetWorker {
 public:
  explicit FleetWorker(const RequestCacheOptions& options) : cache_(make_request_cache(options)) {}

  /// Returns how much of the prompt was reused.
  std::int64_t serve(const std::vector<Token>& prompt) {
    const auto started = cache_->start({.tokens = prompt});
    REQUIRE(started);
    move(started->transfers);
    const std::int64_t reused = cache_->computed(started->request);
    for (std::int64_t left = std::ssize(prompt) - reused; left > 0;) {
      const PassRow row{.request = started->request,
                        .tokens = static_cast<std::int32_t>(cache_->chunk(started->request, left).tokens)};
      REQUIRE(row.tokens > 0);
      const PassPlan plan = cache_->plan({&row, 1});
      REQUIRE(plan.rows_without_room == 0);
      const PassId pass = plan.pass;
      move(plan.transfers);
      constexpr std::int32_t none = 0;
      move(cache_->commit(pass, {&none, 1}, {}).transfers);
      left -= row.tokens;
    }
    move(cache_->finish(started->request).transfers);
    return reused;
  }
  void take_events(std::vector<CacheEvent>& events) {
    std::array<CacheEvent, 256> taken;
    for (std::size_t count = taken.size(); count == taken.size();) {
      count = cache_->take_events(taken);
      events.insert(events.end(), taken.begin(), taken.begin() + static_cast<std::ptrdiff_t>(count));
    }
  }
  [[nodiscard]] std::int64_t evicted() const { return cache_->usage().evicted_states; }

 private:
  /// Carries transfers out at once, and those that their ends decide.
  void move(TransferPlan transfers) {
    if (cache_->tiers() == nullptr) return;
    for (;;) {
      results_.clear();
      for (const Transfer& transfer : transfers)
        if (transfer.kind != Transfer::Kind::drop) results_.push_back({transfer.id, TransferStatus::done});
      transfers = cache_->tiers()->settle(results_).transfers;
      if (transfers.empty()) return;
    }
  }

  std::unique_ptr<RequestCache> cache_;
  std::vector<TransferResult> results_;
};

/// Conversations that go on, and begin with a few system prompts.
class FleetPrompts {
 public:
  explicit FleetPrompts(test::Random& random) : random_(random), chats_(160) {}

  const std::vector<Token>& next() {
    // Some are much more frequent than others.
    const std::int64_t most = random_.between(1, std::ssize(chats_));
    std::vector<Token>& chat = chats_[static_cast<std::size_t>(random_.between(0, most - 1))];
    const std::int64_t turn = random_.between(10, 70);
    if (chat.empty() || std::ssize(chat) + turn > fleet_tokens_max) {
      chat.clear();
      const Token system = random_.between32(0, 7);
      for (Token i = 0; i < 40 + 20 * system; ++i) chat.push_back(1000 * system + i);
    }
    if (random_.chance(70))
      for (std::int64_t i = 0; i < turn; ++i) chat.push_back(random_.between32(10'000, 1'000'000));
    return chat;
  }

 private:
  test::Random& random_;
  std::vector<std::vector<Token>> chats_;
};

struct FleetCounts {
  std::int64_t requests = 0;
  std::int64_t tokens = 0;
  std::int64_t predicted = 0;
  std::int64_t realised = 0;
  std::int64_t difference = 0;  ///< sum of absolute differences
  std::int64_t evicted_states = 0;
};

class RouterFleet {
 public:
  /// Events of a request are heard `delay` requests later.
  RouterFleet(test::Random& random, Combination combination, bool tiers, std::size_t delay)
      : random_(random),
        delay_(delay),
        index_({.workers_max = 4, .state_groups = test::in_columns(combination) ? 2 : 1}),
        prompts_(random),
        hasher_({.kind = BlockHashKind::xxh3_128, .block_size_tokens = fleet_block_tokens}) {
    for (std::int32_t worker = 0; worker < 4; ++worker) {
      workers_.emplace_back(fleet_cache(combination, tiers));
      index_.join(worker);
    }
  }

  void serve() {
    const std::vector<Token>& prompt = prompts_.next();
    hasher_.hash_prompt(prompt, {}, hashes_);
    // The last token of a prompt is always computed.
    const std::size_t blocks = (prompt.size() - 1) / fleet_block_tokens;
    const auto found = index_.find(std::span(hashes_.prefixes).first(blocks));
    auto chosen = static_cast<std::size_t>(random_.between(0, 3));
    const auto best = std::ranges::max_element(found, {}, [](const RouterReach& reach) { return reach.longest(); });
    if (best != found.end() && random_.chance(70)) chosen = static_cast<std::size_t>(best->worker);
    const auto of_chosen = std::ranges::find(found, static_cast<std::int32_t>(chosen), &RouterReach::worker);
    const std::int64_t predicted =
        of_chosen == found.end() ? 0 : std::int64_t{of_chosen->longest()} * fleet_block_tokens;
    const std::int64_t realised = workers_[chosen].serve(prompt);
    ++counts.requests;
    counts.tokens += std::ssize(prompt);
    counts.predicted += predicted;
    counts.realised += realised;
    counts.difference += std::abs(predicted - realised);
    workers_[chosen].take_events(
        news_.emplace_back(static_cast<std::int32_t>(chosen), std::vector<CacheEvent>()).second);
    for (; news_.size() > delay_; news_.pop_front()) CHECK(index_.hear(news_.front().first, news_.front().second));
  }
  void finish() {
    for (const FleetWorker& worker : workers_) counts.evicted_states += worker.evicted();
    index_.check_invariants();
    CHECK(index_.refused() == 0);
  }

  FleetCounts counts;

 private:
  test::Random& random_;
  std::size_t delay_;
  RouterIndex index_;
  FleetPrompts prompts_;
  BlockHasher hasher_;
  PromptHashes hashes_;
  std::vector<FleetWorker> workers_;
  std::deque<std::pair<std::int32_t, std::vector<CacheEvent>>> news_;
};

/// STATEPORT_FLEET_REQUESTS: of each fleet.
std::int64_t fleet_requests() {
  const char* wanted = std::getenv("STATEPORT_FLEET_REQUESTS");
  return wanted != nullptr ? std::stoll(wanted) : 2000;
}

}  // namespace

TEST_CASE("an index predicts what a fleet of caches reuses") {
  for (const Combination combination : test::every_combination)
    for (const bool tiers : {false, true}) {
      if (tiers && test::in_columns(combination)) continue;
      for (const std::size_t delay : {std::size_t{0}, std::size_t{4}}) {
        CAPTURE(test::in_columns(combination));
        CAPTURE(test::by_tokens(combination));
        CAPTURE(tiers);
        CAPTURE(delay);
        FleetCounts all;
        test::for_each_seed(1, [&](test::Random& random, std::uint64_t) {
          RouterFleet fleet(random, combination, tiers, delay);
          for (std::int64_t i = fleet_requests(); i > 0; --i) fleet.serve();
          fleet.finish();
          all = fleet.counts;
        });
        const std::string fleet = std::string(test::by_tokens(combination) ? "tree" : "hash") +
                                  (test::in_columns(combination) ? " in columns" : " in slots") +
                                  (tiers ? " with a host tier" : "");
        MESSAGE(fleet << ", events " << delay << " requests late: " << all.requests << " requests, " << all.tokens
                      << " tokens, predicted " << all.predicted << ", realised " << all.realised
                      << ", sum of differences " << all.difference << ", " << all.evicted_states << " states evicted");
        CHECK(all.realised > all.tokens / 10);
        CHECK(all.evicted_states > all.requests / 20);
        if (delay == 0) CHECK(all.difference == 0);
        if (delay > 0) CHECK(std::abs(all.predicted - all.realised) < all.realised / 50);
      }
    }
}
