// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace stateport::test {

/// What random engines did.
struct RandomCounts {
  std::int64_t kv_moves = 0;
  std::int64_t forks = 0;         ///< that began
  std::int64_t forked_ended = 0;  ///< requests that ended before their forks had begun
  std::int64_t taken_over = 0;    ///< forks that took over the memory of a request that had ended
  std::int64_t hits = 0;
  std::int64_t ran_ahead = 0;
  std::int64_t ahead = 0;
  std::int64_t end_copies = 0;
  std::int64_t inserts = 0;
  std::int64_t forgotten = 0;     ///< calls that forgot contents
  std::int64_t adopted = 0;       ///< calls that forgot what another engine had forgotten
  std::int64_t stale_rows = 0;    ///< rows of passes whose requests were stale
  std::int64_t loads = 0;         ///< that ended well
  std::int64_t failed_loads = 0;  ///< that did not
  std::int64_t found_loads = 0;   ///< completed loads of images that a find had located
  std::int64_t quotas = 0;        ///< that were set
  std::int64_t named_hits = 0;  ///< of prompts that share exactly a named position's prefix with the one that named it
  std::int64_t waits = 0;       ///< for other requests
  std::int64_t pins = 0;        ///< that were made
  std::int64_t pin_hits = 0;    ///< of pinned prefixes, by prompts that were started to look
  std::int64_t prefetches = 0;  ///< that ended
  std::int64_t prefetched = 0;  ///< of these, with more tokens on the device
  std::int64_t closed = 0;      ///< sessions
  std::int64_t checks = 0;      ///< of checkpoints that were read
  std::int64_t damaged = 0;     ///< checkpoints
  std::int64_t faults = 0;      ///< of which some are found more than once
  std::int64_t withdrawn = 0;
  std::int64_t refreshed = 0;  ///< requests that found more when they were looked up again
  std::int64_t tails = 0;      ///< prompts with a learned tail, where that is certain

  RandomCounts& operator+=(const RandomCounts& other) {
    for (auto count : {&RandomCounts::kv_moves,     &RandomCounts::forks,       &RandomCounts::forked_ended,
                       &RandomCounts::hits,         &RandomCounts::ran_ahead,   &RandomCounts::ahead,
                       &RandomCounts::end_copies,   &RandomCounts::inserts,     &RandomCounts::forgotten,
                       &RandomCounts::adopted,      &RandomCounts::stale_rows,  &RandomCounts::loads,
                       &RandomCounts::failed_loads, &RandomCounts::found_loads, &RandomCounts::quotas,
                       &RandomCounts::named_hits,   &RandomCounts::waits,       &RandomCounts::pins,
                       &RandomCounts::pin_hits,     &RandomCounts::prefetches,  &RandomCounts::prefetched,
                       &RandomCounts::closed,       &RandomCounts::refreshed,   &RandomCounts::checks,
                       &RandomCounts::damaged,      &RandomCounts::faults,      &RandomCounts::withdrawn,
                       &RandomCounts::taken_over,   &RandomCounts::tails})
      this->*count += other.*count;
    return *this;
  }
};

}  // namespace stateport::test
