// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/model/cost.hpp>
#include <stateport/core/tier/tier_options.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace stateport::detail {

/// Hears of every image that comes to a tier or leaves it.
class TierListener {
 public:
  virtual void on_tier(Medium medium, bool stored, const ImageKey& image) = 0;

 protected:
  ~TierListener() = default;
};

struct TierSetup {
  TierOptions tiers;  ///< checked, with the bytes of images filled in
  std::int64_t block_size_tokens = 1;
  std::int64_t state_grid_tokens = 1;  ///< all groups can have a state at multiples of it; whole blocks
  std::size_t groups = 1;
  /// The device can keep a state without the KV before it: a load of KV alone can make a hit.
  bool states_apart = false;
  std::size_t device_blocks = 0;   ///< of KV, at most
  std::size_t states = 0;          ///< on the device, at most
  std::size_t requests = 1;        ///< at a time, at most
  std::size_t request_blocks = 0;  ///< of the longest one
  EvictionOrder eviction = EvictionOrder::lru;
  EvictionOptions eviction_options;
  MemoryCost memory;
  TierListener* listener = nullptr;  ///< null: there is none
};

/// The largest number of images that a request asks for in one round. Short requests count for more, up to the default
/// of max_finds: that number of answers to requests that have ended may be missing before RemoteFinds asks no more.
[[nodiscard]] inline std::size_t most_finds(const TierSetup& setup) noexcept {
  const auto limit = static_cast<std::size_t>(std::max(setup.tiers.max_finds, 0));
  constexpr std::size_t usual = TierOptions{}.max_finds;
  return std::max(std::min(limit, std::max(usual, setup.request_blocks * setup.groups)), setup.request_blocks);
}

}  // namespace stateport::detail
