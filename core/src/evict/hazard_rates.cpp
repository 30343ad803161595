// SPDX-License-Identifier: Apache-2.0
#include "evict/hazard_rates.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <cmath>

namespace stateport {
namespace {

// Measurements of these constants: docs/eviction-experiments.md ("Constants").

/// The number of hits that the hazard of the kind counts for in a class, and the prior in a kind.
constexpr double class_strength = 8;
constexpr double pooled_strength = 1;
constexpr double prior_hazard_per_s = 0.03;  ///< of ends: one use in half a minute
constexpr double other_prior = 0.1;          ///< of branch points and rungs, relative to it

constexpr double least_hazard_per_s = 1e-9;  ///< one use in 30 years: keeps a division finite

// Limits of the arithmetic: none changes a rank by more than a part in 10^4.
constexpr double negligible_hazard = 1e-12;   ///< below, a wait is the whole bucket
constexpr double negligible_survival = 1e-4;  ///< later buckets are left out
constexpr double rounding_margin = 1 + 1e-9;  ///< of sums of some 60 terms

double chance_within(double hazard_per_s, double width_s) noexcept {
  return 1 - std::exp(-hazard_per_s * width_s);
}

/// Expected time in a bucket for a position that is used in it with this chance.
double expected_wait_s(double chance, double hazard_per_s, double width_s) noexcept {
  return hazard_per_s > negligible_hazard ? chance / hazard_per_s : width_s;
}

}  // namespace

HazardRates::HazardRates() {
  for (int level = 0; level < levels; ++level) multiplier_[at(level)] = std::pow(2.0, (level - neutral_level) / 2.0);
  fit();
}

double HazardRates::expose(int hazard_class, int level, double weight, double from_s, double to_s) noexcept {
  const double multiplier = multiplier_[at(level)];
  Histogram& exposure = exposure_[at(hazard_class)];
  const Histogram& hazard = hazard_[at(hazard_class)];
  const int last = AgeBuckets::of(to_s);
  double expected_hits = 0;
  for (int b = AgeBuckets::of(from_s); b <= last; ++b) {
    const double low = std::max(from_s, ages_.begin_s(b));
    const double high = b == AgeBuckets::count - 1 ? to_s : std::min(to_s, ages_.begin_s(b + 1));
    if (high <= low) continue;
    exposure[at(b)] += (high - low) * multiplier * weight;
    expected_hits += (high - low) * hazard[at(b)];
  }
  return expected_hits * (multiplier * weight);
}

void HazardRates::fit() noexcept {
  constexpr std::size_t buckets = AgeBuckets::count;
  const double fall = std::pow(2.0, -1.0 / AgeBuckets::of_doubling);
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    const std::size_t begin = kind * classes_of_kind;
    const std::size_t end = begin + classes_of_kind;
    // An age that was never seen inherits a hazard that falls as 1 / age.
    double prior = (kind == 0 ? 1.0 : other_prior) * prior_hazard_per_s;
    for (std::size_t b = 0; b < buckets; ++b) {
      double hits = 0;
      double exposure = 0;
      for (std::size_t c = begin; c < end; ++c) hits += hits_[c][b];
      for (std::size_t c = begin; c < end; ++c) exposure += exposure_[c][b];
      const double pooled = (hits + pooled_strength) / (exposure + pooled_strength / prior);
      for (std::size_t c = begin; c < end; ++c)
        hazard_[c][b] =
            (hits_[c][b] + class_strength) / (exposure_[c][b] + class_strength / std::max(pooled, least_hazard_per_s));
      prior = pooled * fall;
    }
  }
  for (std::size_t c = 0; c < classes; ++c)
    for (std::size_t b = buckets; b-- > 0;)
      highest_from_[c][b] = b + 1 < buckets ? std::max(hazard_[c][b], highest_from_[c][b + 1]) : hazard_[c][b];
  for (Histogram& indices : index_) indices.fill(-1);
  for (Histogram& chances : chance_) chances.fill(-1);
}

void HazardRates::decay(double kept) noexcept {
  for (auto* table : {&hits_, &exposure_})
    for (Histogram& of_class : *table)
      for (double& value : of_class) value *= kept;
}

double HazardRates::compute_index(int hazard_class, int level, int from, double idle_s) const noexcept {
  const Histogram& hazards = hazard_[at(hazard_class)];
  const Histogram& highest = highest_from_[at(hazard_class)];
  const double multiplier = multiplier_[at(level)];
  Histogram& chances = chance_[row(hazard_class, level)];
  double survival = 1;
  double used = 0;            // chance of a use within the horizon
  double waiting_s = idle_s;  // expected time until then
  double best = 0;
  const auto extend = [&](double chance, double hazard, double bucket_s) {
    used += survival * chance;
    waiting_s += survival * expected_wait_s(chance, hazard, bucket_s);
    survival *= 1 - chance;
    best = std::max(best, used / waiting_s);
  };
  // Of the bucket that it is in, a position has half before it.
  const double half_s = ages_.width_s(from) * 0.5;
  const double first_hazard = hazards[at(from)] * multiplier;
  extend(chance_within(first_hazard, half_s), first_hazard, half_s);
  for (int b = from + 1; b < AgeBuckets::count && survival >= negligible_survival; ++b) {
    // A longer horizon has a mean of this ratio and of hazards to come: if those are all lower, the best is found.
    if (highest[at(b)] * multiplier * rounding_margin < best) break;
    const double hazard = hazards[at(b)] * multiplier;
    if (chances[at(b)] < 0) chances[at(b)] = chance_within(hazard, ages_.width_s(b));
    extend(chances[at(b)], hazard, ages_.width_s(b));
  }
  return best;
}

void HazardRates::check_invariants() const {
  for (std::size_t c = 0; c < classes; ++c)
    for (std::size_t b = 0; b < AgeBuckets::count; ++b)
      require_invariant(hits_[c][b] >= 0 && exposure_[c][b] >= 0 && hazard_[c][b] > 0, "HazardRates",
                        "a histogram is negative");
}

}  // namespace stateport
