// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/state_spec.hpp>

#include <stateport/core/model/error.hpp>

#include <doctest/doctest.h>

using namespace stateport;

TEST_CASE("a uniform spec lists conv before recurrent and sums their bytes") {
  const auto spec = StateSpec::uniform(2, {.window = 3, .dim = 8}, {.shape = {4, 2, 2}});
  REQUIRE(spec.tensors().size() == 4);
  CHECK(spec.tensors()[0].kind == StateKind::conv);
  CHECK(spec.tensors()[1].kind == StateKind::recurrent);
  CHECK(spec.tensors()[3].layer == 1);
  CHECK(spec.slot_bytes() == 2 * (3 * 8 * 2 + 16 * 4));
}

TEST_CASE("fingerprints tell layouts, types and shapes apart") {
  const auto base = StateSpec::uniform(1, {.window = 3, .dim = 8}, {.shape = {4, 2, 2}});
  CHECK(base.fingerprint() == StateSpec::uniform(1, {.window = 3, .dim = 8}, {.shape = {4, 2, 2}}).fingerprint());
  CHECK(base.fingerprint() !=
        StateSpec::uniform(1, {.window = 3, .dim = 8, .layout = ConvLayout::ds}, {.shape = {4, 2, 2}}).fingerprint());
  CHECK(base.fingerprint() != StateSpec::uniform(1, {.window = 3, .dim = 8}, {.shape = {2, 4, 2}}).fingerprint());
  CHECK(base.fingerprint() !=
        StateSpec::uniform(1, {.window = 3, .dim = 8}, {.shape = {4, 2, 2}, .type = ElementType::bf16}).fingerprint());
}

TEST_CASE("a spec refuses shapes that cannot exist") {
  CHECK_THROWS_AS(StateSpec(std::vector<StateTensorSpec>{}), InvalidArgument);
  CHECK_THROWS_AS(StateSpec::uniform(0, {}, {.shape = {1, 1, 1}}), InvalidArgument);
  CHECK_THROWS_AS(StateSpec::uniform(1, {}, {}), InvalidArgument);
  CHECK_THROWS_AS(StateSpec::uniform(1, {.window = 3, .dim = 0}, {}), InvalidArgument);
  CHECK_THROWS_AS(StateSpec::uniform(1, {.window = -1, .dim = 4}, {}), InvalidArgument);
  CHECK_THROWS_AS(StateSpec::uniform(1, {}, {.shape = {1LL << 30, 1LL << 30, 1}}), InvalidArgument);
  CHECK_THROWS_AS(StateSpec(std::vector<StateTensorSpec>{{.layer = -1}}), InvalidArgument);
  CHECK_THROWS_AS(StateSpec(std::vector<StateTensorSpec>{{.group = -1}}), InvalidArgument);
}
