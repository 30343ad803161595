// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache.hpp"
#include "schedule.hpp"

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stateport::engine {

/// The ways to keep states that the engine can be run with.
[[nodiscard]] std::vector<std::string_view> cache_names();
/// One of them for each seed, so that seeds are split over the indexes: by tokens, by block hash, by column.
[[nodiscard]] std::string_view cache_of_seed(std::uint64_t seed);
/// Throws std::invalid_argument for another name.
[[nodiscard]] std::unique_ptr<EngineCache> make_cache(std::string_view name, const CacheOptions& options,
                                                      const std::string& folder = {});

/// The result of a run.
struct Served {
  std::vector<Answer> answers;  ///< by request id
  CacheCounts counts;
};
[[nodiscard]] Served serve(const Schedule& schedule, std::string_view cache, std::ostream* log = nullptr);

/// Serves the schedule and compares with the oracle: tokens and final states bit for bit. The first difference in
/// words, or none. `counts` is added to if given.
[[nodiscard]] std::optional<std::string> difference(const Problem& problem, std::string_view cache,
                                                    CacheCounts* counts = nullptr);

/// Leaves out requests, events and tokens as long as the schedule still fails; of a hasty engine for some minutes.
[[nodiscard]] Problem shrink(Problem problem, std::string_view cache);

/// The text of difference(), with the shortest schedule that fails and its log.
[[nodiscard]] std::optional<std::string> check(const Problem& problem, std::string_view cache, CacheCounts& counts);

/// A planted mistake and how the comparison found it.
struct FoundFault {
  std::uint64_t seed = 0;
  Problem shortest;
  std::string reported;  ///< as by check()

  std::size_t drawn = 0;  ///< requests and events that the schedule had

  /// Requests and events that are left.
  [[nodiscard]] std::size_t causes() const { return shortest.schedule.causes(); }
};
/// Serves one schedule after the other, at most `seeds`, with the mistake planted, until an answer differs.
[[nodiscard]] std::optional<FoundFault> find_fault(Fault fault, std::string_view cache, std::uint64_t seeds,
                                                   const Draw& draw = {});

}  // namespace stateport::engine
