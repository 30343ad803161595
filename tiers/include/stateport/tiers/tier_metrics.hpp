// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/state_tiers.hpp>

#include <string>
#include <string_view>

namespace stateport {

/// The contents of tiers and the durations of their transfers, in the text exposition format of Prometheus. No metric
/// has the name of one of to_prometheus(RequestCache): a service answers both texts, one behind the other. Tiers that
/// are not there have no metrics. Throws InvalidArgument for a prefix that no name of a metric can begin with. One
/// thread at a time, as StateTiers.
[[nodiscard]] std::string to_prometheus(const StateTiers& tiers, std::string_view prefix = "stateport");

}  // namespace stateport
