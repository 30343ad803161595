// SPDX-License-Identifier: Apache-2.0
#include "workload/json_fields.hpp"

#include <fmt/format.h>

#include <cmath>

namespace stateport::replay {

using nlohmann::json;

std::string shown(const json& value) {
  return value.is_structured() ? value.type_name() : value.dump();
}

const json& field(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) throw Malformed{fmt::format("no field \"{}\"", name)};
  return *found;
}

std::int64_t bounded(const json& object, const char* name, std::int64_t low, std::int64_t high) {
  const json& value = field(object, name);
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{INT64_MAX}))
    refuse(name, shown(value), "must be a 64-bit integer");
  const auto number = value.get<std::int64_t>();
  if (number < low || number > high) refuse(name, fmt::to_string(number), fmt::format("must be {} to {}", low, high));
  return number;
}

std::int64_t json_arrival_ms(const json& timestamp, const TraceClock& clock) {
  const auto ms = clock.milliseconds(timestamp.is_number() ? timestamp.get<double>() : std::nan(""));
  if (!ms) refuse("timestamp", shown(timestamp), clock.rule());
  if (clock.falls(*ms)) refuse("timestamp", shown(timestamp), clock.order_rule());
  return *ms;
}

}  // namespace stateport::replay
