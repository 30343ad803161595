// SPDX-License-Identifier: Apache-2.0
#include "element_convert.hpp"

#include "random.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

using namespace stateport::convert;

namespace {

/// The value that an IEEE-like format of `exponent_bits` and `fraction_bits` gives a bit pattern, by definition.
double value_of(std::uint32_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto fraction = static_cast<double>(bits & ((1u << fraction_bits) - 1u));
  const auto exponent = static_cast<int>((bits >> fraction_bits) & ((1u << exponent_bits) - 1u));
  const double sign = (bits >> (exponent_bits + fraction_bits)) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) return fraction == 0 ? sign * HUGE_VAL : std::nan("");
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(1.0 + std::ldexp(fraction, -fraction_bits), exponent - bias);
}

/// Nearest pattern by bisection over the positive finite patterns, ties to the even one: slow and obvious.
std::uint16_t nearest(double value, int exponent_bits, int fraction_bits) {
  const std::uint32_t infinity = ((1u << exponent_bits) - 1u) << fraction_bits;
  std::uint32_t low = 0;
  std::uint32_t high = infinity;  // stands for the next value after the largest, as rounding sees it
  const double after_largest = std::ldexp(1.0, 1 << (exponent_bits - 1));
  const auto value_at = [&](std::uint32_t p) {
    return p == infinity ? after_largest : value_of(p, exponent_bits, fraction_bits);
  };
  const double magnitude = std::fabs(value);
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (value_at(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - value_at(low);
  const double above = value_at(high) - magnitude;
  const std::uint32_t chosen = below < above || (below == above && low % 2 == 0) ? low : high;
  return static_cast<std::uint16_t>((std::signbit(value) ? 0x8000u : 0u) | chosen);
}

}  // namespace

TEST_CASE("every fp16 and bf16 pattern has its value in fp32 and comes back") {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const double fp16 = value_of(bits, 5, 10);
    const double bf16 = value_of(bits, 8, 7);
    if (std::isnan(fp16)) {
      REQUIRE(std::isnan(fp16_to_fp32(half)));
      REQUIRE(std::isnan(fp16_to_fp32(fp32_to_fp16(fp16_to_fp32(half)))));
    } else {
      REQUIRE(static_cast<double>(fp16_to_fp32(half)) == fp16);
      REQUIRE(fp32_to_fp16(fp16_to_fp32(half)) == half);
    }
    if (std::isnan(bf16)) {
      REQUIRE(std::isnan(bf16_to_fp32(fp32_to_bf16(bf16_to_fp32(half)))));
    } else {
      REQUIRE(static_cast<double>(bf16_to_fp32(half)) == bf16);
      REQUIRE(fp32_to_bf16(bf16_to_fp32(half)) == half);
    }
  }
}

TEST_CASE("a NaN of fp32 stays one, whichever of its bits are set") {
  for (int bit = 0; bit < 23; ++bit)
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const auto nan = std::bit_cast<float>(sign | 0x7F800000u | 1u << bit);
      CHECK(std::isnan(bf16_to_fp32(fp32_to_bf16(nan))));
      CHECK(std::isnan(fp16_to_fp32(fp32_to_fp16(nan))));
    }
}

TEST_CASE("fp32 rounds to the nearest fp16 and bf16, ties to even") {
  stateport::test::for_each_seed(2000, [](stateport::test::Random& random, std::uint64_t) {
    for (int i = 0; i < 20; ++i) {
      auto bits = static_cast<std::uint32_t>(random.bits());
      if (random.chance(30)) bits &= 0xFFFFF000u;                        // many exact ties
      if (random.chance(30)) bits = (bits & 0x8FFFFFFFu) | 0x30000000u;  // near the fp16 subnormals
      const float value = std::bit_cast<float>(bits);
      if (!std::isfinite(value)) continue;
      CAPTURE(value);
      REQUIRE(fp32_to_fp16(value) == nearest(static_cast<double>(value), 5, 10));
      REQUIRE(fp32_to_bf16(value) == nearest(static_cast<double>(value), 8, 7));
    }
  });
}

TEST_CASE("overflow gives infinity and infinity stays") {
  CHECK(fp32_to_fp16(65520.0f) == 0x7C00);
  CHECK(fp32_to_fp16(65519.0f) == 0x7BFF);
  CHECK(fp32_to_fp16(-std::numeric_limits<float>::infinity()) == 0xFC00);
  CHECK(fp32_to_bf16(std::numeric_limits<float>::max()) == 0x7F80);
}
