// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/remote_store.hpp>
#include <stateport/tiers/valkey_options.hpp>

#include <memory>

namespace stateport {

/// Objects on a server of Valkey (or Redis 6 or newer; no cluster). Where hiredis was found when stateport was built.
///
/// An object is cut into pieces, which are written first, under names of a random number that no other put has. A
/// manifest under the object's key, written if there is none, is the commit. So a put that is killed at any time leaves
/// no object, and of two writers one wins. Pieces that are not committed expire within an hour.
///
/// The server may evict pieces of an object: then it is answered as if it were not there (exists: gone, get: damaged),
/// and the get, or the next put, removes the rest.
///
/// A lost connection is made again by the next request, once at once and then with growing pauses of up to 5 s;
/// requests between are answered `failed`. The name of the host is resolved without a timeout.
class ValkeyStore final : public RemoteStore {
 public:
  /// Whether the library was built with hiredis, and with hiredis_ssl.
  [[nodiscard]] static bool is_built() noexcept;
  [[nodiscard]] static bool has_tls() noexcept;

  /// Connects, and waits for that. Throws InvalidArgument: a host, port, database, timeout, number of lanes, size of
  /// pieces (1 KiB to 64 MiB), lifetime, prefix (1 to 64 characters from '!' to '~') or limit that is none; a user
  /// without a password; a file for TLS that cannot be used. InvalidState: not built. BackendError: the server cannot
  /// be reached or refuses.
  explicit ValkeyStore(const ValkeyStoreOptions& options);
  /// Waits for attempts to connect: at most connect_timeout_s.
  ~ValkeyStore() override;

  [[nodiscard]] ValkeyStoreStatistics valkey_statistics() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stateport
