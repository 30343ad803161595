// SPDX-License-Identifier: Apache-2.0
// Instead of mooncake_store.cpp where Mooncake was not found.
#include <stateport/core/model/error.hpp>
#include <stateport/tiers/mooncake_store.hpp>

namespace stateport {

class MooncakeStore::Client {};

bool MooncakeStore::is_built() noexcept {
  return false;
}

MooncakeStore::MooncakeStore(const MooncakeStoreOptions& options) {
  tiers::validate(options);
  throw InvalidState("MooncakeStore", "stateport was built without Mooncake");
}

MooncakeStore::~MooncakeStore() = default;

void MooncakeStore::do_register(std::span<std::byte>) {}

void MooncakeStore::do_unregister(std::span<std::byte>) {}

}  // namespace stateport
