// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "tier_server.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using namespace stateport;
using namespace stateport::test;
using Tokens = StateWorld::Tokens;

namespace {

constexpr TierOptions remote = {.remote_bytes = 4000, .write_through = true};

std::vector<Transfer> of(const std::vector<Transfer>& transfers, Transfer::Kind kind,
                         CacheContent content = CacheContent::state) {
  std::vector<Transfer> some;
  std::ranges::copy_if(transfers, std::back_inserter(some), [&](const Transfer& transfer) {
    return transfer.kind == kind && transfer.image.content == content;
  });
  return some;
}

std::vector<std::int64_t> tokens_of(const std::vector<Transfer>& transfers) {
  std::vector<std::int64_t> tokens;
  for (const Transfer& transfer : transfers) tokens.push_back(transfer.image.tokens);
  return tokens;
}

/// A cache that asks the remote tier for at most `max_finds` images of states.
RequestCacheOptions with_finds(Combination index, std::int32_t max_finds) {
  RequestCacheOptions options = small(index, remote);
  options.tiers.max_finds = max_finds;
  return options;
}

/// Two caches over one remote tier. The first served a prompt of 34 tokens, and wrote its states and KV there.
struct Two {
  explicit Two(const RequestCacheOptions& options) : Two(options, options) {}
  Two(const RequestCacheOptions& first, const RequestCacheOptions& second) : one(first), other(second) {
    other.world.share_remote(one.world);
    one.serve(prompt);
    one.settle({});
    one.move_all();
    one.drain();
    one.move_all();
  }
  [[nodiscard]] TierUsage usage() const { return other.cache->tiers()->usage(Medium::remote); }

  Tokens prompt = prompt_of(34, 0);
  Server one;
  Server other;
};

}  // namespace

TEST_CASE("a cache asks for, finds and loads images that another one stored in the remote tier") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Two two(small(index, remote));
    Server& server = two.other;
    const StartedRequest started = *server.start({.tokens = two.prompt});
    REQUIRE(started.load);
    CHECK(started.load->tokens == 0);
    CHECK(started.load->bytes == 0);
    CHECK(started.load->medium == Medium::remote);
    CHECK(server.cache->tiers()->is_loading(started.request));
    CHECK(server.cache->chunk(started.request, 100) == PromptChunk{});
    // The states first, from the longest prefix on; then the KV before the deepest one that is there; then all of that.
    CHECK(server.settle(server.carry_out(TransferStatus::done)) == 0);
    CHECK(tokens_of(of(server.seen, Transfer::Kind::find)) == std::vector<std::int64_t>{32, 28, 24, 20, 16, 12, 8, 4});
    server.cache->check_invariants();
    CHECK(server.settle(server.carry_out(TransferStatus::done)) == 0);
    CHECK(tokens_of(of(server.seen, Transfer::Kind::find, CacheContent::kv_block)) ==
          std::vector<std::int64_t>{4, 8, 12, 16, 20, 24, 28, 32});
    server.cache->check_invariants();
    CHECK(server.cache->tiers()->is_loading(started.request));
    CHECK(server.settle(server.carry_out(TransferStatus::done)) == 1);
    CHECK_FALSE(server.cache->tiers()->is_loading(started.request));
    CHECK(server.cache->computed(started.request) == 32);
    for (const Transfer& transfer : server.seen) CHECK(transfer.request == started.request);
    server.run(started.request, two.prompt);
    server.cache->finish(started.request);
    server.move_all();
    CHECK(two.usage().asked_images == 16);
    CHECK(two.usage().found_images > 8);
    CHECK(two.usage().loads == 1);
    CHECK(two.usage().hit_tokens == 32);
    CHECK(two.usage().bytes_read == state_bytes + 8 * block_bytes);
    CHECK(server.cache->stats().requests == 1);
    CHECK(server.cache->stats().hit_tokens == 32);
    CHECK(server.cache->stats().of(LostHit::no_checkpoint).tokens == 0);
  }
}

