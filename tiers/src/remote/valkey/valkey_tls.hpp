// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/valkey_options.hpp>

#include <memory>
#include <string>

struct redisContext;

namespace stateport::tiers {

/// The TLS context of all connections of one store. Thread-safe.
class ValkeyTlsContext {
 public:
  /// Whether the library was built with hiredis_ssl.
  [[nodiscard]] static bool is_built() noexcept;
  /// Throws InvalidArgument: a file that cannot be used; InvalidState: built without hiredis_ssl.
  explicit ValkeyTlsContext(const ValkeyStoreOptions& options);
  ValkeyTlsContext(const ValkeyTlsContext&) = delete;
  ValkeyTlsContext& operator=(const ValkeyTlsContext&) = delete;
  ~ValkeyTlsContext();

  /// The handshake, and the check of the server's certificate. Returns the error, or nothing.
  [[nodiscard]] std::string secure(redisContext& connection) const;

 private:
  struct Context;
  std::unique_ptr<Context> context_;
  std::string server_name_;
};

}  // namespace stateport::tiers
