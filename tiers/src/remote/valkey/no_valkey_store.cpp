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

bool ValkeyStore::do_put(std::span<const RemoteObject>) {
  return false;
}

bool ValkeyStore::do_get(std::span<const RemoteObject>) {
  return false;
}

bool ValkeyStore::do_exists(std::span<const RemoteKey>) {
  return false;
}

bool ValkeyStore::do_remove(std::span<const RemoteKey>) {
  return false;
}

std::size_t ValkeyStore::do_poll(std::span<RemoteCompletion>) {
  return 0;
}

}  // namespace stateport