TEST_CASE("a cache does not ask for images that it stored in the remote tier itself") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Two two(small(index, remote));
    push_down(two.one);
    const std::size_t before = two.one.seen.size();
    const StartedRequest again = two.one.serve(two.prompt);
    REQUIRE(again.load);
    CHECK(again.load->tokens == 32);
    CHECK(again.load->medium == Medium::remote);
    two.one.seen.erase(two.one.seen.begin(), two.one.seen.begin() + static_cast<std::ptrdiff_t>(before));
    CHECK(of(two.one.seen, Transfer::Kind::find).empty());
    CHECK(of(two.one.seen, Transfer::Kind::find, CacheContent::kv_block).empty());
  }
}

TEST_CASE("a request asks for a limited number of states, those of the longest prefixes") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Two two(small(index, remote), with_finds(index, 3));
    CHECK(two.other.start({.tokens = two.prompt})->load);
    two.other.move_all();
    CHECK(tokens_of(of(two.other.seen, Transfer::Kind::find)) == std::vector<std::int64_t>{32, 28, 24});
    Two none(small(index, remote), with_finds(index, -1));
    CHECK_FALSE(none.other.serve(none.prompt).load);
    CHECK(none.usage().asked_images == 0);
  }
}

TEST_CASE("a prompt is looked for as far as its caller says") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Two two(small(index, remote));
    RequestCache& cache = *two.other.cache;
    for (const PromptSearch search : {PromptSearch::known, PromptSearch::device}) {
      const StartedRequest unknown = *two.other.start({.tokens = two.prompt, .search = search});
      CHECK_FALSE(unknown.load);
      CHECK(unknown.reused_tokens == 0);
      CHECK(cache.chunk(unknown.request, 100).tokens > 0);
      cache.end(unknown.request, RequestEnd::aborted);
    }
    CHECK(two.usage().asked_images == 0);
    CHECK(cache.stats().requests == 2);
    // The cache still lists an image that it has found once and then evicted from the device.
    two.other.serve(two.prompt);
    push_down(two.other);
    const StartedRequest here = *two.other.start({.tokens = two.prompt, .search = PromptSearch::device});
    CHECK_FALSE(here.load);
    CHECK(here.reused_tokens == 0);
    cache.check_invariants();
    cache.end(here.request, RequestEnd::aborted);
    const std::int64_t asked = two.usage().asked_images;
    const StartedRequest known = *two.other.start({.tokens = two.prompt, .search = PromptSearch::known});
    REQUIRE(known.load);
    CHECK(known.load->tokens == 32);
    two.other.move_all();
    CHECK(cache.computed(known.request) == 32);
    CHECK(two.usage().asked_images == asked);
    CHECK_THROWS_AS(static_cast<void>(two.other.start({.tokens = two.prompt, .search = PromptSearch{3}})),
                    InvalidArgument);
  }
}

TEST_CASE("a request does not ask for images that take longer to load than to compute") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    // 132 bytes for 32 tokens, and 104 for 4.
    TierOptions slow = remote;
    slow.tokens_per_s = 1;
    slow.remote_bytes_per_s = 132.0 / 30;
    slow.remote_latency_s = 3;
    Two two(small(index, remote), small(index, slow));
    CHECK_FALSE(two.other.serve(two.prompt).load);
    CHECK(two.usage().asked_images == 0);
    slow.remote_latency_s = 1;
    Two faster(small(index, remote), small(index, slow));
    REQUIRE(faster.other.serve(faster.prompt).load);
    CHECK(faster.usage().hit_tokens == 32);
    CHECK(faster.usage().saved_s == doctest::Approx(1));
    CHECK(tokens_of(of(faster.other.seen, Transfer::Kind::find)) == std::vector<std::int64_t>{32});
  }
}

