// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// How many tokens the states in a block stand for, as constexpr functions of integers. PublicationCheck keeps these
/// counts on the host, AlignContext on the device. Conv and recurrent parts are counted apart, because with drafts they
/// lie in different columns.
namespace stateport {

inline constexpr std::int64_t unknown_tokens = -1;

/// How many states of its window a forward of K drafts kept: none for an accepted count that no forward can have.
[[nodiscard]] constexpr std::int32_t forward_kept(std::int32_t accepted, std::int32_t drafts) noexcept {
  return accepted <= 1 + drafts ? accepted : 0;
}

/// The conv window that a forward leaves in its running column. `running`: tokens of the running state.
[[nodiscard]] constexpr std::int64_t forward_conv_tokens(std::int64_t running, std::int32_t kept) noexcept {
  return kept > 0 ? running : unknown_tokens;
}

/// The recurrent state that a forward leaves `i` columns behind its running column: of the running state and each kept
/// draft. The columns behind these hold drafts that were not kept.
[[nodiscard]] constexpr std::int64_t forward_recurrent_tokens(std::int64_t running, std::int32_t kept,
                                                              std::int64_t i) noexcept {
  return i < kept ? running + i : unknown_tokens;
}

/// The conv window after a copy with a shift: it ends `shift` tokens later.
[[nodiscard]] constexpr std::int64_t copied_conv_tokens(std::int64_t source, std::int32_t conv_shift) noexcept {
  return source == unknown_tokens ? unknown_tokens : source + conv_shift;
}

/// Whether a block with these counts may be published as state@tokens.
[[nodiscard]] constexpr bool holds_state(std::int64_t conv, std::int64_t recurrent, std::int64_t tokens) noexcept {
  return tokens > 0 && conv == tokens && recurrent == tokens;
}

}  // namespace stateport
