// SPDX-License-Identifier: Apache-2.0
// What does an eviction cost under one byte budget, and what a whole request? The learned hazard index beside the
// policies that learn nothing.
#include <stateport/core/evict/budget_policy.hpp>
#include <stateport/core/evict/checkpoint_tree.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "comparison.hpp"

namespace stateport::perf {
namespace {

constexpr int requests_per_run = 2000;
constexpr std::int32_t turn_blocks = 6;
constexpr std::int32_t longest_blocks = 16 * turn_blocks;

/// Room for so many turns of conversations.
Budget budget_of(std::int64_t turns) {
  Budget budget{.state_bytes = 77'266'944, .kv_bytes_per_token = 24'576, .block_size_tokens = 512};
  budget.bytes = budget.used_bytes(turns * turn_blocks, turns);
  return budget;
}

/// Half of the requests begin a conversation, the others continue one that is cached, at any of its turns. Each adds
/// the KV and the state of a turn, and so evicts about one.
class Conversations {
 public:
  Conversations(const Budget& budget, std::unique_ptr<BudgetPolicy> policy) : tree_(budget, std::move(policy)) {
    while (tree_.evictions() < requests_per_run) serve();
  }
  void run() {
    for (int i = 0; i < requests_per_run; ++i) serve();
  }
  /// Median of the time to choose a victim and remove it, over the last requests that evicted. Requests after which the
  /// policy learns are few: they count in the time of a run, not here.
  [[nodiscard]] double eviction_ns() {
    const auto middle = eviction_ns_.begin() + static_cast<std::ptrdiff_t>(eviction_ns_.size() / 2);
    std::ranges::nth_element(eviction_ns_, middle);
    return *middle;
  }

 private:
  using Index = CheckpointTree::Index;

  [[nodiscard]] Index draw_parent() {
    const auto live = tree_.nodes().live();
    const Index drawn = random_() % 2 == 0 ? CheckpointNodes::root : live[random_() % live.size()];
    return tree_.nodes()[drawn].end_blocks < longest_blocks ? drawn : CheckpointNodes::root;
  }
  void serve() {
    const CheckpointNodes& nodes = tree_.nodes();
    const Index parent = draw_parent();
    const std::int32_t known = nodes[parent].end_blocks;
    keys_.resize(static_cast<std::size_t>(known + turn_blocks));
    for (PositionKey& key : keys_) key = random_();
    path_.clear();
    for (Index node = parent; node != CheckpointNodes::root; node = nodes[node].parent) {
      path_.push_back(node);
      keys_[static_cast<std::size_t>(nodes[node].end_blocks) - 1] = key_of_[node];
    }
    now_s_ += 0.25;
    tree_.start({.now_s = now_s_, .keys = keys_, .usable_blocks = known + turn_blocks, .matched_blocks = known});
    for (auto node = path_.rbegin(); node != path_.rend(); ++node) tree_.matched(*node);
    if (parent != CheckpointNodes::root && nodes[parent].has_state) tree_.hit(parent);
    const Index end = tree_.add_leaf(parent, known + turn_blocks, true);
    if (end >= key_of_.size()) key_of_.resize(end + 1);
    key_of_[end] = keys_.back();
    changes_.clear();
    const std::int64_t before = tree_.evictions();
    const auto begin = std::chrono::steady_clock::now();
    tree_.finish(end, changes_);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    if (tree_.evictions() > before)
      eviction_ns_.push_back(took.count() / static_cast<double>(tree_.evictions() - before));
  }

  CheckpointTree tree_;
  std::mt19937_64 random_{1};
  std::vector<PositionKey> key_of_;  ///< by node
  std::vector<PositionKey> keys_;
  std::vector<Index> path_;
  std::vector<TreeChange> changes_;
  std::vector<double> eviction_ns_;
  double now_s_ = 0;
};

void evict(benchmark::State& state) {
  const Budget budget = budget_of(state.range(0));
  Conversations hix(budget, make_hix(budget));
  Conversations node_lru(budget, make_node_lru());
  Conversations gdsf(budget, make_gdsf(budget, {}));
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
