// SPDX-License-Identifier: Apache-2.0
#include "caches/align_cache.hpp"

#include <stateport/core/model/error.hpp>

#include "workload/align_sequence.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace stateport::replay;
using stateport::BlockId;
using stateport::LostHit;
using stateport::RequestId;
using Blocks = std::vector<BlockIdentity>;

namespace {

/// Prefills a prompt of whole blocks and some tokens in one chunk per block, and publishes `published` of them.
AlignHit serve(AlignCache& cache, const Blocks& blocks, std::int64_t extra,
               const std::vector<std::int32_t>& published) {
  const std::int64_t tokens = static_cast<std::int64_t>(blocks.size()) * 4 + extra;
  const AlignSequence names(4, tokens, blocks, 0);
  const RequestId request{0};
  cache.advance_tick();
  const AlignHit hit = cache.begin(request, names.boundaries(), tokens);
  for (std::int64_t computed = hit.tokens; computed < tokens; computed += 4) {
    static_cast<void>(cache.make_room(request, computed, std::min(computed + 4, tokens)));
    for (const std::int32_t column : published)
      if (computed + 4 == (column + 1) * 4)
        cache.publish(request, column, names.boundaries()[static_cast<std::size_t>(column) + 1]);
    cache.check_invariants();
  }
  cache.end(request, names.boundaries());
  cache.check_invariants();
  return hit;
}

}  // namespace

TEST_CASE("a request continues from the deepest published block, and lost hits have their reasons") {
  AlignCache cache({.blocks = 4, .block_size_tokens = 4});
  CHECK(!serve(cache, {1, 2}, 1, {1}).lost);
  const AlignHit hit = serve(cache, {1, 2, 3}, 1, {});
  CHECK(hit.tokens == 8);
  CHECK(hit.block.value() > 0);
  CHECK(!hit.lost);
  CHECK(serve(cache, {1, 2, 3}, 1, {}).lost == LostHit::no_checkpoint);
  CHECK(serve(cache, {1, 2}, 0, {}).lost == LostHit::too_few_tokens);
  CHECK(serve(cache, {1, 9}, 1, {}).lost == LostHit::no_checkpoint);
  CHECK(cache.counts().resident_states == 1);
  serve(cache, {5, 6, 7, 8}, 0, {0, 1, 2, 3});
  CHECK(cache.counts().state_evictions == 1);
  CHECK(serve(cache, {1, 2, 3}, 1, {}).lost == LostHit::evicted);
}

TEST_CASE("a block that requests continue from is not evicted before they leave it") {
  AlignCache cache({.blocks = 8, .block_size_tokens = 4, .requests = 2});
  serve(cache, {1, 2}, 1, {1});
  const AlignSequence names(4, 12, Blocks{1, 2, 3}, 0);
  const AlignHit hit = cache.begin(RequestId{1}, names.boundaries(), 12);
  REQUIRE(hit.tokens == 8);
  serve(cache, {5, 6, 7, 8, 9, 10, 11, 12}, 1, {0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(cache.columns(RequestId{1})[1] == hit.block.value());
  CHECK(serve(cache, {1, 2}, 1, {}).tokens == 8);
  cache.check_invariants();
}

TEST_CASE("an align cache refuses sizes that cannot work") {
  using stateport::InvalidArgument;
  CHECK_THROWS_AS(AlignCache({.blocks = 3, .block_size_tokens = 4}), InvalidArgument);
  CHECK_THROWS_AS(AlignCache({.blocks = 4, .block_size_tokens = 4, .drafts = 1}), InvalidArgument);
  CHECK_THROWS_AS(AlignCache({.blocks = 4, .block_size_tokens = 0}), InvalidArgument);
  CHECK_THROWS_AS(AlignCache({.blocks = 4, .block_size_tokens = 4, .requests = 0}), InvalidArgument);
}
