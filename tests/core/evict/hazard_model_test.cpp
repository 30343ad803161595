// SPDX-License-Identifier: Apache-2.0
#include "evict/hazard_model.hpp"

#include <doctest/doctest.h>

#include <array>

using stateport::HazardModel;
using stateport::KeptAt;
using stateport::PositionKey;
using stateport::PromptPast;

TEST_CASE("hazards are fitted when the next request or time is told, not when the fiftieth request ends") {
  for (const bool by_time : {true, false}) {
    HazardModel model(8);
    const std::array<PositionKey, 1> keys = {1};
    HazardModel::Position position = HazardModel::none;
    double now_s = 0;
    const auto serve = [&] {
      model.set_time(now_s += 10);
      const PromptPast past = model.start_request({.keys = keys, .blocks = 1});
      position =
          model.remember({.key = keys[0], .depth_blocks = 1, .at = KeptAt::end, .prompt = {.blocks = 1, .past = past}});
    };
    for (int request = 1; request < 50; ++request) {
      serve();
      model.finish_request();
    }
    serve();
    const double before = model.index(model.demand(position));
    model.finish_request();
    CHECK(model.index(model.demand(position)) == before);
    if (by_time)
      model.set_time(now_s);
    else
      static_cast<void>(model.start_request({}));
    CHECK(model.index(model.demand(position)) < before);  // 10 s between uses are more than was assumed
  }
}
