// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace stateport {

/// Ages in buckets of a third of a doubling of 1 + age in seconds. The last bucket begins after 9.6 days and has all
/// longer ages. Thirds tell a chat's dead time from its peak; the pauses of people span six decades.
class AgeBuckets {
 public:
  static constexpr int count = 60;
  static constexpr int of_doubling = 3;

  AgeBuckets() noexcept {
    for (int bucket = 0; bucket <= count; ++bucket)
      begin_s_[static_cast<std::size_t>(bucket)] = std::pow(2.0, bucket / double{of_doubling}) - 1;
  }

  /// The bucket of an age. A negative age counts as 0.
  [[nodiscard]] static int of(double age_s) noexcept;
  [[nodiscard]] double begin_s(int bucket) const noexcept { return begin_s_[static_cast<std::size_t>(bucket)]; }
  [[nodiscard]] double width_s(int bucket) const noexcept { return begin_s(bucket + 1) - begin_s(bucket); }
  /// Where the last bucket begins.
  [[nodiscard]] double last_begin_s() const noexcept { return begin_s(count - 1); }

 private:
  static constexpr double cube_root_of_2 = 1.259921049894873165;
  static constexpr double cube_root_of_4 = 1.587401051968199475;
  /// By the first bits of a mantissa. std::log2 decides where these bits do not, and where it may round up.
  static constexpr int third_bits = 8;
  static constexpr std::uint8_t doubtful_third = UINT8_MAX;
  static constexpr auto thirds_of_doubling = [] {
    constexpr auto place = [](double threshold) {
      return std::bit_cast<std::uint64_t>(threshold) >> (52 - third_bits) & ((1U << third_bits) - 1);
    };
    std::array<std::uint8_t, 1U << third_bits> thirds{};
    for (std::size_t at = 0; at < thirds.size(); ++at)
      thirds[at] = static_cast<std::uint8_t>((at > place(cube_root_of_2)) + (at > place(cube_root_of_4)));
    for (const std::size_t at :
         {std::size_t{place(cube_root_of_2)}, std::size_t{place(cube_root_of_4)}, thirds.size() - 1})
      thirds[at] = doubtful_third;
    return thirds;
  }();

  std::array<double, std::size_t{count} + 1> begin_s_{};
};

// Some 26 candidates are ranked for a victim: this runs for each.

inline int AgeBuckets::of(double age_s) noexcept {
  // floor(3 · log2(1 + age)), from the exponent and the first bits of the mantissa.
  const double grown = 1 + std::max(age_s, 0.0);
  const auto bits = std::bit_cast<std::uint64_t>(grown);
  const std::uint8_t third = thirds_of_doubling[bits >> (52 - third_bits) & (thirds_of_doubling.size() - 1)];
  if (third == doubtful_third) [[unlikely]]
    return std::min(static_cast<int>(of_doubling * std::log2(grown)), count - 1);
  const int doublings = static_cast<int>(bits >> 52) - 1023;
  return std::min(doublings * of_doubling + third, count - 1);
}

}  // namespace stateport
