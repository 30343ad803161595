// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/remote_store.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stateport {

/// The server's certificate is verified: it must be of `server_name`, and signed by an authority of `ca_file`.
struct ValkeyTls {
  std::string ca_file;           ///< PEM. Empty: the authorities of the system
  std::string certificate_file;  ///< PEM, of this client. Empty: none
  std::string key_file;          ///< PEM, of certificate_file
  std::string server_name;       ///< a host name or an address. Empty: ValkeyStoreOptions::host
};

struct ValkeyStoreOptions {
  std::string host = "127.0.0.1";
  int port = 6379;
  std::string unix_socket;  ///< a path; host and port are not used then
  std::string user;         ///< empty: the default user
  std::string password;     ///< empty: none. In no text that the store gives
  std::optional<ValkeyTls> tls = {};
  int database = 0;
  double connect_timeout_s = 5;
  double silence_timeout_s = 10;  ///< without a byte from or to the server; the connection is given up then
  std::int32_t lanes = 2;         ///< connections, each with a thread: objects that are put or got at a time
  /// Larger objects are cut into values of this size, and into 65,536 at most.
  std::size_t piece_bytes = std::size_t{4} << 20;
  /// The server forgets an object so long after its put. 0: never by age.
  double lifetime_s = 0;
  std::string prefix = "stateport";  ///< of all names on the server
  RemoteQueueLimits limits = {};
};

/// Reads "valkey://[[user]:password@]host[:port][/database]". The scheme is valkey or redis, with TLS valkeys or
/// rediss. An address of IPv6 stands in brackets. User and password may have escapes as %40. Throws InvalidArgument,
/// which does not name the URL: it may hold a password.
[[nodiscard]] ValkeyStoreOptions parse_valkey_url(std::string_view url);

struct ValkeyStoreStatistics {
  std::uint64_t connections = 0;       ///< made; more than `lanes`: some were made again
  std::uint64_t failed_attempts = 0;   ///< to connect
  std::uint64_t lost_connections = 0;  ///< with a request under way
  std::uint64_t damaged_objects = 0;   ///< found in a get or put, and removed: a piece was missing, or the manifest bad
  /// The last reason of an answer `failed`, `no_room` or `damaged`. Holds no text that came from the server but the
  /// first word of its errors, and no secret.
  std::string last_error;
};

namespace tiers {

/// Throws InvalidArgument as the constructor of ValkeyStore does. Never names a password.
void validate(const ValkeyStoreOptions& options);

}  // namespace tiers
}  // namespace stateport
