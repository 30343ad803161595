// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "evict/age_buckets.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace stateport {

/// Learns the hazard of a use (uses per second of waiting) for each class of positions and each age, and ranks by it.
///
/// Time to the next use is not memoryless (a chat has a dead time, a peak and a long tail), so a hazard is learned per
/// class and per bucket of ages: hits / exposure. The index of a position is then Gittins': the best ratio, over all
/// horizons, of the chance of a use to the time until it.
///
/// Classes are numbered by kind. A level multiplies the hazard of a class: two levels are a factor of 2. Only classes
/// of the first kind have other levels than the neutral one.
///
/// All is deterministic; floating-point operations are in a fixed order: every rank of a group learns the same.
class HazardRates {
 public:
  static constexpr int kinds = 3;
  static constexpr int classes_of_kind = 6;
  static constexpr int classes = kinds * classes_of_kind;
  static constexpr int levels = 17;
  static constexpr int neutral_level = 8;  ///< multiplier 1

  HazardRates();

  /// A position of this class waited from one age to another. Returns the hits that were expected meanwhile.
  double expose(int hazard_class, int level, double weight, double from_s, double to_s) noexcept;
  /// A position of this class was hit at this age.
  void hit(int hazard_class, double age_s, double weight) noexcept {
    hits_[at(hazard_class)][at(AgeBuckets::of(age_s))] += weight;
  }
  /// The hazards follow the observations from now on. O(classes · buckets).
  void fit() noexcept;
  /// Observations have this part of their weight from now on.
  void decay(double kept) noexcept;

  /// Uses per second that a position promises at this age.
  [[nodiscard]] double index(int hazard_class, int level, double age_s) const noexcept {
    return index_from(hazard_class, level, AgeBuckets::of(age_s));
  }
  /// The same of a position that waits `idle_s` for the begin of the bucket `from`, and is not used meanwhile.
  [[nodiscard]] double index_after(int hazard_class, int level, int from, double idle_s) const noexcept {
    return compute_index(hazard_class, level, from, idle_s);
  }
  [[nodiscard]] const AgeBuckets& ages() const noexcept { return ages_; }
  /// Throws std::logic_error if a histogram is negative.
  void check_invariants() const;

 private:
  using Histogram = std::array<double, AgeBuckets::count>;

  /// Of index_ and chance_, by class: one row a level.
  static constexpr auto first_row = [] {
    std::array<std::uint8_t, classes> rows{};
    for (std::size_t c = 0; c < classes; ++c)
      rows[c] = static_cast<std::uint8_t>(c < classes_of_kind ? c * levels
                                                              : c + classes_of_kind * (levels - 1) - neutral_level);
    return rows;
  }();
  static constexpr std::size_t rows = classes_of_kind * levels + classes - classes_of_kind;

  [[nodiscard]] static constexpr std::size_t at(int index) noexcept { return static_cast<std::size_t>(index); }
  [[nodiscard]] static constexpr std::size_t row(int hazard_class, int level) noexcept {
    return static_cast<std::size_t>(first_row[at(hazard_class)] + level);
  }
  [[nodiscard]] double index_from(int hazard_class, int level, int from) const noexcept {
    double& known = index_[row(hazard_class, level)][at(from)];
    if (known < 0) known = compute_index(hazard_class, level, from, 0);
    return known;
  }
  [[nodiscard]] double compute_index(int hazard_class, int level, int from, double idle_s) const noexcept;

  AgeBuckets ages_;
  std::array<Histogram, classes> hits_{};
  std::array<Histogram, classes> exposure_{};
  std::array<Histogram, classes> hazard_{};
  std::array<Histogram, classes> highest_from_{};  ///< of the hazards from this bucket on
  std::array<double, levels> multiplier_{};
  // By row(); filled on demand, emptied by fit(): < 0 is empty.
  mutable std::array<Histogram, rows> index_{};
  mutable std::array<Histogram, rows> chance_{};  ///< of a use in a whole bucket
};

}  // namespace stateport