TEST_CASE("a request for which nothing is found is ready once it knows") {
  for (const Combination index : every_combination) {
    for (const TransferStatus status : {TransferStatus::gone, TransferStatus::failed}) {
      CAPTURE(static_cast<int>(index));
      Two two(small(index, remote));
      const StartedRequest started = *two.other.start({.tokens = two.prompt});
      REQUIRE(started.load);
      CHECK(two.other.settle(two.other.carry_out(status)) == 1);
      CHECK_FALSE(two.other.cache->tiers()->is_loading(started.request));
      CHECK(two.usage().asked_images == 8);
      CHECK(two.usage().found_images == 0);
      CHECK(two.usage().states == 0);
      CHECK(two.other.cache->stats().requests == 0);
      two.other.run(started.request, two.prompt);
      CHECK(two.other.cache->stats().requests == 1);
      two.other.cache->finish(started.request);
    }
  }
}

TEST_CASE("KV that the remote tier lost bounds the load, and the states behind it are forgotten") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Two two(small(index, remote));
    // A shorter prompt leaves a state at 16 tokens.
    const Tokens shorter(two.prompt.begin(), two.prompt.begin() + 18);
    two.other.serve(shorter);
    two.other.drain();
    two.other.move_all();
    two.other.cache->reset();
    two.other.move_all();
    two.other.world.lose_remote(
        [](const ImageKey& image) { return image.content == CacheContent::kv_block && image.tokens == 24; });
    const StartedRequest started = *two.other.start({.tokens = two.prompt});
    REQUIRE(started.load);
    two.other.move();
    two.other.move();
    // No state that is known needs KV behind 16 tokens.
    CHECK(two.usage().kv_blocks == 4);
    two.other.move_all();
    CHECK(two.usage().hit_tokens == 16);
    CHECK(tokens_of(of(two.other.seen, Transfer::Kind::load)) == std::vector<std::int64_t>{16});
    two.other.cache->abort(started.request);
    two.other.move_all();
    two.other.seen.clear();
    two.other.world.bring_remote_back();
    two.other.serve(two.prompt);
    CHECK(tokens_of(of(two.other.seen, Transfer::Kind::find)) == std::vector<std::int64_t>{32, 28, 24, 20});
  }
}

TEST_CASE("a load from the remote tier that finds nothing costs its tokens, and a missing image is asked for again") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Two two(small(index, remote));
    Server& server = two.other;
    const StartedRequest started = *server.start({.tokens = two.prompt});
    server.move();
    server.move();
    const auto is_deepest = [](const ImageKey& image) {
      return image.content == CacheContent::state && image.tokens == 32;
    };
    server.world.lose_remote(is_deepest);
    server.move_all();
    CHECK(server.cache->computed(started.request) == 0);
    CHECK(two.usage().lost_images == 1);
    server.cache->abort(started.request);
    CHECK(server.cache->stats().of(LostHit::tier_failed).tokens == 32);
    server.seen.clear();
    server.serve(two.prompt);
    CHECK(tokens_of(of(server.seen, Transfer::Kind::find)).front() == 32);
  }
}

TEST_CASE("a request that ends while the remote tier is asked gives its row back at once") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Two two(small(index, remote));
    Server& server = two.other;
    std::vector<TransferResult> late;
    for (const RequestEnd how : {RequestEnd::finished, RequestEnd::preempted, RequestEnd::aborted}) {
      std::vector<RequestId> asking;
      while (const auto started = server.start({.tokens = two.prompt})) asking.push_back(started->request);
      REQUIRE(asking.size() == 2);
      for (const TransferResult& answer : server.carry_out(TransferStatus::done)) late.push_back(answer);
      for (const RequestId request : asking) {
        server.cache->end(request, how);
        CHECK_THROWS_AS(static_cast<void>(server.cache->tiers()->is_loading(request)), InvalidArgument);
      }
      CHECK(server.cache->running_requests() == 0);
      server.cache->check_invariants();
    }
    CHECK(server.cache->stats().requests == 6);  // each is looked up once
    // The answers are dropped, even where another request asks from the same row.
    const RequestId untaken = server.start({.tokens = two.prompt})->request;
    server.cache->abort(untaken);
    const RequestId other = server.start({.tokens = two.prompt})->request;
    CHECK(other.index() == untaken.index());
    CHECK_THROWS_AS(static_cast<void>(server.cache->tiers()->is_loading(untaken)), InvalidArgument);
    CHECK(server.settle(late) == 0);
    CHECK(server.cache->tiers()->is_loading(other));
    CHECK(of(server.seen, Transfer::Kind::load).empty());
    server.cache->check_invariants();
    server.move_all();
    CHECK(server.cache->computed(other) == 32);
    server.run(other, two.prompt);
    server.cache->finish(other);
    server.move_all();
    CHECK(server.cache->tiers()->transfers_under_way() == 0);
  }
}

