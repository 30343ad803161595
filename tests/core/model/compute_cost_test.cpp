// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/model/cost.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/core/tree/prefix_tree.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace stateport {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// Costs that no one means, and how the errors begin.
const std::vector<std::pair<ComputeCost, std::string>> wrong_costs = {
    {{-1, 0}, ".linear = -1 ("},        {{-1e-300, 0}, ".linear = -1e-300 ("},
    {{infinity, 0}, ".linear = inf ("}, {{-infinity, 0}, ".linear = -inf ("},
    {{nan, 0}, ".linear = nan ("},      {{std::nextafter(1e100, infinity), 0}, ".linear = 1.0000000000000002e+100 ("},
    {{1, -0.5}, ".quadratic = -0.5 ("}, {{1, infinity}, ".quadratic = inf ("},
    {{1, nan}, ".quadratic = nan ("},   {{0, 1e101}, ".quadratic = 1e+101 ("},
};

/// The error text of `call`; empty if it succeeds.
std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

constexpr EvictionOrder orders[] = {EvictionOrder::hix,      EvictionOrder::gdsf, EvictionOrder::lru,
                                    EvictionOrder::lfu,      EvictionOrder::fifo, EvictionOrder::slru,
                                    EvictionOrder::priority, EvictionOrder::mru,  EvictionOrder::filo};

}  // namespace

TEST_CASE("a cost that is not a number, negative or enormous is refused by name and value") {
  for (const auto& [cost, text] : wrong_costs) {
    CAPTURE(text);
    CHECK(refusal([&, cost = cost] { check_compute_cost(cost, "cost"); }) ==
          "cost" + text + "must be between 0 and 1e100)");
  }
}

TEST_CASE("costs that are accepted stay finite for all lengths") {
  constexpr std::int64_t longest = std::numeric_limits<std::int64_t>::max();
  for (const ComputeCost& cost :
       {ComputeCost{}, ComputeCost{0, 0}, ComputeCost{1e100, 1e100}, ComputeCost{0, 5e-324}}) {
    check_compute_cost(cost, "cost");
    CHECK(std::isfinite(cost.of(0, longest)));
    CHECK(cost.of(longest, longest) == 0);
  }
}

TEST_CASE("whatever the order, neither a policy nor a tree is made with such a benefit") {
  for (const EvictionOrder order : orders)
    for (const auto& [cost, text] : wrong_costs) {
      CAPTURE(name(order));
      const EvictionOptions options{.benefit = cost};
      CHECK(refusal([&] { static_cast<void>(make_eviction_policy(order, options)); }).starts_with("benefit" + text));
      CHECK(refusal([&] {
              PrefixTree({.slots = 1, .eviction = order, .eviction_options = options});
            }).starts_with("benefit" + text));
    }
}

}  // namespace stateport
