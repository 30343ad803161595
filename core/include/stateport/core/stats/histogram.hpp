// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace stateport {

/// Counts of values in buckets whose upper bounds double. A bucket counts the values above the bound of the bucket
/// before it, up to its own bound inclusive, as buckets of Prometheus do. The last bucket has no bound. Bounds::first
/// is the bound of bucket 0, Bounds::count the number of buckets. Nothing allocates; not thread-safe.
template <class Bounds>
class Histogram {
 public:
  static constexpr int buckets = Bounds::count;

  /// A negative value counts as 0.
  void add(double value) noexcept {
    value = std::max(value, 0.0);
    int bucket = 0;
    for (double bound = Bounds::first; bucket + 1 < buckets && value > bound; bound *= 2) ++bucket;
    ++counts_[static_cast<std::size_t>(bucket)];
    ++total_;
    sum_ += value;
  }

  [[nodiscard]] std::int64_t count(int bucket) const noexcept { return counts_[static_cast<std::size_t>(bucket)]; }
  [[nodiscard]] std::int64_t total() const noexcept { return total_; }
  [[nodiscard]] double sum() const noexcept { return sum_; }
  /// The upper bound of the bucket; infinite for the last one.
  [[nodiscard]] static double upper(int bucket) noexcept {
    return bucket + 1 < buckets ? std::ldexp(Bounds::first, bucket) : std::numeric_limits<double>::infinity();
  }
  /// The upper bound of the bucket that holds the `part`-quantile; 0 if there are no values.
  [[nodiscard]] double quantile(double part) const noexcept {
    if (total_ == 0) return 0;
    std::int64_t reached = 0;
    for (int bucket = 0; bucket < buckets; ++bucket) {
      reached += count(bucket);
      if (static_cast<double>(reached) >= part * static_cast<double>(total_)) return upper(bucket);
    }
    return upper(buckets - 1);
  }
  friend bool operator==(const Histogram&, const Histogram&) noexcept = default;

 private:
  std::array<std::int64_t, static_cast<std::size_t>(buckets)> counts_{};
  std::int64_t total_ = 0;
  double sum_ = 0;
};

/// 1 second, then powers of two up to 2^22: seven weeks.
struct AgeBounds {
  static constexpr double first = 1;
  static constexpr int count = 24;
};
using AgeHistogram = Histogram<AgeBounds>;  ///< of seconds

/// 64 tokens, then powers of two up to 2^20.
struct TokenBounds {
  static constexpr double first = 64;
  static constexpr int count = 16;
};
using TokenHistogram = Histogram<TokenBounds>;

/// 2^-12 seconds (0.24 ms), then powers of two up to 64 seconds.
struct DurationBounds {
  static constexpr double first = 1.0 / 4096;
  static constexpr int count = 20;
};
using DurationHistogram = Histogram<DurationBounds>;  ///< of seconds

}  // namespace stateport
