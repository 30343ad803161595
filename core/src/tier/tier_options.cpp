// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/tier/tier_options.hpp>

#include <stateport/core/model/error.hpp>

#include <cmath>
#include <string>

namespace stateport {

void check_tier_speeds(const TierSpeeds& speeds, std::string_view argument) {
  const auto check_number = [&](std::string_view name, double value) {
    require(std::isfinite(value) && value >= 0, (std::string(argument) + '.').append(name).c_str(), value,
            "must be finite and not negative");
  };
  check_number("host_bytes_per_s", speeds.host_bytes_per_s);
  check_number("file_bytes_per_s", speeds.file_bytes_per_s);
  check_number("tokens_per_s", speeds.tokens_per_s);
  check_number("remote_bytes_per_s", speeds.remote_bytes_per_s);
  check_number("remote_latency_s", speeds.remote_latency_s);
}

void check_tier_options(const TierOptions& options, std::int64_t state_bytes, std::int64_t kv_bytes) {
  require(options.state_image_bytes >= 0, "tiers.state_image_bytes", options.state_image_bytes, "must not be negative");
  require(options.kv_image_bytes >= 0, "tiers.kv_image_bytes", options.kv_image_bytes, "must not be negative");
  require(options.queue_bytes >= 0, "tiers.queue_bytes", options.queue_bytes, "must not be negative");
  check_tier_speeds(options.speeds(), "tiers");
  require(options.max_finds == -1 || options.max_finds >= 1, "tiers.max_finds", options.max_finds,
          "must be at least 1, or -1 for none");
  require(!options.write_through || options.file_bytes > 0 || options.remote_bytes > 0, "tiers.write_through",
          options.write_through, "needs a file tier or a remote tier");
  const auto check_room = [&](const char* argument, std::int64_t bytes) {
    require(bytes >= 0, argument, bytes, "must not be negative");
    require(bytes == 0 || (bytes >= state_bytes && bytes - state_bytes >= kv_bytes), argument, bytes,
            "is less than a state and a block of KV take");
  };
  check_room("tiers.host_bytes", options.host_bytes);
  check_room("tiers.file_bytes", options.file_bytes);
  check_room("tiers.remote_bytes", options.remote_bytes);
}

}  // namespace stateport
