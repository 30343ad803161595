// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hasher.hpp>
#include <stateport/core/stats/cache_stats.hpp>
#include <stateport/core/tier/transfer_plan.hpp>

#include "fleet/crowd.hpp"
#include "fleet/fleet_clock.hpp"
#include "fleet/fleet_node.hpp"
#include "fleet/remote_directory.hpp"
#include "fleet/router.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

namespace stateport::replay {

struct FleetOptions {
  NodeSetup node;  ///< with events if the route is `prefix`
  std::size_t nodes = 1;
  Route route = Route::prefix;
  std::int64_t imbalance_tokens = 65'536;  ///< see make_router()
  double event_delay_s = 0;                ///< time until a router receives an event of a cache
  std::int64_t remote_bytes = 0;           ///< of the store that all share; 0: there is none
  double mean_life_s = 0;                  ///< of a node, exponentially distributed; 0: none fails
  double down_s = 0;                       ///< from a failure to an empty node
  std::uint64_t seed = 1;                  ///< of failures
};

/// Totals of a fleet.
struct FleetCounts {
  std::int64_t requests = 0;
  std::int64_t requests_hit = 0;
  std::int64_t input_tokens = 0;
  std::array<std::int64_t, medium_count> hit_tokens = {};  ///< device: up to its own state; loaded tokens by
                                                           ///< the slowest medium of the load
  std::array<std::int64_t, lost_hit_count> lost_hits = {};
  std::int64_t failed_loads = 0;  ///< requests for which something was loaded, and did not arrive
  std::int64_t rerouted_requests = 0;
  double waited_s = 0;  ///< of all requests, for finds and loads
  double end_s = 0;     ///< the last prompt is computed
  /// Of each request, from its arrival to its prompt's end, in the order in which they ended; and if the same node had
  /// computed all of each prompt, in the order of arrival.
  std::vector<double> first_token_s;
  std::vector<double> uncached_first_token_s;
  std::vector<NodeCounts> nodes;
  RemoteDirectory::Counts remote;
  std::int64_t remote_resident_bytes = 0;

  [[nodiscard]] std::int64_t all_hit_tokens() const noexcept;
};

/// Many machines with one remote store, in simulated time: requests come when the workload says, a router sends each to
/// a node, and nodes serve them (see FleetNode). Decoding is left out: an answer takes no time of a node, and leaves
/// nothing in its cache. All that is random comes from the seed.
///
/// A node that fails loses its device and its host memory. The requests that it did not finish are sent to others at
/// once, and wait if no node is up; the router knows of the failure at once.
class Fleet {
 public:
  /// Called after each request with the number served so far; false ends the simulation.
  using Continue = std::function<bool(std::int64_t)>;

  /// The crowd must outlive it. Throws InvalidArgument: no nodes, negative or infinite numbers, speeds.tokens_per_s <=
  /// 0, blocks of another size than the crowd's, nodes that live for less than the longest prompt takes, a route
  /// `prefix` without events; as make_request_cache.
  Fleet(const Crowd& crowd, const FleetOptions& options);

  void run(const Continue& keep_going);
  [[nodiscard]] FleetCounts counts() const;
  /// Throws std::logic_error naming the first broken invariant.
  void check_invariants() const;

 private:
  struct News {
    double at_s = 0;
    std::uint32_t node = 0;
    std::uint32_t life = 0;
    CacheEvent event;
  };
  /// The node of a request, and the tokens that it is expected to compute there.
  struct Sent {
    std::uint32_t node = 0;
    std::int64_t tokens = 0;
  };

  void arrive(std::size_t request);
  void send(double now_s, std::size_t request);
  void name_prefixes(std::size_t request);
  void happen(const FleetEvent& event);
  void served(std::uint32_t node, const ServedPrompt& prompt, double now_s);
  void fail(double now_s, std::uint32_t node);
  void come_back(double now_s, std::uint32_t node);
  void set_failure(double now_s, std::uint32_t node);
  void collect_news(double now_s, std::uint32_t node);
  void tell_news(double now_s);

  const Crowd& crowd_;
  FleetOptions options_;
  FleetClock clock_;
  RemoteDirectory remote_;
  std::vector<std::unique_ptr<FleetNode>> nodes_;
  std::unique_ptr<Router> router_;
  std::mt19937_64 random_;
  std::vector<NodeLoad> loads_;
  std::size_t nodes_up_;
  std::vector<Sent> sent_;               ///< by request
  std::vector<std::size_t> stranded_;    ///< came when no node was up
  std::vector<double> uncached_free_s_;  ///< by node: when it had computed all that was sent to it
  std::deque<News> news_;
  FleetCounts counts_;

  // Of one call.
  BlockHasher hasher_;
  std::vector<Token> tokens_;
  PromptHashes hashes_;
  std::vector<CacheEvent> events_;
};

}  // namespace stateport::replay
