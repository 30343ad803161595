// SPDX-License-Identifier: Apache-2.0
#include "random_traffic.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>

namespace stateport::test {

/// A copy that did not find its source is an end of the read alone, one that failed otherwise an end of the write.
void RandomTraffic::end(const Transfer& transfer, TransferStatus status) {
  const bool done = status == TransferStatus::done;
  const bool finds_none = status == TransferStatus::gone || status == TransferStatus::damaged;
  switch (transfer.kind) {
    case Transfer::Kind::find:
      ++ended_[{transfer.from, 2, status}];
      break;
    case Transfer::Kind::load:
      ++ended_[{transfer.from, 0, status}];
      break;
    case Transfer::Kind::copy:
      if (done || finds_none) ++ended_[{transfer.from, 0, status}];
      if (!finds_none) ++ended_[{transfer.to, 1, status}];
      break;
    default:
      ++ended_[{transfer.to, 1, status}];
  }
}

void RandomTraffic::check(RequestCache& cache, const std::vector<Transfer>& transfers, std::int64_t loading) const {
  for (const Medium medium : {Medium::host, Medium::file, Medium::remote}) {
    const TierUsage usage = cache.tiers()->usage(medium);
    const auto under_way = [&](auto&& is_one) { return std::ranges::count_if(transfers, is_one); };
    const auto is_find = [](const Transfer& transfer) { return transfer.kind == Transfer::Kind::find; };
    REQUIRE(usage.reads.transfers ==
            under_way([&](const Transfer& one) { return !is_find(one) && one.from == medium; }));
    REQUIRE(usage.writes.transfers ==
            under_way([&](const Transfer& one) { return !is_find(one) && one.to == medium; }));
    REQUIRE(usage.finds.transfers ==
            under_way([&](const Transfer& one) { return is_find(one) && one.from == medium; }));
    int direction = 0;
    for (const TierTraffic* const traffic : {&usage.reads, &usage.writes, &usage.finds}) {
      REQUIRE((traffic->bytes > 0) == (traffic->transfers > 0 && direction < 2));
      for (std::size_t status = 0; status < traffic->ended.size(); ++status) {
        const auto ended = ended_.find({medium, direction, static_cast<TransferStatus>(status)});
        REQUIRE(traffic->ended[status] == (ended == ended_.end() ? 0 : ended->second));
      }
      ++direction;
    }
  }
  const WaitingRequests waiting = cache.usage().waiting;
  REQUIRE(waiting.for_answers + waiting.for_loads == loading);
  const CacheStats& stats = cache.stats();
  REQUIRE(stats.hit_depths.total() == stats.requests);
  REQUIRE(stats.hit_depths.sum() == static_cast<double>(stats.hit_tokens));
  std::int64_t loaded = stats.loaded_tokens[static_cast<std::size_t>(Medium::elsewhere)];
  for (const Medium medium : {Medium::host, Medium::file, Medium::remote}) {
    const std::int64_t tokens = stats.loaded_tokens[static_cast<std::size_t>(medium)];
    REQUIRE(tokens <= cache.tiers()->usage(medium).hit_tokens);  // which counts prefetches, too
    loaded += tokens;
  }
  REQUIRE(loaded <= stats.hit_tokens);
}

}  // namespace stateport::test