TEST_CASE("while too many answers are missing to requests that ended, the remote tier is asked no more") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Two two(small(index, remote), with_finds(index, 8));
    RequestCache& cache = *two.other.cache;
    std::vector<TransferResult> late;
    for (int i = 0; i < 3; ++i) {  // two requests ask for ten images each at most, as they have blocks
      const StartedRequest started = *two.other.start({.tokens = two.prompt});
      REQUIRE(started.load);
      for (const TransferResult& answer : two.other.carry_out(TransferStatus::done)) late.push_back(answer);
      cache.abort(started.request);
    }
    CHECK(late.size() == 24);
    const StartedRequest silent = *two.other.start({.tokens = two.prompt});
    CHECK_FALSE(silent.load);
    cache.abort(silent.request);
    two.other.settle(std::span(late).first(8));
    CHECK(two.other.start({.tokens = two.prompt})->load);
    cache.check_invariants();
    // Images of KV are more than those of states here.
    Two kv(small(index, remote), with_finds(index, 1));
    const RequestId request = kv.other.start({.tokens = kv.prompt})->request;
    kv.other.move();
    CHECK(kv.other.carry_out(TransferStatus::done).size() == 8);
    kv.other.cache->abort(request);
    CHECK(kv.other.start({.tokens = kv.prompt})->load);
  }
}

TEST_CASE("two requests that ask for the same both get it") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Two two(small(index, remote));
    Server& server = two.other;
    const StartedRequest first = *server.start({.tokens = two.prompt});
    const StartedRequest second = *server.start({.tokens = two.prompt});
    REQUIRE((first.load && second.load));
    server.move_all();
    for (const RequestId request : {first.request, second.request}) {
      server.run(request, two.prompt);
      server.cache->finish(request);
      server.move_all();
    }
    CHECK(two.usage().asked_images == 32);
    CHECK(two.usage().hit_tokens >= 32);
  }
}

TEST_CASE("an image that the cache forgets stays in the remote tier, and is found there") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    // It remembers two prompts of 132 bytes.
    RequestCacheOptions options = small(index, {.remote_bytes = 300, .write_through = true});
    PushedDown server(options);
    CHECK(of(server.seen, Transfer::Kind::drop).empty());
    CHECK(server.cache->tiers()->usage(Medium::remote).bytes <= 300);
    CHECK(server.world.images(Medium::remote) > 9 * 8);
    const StartedRequest again = server.serve(server.prompt);
    REQUIRE(again.load);
    CHECK(again.load->tokens == 0);
    CHECK(server.cache->tiers()->usage(Medium::remote).hit_tokens == 32);
    server.cache->reset();
    server.move_all();
    CHECK(of(server.seen, Transfer::Kind::drop).empty());
  }
}

TEST_CASE("a victim of a tier goes to the next slower tier that exists") {
  for (const Combination index : every_combination) {
    for (const TierOptions& tiers :
         {TierOptions{.host_bytes = 300, .file_bytes = 300, .remote_bytes = 8000},
          TierOptions{.host_bytes = 300, .remote_bytes = 8000}, TierOptions{.file_bytes = 300, .remote_bytes = 8000}}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(tiers.host_bytes);
      CAPTURE(tiers.file_bytes);
      PushedDown server(small(index, tiers));
      CHECK(server.cache->tiers()->usage(Medium::remote).states > 0);
      for (const Medium medium : {Medium::host, Medium::file, Medium::remote})
        CHECK(server.cache->tiers()->usage(medium).refused_images == 0);
      const StartedRequest again = server.serve(server.prompt);
      REQUIRE(again.load);
      CHECK(again.load->tokens == 32);
      CHECK(again.load->medium == Medium::remote);
    }
  }
}

