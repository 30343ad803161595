// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/hash/name_key.hpp>

#include "hash/sha256.hpp"

#include <cstring>
#include <span>

namespace stateport {

void NameKey::digest(std::string_view name) {
  thread_local detail::Sha256 sha256;
  const BlockDigest digest = sha256(std::span(reinterpret_cast<const std::uint8_t*>(name.data()), name.size()));
  static_assert(sizeof digest.bytes == inline_bytes_max);
  std::memcpy(bytes_.data(), digest.bytes.data(), inline_bytes_max);
}

}  // namespace stateport
