// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/align_rules.hpp>

#include <cstdint>

namespace stateport::test {

/// Where a decode step stores its inputs in the ring from which a kernel replays the tokens since the last stored
/// state. The rule of an engine's kernel, for the recorded cases: no layer of stateport needs it.
struct ReplayRing {
  std::int64_t position = 0;
  bool flush = false;  ///< store the state after this step and start the ring again
  friend constexpr bool operator==(const ReplayRing&, const ReplayRing&) noexcept = default;
};

/// base_tokens: tokens of the last stored state; ring: entries; align_block: tokens per block in align mode, where a
/// boundary restarts the ring, or 0. Precondition: ring > 0.
[[nodiscard]] constexpr ReplayRing replay_ring(std::int64_t seq_len, std::int64_t query_len, std::int64_t base_tokens,
                                               std::int64_t ring, std::int64_t align_block) noexcept {
  const std::int64_t start = seq_len - query_len;
  std::int64_t base = base_tokens;
  if (align_block > 0 && floor_to(start, align_block) > base) base = floor_to(start, align_block);
  const std::int64_t steps = start - base;
  const std::int64_t position = steps > 0 ? steps % ring : 0;
  const bool on_boundary = align_block > 0 && seq_len % align_block == 0;
  return {position, position == ring - 1 || steps < 0 || on_boundary};
}

}  // namespace stateport::test
