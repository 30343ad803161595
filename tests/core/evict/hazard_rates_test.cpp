// SPDX-License-Identifier: Apache-2.0
#include "evict/hazard_rates.hpp"

#include <doctest/doctest.h>

#include <cmath>

using stateport::AgeBuckets;
using stateport::HazardRates;

TEST_CASE("an age lies in the bucket that begins at it or before it") {
  const AgeBuckets ages;
  CHECK(AgeBuckets::of(-1) == 0);
  CHECK(AgeBuckets::of(1e300) == AgeBuckets::count - 1);
  for (int bucket = 0; bucket < AgeBuckets::count; ++bucket) {
    const double begin_s = ages.begin_s(bucket);
    CHECK(AgeBuckets::of(begin_s + 1e-9 * (1 + begin_s)) == bucket);
    CHECK(AgeBuckets::of(std::nextafter(ages.begin_s(bucket + 1), 0.0) - 1e-9 * (1 + begin_s)) == bucket);
    CHECK(ages.width_s(bucket) == doctest::Approx((1 + begin_s) * (std::cbrt(2.0) - 1)));
  }
}

TEST_CASE("a hazard is the observed rate of its class and age, and elsewhere that of its kind") {
  HazardRates rates;
  constexpr int seen = 2, other = 3, of_other_kind = HazardRates::classes_of_kind;
  const double before = rates.index(seen, HazardRates::neutral_level, 0);
  const double kind_before = rates.index(other, HazardRates::neutral_level, 0);
  const double other_kind = rates.index(of_other_kind, HazardRates::neutral_level, 0);
  // 1,000 positions wait for a tenth of a second, and half of them are hit then: 5 uses per second.
  for (int i = 0; i < 1000; ++i) CHECK(rates.expose(seen, HazardRates::neutral_level, 1, 0, 0.1) > 0);
  for (int i = 0; i < 500; ++i) rates.hit(seen, 0.1, 1);
  CHECK(rates.index(seen, HazardRates::neutral_level, 0) == before);  // until the fit
  rates.fit();
  CHECK(rates.index(seen, HazardRates::neutral_level, 0) == doctest::Approx(5).epsilon(0.1));
  CHECK(rates.index(other, HazardRates::neutral_level, 0) > 2 * kind_before);
  CHECK(rates.index(of_other_kind, HazardRates::neutral_level, 0) == other_kind);
  rates.check_invariants();
}

TEST_CASE("two levels are a factor of two, and a wait lowers an index") {
  const HazardRates rates;
  const double neutral = rates.index(0, HazardRates::neutral_level, 100);
  CHECK(rates.index(0, HazardRates::neutral_level + 2, 100) > neutral);
  CHECK(rates.index(0, HazardRates::neutral_level - 2, 100) < neutral);
  const int bucket = AgeBuckets::of(100);
  CHECK(rates.index_after(0, HazardRates::neutral_level, bucket, 0) == neutral);
  CHECK(rates.index_after(0, HazardRates::neutral_level, bucket, 1000) < neutral);
}

TEST_CASE("old observations lose their weight") {
  HazardRates rates;
  for (int i = 0; i < 1000; ++i) rates.hit(0, 1, 1);
  static_cast<void>(rates.expose(0, HazardRates::neutral_level, 100, 0, 5));
  rates.fit();
  const double learned = rates.index(0, HazardRates::neutral_level, 1);
  for (int i = 0; i < 40; ++i) rates.decay(0.5);
  rates.fit();
  CHECK(rates.index(0, HazardRates::neutral_level, 1) < learned / 2);
  CHECK(rates.index(0, HazardRates::neutral_level, 1) ==
        doctest::Approx(HazardRates().index(0, HazardRates::neutral_level, 1)).epsilon(0.01));
}
