// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/ids.hpp>

#include <cstdint>
#include <optional>
#include <span>

namespace stateport {

/// One batch row of an engine whose counters live on the host.
struct StagedRequest {
  RequestIndex request;
  std::int32_t computed = 0;
  std::int32_t scheduled = 0;
  std::optional<std::int32_t> drafts;  ///< not set: 0
  std::int32_t prompt = 0;
};

/// Where a batch is staged for the device, each [max_requests], usually pinned and allocated once. An empty span is not
/// filled.
struct AlignStaging {
  std::span<std::int32_t> computed;
  std::span<std::int32_t> scheduled;
  std::span<std::int32_t> drafts;
  std::span<std::int32_t> column;
  std::span<std::uint8_t> prefilling;  ///< 1 iff computed < prompt
};

/// Writes one entry per batch row, in batch order, and leaves the entries behind the batch as they are.
/// `column_of_request` is indexed by request slot. Throws InvalidArgument (nothing written) for a batch longer than a
/// staging array, a request slot out of range, a negative count, more tokens than 32 bits count, and a request whose
/// column is not remembered. O(rows).
void stage_batch(std::span<const StagedRequest> batch, std::span<const std::int32_t> column_of_request,
                 const AlignStaging& staging);

}  // namespace stateport