TEST_CASE("a state that was written through to a slow tier goes to the host, too, when the device evicts it") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    PushedDown server(small(index, {.host_bytes = 4000, .remote_bytes = 8000, .write_through = true}));
    CHECK(server.cache->tiers()->usage(Medium::remote).states >= 9);
    const StartedRequest again = server.serve(server.prompt);
    REQUIRE(again.load);
    CHECK(again.load->medium == Medium::host);
  }
}

TEST_CASE("draining writes to files where they are, else to the remote tier") {
  for (const Combination index : every_combination) {
    for (const bool files : {false, true}) {
      CAPTURE(static_cast<int>(index));
      Server server(small(index, {.host_bytes = 4000, .file_bytes = files ? 4000 : 0, .remote_bytes = 4000}));
      server.serve(prompt_of(34, 0));
      server.drain();
      server.move_all();
      CHECK(server.world.images(files ? Medium::file : Medium::remote) > 8);
      CHECK(server.world.images(files ? Medium::remote : Medium::file) == 0);
    }
  }
}

TEST_CASE("the groups of a state are asked for where all of them can have one, and count together") {
  RequestCacheOptions options = small(Combination::hash_columns, remote);
  columns(options).groups.push_back({.block_size_tokens = 8, .blocks = 6, .conv_window = 3, .layout_fingerprint = 7});
  for (const bool complete : {true, false}) {
    CAPTURE(complete);
    Two two(options);
    if (!complete)
      two.other.world.lose_remote([](const ImageKey& image) { return image.group == 1 && image.tokens == 32; });
    const StartedRequest started = two.other.serve(two.prompt);
    REQUIRE(started.load);
    CHECK(tokens_of(of(two.other.seen, Transfer::Kind::find)) ==
          std::vector<std::int64_t>{32, 32, 24, 24, 16, 16, 8, 8});
    const std::vector<Transfer> loads = of(two.other.seen, Transfer::Kind::load);
    for (const Transfer& load : loads) CHECK((load.image.tokens == 32) == complete);
    CHECK((complete ? loads.size() == 2 : loads.size() != 1));
  }
}

TEST_CASE("where KV is kept elsewhere, states alone are asked for") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Elsewhere elsewhere;
    elsewhere.blocks = 8;
    Two two(small(index, with(elsewhere, remote)));
    two.other.world.keep_kv(two.prompt);
    REQUIRE(two.other.serve(two.prompt).load);
    CHECK(of(two.other.seen, Transfer::Kind::find, CacheContent::kv_block).empty());
    CHECK(two.usage().asked_images == 8);
    CHECK(two.usage().hit_tokens == 32);
  }
}

TEST_CASE("KV elsewhere that ends before the state that is known is of use to shorter ones of the remote tier") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Elsewhere elsewhere;
    elsewhere.blocks = 5;
    RequestCacheOptions options = small(index, with(elsewhere, remote));
    set_checkpoints(options, 9, 20);
    if (in_columns(index))
      columns(options).mode = AlignMode::all;
    else
      slots(options).placement = CheckpointPlacement::every;
    Two two(options);
    for (const ImageKey& image : two.one.world.keys(Medium::remote))
      if (image.tokens == 32) CHECK(two.other.cache->tiers()->attach(Medium::remote, image));
    two.other.world.keep_kv(two.prompt);
    REQUIRE(two.other.serve(two.prompt).load);
    CHECK(two.usage().asked_images == 5);
    CHECK(two.usage().hit_tokens == 20);
  }
}

TEST_CASE("images that others stored can be attached, as far as the cache remembers them") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Two two(small(index, remote));
    for (const ImageKey& image : two.one.world.keys(Medium::remote))
      CHECK(two.other.cache->tiers()->attach(Medium::remote, image));
    const StartedRequest started = two.other.serve(two.prompt);
    REQUIRE(started.load);
    CHECK(started.load->tokens == 32);
    CHECK(two.usage().asked_images == 0);
  }
}
