// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>

namespace stateport::detail {

/// A pass over a prompt can save its state every so many tokens from its start; 0: only at its end.
[[nodiscard]] inline std::int64_t scan_step(const RequestCacheOptions& options) noexcept {
  return options.scan_alignment_tokens < 0 ? 0 : std::max(options.scan_alignment_tokens, 1);
}

/// The placement of checkpoints in one prompt, in tokens.
struct PromptCheckpoints {
  CheckpointPlacement placement = CheckpointPlacement::last;
  std::int64_t block = 1;   ///< tokens
  std::int64_t reused = 0;  ///< p
  std::int64_t cached = 0;  ///< j, whole blocks
  std::int64_t prompt = 0;
  std::int64_t spare = 0;      ///< RequestCacheOptions::spare_checkpoint_tokens
  std::int64_t scan_step = 1;  ///< see scan_step()

  /// The last whole block of the prompt that leaves the forward a token: the same prompt continues from no later state.
  [[nodiscard]] constexpr std::int64_t usable() const noexcept { return (prompt - 1) / block * block; }
  /// Whether the placement wants the state after `at` tokens, whole blocks. `passes` is not decided here.
  [[nodiscard]] constexpr bool wants(std::int64_t at) const noexcept {
    if (at <= reused || at > prompt) return false;
    if (placement == CheckpointPlacement::every || at == usable()) return true;
    constexpr std::int64_t rung_max = 4;
    const std::int64_t before_end = (usable() - at) / block;
    switch (placement) {
      case CheckpointPlacement::rungs:
        return at == cached || (at > cached && before_end > 0 && before_end <= rung_max &&
                                std::has_single_bit(static_cast<std::uint64_t>(before_end)));
      case CheckpointPlacement::branch:
        return at == cached && before_end > 0;
      default:
        return false;
    }
  }
  /// Whether a pass from `start` to `end`, whole blocks of the prompt, keeps the state at its end. The state at the end
  /// of the prompt is kept only in place of the one at usable(), if there is none or the pass cannot stop there.
  [[nodiscard]] constexpr bool wants_end(std::int64_t start, std::int64_t end) const noexcept {
    if (end < prompt || placement == CheckpointPlacement::every)
      return placement == CheckpointPlacement::passes || wants(end);
    if (start == usable()) return start == 0;
    return start > usable() || scan_step == 0 || (usable() - start) % scan_step != 0;
  }
  /// Whether it would be placed there too if that took nothing from others.
  [[nodiscard]] constexpr bool wants_if_spare(std::int64_t at) const noexcept {
    return spare > 0 && at % spare == 0 && at > cached && at <= prompt && !wants(at);
  }
};

}  // namespace stateport::detail
