// SPDX-License-Identifier: Apache-2.0
#include "fleet/router.hpp"

#include "fleet/checkpoint_map.hpp"
#include "workload/workload.hpp"

#include <tuple>
#include <vector>

namespace stateport::replay {
namespace {

class RoundRobin final : public Router {
 public:
  RoutePick pick(const RoutedPrompt&, std::span<const NodeLoad> nodes) override {
    while (!nodes[next_ % nodes.size()].up) ++next_;
    return {.node = next_++ % nodes.size()};
  }

 private:
  std::size_t next_ = 0;
};

/// A conversation whose node is down has another one until that is back. Those of other nodes stay where they are.
class BySession final : public Router {
 public:
  RoutePick pick(const RoutedPrompt& prompt, std::span<const NodeLoad> nodes) override {
    std::uint64_t hash = mix(prompt.conversation);
    while (!nodes[hash % nodes.size()].up) hash = mix(hash + 1);
    return {.node = hash % nodes.size()};
  }
};

class ByPrefix final : public Router {
 public:
  /// A checkpoint must save at least 1/least_part of a prompt. Otherwise all prompts with one short opening would go to
  /// the same node.
  static constexpr std::ptrdiff_t least_part = 4;

  ByPrefix(std::size_t nodes, std::int64_t imbalance_tokens)
      : known_(nodes), imbalance_tokens_(imbalance_tokens), picked_(nodes, 0) {}

  RoutePick pick(const RoutedPrompt& prompt, std::span<const NodeLoad> nodes) override {
    std::size_t best = least_loaded(nodes);
    const std::int64_t least = nodes[best].waiting_tokens;
    auto deepest = static_cast<std::int32_t>(std::ssize(prompt.prefixes) / least_part);
    bool hit = false;
    for (const CheckpointMap::Reach& reach : known_.reaches(prompt.prefixes)) {
      const NodeLoad& node = nodes[reach.node];
      if (!node.up || node.waiting_tokens - least > imbalance_tokens_ || reach.blocks < deepest) continue;
      if (hit && reach.blocks == deepest && !goes_first(nodes, reach.node, best)) continue;
      best = reach.node;
      deepest = reach.blocks;
      hit = true;
    }
    picked_[best] = ++picks_;
    return {.node = best, .hit_blocks = hit ? deepest : 0};
  }
  bool hears_events() const noexcept override { return true; }
  void hear(std::size_t node, const CacheEvent& event) override {
    known_.hear(static_cast<std::uint32_t>(node), event);
  }
  void forget(std::size_t node) override { known_.forget(static_cast<std::uint32_t>(node)); }

 private:
  /// The order is total: two nodes were picked at the same time only if never, and then the first goes first.
  [[nodiscard]] bool goes_first(std::span<const NodeLoad> nodes, std::size_t a, std::size_t b) const {
    return std::tuple(nodes[a].waiting_tokens, picked_[a], a) < std::tuple(nodes[b].waiting_tokens, picked_[b], b);
  }
  [[nodiscard]] std::size_t least_loaded(std::span<const NodeLoad> nodes) const {
    std::size_t best = 0;
    while (!nodes[best].up) ++best;
    for (std::size_t i = best + 1; i < nodes.size(); ++i)
      if (nodes[i].up && goes_first(nodes, i, best)) best = i;
    return best;
  }

  CheckpointMap known_;
  std::int64_t imbalance_tokens_;
  std::vector<std::uint64_t> picked_;  ///< by node: the number of the last pick; 0: never
  std::uint64_t picks_ = 0;
};

}  // namespace

std::string_view name(Route route) noexcept {
  switch (route) {
    case Route::round_robin:
      return "round-robin";
    case Route::session:
      return "session";
    case Route::prefix:
      return "prefix";
  }
  return "?";
}

std::unique_ptr<Router> make_router(Route route, std::size_t nodes, std::int64_t imbalance_tokens) {
  switch (route) {
    case Route::round_robin:
      return std::make_unique<RoundRobin>();
    case Route::session:
      return std::make_unique<BySession>();
    case Route::prefix:
      break;
  }
  return std::make_unique<ByPrefix>(nodes, imbalance_tokens);
}

}  // namespace stateport::replay
