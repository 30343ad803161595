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

/// Starts a prompt that no tier holds, so the cache searches the remote tier. Returns the results for its finds.
std::vector<TransferResult> ask(RequestCache& cache) {
  std::vector<Token> prompt(4000);
  std::iota(prompt.begin(), prompt.end(), 0);
  const auto started = cache.start({.tokens = prompt});
  REQUIRE(started);
  std::vector<TransferResult> results;
  for (const Transfer& find : started->transfers) results.push_back({.id = find.id, .status = TransferStatus::gone});
  REQUIRE(results.size() > 100);
  return results;
}

}  // namespace

TEST_CASE("results with a number that means nothing, or that stands twice, settle nothing") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const auto cache = make_request_cache(remote_options(index));
    const std::vector<TransferResult> results = ask(*cache);
    const std::size_t under_way = cache->tiers()->transfers_under_way();
    REQUIRE(under_way == results.size());
    for (const TransferId wrong : std::array<TransferId, 5>{0, 1 << 30, TransferId{1} << 32 | 1,
                                                            std::numeric_limits<TransferId>::max(), results[0].id}) {
      CAPTURE(wrong);
      std::vector<TransferResult> refused = results;
      refused.back().id = wrong;
      CHECK_THROWS_AS(cache->tiers()->settle(refused), InvalidArgument);
      CHECK(cache->tiers()->transfers_under_way() == under_way);
      cache->check_invariants();
    }
    CHECK(cache->tiers()->settle(results).ready_requests == 1);
    CHECK_THROWS_AS(cache->tiers()->settle(results), InvalidArgument);
    CHECK(cache->tiers()->transfers_under_way() == 0);
    cache->check_invariants();
  }
}
