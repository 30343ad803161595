// SPDX-License-Identifier: Apache-2.0
#include "states/scaled_spec.hpp"

#include <stateport/core/model/error.hpp>
#include <stateport/core/model/models.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

using namespace stateport;
using stateport::replay::scale_to_fit;

TEST_CASE("a state of any model fits any budget that can hold its smallest form") {
  for (const models::ModelInfo& model : models::all()) {
    CAPTURE(std::string(model.name));
    const StateSpec full = models::find(model.name);
    for (std::size_t budget = 256; budget < 2 * full.slot_bytes(); budget *= 3) {
      CAPTURE(budget);
      const StateSpec spec = scale_to_fit(full, budget);
      REQUIRE(spec.slot_bytes() <= budget);
      for (const StateTensorSpec& tensor : spec.tensors()) REQUIRE(tensor.natural_bytes() % 16 == 0);
      // Rounding to whole words wastes something, but not the budget.
      if (budget > 16384) REQUIRE(spec.slot_bytes() * 2 > std::min(budget, full.slot_bytes()));
    }
  }
}

TEST_CASE("a state that fits is not changed") {
  const StateSpec full = models::find("qwen3-next-80b-a3b");
  CHECK(scale_to_fit(full, full.slot_bytes()) == full);
}

TEST_CASE("layers go before dimensions, so that tensors keep their real sizes") {
  const StateSpec full = models::find("qwen3-next-80b-a3b");
  const StateSpec spec = scale_to_fit(full, full.slot_bytes() / 4);
  CHECK(spec.tensors().size() == full.tensors().size() / 4);
  CHECK(spec.tensors()[0] == full.tensors()[0]);
  CHECK(spec.tensors()[1] == full.tensors()[1]);
}

TEST_CASE("a budget below the smallest form is refused") {
  const StateSpec full = models::find("qwen3-next-80b-a3b");
  CHECK_THROWS_AS((void)scale_to_fit(full, 0), InvalidArgument);
  CHECK_THROWS_AS((void)scale_to_fit(full, 16), InvalidArgument);
}

TEST_CASE("a spec is described by the first tensor of each kind") {
  CHECK(stateport::replay::describe(models::find("qwen3-next-80b-a3b")) ==
        "36 layers, conv [3, 8192] bf16, recurrent [32, 128, 128] bf16");
  CHECK(stateport::replay::describe(models::find("lfm2-1.2b")) == "10 layers, conv [2, 2048] bf16");
}
