// SPDX-License-Identifier: Apache-2.0
// The cost of an eviction from a prefix tree under one byte budget, and of a whole request: the learned hazard index
// beside the policies that learn nothing.
#include <stateport/core/tree/prefix_tree.hpp>

#include "comparison.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace stateport::perf {
namespace {

constexpr int requests_per_run = 2000;
constexpr std::int32_t page_tokens = 2;  // stands for a block of 512 tokens
constexpr std::int64_t turn_tokens = 6 * page_tokens;
constexpr std::int64_t longest_tokens = 16 * turn_tokens;
constexpr MemoryCost memory = {.state_bytes = 77'266'944, .kv_bytes_per_token = 24'576 * 512 / page_tokens};

/// Half of the requests begin a conversation, the others continue one that was served before, mostly one that is
/// cached. Each adds the KV and the state of a turn, and so evicts about one.
class Conversations {
 public:
  Conversations(std::int64_t turns, EvictionOrder order)
      : budget_bytes_(memory.of(turns * turn_tokens, turns)),
        tree_({.page_size = page_tokens,
               .slots = static_cast<std::int32_t>(budget_bytes_ / memory.state_bytes) + 1,
               .eviction = order,
               .memory = memory,
               .position_tokens = page_tokens}),
        kv_(longest_tokens),
        prompts_(static_cast<std::size_t>(turns)) {
    std::iota(kv_.begin(), kv_.end(), 0);
    while (evictions_ < requests_per_run) serve();
  }
  void run() {
    for (int i = 0; i < requests_per_run; ++i) serve();
  }
  /// Median of the time to choose a victim and remove it, over the requests that evicted.
  [[nodiscard]] double eviction_ns() {
    const auto middle = eviction_ns_.begin() + static_cast<std::ptrdiff_t>(eviction_ns_.size() / 2);
    std::ranges::nth_element(eviction_ns_, middle);
    return *middle;
  }

 private:
  void serve() {
    std::vector<Token>& prompt = prompts_[random_() % prompts_.size()];
    if (random_() % 2 == 0 || std::ssize(prompt) == longest_tokens) prompt.clear();
    for (std::int64_t i = 0; i < turn_tokens; ++i) prompt.push_back(static_cast<Token>(random_() % 100'000));
    tree_.set_time(now_s_ += 0.25);
    const PrefixMatch hit = tree_.match(prompt);
    SlotId slot;
    if (!tree_.allocate_slots({&slot, 1})) return;
    tree_.tag_slot(slot, tree_.state_tag(prompt));
    freed_.clear();
    tree_.insert(
        {.tokens = prompt, .kv = kv_, .slot = slot, .prev_tokens = hit.walked_tokens, .prompt = {.past = hit.past}},
        freed_);
    make_room();
  }
  void make_room() {
    const TreeSizes& sizes = tree_.sizes();
    const std::int64_t over_bytes = memory.of(sizes.total_tokens(), sizes.total_states()) - budget_bytes_;
    if (over_bytes <= 0) return;
    const auto begin = std::chrono::steady_clock::now();
    const EvictResult result = tree_.evict({.bytes = over_bytes}, freed_);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    evictions_ += result.states;
    if (result.states > 0) eviction_ns_.push_back(took.count() / static_cast<double>(result.states));
  }

  std::int64_t budget_bytes_;
  PrefixTree tree_;
  std::vector<KvIndex> kv_;
  std::vector<std::vector<Token>> prompts_;
  std::mt19937_64 random_{1};
  Freed freed_;
  std::vector<double> eviction_ns_;
  std::int64_t evictions_ = 0;
  double now_s_ = 0;
};

void evict(benchmark::State& state) {
  Conversations hix(state.range(0), EvictionOrder::hix);
  Conversations node_lru(state.range(0), EvictionOrder::lru);
  Conversations gdsf(state.range(0), EvictionOrder::gdsf);
  const Comparison result = report(state, {{"hix", [&](int) { hix.run(); }},
                                           {"node_lru", [&](int) { node_lru.run(); }},
                                           {"gdsf", [&](int) { gdsf.run(); }}});
  Conversations* const caches[] = {&hix, &node_lru, &gdsf};
  for (std::size_t i = 0; i < result.names.size(); ++i) {
    state.counters[result.names[i] + "_ns_per_request"] = result.timings[i].median_ns / double{requests_per_run};
    state.counters[result.names[i] + "_ns_per_eviction"] = caches[i]->eviction_ns();
  }
}
BENCHMARK(evict)->Arg(200)->Arg(3000)->Iterations(1)->UseManualTime();

}  // namespace
}  // namespace stateport::perf

BENCHMARK_MAIN();
