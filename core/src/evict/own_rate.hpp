// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>

namespace stateport {

/// How often one position was hit since it became known, cached or not. 16 bytes.
class OwnRate {
 public:
  static constexpr float hits_max = 65'536;  ///< then one half is forgotten; floats count exactly up to 2^24

  /// The position was hit often enough to have a rate of its own.
  [[nodiscard]] bool counts() const noexcept { return hits_ >= hits_min; }
  /// Uses per second: `learned` for the class of the position, drawn towards its own rate, the more the more often it
  /// was hit.
  [[nodiscard]] double combined(double learned, double now_s) const noexcept {
    const double known_s = span_s_ + wait_factor * (now_s - hit_s_) + start_s;
    const double trust = hits_ / (hits_ + strength);
    return std::pow(learned, 1 - trust) * std::pow(hits_ / known_s, trust);
  }
  void hit(double now_s) noexcept {
    span_s_ += static_cast<float>(std::max(now_s - hit_s_, 0.0));
    hit_s_ = std::max(hit_s_, now_s);
    if (++hits_ >= hits_max) {
      hits_ /= 2;
      span_s_ /= 2;
    }
  }
  /// The position was kept. Its time begins now, unless it was hit before.
  void keep(double used_s) noexcept {
    if (hits_ == 0) hit_s_ = std::max(hit_s_, used_s);
  }
  [[nodiscard]] bool is_valid() const noexcept { return hits_ >= 0 && hits_ < hits_max && span_s_ >= 0; }

 private:
  static constexpr float hits_min = 3;
  static constexpr float strength = 8;      ///< the number of hits that the class counts for
  static constexpr double start_s = 30;     ///< added to the time that the position was known
  static constexpr double wait_factor = 2;  ///< of the time since its last hit, in which a long pause may have begun

  double hit_s_ = 0;  ///< the last time, or when it became known
  float span_s_ = 0;  ///< from then to the last time
  float hits_ = 0;
};

}  // namespace stateport
