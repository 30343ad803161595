// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tier/transfer_plan.hpp>

#include <cstdint>

namespace stateport {

/// The answer of a tier or a store to a request.
struct Completion {
  std::uint64_t ticket = 0;  ///< any number that the caller gave the request
  TransferStatus status = TransferStatus::done;
  std::uint64_t bytes = 0;    ///< read or written; 0 unless done
  std::int32_t encoding = 0;  ///< of a read from a RemoteTier that is done: which of the key's sets lies in the memory
  friend constexpr bool operator==(const Completion&, const Completion&) noexcept = default;
};

}  // namespace stateport
