// SPDX-License-Identifier: Apache-2.0
#include "report/figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>

namespace stateport::replay {

double quantile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  const double rank = std::ceil(part * static_cast<double>(values.size()));
  const auto index = std::clamp<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(rank) - 1, 0,
                                                static_cast<std::ptrdiff_t>(values.size()) - 1);
  const auto place = values.begin() + index;
  std::ranges::nth_element(values, place);
  return *place;
}

std::string human_bytes(double bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(units)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, units[unit]);
}

std::string describe(const RecordedHits& recorded) {
  const auto rate = [&](std::int64_t tokens) {
    return 100 * static_cast<double>(tokens) / static_cast<double>(recorded.input_tokens);
  };
  return fmt::format("recorded: {:.2f} % of the tokens of {} requests hit in life, {:.2f} % here",
                     rate(recorded.recorded_tokens), recorded.requests, rate(recorded.replayed_tokens));
}

}  // namespace stateport::replay
