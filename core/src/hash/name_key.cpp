// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/hash/name_key.hpp>

#include "hash/sha256.hpp"

#include <array>
#include <cstring>
#include <span>
#include <type_traits>

namespace stateport {

void NameKey::digest(std::string_view name) {
  thread_local detail::Sha256 sha256;
  const BlockDigest digest = sha256(std::span(reinterpret_cast<const std::uint8_t*>(name.data()), name.size()));
  static_assert(sizeof digest.bytes == inline_bytes_max);
  std::memcpy(bytes_.data(), digest.bytes.data(), inline_bytes_max);
}

NameKey NameKey::both(const NameKey& first, const NameKey& second) {
  static_assert(std::has_unique_object_representations_v<NameKey>, "a key has no byte beside its length and its text");
  const std::array<NameKey, 2> keys = {first, second};
  return NameKey(std::string_view(reinterpret_cast<const char*>(keys.data()), sizeof keys));
}

}  // namespace stateport
