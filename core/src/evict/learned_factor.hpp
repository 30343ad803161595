// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace stateport {

/// Learns how much more often positions with a feature are hit than their class says: hits / expected hits, for each
/// value of the feature by itself.
class LearnedFactor {
 public:
  static constexpr std::uint8_t none = 15;  ///< a value that has the factor 1; values are below it

  [[nodiscard]] double of(std::uint8_t value) const noexcept {
    return value == none ? 1 : ratio(hits_[value], expected_[value]);
  }
  /// Relative to the mean of all values: a feature that has no influence has 1, whatever the class has learned so far.
  [[nodiscard]] double of_relative(std::uint8_t value) const noexcept {
    return value == none ? 1 : ratio(hits_[value], expected_[value]) / ratio(all_hits_, all_expected_);
  }
  void hit(std::uint8_t value, double weight) noexcept {
    if (value == none) return;
    hits_[value] += weight;
    all_hits_ += weight;
  }
  /// Adds hits that were expected by the class alone.
  void expose(std::uint8_t value, double expected_hits) noexcept {
    if (value == none) return;
    expected_[value] += expected_hits;
    all_expected_ += expected_hits;
  }
  void decay(double kept) noexcept {
    for (double& hits : hits_) hits *= kept;
    for (double& expected : expected_) expected *= kept;
    all_hits_ *= kept;
    all_expected_ *= kept;
  }

 private:
  /// The number of hits that the factor 1 counts for.
  static constexpr double strength = 10;

  [[nodiscard]] static double ratio(double hits, double expected) noexcept {
    return (hits + strength) / (expected + strength);
  }

  std::array<double, none> hits_{};
  std::array<double, none> expected_{};
  double all_hits_ = 0;
  double all_expected_ = 0;
};

}  // namespace stateport
