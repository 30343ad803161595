// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/cache_integrity.hpp>

#include "serve/held_prefixes.hpp"
#include "serve/request_book.hpp"
#include "serve/request_index.hpp"
#include "serve/request_tiers.hpp"

#include <cstdint>
#include <span>

namespace stateport::detail {

/// The integrity checks of a RequestCache.
class RequestIntegrity final : public CacheIntegrity {
 public:
  /// The arguments must outlive it; book.checks is there. `tiers` and `prefixes` may be null.
  RequestIntegrity(RequestBook& book, RequestIndex& index, RequestTiers* tiers, HeldPrefixes* prefixes)
      : book_(book), checks_(*book.checks), index_(index), tiers_(tiers), prefixes_(prefixes) {}

  [[nodiscard]] CheckPlan take() override { return checks_.take(); }
  std::int32_t withdraw(std::span<const StateFault> faults) override;
  [[nodiscard]] const IntegrityUsage& usage() const noexcept override { return checks_.usage; }

 private:
  RequestBook& book_;
  StateChecks& checks_;
  RequestIndex& index_;
  RequestTiers* tiers_;
  HeldPrefixes* prefixes_;
};

}  // namespace stateport::detail
