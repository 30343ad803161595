// SPDX-License-Identifier: Apache-2.0
// The encoding rule of int8_block32: its error, its extremes, and that a second encoding changes nothing.
#include "block_encoding.hpp"

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

using namespace stateport;
using test::Random;

namespace {

struct Block {
  std::uint16_t scale = 0;
  std::vector<std::int8_t> values;
  friend bool operator==(const Block&, const Block&) = default;
};

Block encode(std::span<const float> elements) {
  std::int32_t magnitude = 0;
  for (const float element : elements) magnitude = std::max(magnitude, convert::magnitude_bits(element));
  Block block{.scale = convert::block_scale(magnitude), .values = {}};
  const float divisor = convert::fp16_to_fp32(block.scale);
  for (const float element : elements)
    block.values.push_back(convert::divides(block.scale)
                               ? static_cast<std::int8_t>(convert::block_value(element, divisor))
                               : std::int8_t{0});
  return block;
}

std::vector<float> decode(const Block& block) {
  std::vector<float> elements;
  for (const std::int8_t value : block.values)
    elements.push_back(convert::decodes_to_nan(block.scale)
                           ? convert::block_nan()
                           : convert::block_element(value, convert::fp16_to_fp32(block.scale)));
  return elements;
}

double magnitude_of(std::span<const float> elements) {
  double largest = 0;
  for (const float element : elements) largest = std::max(largest, std::abs(static_cast<double>(element)));
  return largest;
}

/// In [0, 1).
double unit(Random& random) {
  return static_cast<double>(random.bits() >> 11) * 0x1p-53;
}

/// 1 to 32 numbers, the largest in any binade of fp32 from 2^-40 to 2^21; some lie at or beside half a step.
std::vector<float> random_block(Random& random) {
  std::vector<float> elements(static_cast<std::size_t>(random.between(1, 32)));
  const double largest = std::ldexp(unit(random) + 1, static_cast<int>(random.between(-40, 21)));
  for (float& element : elements) element = static_cast<float>((2 * unit(random) - 1) * largest);
  const auto at = [&] {
    return static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(elements.size()) - 1));
  };
  elements[at()] = static_cast<float>(random.chance(50) ? largest : -largest);
  const float scale = convert::fp16_to_fp32(encode(elements).scale);
  if (random.chance(50)) {
    float& element = elements[at()];
    const float half = (static_cast<float>(random.between(-127, 126)) + 0.5f) * scale;
    if (std::abs(half) > magnitude_of(elements)) return elements;
    element = half;
    if (random.chance(60)) element = std::nextafter(half, random.chance(50) ? 1e30f : -1e30f);
  }
  return elements;
}

}  // namespace

TEST_CASE("no element of a block is farther from the decoded one than half of the scale") {
  double worst = 0;
  int blocks = 0;
  test::for_each_seed(20'000, [&](Random& random, std::uint64_t) {
    ++blocks;
    const std::vector<float> elements = random_block(random);
    const Block block = encode(elements);
    const std::vector<float> decoded = decode(block);
    const double scale = static_cast<double>(convert::fp16_to_fp32(block.scale));
    const double largest = magnitude_of(elements);
    CAPTURE(largest);
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const double error = std::abs(static_cast<double>(elements[i]) - static_cast<double>(decoded[i]));
      CAPTURE(elements[i]);
      REQUIRE(error <= (block.scale == 0 ? 0x1p-25 : scale / 2));
      if (scale > 0) worst = std::max(worst, error / scale);
      // The nearest, ties to even, by exact arithmetic: a quotient of two numbers of fp32 is a tie in double only if
      // it is one.
      if (block.scale != 0)
        REQUIRE(static_cast<double>(block.values[i]) == std::nearbyint(static_cast<double>(elements[i]) / scale));
    }
    if (largest >= 127 * 0x1p-14)
      REQUIRE(scale < largest / 127 * (1 + 0x1p-9));
    else
      REQUIRE(scale < 2 * largest / 127 + 0x1p-24);
    REQUIRE(scale >= (block.scale == 0 ? 0.0 : largest / 127 * (1 - 0x1p-23)));
  });
  MESSAGE("largest error: " << worst << " of a scale");
  if (blocks >= 100) CHECK(worst > 0.49);  // a few blocks have no element so near to the middle
}

