// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace stateport {

/// The name of a tenant, an adapter or an input of a prompt, in 40 bytes: a name of at most 32 bytes as it is, a longer
/// one by its length and its SHA-256. Two names have the same key only if they are the same, or if SHA-256 collides.
///
/// A key is made from any string. That costs O(length); the first longer name of a thread also makes libcrypto's
/// context. Copying and comparing allocate nothing.
class NameKey {
 public:
  static constexpr std::size_t inline_bytes_max = 32;

  constexpr NameKey() = default;
  template <class Name>
  requires std::convertible_to<const Name&, std::string_view>
  constexpr explicit(false) NameKey(const Name& name) : NameKey(Text{name}) {}

  /// Of the name, in bytes; of both(), 2^63 + 80.
  [[nodiscard]] constexpr std::uint64_t length() const noexcept { return length_; }
  /// The name itself, or the SHA-256 of a longer one or of both(). Valid as long as the key.
  [[nodiscard]] constexpr std::string_view text() const noexcept {
    return {bytes_.data(), std::min<std::size_t>(length_, inline_bytes_max)};
  }
  /// One key for both, in this order: the SHA-256 of their lengths (little-endian) and bytes. No name has the same key.
  [[nodiscard]] static NameKey both(const NameKey& first, const NameKey& second);
  friend constexpr bool operator==(const NameKey&, const NameKey&) noexcept = default;

 private:
  struct Text {
    std::string_view name;
  };
  constexpr explicit NameKey(Text text) : length_(text.name.size()) {
    if (text.name.size() > inline_bytes_max)
      digest(text.name);
    else
      std::copy(text.name.begin(), text.name.end(), bytes_.begin());
  }
  void digest(std::string_view name);

  std::uint64_t length_ = 0;
  std::array<char, inline_bytes_max> bytes_ = {};
};

/// Keys of different namespaces never share a node. An empty string is a name, std::nullopt is none.
struct Namespace {
  std::optional<NameKey> extra_key;  ///< for example the adapter
  std::optional<NameKey> salt;       ///< for example the tenant
  friend constexpr bool operator==(const Namespace&, const Namespace&) noexcept = default;
};

}  // namespace stateport
