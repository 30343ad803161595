// SPDX-License-Identifier: Apache-2.0
// A graph would move the same images at every replay. An OpenMP build pretends that it captures one.
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/tiers/state_tiers.hpp>

#include "pretending.hpp"
#include "transfer_rig.hpp"

#include <doctest/doctest.h>

using namespace stateport;

TEST_CASE("tiers refuse a stream that captures a graph, and a launch that is refused fails its transfer") {
  const Stream stream = Stream::default_stream();
  PinnedResource memory;
  test::DeviceStates states{StateSpec::uniform(1, {}, {.shape = {2, 4, 8}}), 2};
  StateTiers tiers(memory, {.states = {&states.store()}, .host_budget_bytes = 1 << 20});
  std::vector<TransferResult> results(1);
  {
    const test::Pretending capture({.captures = true});
    CHECK_THROWS_WITH_AS(tiers.put(stream, test::state_image(1), SlotId{0}), doctest::Contains("captures a graph"),
                         InvalidState);
    CHECK_THROWS_AS(tiers.poll(stream, results), InvalidState);
  }
  CHECK(tiers.in_flight() == 0);
  {
    const test::Pretending refusal({.refuses_launches = true});
    tiers.put(stream, test::state_image(1), SlotId{0});
  }
  CHECK(tiers.host().usage().images == 0);
  REQUIRE(tiers.poll(stream, results) == 1);
  CHECK(results[0].status == TransferStatus::failed);
  tiers.put(stream, test::state_image(1), SlotId{0});
  REQUIRE(tiers.poll(stream, results) == 1);
  CHECK(results[0].status == TransferStatus::done);
}