TEST_CASE("encoding decoded elements gives the same bytes") {
  test::for_each_seed(20'000, [](Random& random, std::uint64_t) {
    const Block block = encode(random_block(random));
    CAPTURE(block.scale);
    REQUIRE(encode(decode(block)) == block);
  });
  // Every scale that an encoding gives, with the largest element just as large as leads to it.
  std::uint16_t last = 0;
  for (float largest = 0x1p-26f; largest < 1e9f; largest *= 1.0001f) {
    const Block block = encode(std::array{largest, -largest / 3});
    REQUIRE(block.scale >= last);
    REQUIRE(encode(decode(block)) == block);
    last = block.scale;
  }
  CHECK(last == convert::block_scale_max);
}

TEST_CASE("blocks of zeros, of the smallest and of the largest numbers decode as the rule says") {
  const auto decoded = [](std::vector<float> elements) { return decode(encode(elements)); };
  CHECK(decoded({0, -0.0f, 0}) == std::vector<float>{0, 0, 0});
  CHECK_FALSE(std::signbit(decoded({-0.0f, 1})[0]));
  CHECK(decoded({0x1p-25f, -0x1p-149f}) == std::vector<float>{0, 0});
  CHECK(encode(std::array{0x1p-25f}).scale == 0);
  const float above = std::nextafter(0x1p-25f, 1.0f);
  CHECK(encode(std::array{above}).scale == 1);
  CHECK(decoded({above}) == std::vector<float>{0x1p-24f});
  constexpr float largest = 127.0f * 65504.0f;
  CHECK(decoded({largest, 65504}) == std::vector<float>{largest, 65504});
  CHECK(decoded({std::numeric_limits<float>::max(), -2 * largest, 65504}) ==
        std::vector<float>{largest, -largest, 65504});
}

TEST_CASE("a block with an infinity or a NaN decodes to NaN throughout") {
  for (const float broken : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN(), std::bit_cast<float>(0xFFFFFFFFu)}) {
    const Block block = encode(std::array{1.0f, broken, 0.0f});
    CHECK(block == Block{.scale = convert::block_scale_nan, .values = {0, 0, 0}});
    for (const float element : decode(block)) CHECK(std::bit_cast<std::uint32_t>(element) == 0x7FC00000u);
    CHECK(encode(decode(block)) == block);
  }
}

TEST_CASE("any two bytes are a scale: infinities and NaN make a block NaN, others multiply exactly") {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto scale = static_cast<std::uint16_t>(bits);
    const double exponent = std::max<int>(static_cast<int>(bits >> 10 & 0x1Fu), 1) - 25;
    const double significand = static_cast<double>((bits & 0x3FFu) + ((bits & 0x7C00u) != 0 ? 0x400u : 0u));
    const double factor = ((bits & 0x8000u) != 0 ? -1 : 1) * significand * std::exp2(exponent);
    const std::vector<float> elements = decode({.scale = scale, .values = {-128, -127, -1, 0, 1, 127}});
    const std::array<double, 6> values{-128, -127, -1, 0, 1, 127};
    for (std::size_t i = 0; i < values.size(); ++i)
      if ((bits & 0x7C00u) == 0x7C00u)
        REQUIRE(std::bit_cast<std::uint32_t>(elements[i]) == 0x7FC00000u);
      else
        REQUIRE(static_cast<double>(elements[i]) == values[i] * factor);
  }
}

TEST_CASE("states of normal and of heavy-tailed numbers keep their relative error") {
  // Relative error: the norm of the difference over the norm of the state, of 32 * 128 * 128 elements.
  std::mt19937_64 bits(20);
  MESSAGE("seed 20");
  constexpr std::size_t blocks = 16384;
  const auto relative_error = [&](auto&& draw) {
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < blocks; ++i) {
      std::array<float, 32> elements;
      for (float& element : elements) element = static_cast<float>(draw());
      const std::vector<float> decoded = decode(encode(elements));
      for (std::size_t k = 0; k < elements.size(); ++k) {
        const double difference = static_cast<double>(elements[k]) - static_cast<double>(decoded[k]);
        error += difference * difference;
        norm += static_cast<double>(elements[k]) * static_cast<double>(elements[k]);
      }
    }
    return std::sqrt(error / norm);
  };
  std::normal_distribution<double> normal(0, 0.1);
  std::student_t_distribution<double> heavy(4);
  const double gauss = relative_error([&] { return normal(bits); });
  const double tails = relative_error([&] { return 0.1 * heavy(bits); });
  MESSAGE("relative error: normal " << 100 * gauss << " %, Student's t with 4 degrees of freedom " << 100 * tails
                                    << " %");
  // Expected of the rule: a uniform error of scale / sqrt(12), with the mean square of the largest of 32 elements.
  CHECK(gauss < 0.006);
  CHECK(gauss > 0.004);
  CHECK(tails < 0.010);
  CHECK(tails > 0.004);
}
