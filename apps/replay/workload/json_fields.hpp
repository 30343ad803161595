// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "workload/trace_readers.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

/// Fields of objects in traces. All throw Malformed with a reason that names the field.
namespace stateport::replay {

/// The value as text; for an array or an object only its type, because dump() recurses into values that may be nested
/// deeply.
[[nodiscard]] std::string shown(const nlohmann::json& value);
[[nodiscard]] const nlohmann::json& field(const nlohmann::json& object, const char* name);
/// The integer of the field, `low` to `high`.
[[nodiscard]] std::int64_t bounded(const nlohmann::json& object, const char* name, std::int64_t low, std::int64_t high);
/// The arrival of a request with this timestamp.
[[nodiscard]] std::int64_t json_arrival_ms(const nlohmann::json& timestamp, const TraceClock& clock);

}  // namespace stateport::replay
