// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/prefix_hash.hpp>

#include <cstdint>
#include <string_view>

namespace stateport {

/// The content of a slot: the state after exactly `token_count` tokens of the prefix, in one memory layout. A restore
/// compares all three; a slot that was never committed has token_count -1 and matches nothing.
struct StateTag {
  std::int64_t token_count = -1;
  PrefixHash prefix;
  std::uint64_t layout_fingerprint = 0;
  friend constexpr bool operator==(const StateTag&, const StateTag&) noexcept = default;
};

/// How the tag of a slot compares with the wanted one. Anything but match refuses a restore.
enum class TagCheck : std::uint8_t {
  match,        ///< the slot holds exactly the wanted state
  empty,        ///< it was never committed
  token_count,  ///< the state is one after another number of tokens
  prefix,       ///< the state is one after other tokens
  layout        ///< its bytes mean something else
};

/// Compares the content of a slot with the state that a request needs; names the first field that differs. O(1),
/// noexcept.
[[nodiscard]] constexpr TagCheck check_tag(const StateTag& held, const StateTag& wanted) noexcept {
  if (held.token_count < 0) return TagCheck::empty;
  if (held.token_count != wanted.token_count) return TagCheck::token_count;
  if (held.prefix != wanted.prefix) return TagCheck::prefix;
  if (held.layout_fingerprint != wanted.layout_fingerprint) return TagCheck::layout;
  return TagCheck::match;
}

[[nodiscard]] std::string_view name(TagCheck check) noexcept;

}  // namespace stateport
