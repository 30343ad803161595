// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tier/tier_options.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::detail {

/// The tiers of a cache, and the bytes that each holds. A tier without capacity does not exist.
class TierLevels {
 public:
  struct Level {
    std::int64_t capacity = 0;
    std::int64_t going_bytes = 0;  ///< of images that are being moved down and still lie here
    TierUsage usage;
  };

  explicit TierLevels(const TierOptions& options) {
    (*this)[Medium::host].capacity = options.host_bytes;
    (*this)[Medium::file].capacity = options.file_bytes;
    (*this)[Medium::remote].capacity = options.remote_bytes;
    for (const Medium medium : {Medium::host, Medium::file, Medium::remote})
      if (has(medium)) tiers_.push_back(medium);
  }

  [[nodiscard]] Level& operator[](Medium medium) noexcept { return levels_[static_cast<std::size_t>(medium)]; }
  [[nodiscard]] const Level& operator[](Medium medium) const noexcept {
    return levels_[static_cast<std::size_t>(medium)];
  }
  [[nodiscard]] bool has(Medium medium) const noexcept { return (*this)[medium].capacity > 0; }
  /// From the fastest on. At least one.
  [[nodiscard]] std::span<const Medium> tiers() const noexcept { return tiers_; }
  /// The next slower tier.
  [[nodiscard]] std::optional<Medium> below(Medium medium) const noexcept {
    const auto below = std::ranges::upper_bound(tiers_, medium);
    return below == tiers_.end() ? std::nullopt : std::optional(*below);
  }
  /// The tier that outlives the process: files, or else the remote tier.
  [[nodiscard]] Medium durable() const noexcept { return has(Medium::file) ? Medium::file : Medium::remote; }

 private:
  std::array<Level, medium_count> levels_;
  std::vector<Medium> tiers_;
};

}  // namespace stateport::detail
