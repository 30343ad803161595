// SPDX-License-Identifier: Apache-2.0
// Instead of valkey_tls.cpp where hiredis_ssl was not found.
#include <stateport/core/model/error.hpp>

#include "remote/valkey/valkey_tls.hpp"

namespace stateport::tiers {

struct ValkeyTlsContext::Context {};

bool ValkeyTlsContext::is_built() noexcept {
  return false;
}

ValkeyTlsContext::ValkeyTlsContext(const ValkeyStoreOptions&) {
  throw InvalidState("ValkeyStore", "stateport was built without hiredis_ssl, and TLS is wanted");
}

ValkeyTlsContext::~ValkeyTlsContext() = default;

std::string ValkeyTlsContext::secure(redisContext&) const {
  return "built without hiredis_ssl";
}

}  // namespace stateport::tiers
