// SPDX-License-Identifier: Apache-2.0
// What is settled for a cache with a remote tier, and the memory for it.
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "heap_counter.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

using namespace stateport;

namespace {

constexpr std::int64_t prompt_tokens = 4000;

RequestCacheOptions remote_options(CacheIndex index) {
  RequestCacheOptions options{.index = index, .max_requests = 2, .max_request_tokens = 5000, .block_size_tokens = 16};
  options.kv_tokens = 10000;
  if (index == CacheIndex::align)
    options.groups = {{.block_size_tokens = 16, .blocks = 1000, .layout_fingerprint = 3}};
  else
    options.checkpoints = 100;
  options.scan_alignment_tokens = 16;
  options.layout_fingerprint = 3;
  options.memory = {.state_bytes = 1000, .kv_bytes_per_token = 1};
  options.tiers.remote_bytes = 1000000;
  return options;
}

/// A salted prompt of which nobody has anything, looked for in the remote tier.
class Asked {
 public:
  explicit Asked(CacheIndex index) : cache_(make_request_cache(remote_options(index))), prompt_(prompt_tokens) {
    std::iota(prompt_.begin(), prompt_.end(), 0);
  }
  CacheTiers& tiers() { return *cache_->tiers(); }
  /// What the finds answer.
  std::vector<TransferResult> start() {
    const auto started = cache_->start({.tokens = prompt_, .name_space = {.salt = salt_}, .now_s = now_s_ += 1});
    REQUIRE(started);
    request_ = started->request;
    std::vector<TransferResult> results;
    for (const Transfer& find : tiers().take_transfers().transfers)
      results.push_back({.id = find.id, .status = TransferStatus::gone});
    REQUIRE(results.size() > 100);
    return results;
  }
  void end() { static_cast<void>(cache_->end(request_, RequestEnd::aborted, {})); }

 private:
  std::unique_ptr<RequestCache> cache_;
  std::vector<Token> prompt_;
  std::string salt_ = "a salt that no string has room for in itself";
  RequestId request_{0};
  double now_s_ = 0;
};

}  // namespace

TEST_CASE("answers of a remote tier that has nothing need no memory") {
  for (const CacheIndex index : {CacheIndex::slots, CacheIndex::tree, CacheIndex::align}) {
    CAPTURE(static_cast<int>(index));
    Asked asked(index);
    for (const bool is_warm : {false, true})
      for (const bool together : {false, true}) {
        const std::vector<TransferResult> results = asked.start();
        const std::uint64_t before = test::heap_allocations();
        if (together) {
          static_cast<void>(asked.tiers().settle(results));
        } else {
          for (const TransferResult& result : results) static_cast<void>(asked.tiers().settle({&result, 1}));
        }
        const std::uint64_t made = test::heap_allocations() - before;
        if (is_warm) CHECK(made == 0);
        CHECK(asked.tiers().transfers_under_way() == 0);
        asked.end();
      }
  }
}

TEST_CASE("results with a number that means nothing settle those before it, or nothing without memory") {
  for (const CacheIndex index : {CacheIndex::slots, CacheIndex::tree, CacheIndex::align})
    for (const bool is_double : {false, true}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(is_double);
      Asked asked(index);
      std::vector<TransferResult> results = asked.start();
      const std::size_t known = results.size() - 1;
      results.back().id = is_double ? results.front().id : 1 << 30;
      bool is_told = false;
      const std::uint64_t failures = test::fail_each_allocation(
          [&](std::uint64_t) {
            try {
              static_cast<void>(asked.tiers().settle(results));
            } catch (const InvalidArgument&) {
              is_told = true;
            }
          },
          [&](std::uint64_t) { CHECK(asked.tiers().transfers_under_way() == (is_told ? 1 : known + 1)); });
      CHECK(failures > 0);
      CHECK(is_told);
      asked.end();
    }
}
