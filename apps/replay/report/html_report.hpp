// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/report.hpp"

#include <string>

namespace stateport::replay {

/// One self-contained page that fetches nothing: plots of a report with capacities and a timeline (see Report), each
/// above a table of its numbers. The figures are those of to_json.
[[nodiscard]] std::string to_html(const Report& report);

}  // namespace stateport::replay
