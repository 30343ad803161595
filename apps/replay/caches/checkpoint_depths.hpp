// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include <cstdint>
#include <string_view>
#include <vector>

namespace stateport::replay {

[[nodiscard]] std::string_view name(CheckpointPlacement placement) noexcept;

/// A prompt, in blocks.
struct PromptDepths {
  std::int32_t hit = 0;      ///< p: it continues from the state there
  std::int32_t matched = 0;  ///< j: with cached KV
  std::int32_t usable = 0;   ///< n: before its last token
  std::int32_t full = 0;     ///< whole blocks: n, or n + 1
};

/// Fills `depths` with the depths, ascending and without duplicates, at which the prompt leaves states: the reference,
/// to which tests hold RequestCache. Depths up to the hit are left out. Precondition: not `passes`.
void choose_depths(CheckpointPlacement placement, const PromptDepths& prompt, std::vector<std::int32_t>& depths);

/// Most states that `requests` requests over `distinct_blocks` different blocks can leave: a pool of this size never
/// evicts.
[[nodiscard]] std::int64_t states_max(CheckpointPlacement placement, std::int64_t requests,
                                      std::int64_t distinct_blocks) noexcept;

}  // namespace stateport::replay
