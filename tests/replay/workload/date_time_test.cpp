// SPDX-License-Identifier: Apache-2.0
#include "workload/date_time.hpp"

#include "random.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

using stateport::replay::parse_date_time;
using stateport::test::for_each_seed;
using stateport::test::Random;

namespace {

std::string padded(std::int64_t number, std::size_t count) {
  const std::string text = std::to_string(number);
  return std::string(count - text.size(), '0') + text;
}

}  // namespace

TEST_CASE("a time has any fraction of a second, rounded down, and any offset from UTC") {
  CHECK(parse_date_time("1970-01-01 00:00:00") == 0);
  CHECK(parse_date_time("1970-01-01T00:00:01Z") == 1000);
  CHECK(parse_date_time("2023-11-16 18:17:03.9799600") == 1'700'158'623'979);
  CHECK(parse_date_time("2024-05-10 00:00:00.009930+00:00") == 1'715'299'200'009);
  CHECK(parse_date_time("2023-11-16 19:17:03+01:00") == 1'700'158'623'000);
  CHECK(parse_date_time("2023-11-16 19:17:03+01") == 1'700'158'623'000);
  CHECK(parse_date_time("2023-11-16 14:47:03-0330") == 1'700'158'623'000);
  CHECK(parse_date_time("2024-02-29 23:59:59.5") == 1'709'251'199'500);
  CHECK(parse_date_time("9999-12-31 23:59:59.999") == 253'402'300'799'999);
}

TEST_CASE("other texts and times that never were are refused") {
  for (const char* text : {"",
                           "5",
                           "2023-11-16",
                           "2023-11-16 18:17",
                           "2023-11-16 18:17:03.",
                           "2023-11-16 18:17:03 ",
                           "2023-11-16  18:17:03",
                           "2023-11-16 18:17:03+",
                           "2023-11-16 18:17:03+1",
                           "2023-11-16 18:17:03+01:",
                           "2023-11-16 18:17:03+24",
                           "2023-11-16 18:17:03+01:60",
                           "2023-11-16 18:17:03Z+01",
                           "2023/11/16 18:17:03",
                           "23-11-16 18:17:03",
                           "2023-02-29 00:00:00",
                           "2023-00-01 00:00:00",
                           "2023-13-01 00:00:00",
                           "2023-01-00 00:00:00",
                           "2023-11-16 24:00:00",
                           "2023-11-16 00:60:00",
                           "2023-11-16 00:00:60",
                           "2023-11-16 -1:00:00",
                           "1969-12-31 23:59:59",
                           "1970-01-01 00:59:59+01:00"}) {
    CAPTURE(text);
    CHECK(parse_date_time(text) == std::nullopt);
  }
}

TEST_CASE("random times are those of the calendar") {
  for_each_seed(1000, [](Random& random, std::uint64_t) {
    using namespace std::chrono;
    const sys_days day{days(random.between(1, 2'000'000))};
    const year_month_day date(day);
    const auto second = random.between(0, 24 * 3600 - 1);
    const auto ms = random.between(0, 999);
    const std::string text = padded(static_cast<int>(date.year()), 4) + "-" +
                             padded(static_cast<unsigned>(date.month()), 2) + "-" +
                             padded(static_cast<unsigned>(date.day()), 2) + " " + padded(second / 3600, 2) + ":" +
                             padded(second / 60 % 60, 2) + ":" + padded(second % 60, 2) + "." + padded(ms, 3);
    CAPTURE(text);
    CHECK(parse_date_time(text) == milliseconds(day.time_since_epoch()).count() + 1000 * second + ms);
  });
}
