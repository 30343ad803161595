// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace stateport::tiers {

/// The content of an object's key on a Valkey server: where the pieces are. 56 bytes, little endian:
///
///     offset bytes
///          0     8  "SPOBJECT"
///          8     8  bytes of the object
///         16     8  bytes of each piece but the last
///         24    16  the number in the names of the pieces
///         40    16  checksum of the 40 bytes before it and the key
struct ValkeyManifest {
  static constexpr std::size_t encoded_bytes = 56;
  static constexpr std::uint64_t pieces_max = 65536;
  static constexpr std::uint64_t piece_bytes_max = std::uint64_t{64} << 20;

  std::uint64_t object_bytes = 0;
  std::uint64_t piece_bytes = 0;
  std::array<std::uint64_t, 2> number = {0, 0};
  friend constexpr bool operator==(const ValkeyManifest&, const ValkeyManifest&) noexcept = default;

  [[nodiscard]] constexpr std::uint64_t pieces() const noexcept {
    return object_bytes / piece_bytes + (object_bytes % piece_bytes == 0 ? 0 : 1);
  }
  /// Of one piece.
  [[nodiscard]] constexpr std::uint64_t bytes_of(std::uint64_t piece) const noexcept {
    return piece + 1 < pieces() ? piece_bytes : object_bytes - (pieces() - 1) * piece_bytes;
  }
  /// The name of a piece on the server.
  [[nodiscard]] std::string name_of(std::string_view prefix, std::uint64_t piece) const;
};

[[nodiscard]] std::string encode_manifest(const ValkeyManifest& manifest, std::string_view key);
/// Of any bytes. Nothing: they are no manifest of this key, or have values that no put writes: no bytes, pieces of more
/// than piece_bytes_max, or more than pieces_max of them.
[[nodiscard]] std::optional<ValkeyManifest> parse_manifest(std::string_view bytes, std::string_view key);

}  // namespace stateport::tiers
