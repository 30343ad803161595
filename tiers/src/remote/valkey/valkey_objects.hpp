// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/remote_store.hpp>

#include "remote/valkey/valkey_connection.hpp"
#include "remote/valkey/valkey_manifest.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stateport::tiers {

/// How a request ended.
struct ValkeyOutcome {
  TransferStatus status = TransferStatus::done;
  std::uint64_t bytes = 0;
  const char* why = "";       ///< of failed, no_room, damaged
  std::string word = {};      ///< of the server's error, if it is one
  bool found_damage = false;  ///< and removed the object
};

/// Objects as values of a Valkey server, over one connection. Calls throw ConnectionLost: the request was carried out
/// or not. See valkey_store.hpp for the keys on the server.
class ValkeyObjects {
 public:
  ValkeyObjects(const ValkeyStoreOptions& options, ValkeyConnection& connection)
      : options_(options), connection_(connection) {}

  [[nodiscard]] ValkeyOutcome put(std::string_view key, std::span<const RemotePiece> pieces, std::uint64_t bytes);
  [[nodiscard]] ValkeyOutcome get(std::string_view key, std::span<const RemotePiece> pieces, std::uint64_t bytes);
  [[nodiscard]] ValkeyOutcome remove(std::string_view key);
  /// [keys], in two round trips for all.
  [[nodiscard]] std::vector<ValkeyOutcome> exist(std::span<const RemoteObject> objects);

 private:
  /// The content of a key.
  struct Found {
    enum class Kind : std::uint8_t { nothing, manifest, malformed, refused };
    Kind kind = Kind::nothing;
    ValkeyManifest manifest;
    std::string word;  ///< of the error that the server refuses with
    friend bool operator==(const Found&, const Found&) = default;
  };

  [[nodiscard]] std::string name_of(std::string_view key) const;
  [[nodiscard]] std::vector<std::string> piece_names(const ValkeyManifest& manifest) const;
  [[nodiscard]] static Found read_manifest(const ValkeyReply& reply, std::string_view key);
  [[nodiscard]] Found find(std::string_view key);
  enum class Removal : std::uint8_t { removed, changed, refused };
  /// Removes the content of the key if it is that.
  [[nodiscard]] Removal remove_if(std::string_view key, const Found& found);
  [[nodiscard]] ValkeyOutcome damage(std::string_view key, const Found& found, const char* why);

  /// Nothing: the key holds no object any more, and may be written. Otherwise the answer to the put.
  [[nodiscard]] std::optional<ValkeyOutcome> keep_or_clear(std::string_view key, bool& found_damage);
  [[nodiscard]] ValkeyManifest new_manifest(std::uint64_t bytes) const;
  [[nodiscard]] std::optional<ValkeyOutcome> write_pieces(const ValkeyManifest& manifest,
                                                          std::span<const RemotePiece> pieces);
  [[nodiscard]] ValkeyOutcome commit(std::string_view key, const ValkeyManifest& manifest);
  void remove_pieces(const ValkeyManifest& manifest);

  const ValkeyStoreOptions& options_;
  ValkeyConnection& connection_;
};

}  // namespace stateport::tiers
