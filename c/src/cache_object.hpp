// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "handle_table.hpp"
#include "request_cache.hpp"
#include "transfers.hpp"

#include <memory>
#include <vector>

namespace stateport::c {

struct CacheObject final : Object {
  static constexpr Kind kind = Kind::request_cache;
  explicit CacheObject(const RequestCacheOptions& options)
      : Object(kind), groups(group_count(options)), cache(make_request_cache(options)), plan(groups), commits(groups) {}

  [[nodiscard]] CacheTiers& tiers() const {
    CacheTiers* const tiers = cache->tiers();
    require_state(tiers != nullptr, "cache", "has no tiers: its options named none");
    return *tiers;
  }

  std::size_t groups;
  std::unique_ptr<RequestCache> cache;
  // What the last call told.
  PassPlanArrays plan;
  std::vector<GroupCommitArrays> commits;
  GroupPlanArrays state;
  std::vector<PassRow> rows;
  std::vector<stateport_transfer> transfers;
};

}  // namespace stateport::c
