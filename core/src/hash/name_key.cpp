// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/hash/name_key.hpp>

#include "hash/sha256.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace stateport {

void NameKey::digest(std::string_view name) {
  thread_local detail::Sha256 sha256;
  const BlockDigest digest = sha256(std::span(reinterpret_cast<const std::uint8_t*>(name.data()), name.size()));
  static_assert(sizeof digest.bytes == inline_bytes_max);
  std::memcpy(bytes_.data(), digest.bytes.data(), inline_bytes_max);
}

NameKey NameKey::both(const NameKey& first, const NameKey& second) {
  std::array<char, 2 * (sizeof length_ + inline_bytes_max)> message;
  char* at = message.data();
  for (const NameKey* const key : {&first, &second}) {
    for (unsigned byte = 0; byte < sizeof length_; ++byte) *at++ = static_cast<char>(key->length_ >> (8 * byte));
    at = std::copy(key->bytes_.begin(), key->bytes_.end(), at);
  }
  NameKey both(std::string_view(message.data(), message.size()));
  constexpr std::uint64_t folded = std::uint64_t{1} << 63;  // no string is so long
  both.length_ |= folded;
  return both;
}

}  // namespace stateport
