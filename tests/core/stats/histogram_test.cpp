// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/stats/histogram.hpp>

#include "heap_counter.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

using namespace stateport;
using stateport::test::for_each_seed;
using stateport::test::heap_allocations;
using stateport::test::Random;

namespace {

/// Against all values in a row: each bucket, the sum and quantiles.
template <class Counted>
void check_against_values(const Counted& histogram, std::vector<double> values) {
  double sum = 0;
  double below = -1;
  for (int bucket = 0; bucket < Counted::buckets; ++bucket) {
    const double bound = Counted::upper(bucket);
    const auto inside = std::ranges::count_if(values, [&](double value) { return value > below && value <= bound; });
    REQUIRE(histogram.count(bucket) == inside);
    below = bound;
  }
  for (const double value : values) sum += value;
  REQUIRE(histogram.total() == std::ssize(values));
  REQUIRE(histogram.sum() == doctest::Approx(sum));
  std::ranges::sort(values);
  for (const double part : {0.5, 0.9, 1.0}) {
    const auto at = static_cast<std::size_t>(std::ceil(part * static_cast<double>(values.size()))) - 1;
    const double quantile = histogram.quantile(part);
    REQUIRE(values[at] <= quantile);
    REQUIRE((std::isinf(quantile) || quantile == Counted::upper(0) || values[at] > quantile / 2));
  }
}

template <class Counted>
void check_random() {
  for_each_seed(50, [](Random& random, std::uint64_t) {
    Counted histogram;
    std::vector<double> values;
    for (std::int64_t left = random.between(1, 200); left > 0; --left) {
      // Bounds of buckets, and values beside them.
      double value = Counted::upper(static_cast<int>(random.between(0, Counted::buckets - 2)));
      if (random.chance(30)) value = std::nextafter(value, 1e300);
      if (random.chance(30)) value *= static_cast<double>(random.between(0, 1000)) / 100;
      histogram.add(value);
      values.push_back(value);
    }
    check_against_values(histogram, values);
  });
}

}  // namespace

TEST_CASE("a histogram counts each value in the bucket that its bounds say") {
  check_random<AgeHistogram>();
  check_random<TokenHistogram>();
  check_random<DurationHistogram>();
}

TEST_CASE("a negative value counts as 0, and counting allocates nothing") {
  const std::uint64_t before = heap_allocations();
  TokenHistogram histogram;
  CHECK(histogram.quantile(0.5) == 0);
  histogram.add(-3);
  CHECK(histogram.count(0) == 1);
  CHECK(histogram.sum() == 0);
  for (int i = 0; i < 100; ++i) histogram.add(1e12);
  CHECK(histogram.count(TokenHistogram::buckets - 1) == 100);
  CHECK(std::isinf(histogram.quantile(1)));
  CHECK(heap_allocations() == before);
}
