// SPDX-License-Identifier: Apache-2.0
#include "fleet/link.hpp"

#include <doctest/doctest.h>

using stateport::replay::Link;

TEST_CASE("transfers share a link in their order, and each arrives one latency after its last byte") {
  Link link(100, 0.5);
  CHECK(link.send(1, 200) == doctest::Approx(3.5));
  CHECK(link.send(1, 100) == doctest::Approx(4.5));
  CHECK(link.ask(1) == doctest::Approx(1.5));
  CHECK(link.send(10, 100) == doctest::Approx(11.5));
  CHECK(link.bytes() == 400);
  CHECK(link.busy_s() == doctest::Approx(4));
}

TEST_CASE("bytes take no time on a link whose bandwidth is not known") {
  Link link(0, 0.25);
  CHECK(link.send(2, 1'000'000) == doctest::Approx(2.25));
  CHECK(link.send(2, 0) == doctest::Approx(2.25));
  CHECK(link.busy_s() == 0);
}

TEST_CASE("transfers on their way when a link was cleared delay nothing") {
  Link link(10, 0);
  CHECK(link.send(0, 1000) == doctest::Approx(100));
  link.clear();
  CHECK(link.send(5, 10) == doctest::Approx(6));
  CHECK(link.bytes() == 1010);
}
