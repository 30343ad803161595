// SPDX-License-Identifier: Apache-2.0
// Instead of valkey_store.cpp where hiredis was not found.
#include <stateport/core/model/error.hpp>
#include <stateport/tiers/valkey_store.hpp>

namespace stateport {

class ValkeyStore::Impl {};

bool ValkeyStore::is_built() noexcept {
  return false;
}

bool ValkeyStore::has_tls() noexcept {
  return false;
}

ValkeyStore::ValkeyStore(const ValkeyStoreOptions& options) {
  tiers::validate(options);
  throw InvalidState("ValkeyStore", "stateport was built without hiredis");
}

ValkeyStore::~ValkeyStore() = default;

ValkeyStoreStatistics ValkeyStore::valkey_statistics() const {
  return {};
}

}  // namespace stateport
