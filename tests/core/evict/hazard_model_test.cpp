// SPDX-License-Identifier: Apache-2.0
#include "evict/hazard_model.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

using stateport::HazardModel;
using stateport::KeptAt;
using stateport::PositionKey;
using stateport::PromptPast;
using stateport::ReuseHint;

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

namespace {

/// A model whose prompts are all the positions 1, 2, … up to their length.
struct Prompts {
  HazardModel model{64};
  double now_s = 0;

  PromptPast look_up(double at_s, std::int32_t blocks, std::int32_t matched, std::vector<std::int32_t> forks) {
    std::vector<PositionKey> keys;
    for (std::int32_t block = 1; block <= blocks; ++block) keys.push_back(static_cast<PositionKey>(block));
    model.set_time(now_s = at_s);
    return model.start_request({.keys = keys, .blocks = blocks, .matched_blocks = matched, .forks = forks});
  }
  HazardModel::Position remember(std::int32_t depth, KeptAt at) {
    return model.remember(
        {.key = static_cast<PositionKey>(depth), .depth_blocks = depth, .at = at, .prompt = {.blocks = depth}});
  }
};

}  // namespace

TEST_CASE("a request that falls back to a fork is a use of it, elsewhere only the deepest known position is used") {
  for (const bool fork : {true, false}) {
    Prompts prompts;
    const auto branch = prompts.remember(2, KeptAt::branch);
    const auto end = prompts.remember(5, KeptAt::end);
    const auto used_s = [&](HazardModel::Position at) { return prompts.model.demand(at).used_s; };
    const auto forks = fork ? std::vector<std::int32_t>{2} : std::vector<std::int32_t>{1, 3};
    prompts.look_up(10, 6, 5, forks);  // all that is known is cached
    CHECK(used_s(end) == 10);
    CHECK(used_s(branch) == 0);
    prompts.look_up(20, 6, 3, forks);
    CHECK(used_s(end) == 20);
    CHECK(used_s(branch) == (fork ? 20 : 0));
    prompts.look_up(30, 6, 1, forks);  // nothing known is cached
    CHECK(used_s(end) == 30);
    CHECK(used_s(branch) == (fork ? 20 : 0));
  }
}

TEST_CASE("from three hits on a position has a rate of its own, which weighs more the more hits there were") {
  Prompts prompts;
  prompts.look_up(100, 1, 0, {});
  const auto end = prompts.remember(3, KeptAt::end);
  double hits = 0;
  for (const double at_s : {107.0, 130.0, 131.0, 190.0, 400.0}) {
    CHECK(prompts.model.demand(end).own_rate == (hits >= 3));
    prompts.look_up(at_s, 4, 3, {});
    ++hits;
    if (hits == 4) prompts.remember(3, KeptAt::end);  // served once more: its history stays
  }
  prompts.model.set_time(450);
  const HazardModel::Demand& demand = prompts.model.demand(end);
  REQUIRE(demand.own_rate);
  const double rate = 5 / (300.0 + 2 * 50 + 30);
  const double learned = prompts.model.index(demand);
  const double expected = std::exp(8.0 / 13 * std::log(learned) + 5.0 / 13 * std::log(rate));
  CHECK(prompts.model.with_own_rate(end, learned) == doctest::Approx(expected));
  CHECK(prompts.model.with_own_rate(end, 0) == 0);
}

TEST_CASE("the worth of a hinted probability is learned from earlier prompts with like hints") {
  enum class Signal { right, wrong, constant, none };
  // Half of the prompts go on after 20 s. The engine's probability for each is right, the opposite, constant or
  // missing.
  const auto worth = [](Signal signal, bool as_if_it_goes_on) {
    HazardModel model(4096);
    double now_s = 0;
    PositionKey fresh = 1;
    const auto hint = [&](bool goes_on) -> ReuseHint {
      if (signal == Signal::none) return {};
      if (signal == Signal::constant) return {.continues = 0.7F};
      return {.continues = goes_on == (signal == Signal::right) ? 0.9F : 0.1F};
    };
    const auto serve = [&](PositionKey key, const ReuseHint& reported) {
      model.set_time(now_s += 10);
      const std::array keys = {key};
      const PromptPast past = model.start_request({.keys = keys, .blocks = 2});
      const HazardModel::Position end = model.remember({.key = fresh,
                                                        .depth_blocks = 1,
                                                        .at = KeptAt::end,
                                                        .prompt = {.blocks = 2, .past = past, .hint = reported}});
      ++fresh;
      model.finish_request();
      return end;
    };
    PositionKey before = 0;
    for (int turn = 0; turn < 600; ++turn) {
      const PositionKey last = fresh;
      serve(before, hint(turn % 2 == 0));  // even ones go on
      before = turn % 2 == 1 ? last - 1 : 0;
    }
    return model.index(model.demand(serve(0, hint(as_if_it_goes_on))));
  };
  CHECK(worth(Signal::right, true) > 4 * worth(Signal::right, false));
  CHECK(worth(Signal::wrong, true) > 4 * worth(Signal::wrong, false));
  CHECK(worth(Signal::constant, true) == worth(Signal::none, true));
}

TEST_CASE("a position that is always used keeps its rate, however often that is") {
  Prompts prompts;
  const auto end = prompts.remember(1, KeptAt::end);
  for (int use = 1; use <= 200'000; ++use) prompts.look_up(0.5 * use, 2, 1, {});
  CHECK(prompts.model.with_own_rate(end, 1e-3) == doctest::Approx(2).epsilon(0.01));
}
