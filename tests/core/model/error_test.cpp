// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace stateport {
namespace {

template <class Error, class Call>
std::optional<Error> caught(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

/// The value as the error names it, for a rule that is broken.
template <class Value>
std::string value_of(Value value) {
  return caught<InvalidArgument>([&] { require(false, "argument", value, "rule"); }).value().value();
}

}  // namespace

TEST_CASE("an argument is named with its value, whatever its type") {
  const auto error = caught<InvalidArgument>([] { require(false, "slots", -3, "must not be negative"); });
  REQUIRE(error);
  CHECK(error->argument() == "slots");
  CHECK(error->value() == "-3");
  CHECK(std::string(error->what()) == "slots = -3 (must not be negative)");
  CHECK(value_of(SlotId{7}) == "7");
  CHECK(value_of(std::string_view("gdsf")) == "gdsf");
  CHECK(value_of(std::numeric_limits<std::int64_t>::min()) == "-9223372036854775808");
}

TEST_CASE("a number with a fraction is named as short as it can be read back") {
  CHECK(value_of(0.1) == "0.1");
  CHECK(value_of(0.5F) == "0.5");
  CHECK(value_of(1e300) == "1e+300");
  CHECK(std::stod(value_of(1.0 / 3)) == 1.0 / 3);
  CHECK(value_of(-std::numeric_limits<double>::infinity()) == "-inf");
  CHECK(value_of(std::numeric_limits<double>::quiet_NaN()) == "nan");
}

TEST_CASE("a call at a wrong time is named with its reason") {
  const auto early = caught<InvalidState>([] { require_state(false, "publish", "there is no pending commit"); });
  REQUIRE(early);
  CHECK(early->call() == "publish");
  CHECK(early->reason() == "there is no pending commit");
  CHECK(std::string(early->what()) == "publish: there is no pending commit");
  const auto late = caught<InvalidState>([] { require_state(false, "reset", "running_requests", 2, "must be 0"); });
  REQUIRE(late);
  CHECK(late->reason() == "running_requests = 2 (must be 0)");
}

TEST_CASE("a rule that holds throws nothing") {
  CHECK_NOTHROW(require(true, "argument", 1.5, "rule"));
  CHECK_NOTHROW(require_state(true, "call", "reason"));
  CHECK_NOTHROW(require_state(true, "call", "what", 1, "rule"));
}

TEST_CASE("a caller's mistakes can be caught apart, together, and apart from broken invariants") {
  const auto argument = [] { require(false, "argument", 1, "rule"); };
  const auto state = [] { require_state(false, "call", "reason"); };
  const auto invariant = [] { require_invariant(false, "structure", "what"); };
  CHECK_THROWS_AS(argument(), CallerError);
  CHECK_THROWS_AS(state(), CallerError);
  CHECK_FALSE(std::is_base_of_v<InvalidArgument, InvalidState>);
  CHECK_FALSE(std::is_base_of_v<InvalidState, InvalidArgument>);
  CHECK_THROWS_AS(invariant(), std::logic_error);
  bool is_callers = false;
  try {
    invariant();
  } catch (const CallerError&) {
    is_callers = true;
  } catch (const std::logic_error&) {
  }
  CHECK_FALSE(is_callers);
}

}  // namespace stateport
