// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "state_world.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

using namespace stateport;
using test::Combination;
using test::every_combination;
using test::index_of;

namespace {

RequestCacheOptions remote_options(Combination index) {
  RequestCacheOptions options{
      .index = index_of(index), .max_requests = 2, .max_request_tokens = 5000, .block_size_tokens = 16};
  options.kv_tokens = 10000;
  if (in_columns(index))
    options.layout = ColumnLayout{.groups = {{.block_size_tokens = 16, .blocks = 1000, .layout_fingerprint = 3}}};
  else
    options.layout = SlotLayout{.layout_fingerprint = 3, .checkpoints = 100, .scan_alignment_tokens = 16};
  options.memory = {.state_bytes = 1000, .kv_bytes_per_token = 1};
  options.tiers.remote_bytes = 1000000;
  return options;
}

/// A prompt of which nobody has anything is looked for in the remote tier. Answers what its finds are answered.
std::vector<TransferResult> ask(RequestCache& cache) {
  std::vector<Token> prompt(4000);
  std::iota(prompt.begin(), prompt.end(), 0);
  REQUIRE(cache.start({.tokens = prompt}));
  std::vector<TransferResult> results;
  for (const Transfer& find : cache.tiers()->take_transfers().transfers)
    results.push_back({.id = find.id, .status = TransferStatus::gone});
  REQUIRE(results.size() > 100);
  return results;
}

}  // namespace

TEST_CASE("results with a number that means nothing settle those before it") {
  for (const Combination index : every_combination)
    for (const TransferId unknown :
         std::array<TransferId, 4>{0, 1 << 30, TransferId{1} << 32 | 1, std::numeric_limits<TransferId>::max()}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(unknown);
      const auto cache = make_request_cache(remote_options(index));
      std::vector<TransferResult> results = ask(*cache);
      const TransferId last = results.back().id;
      results.back().id = unknown;
      CHECK_THROWS_AS(cache->tiers()->settle(results), InvalidArgument);
      CHECK(cache->tiers()->transfers_under_way() == 1);
      CHECK_THROWS_AS(cache->tiers()->settle(results), InvalidArgument);  // the first one, for the second time
      CHECK(cache->tiers()->transfers_under_way() == 1);
      results.back().id = last;
      CHECK(cache->tiers()->settle(std::span(results).last(1)) == 1);
      cache->check_invariants();
    }
}
