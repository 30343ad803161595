// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/stats/lost_hit.hpp>

namespace stateport {

std::string_view name(LostHit reason) noexcept {
  switch (reason) {
    case LostHit::no_checkpoint:
      return "no_checkpoint";
    case LostHit::off_grid:
      return "off_grid";
    case LostHit::evicted:
      return "evicted";
    case LostHit::too_few_tokens:
      return "too_few_tokens";
    case LostHit::locked_pool:
      return "locked_pool";
    case LostHit::evicted_kv:
      return "evicted_kv";
    case LostHit::never_stored:
      return "never_stored";
    case LostHit::tier_costs_more:
      return "tier_costs_more";
    case LostHit::tier_failed:
      return "tier_failed";
  }
  return "?";
}

}  // namespace stateport
