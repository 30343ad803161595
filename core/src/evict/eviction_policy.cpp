// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/evict/eviction_policy.hpp>

#include <stateport/core/model/cost.hpp>
#include <stateport/core/model/error.hpp>

#include "evict/eviction_policies.hpp"

#include <algorithm>
#include <string>

namespace stateport {
namespace {

constexpr std::int32_t saturated(std::uint32_t hits) noexcept {
  return static_cast<std::int32_t>(std::min<std::uint32_t>(hits, INT32_MAX));
}

VictimKey key_of(EvictionOrder order, const VictimFacts& facts) noexcept {
  switch (order) {
    case EvictionOrder::lru:
      return {0, facts.used_tick};
    case EvictionOrder::lfu:
      return {saturated(facts.hits), facts.used_tick};
    case EvictionOrder::fifo:
      return {0, facts.created_tick};
    case EvictionOrder::slru:
      return {facts.hits >= 2 ? 1 : 0, facts.used_tick};
    case EvictionOrder::priority:
      return {facts.priority, facts.used_tick};
    case EvictionOrder::mru:
      return {0, ~facts.used_tick};
    case EvictionOrder::filo:
      return {0, ~facts.created_tick};
    case EvictionOrder::gdsf:
    case EvictionOrder::hix:
      break;  // see gdsf_eviction.cpp, hix_eviction.cpp
  }
  return {};
}

/// The compiler makes one small function of each order.
template <EvictionOrder order>
class KeyPolicy final : public EvictionPolicy {
 public:
  std::string_view name() const noexcept override { return stateport::name(order); }
  VictimKey key(const VictimFacts& facts) const noexcept override { return key_of(order, facts); }
  VictimTraits traits() const noexcept override {
    return {.by_last_use = order == EvictionOrder::lru, .key_may_shrink = order == EvictionOrder::mru};
  }
};

}  // namespace

void check_hint(const ReuseHint& hint) {
  require(hint.factor > 0, "hint.factor", hint.factor, "must be positive");
  require(hint.continues >= 0 && hint.continues < 1, "hint.continues", hint.continues,
          "must be a probability above 0 and below 1, or 0 for none");
  require(hint.expected_idle_s >= 0, "hint.expected_idle_s", hint.expected_idle_s, "must not be negative");
}

std::string_view name(EvictionOrder order) noexcept {
  switch (order) {
    case EvictionOrder::lru:
      return "lru";
    case EvictionOrder::lfu:
      return "lfu";
    case EvictionOrder::fifo:
      return "fifo";
    case EvictionOrder::slru:
      return "slru";
    case EvictionOrder::priority:
      return "priority";
    case EvictionOrder::mru:
      return "mru";
    case EvictionOrder::filo:
      return "filo";
    case EvictionOrder::gdsf:
      return "gdsf";
    case EvictionOrder::hix:
      return "hix";
  }
  return "?";
}

std::shared_ptr<EvictionPolicy> make_eviction_policy(EvictionOrder order, const EvictionOptions& options,
                                                     const MemoryCost& memory) {
  check_compute_cost(options.benefit, "benefit");
  switch (order) {
    case EvictionOrder::lru:
      return std::make_shared<KeyPolicy<EvictionOrder::lru>>();
    case EvictionOrder::lfu:
      return std::make_shared<KeyPolicy<EvictionOrder::lfu>>();
    case EvictionOrder::fifo:
      return std::make_shared<KeyPolicy<EvictionOrder::fifo>>();
    case EvictionOrder::slru:
      return std::make_shared<KeyPolicy<EvictionOrder::slru>>();
    case EvictionOrder::priority:
      return std::make_shared<KeyPolicy<EvictionOrder::priority>>();
    case EvictionOrder::mru:
      return std::make_shared<KeyPolicy<EvictionOrder::mru>>();
    case EvictionOrder::filo:
      return std::make_shared<KeyPolicy<EvictionOrder::filo>>();
    case EvictionOrder::gdsf:
      return make_gdsf_eviction(options, memory);
    case EvictionOrder::hix:
      return make_hix_eviction(options, memory);
  }
  require(false, "eviction", static_cast<std::int64_t>(order), "is not an eviction order");
  return nullptr;
}

}  // namespace stateport
