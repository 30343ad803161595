// SPDX-License-Identifier: Apache-2.0
#include "features.hpp"

#include "check.hpp"
#include "random_numbers.hpp"

#include <iomanip>
#include <ostream>
#include <utility>

namespace stateport::engine {
namespace {

bool is_in_slots(std::string_view cache) {
  return cache == "slots" || cache == "tree" || cache == "tree-copy";
}

/// The pair with the fewest schedules, as places in `features`.
std::pair<std::size_t, std::size_t> rarest_pair(const FeatureCounts& counts) {
  std::pair<std::size_t, std::size_t> rarest = {0, 1};
  for (std::size_t a = 0; a < features.size(); ++a)
    for (std::size_t b = a + 1; b < features.size(); ++b)
      if (counts.of(a, b) < counts.of(rarest.first, rarest.second)) rarest = {a, b};
  return rarest;
}

}  // namespace

Mixture draw_mixture(std::uint64_t seed) {
  test::Random random(~seed);  // the schedule draws from the seed itself
  const std::vector<std::string_view> caches = cache_names();
  Mixture mixture;
  do mixture.cache = caches[static_cast<std::size_t>(random.between(0, std::ssize(caches) - 1))];
  while (mixture.cache == "none");
  for (const Feature& feature : features)
    mixture.draw.*feature.flag = (!feature.in_slots || is_in_slots(mixture.cache)) && random.chance(50);
  mixture.draw.integrity |= mixture.draw.damage;
  return mixture;
}

void FeatureCounts::add(const Draw& draw) {
  for (std::size_t a = 0; a < features.size(); ++a)
    for (std::size_t b = 0; b < features.size(); ++b)
      schedules_[a][b] += draw.*features[a].flag && draw.*features[b].flag;
}

std::int64_t FeatureCounts::least_pair() const {
  const auto [a, b] = rarest_pair(*this);
  return schedules_[a][b];
}

std::ostream& operator<<(std::ostream& out, const FeatureCounts& counts) {
  constexpr int width = 10;
  const auto cell = [&](const auto& text) { out << std::setw(width) << text; };
  out << "schedules with each pair of features:\n";
  cell("");
  for (const Feature& feature : features) cell(feature.name);
  for (std::size_t a = 0; a < features.size(); ++a) {
    out << '\n';
    cell(features[a].name);
    for (std::size_t b = 0; b <= a; ++b) cell(counts.schedules_[a][b]);
  }
  const auto [a, b] = rarest_pair(counts);
  return out << "\nleast: " << counts.schedules_[a][b] << " schedules with " << features[a].name << " and "
             << features[b].name << '\n';
}

}  // namespace stateport::engine
