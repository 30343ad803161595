// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tier/tier_options.hpp>

#include "caches/tenant_options.hpp"

#include <cstdint>

namespace stateport::replay {

/// One memory for KV and states: the bytes of each, and its size. Bytes count for 64-bit offsets; a block is
/// `block_size_tokens` tokens of KV over all attention layers. (An engine with separate pools has no Budget: it asks
/// for counts, see EvictDemand and slots_for_budget.)
struct Budget {
  std::int64_t bytes = 0;
  std::int64_t state_bytes = 0;
  std::int64_t kv_bytes_per_token = 0;
  std::int64_t block_size_tokens = 1;
  std::int64_t host_bytes = 0;  ///< below the device, with the same costs; 0: no such tier
  std::int64_t file_bytes = 0;
  std::int64_t remote_bytes = 0;      ///< of a remote tier that this cache remembers; 0: there is none
  bool write_through = false;         ///< see TierOptions
  TierSpeeds speeds;                  ///< speeds that decide whether a hit below the device is loaded or computed
  bool separate_checkpoints = false;  ///< states of running requests are of another type
  /// > 0: the memory is an arena (SlotLayout::arena), whose extents of KV have this number of tokens, rounded up to
  /// whole blocks, and whose extents of states have one. 0: bytes are counted, wherever they lie.
  std::int64_t arena_tokens = 0;
  /// > 0: walls. States have this share of the memory and KV has the rest, whatever happens.
  double state_share = 0;
  TenantOptions tenants;
  std::int64_t positions = 0;  ///< of hix: EvictionOptions::positions; 0: its default

  [[nodiscard]] constexpr std::int64_t block_bytes() const noexcept { return kv_bytes_per_token * block_size_tokens; }
  [[nodiscard]] constexpr std::int64_t used_bytes(std::int64_t blocks, std::int64_t states) const noexcept {
    return blocks * block_bytes() + states * state_bytes;
  }
};

/// Throws InvalidArgument: bytes, state_bytes, kv_bytes_per_token or block_size_tokens < 1, host_bytes, file_bytes or
/// remote_bytes < 0.
void check_budget(const Budget& budget);

}  // namespace stateport::replay
