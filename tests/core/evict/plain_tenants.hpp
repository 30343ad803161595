// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace stateport::test {

/// Tenants as a test sets them.
struct PlainTenants final : CandidateTenants {
  std::vector<double> floor_shares;     ///< by account
  std::vector<std::uint8_t> account{};  ///< by candidate

  explicit PlainTenants(std::vector<double> floors) : floor_shares(std::move(floors)) {}
  [[nodiscard]] std::size_t accounts() const noexcept override { return floor_shares.size(); }
  [[nodiscard]] std::uint8_t account_of(std::uint32_t index) const noexcept override { return account.at(index); }
  [[nodiscard]] double floor_share(std::uint8_t of) const noexcept override { return floor_shares.at(of); }
};

}  // namespace stateport::test
