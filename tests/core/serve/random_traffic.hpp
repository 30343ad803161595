// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

namespace stateport::test {

/// The statistics of the tiers of a cache, counted from the transfers that an engine carries out.
class RandomTraffic {
 public:
  void end(const Transfer& transfer, TransferStatus status);
  /// After an answer with transfers. `transfers`: all that are under way. `loading`: number of requests that load or
  /// ask.
  void check(RequestCache& cache, const std::vector<Transfer>& transfers, std::int64_t loading) const;

 private:
  std::map<std::tuple<Medium, int, TransferStatus>, std::int64_t> ended_;  ///< int: 0 read, 1 write, 2 find
};

}  // namespace stateport::test
