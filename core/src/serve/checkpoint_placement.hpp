// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include <bit>
#include <cstdint>

namespace stateport::detail {

/// The placement of checkpoints in one prompt, in tokens.
struct PromptCheckpoints {
  CheckpointPlacement placement = CheckpointPlacement::last;
  std::int64_t block = 1;   ///< tokens
  std::int64_t reused = 0;  ///< p
  std::int64_t cached = 0;  ///< j, whole blocks
  std::int64_t known = 0;   ///< the deepest state that is cached, also one that leaves the forward no token
  std::int64_t prompt = 0;
  std::int64_t spare = 0;  ///< RequestCacheOptions::spare_checkpoint_tokens

  /// Whether the placement wants the state after so many tokens, whole blocks. `passes` is not decided here.
  [[nodiscard]] constexpr bool wants(std::int64_t at) const noexcept {
    const std::int64_t blocks = at / block;
    const std::int64_t all = prompt / block;
    if (at <= reused || at == known || blocks > all) return false;
    if (blocks == all) return true;
    constexpr std::uint64_t rung_max = 4;
    const auto before_end = static_cast<std::uint64_t>(all - blocks);
    switch (placement) {
      case CheckpointPlacement::every:
        return true;
      case CheckpointPlacement::rungs:
        return at == cached || (at > cached && before_end <= rung_max && std::has_single_bit(before_end));
      case CheckpointPlacement::branch:
        return at == cached;
      default:
        return false;
    }
  }
  /// Whether it would be placed there too if that took nothing from others.
  [[nodiscard]] constexpr bool wants_if_spare(std::int64_t at) const noexcept {
    return spare > 0 && at % spare == 0 && at > cached && at <= prompt && !wants(at);
  }
};

}  // namespace stateport::detail
