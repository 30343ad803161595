// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tier/tier_options.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace stateport::detail {

using MediumBytes = std::array<std::int64_t, medium_count>;  ///< by medium

/// The time that loads take, by the speeds that are known.
class LoadTime {
 public:
  explicit LoadTime(const TierSpeeds& speeds) noexcept : speeds_(speeds) {}

  void set_speeds(const TierSpeeds& speeds) noexcept { speeds_ = speeds; }
  /// The time of computing the tokens less the time of loading these bytes; none if one of the speeds is not known.
  [[nodiscard]] std::optional<double> saved_s(std::int64_t tokens, const MediumBytes& bytes) const noexcept {
    if (speeds_.tokens_per_s <= 0) return std::nullopt;
    double saved_s = static_cast<double>(tokens) / speeds_.tokens_per_s;
    for (const Medium medium : {Medium::host, Medium::file, Medium::remote}) {
      const std::int64_t wanted = bytes[static_cast<std::size_t>(medium)];
      if (wanted == 0) continue;
      const double bytes_per_s = speed_of(medium);
      if (bytes_per_s <= 0) return std::nullopt;
      saved_s -= static_cast<double>(wanted) / bytes_per_s;
      if (medium == Medium::remote) saved_s -= speeds_.remote_latency_s;
    }
    return saved_s;
  }

 private:
  [[nodiscard]] double speed_of(Medium tier) const noexcept {
    if (tier == Medium::remote) return speeds_.remote_bytes_per_s;
    return tier == Medium::host ? speeds_.host_bytes_per_s : speeds_.file_bytes_per_s;
  }

  TierSpeeds speeds_;
};

}  // namespace stateport::detail
