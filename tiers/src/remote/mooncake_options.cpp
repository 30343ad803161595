// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>
#include <stateport/tiers/mooncake_store.hpp>

namespace stateport::tiers {
namespace {

constexpr std::int32_t lanes_max = 64;

}  // namespace

void validate(const MooncakeStoreOptions& options) {
  const auto require_text = [](std::string_view name, const std::string& text) {
    require(!text.empty(), name, text, "must not be empty");
    require(text.find('\0') == std::string::npos, name, text.size(), "holds a null character");
  };
  require_text("local_hostname", options.local_hostname);
  require_text("metadata_server", options.metadata_server);
  require_text("master", options.master);
  require_text("protocol", options.protocol);
  require(options.devices.find('\0') == std::string::npos, "devices", options.devices.size(), "holds a null character");
  require(options.replicas >= 1, "replicas", options.replicas, "must be at least 1");
  require(options.lanes >= 1 && options.lanes <= lanes_max, "lanes", options.lanes, "must lie in [1, 64]");
}

}  // namespace stateport::tiers
