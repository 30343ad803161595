// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hash.hpp>
#include <stateport/core/hash/name_key.hpp>

#include "hash/sha256.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>

namespace stateport::detail {

/// 128 bits of a tenant's name, so that no table of names grows. A name of no characters differs from no name.
[[nodiscard]] inline PrefixHash tenant_name(Sha256& sha256, const std::optional<NameKey>& salt) {
  std::array<std::uint8_t, 1 + sizeof(NameKey)> name = {};
  name[0] = salt ? 1 : 0;
  if (salt) std::memcpy(&name[1], &*salt, sizeof *salt);
  return sha256(name).prefix();
}

}  // namespace stateport::detail
