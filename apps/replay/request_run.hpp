// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/state_spec.hpp>

#include "caches/request_replayer.hpp"
#include "options.hpp"
#include "report/report.hpp"
#include "workload/workload.hpp"

#include <functional>

namespace stateport::replay {

/// Runs a replayer over the wanted requests, with a progress bar or without.
using RunRequests = std::function<void(RequestReplayer&, bool)>;

/// A replay over RequestCache, whatever its index: a pass without states, whose planning times count, then one with
/// them. Starts the runtime. `full`: a state of the model with its drafts. Fills in all of the report but the
/// description of the run.
void replay_requests(const Options& options, const Workload& workload, const StateSpec& full, Report& report,
                     const RunRequests& run);

}  // namespace stateport::replay
