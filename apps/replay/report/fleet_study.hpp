// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/cost.hpp>

#include "caches/budget.hpp"
#include "caches/policy_kind.hpp"
#include "fleet/crowd.hpp"
#include "fleet/fleet.hpp"
#include "fleet/router.hpp"
#include "workload/workload.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace stateport::replay {

/// A question to a fleet.
struct FleetQuestion {
  std::size_t nodes = 1;
  std::vector<Route> routes = {Route::prefix};
  /// Of each node; its remote tier and write_through are those of the fleet, its speeds with those of the link.
  Budget node;
  PolicyKind policy = PolicyKind::hix;
  ComputeCost cost;
  std::int64_t remote_bytes = 0;           ///< of the store that all share; 0: there is none
  bool write_back = false;                 ///< a checkpoint goes there when its node evicts it; else once it is made
  double load = 1;                         ///< see CrowdOptions
  std::int64_t imbalance_tokens = 65'536;  ///< these, see FleetOptions
  double event_delay_s = 0;
  double mean_life_s = 0;
  double down_s = 0;
  ScheduleOptions schedule = {.concurrency = 1};  ///< of each node
  std::uint64_t seed = 1;
  /// Nodes that are simulated, with their part of the conversations and of the remote store; 0: all of them.
  std::size_t sample_nodes = 0;
  std::int32_t samples = 1;  ///< times that this is done, each with other conversations

  [[nodiscard]] bool is_sampled() const noexcept { return sample_nodes > 0 && sample_nodes < nodes; }
};

/// One number that a fleet comes to: the mean of the samples, and its standard error.
struct FleetFigure {
  const char* name = "";  ///< as a key of JSON, with the unit last
  double value = 0;
  double error = 0;  ///< 0 without samples
};

/// The figures of a fleet with one route.
struct FleetAnswer {
  Route route = Route::prefix;
  std::vector<FleetFigure> figures;
  FleetCounts counts;  ///< of the first sample, or of the whole fleet
};

/// The numbers of one run, without errors. Rates are of all prompt tokens; bytes and tokens are those of the nodes that
/// were simulated. Times to the first token have no decoding.
[[nodiscard]] std::vector<FleetFigure> figures_of(const FleetCounts& counts, double tokens_per_s);
/// The figure of this name. Precondition: there is one.
[[nodiscard]] const FleetFigure& figure(const std::vector<FleetFigure>& figures, const char* name);

/// The nodes that a question simulates, for requests of this crowd.
[[nodiscard]] FleetOptions fleet_options(const FleetQuestion& question, const Crowd& crowd, Route route);

/// An answer for each route. Between requests `keep_going` is called; false ends it, without answers for routes that
/// are not done. Throws InvalidArgument: no samples, as make_crowd and Fleet.
///
/// Samples. A sample has whole conversations and its part of the nodes, so that a node has as many as in the fleet. It
/// is drawn by a hash of the conversation (spatial sampling, as SHARDS does for one cache). Three things are not as in
/// the fleet, and the standard error does not contain them:
/// - Prefixes that conversations share (system prompts) are stored once in a sample, too, but for fewer conversations:
///   they take a larger part of the remote store, and a larger part of the requests computes them first. Hits come out
///   low.
/// - Round robin brings a conversation back to a node after fewer requests: hits on the device, the host and in files
///   come out high. With a remote store that only moves hits from there to them.
/// - The most of a link or a node is that of fewer nodes, and the least loaded is the least of fewer.
[[nodiscard]] std::vector<FleetAnswer> ask_fleet(const Workload& workload, const FleetQuestion& question,
                                                 const std::function<bool()>& keep_going);

}  // namespace stateport::replay
