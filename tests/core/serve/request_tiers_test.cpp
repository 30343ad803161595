// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "tier_server.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <span>
#include <vector>

using namespace stateport;
using namespace stateport::test;
using Tokens = StateWorld::Tokens;

TEST_CASE("a victim of the device is loaded from the host, and leaves it") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    PushedDown server(small(index, host));
    const Tokens& prompt = server.prompt;
    const TierUsage before = server.cache->tiers()->usage(Medium::host);
    CHECK(before.states > 0);
    CHECK(before.kv_blocks >= 8);
    const StartedRequest again = server.serve(prompt);
    REQUIRE(again.load);
    CHECK(again.load->tokens == 32);
    CHECK(again.load->medium == Medium::host);
    CHECK(again.load->bytes == state_bytes + 8 * block_bytes);
    CHECK(again.reused_tokens == 0);
    const TierUsage after = server.cache->tiers()->usage(Medium::host);
    CHECK(after.loads == 1);
    CHECK(after.hit_tokens == 32);
    CHECK(after.bytes_read == again.load->bytes);
    CHECK(server.cache->stats().hit_tokens == 32);
    // The host drops an image once its content is on the device again.
    server.cache->reset();
    server.move();
    CHECK(server.world.images(Medium::host) == 0);
  }
}

namespace {

/// Served a prompt of 34 tokens and its first 18. Their KV and both states lie below the device now.
struct TwoPushedDown : Server {
  explicit TwoPushedDown(RequestCacheOptions options) : Server((set_checkpoints(options, 4, 10), options)) {
    serve(shorter);
    serve(longer);
    push_down(*this);
  }
  Tokens longer = prompt_of(34, 0);
  Tokens shorter = prompt_of(18, 0);
};

}  // namespace

TEST_CASE("two requests that load states of one prefix leave both to others, whichever load ends first") {
  for (const Combination index : every_combination)
    for (const bool longer_first : {false, true}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(longer_first);
      RequestCacheOptions options = small(index, host);
      options.max_requests = 3;
      TwoPushedDown server(options);
      const Tokens& longer = server.longer;
      const Tokens& shorter = server.shorter;
      const StartedRequest one = *server.start({.tokens = longer_first ? longer : shorter});
      const StartedRequest other = *server.start({.tokens = longer_first ? shorter : longer});
      REQUIRE(one.load);
      REQUIRE(other.load);
      server.move_all();
      CHECK(server.cache->computed(one.request) == (longer_first ? 32 : 16));
      CHECK(server.cache->computed(other.request) == (longer_first ? 16 : 32));
      server.cache->abort(one.request);
      server.cache->abort(other.request);
      for (const Tokens& prompt : {shorter, longer}) {
        const StartedRequest again = *server.start({.tokens = prompt, .search = PromptSearch::device});
        CHECK(again.reused_tokens == std::ssize(prompt) - 2);
        server.run(again.request, prompt);
        server.cache->abort(again.request);
      }
    }
}

namespace {

/// Room for the KV of one request and for the states of many.
RequestCacheOptions states_outlive_kv(const TierOptions& tiers, bool many_groups) {
  RequestCacheOptions options = small(Combination::hash_columns, tiers);
  options.max_requests = 1;
  options.max_request_tokens = 16;
  options.kv_tokens = 16;
  columns(options).groups[0].blocks = 64;
  if (many_groups) columns(options).groups.push_back({.block_size_tokens = 8, .blocks = 64, .layout_fingerprint = 8});
  return options;
}

}  // namespace

TEST_CASE("a state on the device and its KV below it make a hit") {
  const std::array tiers = {TierOptions{.host_bytes = 1 << 18}, TierOptions{.file_bytes = 1 << 18},
                            TierOptions{.remote_bytes = 1 << 18},
                            TierOptions{.host_bytes = 1 << 18, .file_bytes = 1 << 18, .write_through = true}};
  for (const TierOptions& below : tiers)
    for (const bool many_groups : {false, true}) {
      CAPTURE(below.host_bytes);
      CAPTURE(below.file_bytes);
      CAPTURE(many_groups);
      Server server(states_outlive_kv(below, many_groups));
      const Tokens prompt = prompt_of(12, 0);
      server.serve(prompt);
      server.serve(prompt_of(15, 100));
      const std::size_t before = server.seen.size();
      const StartedRequest again = server.serve(prompt);
      REQUIRE(again.load);
      CHECK(again.load->bytes == (below.remote_bytes > 0 ? 0 : 2 * block_bytes));  // the remote tier is asked first
      CHECK(server.cache->stats().hit_tokens == 8);
      std::vector<std::int64_t> loaded;
      for (std::size_t i = before; i < server.seen.size(); ++i)
        if (server.seen[i].kind == Transfer::Kind::load) {
          CHECK(server.seen[i].image.content == CacheContent::kv_block);
          loaded.push_back(server.seen[i].image.tokens);
        }
      CHECK(loaded == std::vector<std::int64_t>{4, 8});
      // A load that fails leaves the state where it is.
      server.serve(prompt_of(15, 200));
      const StartedRequest failed = *server.start({.tokens = prompt});
      REQUIRE(failed.load);
      if (below.remote_bytes > 0) server.move();
      server.move(TransferStatus::failed);
      CHECK(server.cache->computed(failed.request) == 0);
      server.cache->abort(failed.request);
      server.move_all();
    }
}

TEST_CASE("where KV is kept elsewhere, tiers hold states alone, and loads name both") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Elsewhere elsewhere;
    PushedDown server(small(index, with(elsewhere)));
    const TierUsage before = server.cache->tiers()->usage(Medium::host);
    CHECK(before.states > 0);
    CHECK(before.kv_blocks == 0);
    CHECK(before.bytes == before.states * state_bytes);
    const ImageKey kv{.prefix = {{1, 2}}, .tokens = 4, .content = CacheContent::kv_block};
    CHECK_THROWS_WITH_AS(static_cast<void>(server.cache->tiers()->attach(Medium::host, kv)),
                         doctest::Contains("is KV, which is kept elsewhere"), InvalidArgument);
    CHECK(elsewhere.asked == 0);  // no image below the device can help, so the directory is not asked
    // It has less than is needed for the state, and then all.
    elsewhere.blocks = 7;
    const StartedRequest less = *server.start({.tokens = server.prompt});
    CHECK(elsewhere.asked == 8);
    CHECK((!less.load || less.load->tokens <= 28));
    server.move_all();
    server.cache->abort(less.request);
    server.move_all();
    elsewhere.blocks = 8;
    server.world.keep_kv(server.prompt);
    const StartedRequest again = server.serve(server.prompt);
    REQUIRE(again.load);
    CHECK(again.load->tokens == 32);
    CHECK(again.load->bytes == state_bytes);
    CHECK(again.load->medium == Medium::host);
  }
}

TEST_CASE("a state on the device and its KV elsewhere make a hit") {
  for (const bool many_groups : {false, true}) {
    CAPTURE(many_groups);
    Elsewhere elsewhere;
    Server server(states_outlive_kv(with(elsewhere), many_groups));
    const Tokens prompt = prompt_of(12, 0);
    server.serve(prompt);
    server.serve(prompt_of(15, 100));
    const auto host_before = server.cache->tiers()->usage(Medium::host);
    elsewhere.blocks = 1;  // too little for the state at 8 tokens
    const StartedRequest less = *server.start({.tokens = prompt});
    CHECK(less.reused_tokens == 0);
    CHECK(!less.load);
    CHECK(less.lost == LostHit::no_checkpoint);
    server.cache->abort(less.request);
    elsewhere.blocks = 2;
    // The engine cannot load it: the state stays where it is.
    const StartedRequest failed = *server.start({.tokens = prompt});
    REQUIRE(failed.load);
    server.move(TransferStatus::failed);
    CHECK(server.cache->computed(failed.request) == 0);
    server.cache->abort(failed.request);
    server.move_all();
    server.world.keep_kv(prompt);
    const std::size_t before = server.seen.size();
    const StartedRequest again = server.serve(prompt);
    REQUIRE(again.load);
    CHECK(again.load->tokens == 8);
    CHECK(again.load->bytes == 0);
    CHECK(again.load->medium == Medium::elsewhere);
    CHECK(server.cache->stats().hit_tokens == 8);
    const auto loads = std::span(server.seen).subspan(before).first(2);
    for (const Transfer& load : loads) CHECK(load.from == Medium::elsewhere);
    CHECK(loads[1].image.tokens == 8);
    CHECK(server.cache->tiers()->usage(Medium::host).loads == host_before.loads);
  }
}

TEST_CASE("KV that is elsewhere no more costs the request its tokens, and the tier nothing") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Elsewhere elsewhere;
    PushedDown server(small(index, with(elsewhere)));
    elsewhere.blocks = 8;
    const StartedRequest failed = *server.start({.tokens = server.prompt});
    REQUIRE(failed.load);
    server.move_all();
    CHECK(server.cache->computed(failed.request) == 0);
    CHECK(server.cache->tiers()->usage(Medium::host).lost_images == 0);
    server.cache->abort(failed.request);
    CHECK(server.cache->stats().of(LostHit::tier_failed).tokens == 32);
    server.world.keep_kv(server.prompt);
    CHECK(server.serve(server.prompt).load);
  }
}

TEST_CASE("a load that fails costs the request nothing but its tokens, and is counted") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    PushedDown server(small(index, host));
    const Tokens& prompt = server.prompt;
    const StartedRequest again = *server.start({.tokens = prompt});
    REQUIRE(again.load);
    CHECK(server.cache->tiers()->is_loading(again.request));
    CHECK(server.cache->chunk(again.request, 100) == PromptChunk{});
    const PassRow row{.request = again.request, .tokens = 1};
    CHECK_THROWS_WITH_AS(static_cast<void>(server.plan({&row, 1})), doctest::Contains("waits for a load"),
                         InvalidArgument);
    server.move(TransferStatus::damaged);
    CHECK_FALSE(server.cache->tiers()->is_loading(again.request));
    CHECK(server.cache->computed(again.request) == 0);
    server.move_all();
    server.run(again.request, prompt);
    server.cache->finish(again.request);
    server.move_all();
    CHECK(server.cache->stats().of(LostHit::tier_failed).tokens == 32);
    CHECK(server.cache->tiers()->usage(Medium::host).lost_images > 0);
    server.cache->check_invariants();
  }
}

TEST_CASE("a request that ends while it waits keeps its memory until the load has ended") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    PushedDown server(small(index, host));
    const Tokens& prompt = server.prompt;
    const StartedRequest again = *server.start({.tokens = prompt});
    REQUIRE(again.load);
    server.cache->finish(again.request);
    CHECK(server.cache->running_requests() == 1);
    CHECK_THROWS_AS(static_cast<void>(server.cache->computed(again.request)), InvalidArgument);
    CHECK_THROWS_AS(server.cache->finish(again.request), InvalidArgument);
    server.move_all();
    CHECK(server.cache->running_requests() == 0);
    server.cache->check_invariants();
  }
}

TEST_CASE("a hit below the device is taken only if loading it is faster than computing it") {
  TierOptions slow = host;
  slow.host_bytes_per_s = 1;  // 132 s for 32 tokens
  slow.tokens_per_s = 1;
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    PushedDown server(small(index, slow));
    const Tokens& prompt = server.prompt;
    const StartedRequest again = server.serve(prompt);
    CHECK_FALSE(again.load);
    CHECK(again.lost == LostHit::tier_costs_more);
    CHECK(again.lost_tokens == 32);
  }
}

TEST_CASE("a load saves the time of computing its tokens less its own, where the speeds are known") {
  for (const Combination index : every_combination) {
    for (const double tokens_per_s : {0.0, 8.0}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(tokens_per_s);
      TierOptions tiers = host;
      tiers.host_bytes_per_s = 132;  // 1 s, against 4 s for 32 tokens
      tiers.tokens_per_s = tokens_per_s;
      PushedDown server(small(index, tiers));
      const StartedRequest failed = *server.start({.tokens = server.prompt});
      REQUIRE(failed.load);
      server.move(TransferStatus::no_room);
      server.cache->abort(failed.request);
      server.move_all();
      CHECK(server.cache->tiers()->usage(Medium::host).saved_s == 0);
      REQUIRE(server.serve(server.prompt).load);
      CHECK(server.cache->tiers()->usage(Medium::host).saved_s == doctest::Approx(tokens_per_s > 0 ? 3 : 0));
    }
  }
}

TEST_CASE("speeds that are learned count from the next prompt on") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    PushedDown server(small(index, host));
    CacheTiers& tiers = *server.cache->tiers();
    CHECK_THROWS_WITH_AS(tiers.set_speeds({.tokens_per_s = -1}), doctest::Contains("speeds.tokens_per_s = -1"),
                         InvalidArgument);
    tiers.set_speeds({.host_bytes_per_s = 1, .tokens_per_s = 1});
    const StartedRequest slow = *server.start({.tokens = server.prompt});
    CHECK(slow.lost == LostHit::tier_costs_more);
    server.cache->abort(slow.request);
    server.move_all();
    tiers.set_speeds({.host_bytes_per_s = 1000, .tokens_per_s = 1});
    CHECK(server.serve(server.prompt).load);
  }
}

TEST_CASE("an answer names each transfer that was decided since the last answer, once") {
  RequestCacheOptions options = small(Combination::tree_slots, host);
  options.max_requests = 1;
  Server server(options);
  server.serve(prompt_of(34, 0));
  RequestCache& cache = *server.cache;
  CacheTiers& tiers = *cache.tiers();
  const Tokens prompt = prompt_of(33, 500);
  const std::optional<StartedRequest> started = cache.start({.tokens = prompt});
  REQUIRE(started);
  CHECK(started->transfers.empty());
  const PassRow row{.request = started->request, .tokens = 33};
  // The pass takes the only slot of a checkpoint, so the state that lay there has to go first.
  const PassPlan plan = cache.plan({&row, 1});
  REQUIRE_FALSE(plan.transfers.empty());
  CHECK(plan.transfers.front().image.content == CacheContent::state);
  CHECK(plan.transfers.front().to == Medium::host);
  std::vector<TransferResult> results;
  for (const Transfer& transfer : plan.transfers) results.push_back({.id = transfer.id});
  CHECK(results.size() <= tiers.transfers_max());
  CHECK(tiers.settle({}).transfers.empty());
  CHECK(tiers.transfers_under_way() == results.size());
  const std::int32_t sampled = 1;
  const Token token = 1;
  CHECK(cache.commit(plan.pass, {&sampled, 1}, {&token, 1}).transfers.empty());
  const EndedRequest ended = cache.finish(started->request);
  CHECK(ended.copies.empty());
  CHECK(ended.transfers.empty());
  const TransferResult unknown{.id = 1000};
  CHECK_THROWS_WITH_AS(tiers.settle({&unknown, 1}), doctest::Contains("1000"), InvalidArgument);
  CHECK(tiers.settle(results).transfers.empty());
  CHECK(tiers.transfers_under_way() == 0);
  // A call whose answer names no transfers leaves them to the next answer.
  const std::size_t images =
      static_cast<std::size_t>(tiers.usage(Medium::host).states + tiers.usage(Medium::host).kv_blocks);
  REQUIRE(images > 0);
  cache.reset();
  const SettledTransfers drops = tiers.settle({});
  CHECK(drops.transfers.size() == images);
  CHECK(std::ranges::all_of(drops.transfers, [](const Transfer& drop) { return drop.kind == Transfer::Kind::drop; }));
  CHECK(tiers.settle({}).transfers.empty());
  cache.check_invariants();
}

TEST_CASE("images in files are found again by a new cache, once they were attached") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const RequestCacheOptions options = small(index, {.file_bytes = 4000});
    const Tokens prompt = prompt_of(34, 0);
    Server before(options);
    before.serve(prompt);
    before.drain();
    before.move_all();
    CHECK(before.cache->tiers()->usage(Medium::file).states >= 1);
    std::vector<ImageKey> images = before.world.keys(Medium::file);
    Server after(options);
    after.world.take_images(before.world);
    for (const ImageKey& image : images) CHECK(after.cache->tiers()->attach(Medium::file, image));
    after.cache->check_invariants();
    const StartedRequest again = after.serve(prompt);
    REQUIRE(again.load);
    CHECK(again.load->tokens == 32);
    CHECK(again.load->medium == Medium::file);
    // A file stays.
    CHECK(after.world.images(Medium::file) == std::ssize(images));
  }
}

TEST_CASE("a state of two groups is attached with both of its images, or dropped") {
  RequestCacheOptions options = small(Combination::hash_columns, {.file_bytes = 8000});
  columns(options).groups.push_back({.block_size_tokens = 8, .blocks = 6, .conv_window = 3, .layout_fingerprint = 7});
  const auto key = [](std::uint64_t prefix, std::int32_t group) {
    return ImageKey{.prefix = {{prefix, 1}}, .tokens = 8, .group = group};
  };
  const auto cache = make_request_cache(options);
  CacheTiers& tiers = *cache->tiers();
  const auto dropped = [](TransferPlan transfers) {
    std::vector<ImageKey> images;
    for (const Transfer& transfer : transfers) {
      CHECK(transfer.kind == Transfer::Kind::drop);
      CHECK(transfer.from == Medium::file);
      images.push_back(transfer.image);
    }
    return images;
  };
  // Both, in any order; one again changes nothing.
  CHECK(tiers.attach(Medium::file, key(1, 1)));
  CHECK(tiers.attach(Medium::file, key(1, 1)));
  CHECK(tiers.usage(Medium::file).states == 0);
  CHECK(tiers.attach(Medium::file, key(1, 0)));
  CHECK(tiers.attach(Medium::file, key(1, 1)));
  CHECK(tiers.usage(Medium::file).states == 1);
  CHECK(dropped(tiers.settle({}).transfers).empty());
  // One that another state follows, and one that a call does.
  CHECK(tiers.attach(Medium::file, key(2, 1)));
  CHECK(tiers.attach(Medium::file, key(3, 0)));
  cache->check_invariants();
  const auto started = cache->start({.tokens = Tokens(4, 1)});
  REQUIRE(started);
  CHECK(dropped(started->transfers) == std::vector{key(2, 1), key(3, 0)});
  cache->abort(started->request);
  CHECK(tiers.attach(Medium::file, key(4, 0)));
  CHECK(tiers.usage(Medium::file).states == 1);
  cache->reset();
  CHECK(dropped(tiers.settle({}).transfers) == std::vector{key(4, 0), key(1, 0), key(1, 1)});
  cache->check_invariants();
}

TEST_CASE("a state that is not used again makes room, with its KV, also if it was attached") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const RequestCacheOptions options = small(index, {.file_bytes = 400});
    Server before(options);
    before.serve(prompt_of(34, 0));
    before.drain();
    before.move_all();
    Server after(options);
    after.world.take_images(before.world);
    std::int64_t attached = 0;
    for (const ImageKey& image : before.world.keys(Medium::file)) {
      CHECK(after.cache->tiers()->attach(Medium::file, image));
      ++attached;
    }
    CHECK(attached > 8);
    push_down(after);
    const TierUsage usage = after.cache->tiers()->usage(Medium::file);
    CHECK(usage.evicted_states > 0);
    CHECK(usage.states > 0);
    CHECK(usage.bytes <= 400);
    after.cache->check_invariants();
  }
}

TEST_CASE("an image that the host has no room for yet goes to files at once") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    // Room for two prompts of 132 bytes on the host, of which 104 are kept free.
    PushedDown server(small(index, {.host_bytes = 300, .file_bytes = 8000}));
    const CacheTiers& tiers = *server.cache->tiers();
    CHECK(tiers.usage(Medium::host).bytes_written > 0);
    for (const Medium medium : {Medium::host, Medium::file}) CHECK(tiers.usage(medium).refused_images == 0);
    CHECK(tiers.usage(Medium::host).evicted_states == 0);
    const StartedRequest again = server.serve(server.prompt);
    REQUIRE(again.load);
    CHECK(again.load->tokens == 32);
    CHECK(again.load->bytes == state_bytes + 8 * block_bytes);
  }
}

TEST_CASE("KV whose last state gave way to it, and which was not written then, is kept nowhere") {
  const auto cache =
      make_request_cache(small(Combination::hash_slots, {.host_bytes = 4000, .file_bytes = 204, .queue_bytes = 3}));
  CacheTiers& tiers = *cache->tiers();
  const auto image = [](std::uint64_t prefix, CacheContent content) {
    return ImageKey{.prefix = {{prefix, prefix}}, .tokens = 4, .content = content};
  };
  REQUIRE(tiers.attach(Medium::file, image(1, CacheContent::state)));
  REQUIRE(tiers.attach(Medium::file, image(2, CacheContent::state)));
  REQUIRE(tiers.attach(Medium::file, image(2, CacheContent::kv_block)));
  REQUIRE(tiers.attach(Medium::host, image(1, CacheContent::kv_block)));
  REQUIRE(tiers.usage(Medium::file).bytes == 204);
  // The files have no room for the KV but that of its own state, the older one, and the queue has none at all.
  static_cast<void>(tiers.drain());
  CHECK(tiers.usage(Medium::file).states == 1);
  CHECK(tiers.usage(Medium::host).kv_blocks == 0);
  cache->check_invariants();
}

TEST_CASE("draining writes the device's and the host's content, piece by piece, and removes nothing") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    TierOptions tiers{.host_bytes = 4000, .file_bytes = 8000};
    tiers.queue_bytes = 150;
    Server server(small(index, tiers));
    for (Token first = 0; first < 500; first += 100) server.serve(prompt_of(33, first));
    const TierUsage host_before = server.cache->tiers()->usage(Medium::host);
    std::int64_t written = -1;
    while (written < server.cache->tiers()->usage(Medium::file).bytes_written) {
      written = server.cache->tiers()->usage(Medium::file).bytes_written;
      server.drain();
      server.move_all();
    }
    const TierUsage files = server.cache->tiers()->usage(Medium::file);
    CHECK(server.cache->tiers()->usage(Medium::host).states == host_before.states);
    CHECK(files.states >= host_before.states);
    CHECK(files.kv_blocks >= 8);
    server.cache->check_invariants();
  }
}

TEST_CASE("an image that a copy finds damaged leaves its tier, even if the copy was to leave it there") {
  for (const Combination index : every_combination)
    for (int number = 1; number < transfer_status_count; ++number) {
      const auto status = static_cast<TransferStatus>(number);
      CAPTURE(static_cast<int>(index));
      CAPTURE(number);
      Server server(small(index, {.host_bytes = 4000, .file_bytes = 8000}));
      for (Token first = 0; first < 1200; first += 100) server.serve(prompt_of(33, first));
      const TierUsage before = server.cache->tiers()->usage(Medium::host);
      server.seen.clear();
      server.drain();
      server.move(status);
      const auto copied_states = std::ranges::count_if(server.seen, [](const Transfer& transfer) {
        return transfer.kind == Transfer::Kind::copy && transfer.image.content == CacheContent::state;
      });
      REQUIRE(copied_states > 0);
      server.move_all();
      // Of a full tier or a machine that fails the image itself does not learn.
      const bool is_lost = status != TransferStatus::no_room && status != TransferStatus::failed;
      const TierUsage after = server.cache->tiers()->usage(Medium::host);
      CHECK(after.states == before.states - (is_lost ? copied_states : 0));
      CHECK((after.lost_images > 0) == is_lost);
      CHECK(server.world.images(Medium::host) == after.states + after.kv_blocks);
    }
}

TEST_CASE("KV that a load finds damaged takes the states behind it along, and not those before it") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    TwoPushedDown server(small(index, {.host_bytes = 8000}));
    const StartedRequest loading = *server.start({.tokens = server.longer});
    REQUIRE(loading.load);
    REQUIRE(loading.load->tokens == 32);
    std::vector<TransferResult> loads = server.carry_out(TransferStatus::done);
    const auto of = [&](const TransferResult& result) {
      return *std::ranges::find(server.seen, result.id, &Transfer::id);
    };
    std::vector<TransferResult> stores;
    std::ranges::copy_if(loads, std::back_inserter(stores),
                         [&](const TransferResult& result) { return of(result).kind != Transfer::Kind::load; });
    std::erase_if(loads, [&](const TransferResult& result) { return of(result).kind != Transfer::Kind::load; });
    server.settle(stores);
    server.move_all();
    const auto is_damaged = [&](const TransferResult& result) {
      return of(result).image.content == CacheContent::kv_block && of(result).image.tokens == 20;
    };
    for (TransferResult& load : loads)
      if (is_damaged(load)) load.status = TransferStatus::damaged;
    REQUIRE(std::ranges::count_if(loads, is_damaged) == 1);
    const TierUsage before = server.cache->tiers()->usage(Medium::host);
    server.settle(loads);
    server.cache->check_invariants();
    CHECK(server.cache->tiers()->usage(Medium::host).states == before.states - 1);
    server.move_all();
    server.cache->abort(loading.request);
    const StartedRequest again = *server.start({.tokens = server.longer});
    REQUIRE(again.load);
    CHECK(again.load->tokens == 16);
  }
}

TEST_CASE("an image that a load finds damaged while it is copied leaves its tier when the copy has ended") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    PushedDown server(small(index, {.host_bytes = 4000, .file_bytes = 8000}));
    const StartedRequest loading = *server.start({.tokens = server.prompt});
    REQUIRE(loading.load);
    REQUIRE(loading.load->medium == Medium::host);
    const std::vector<TransferResult> loads = server.carry_out(TransferStatus::damaged);
    server.drain();
    const std::vector<TransferResult> copies = server.carry_out(TransferStatus::done);
    REQUIRE(copies.size() >= loads.size());
    server.settle(loads);
    server.cache->check_invariants();
    server.move_all();
    server.settle(copies);
    server.cache->check_invariants();
    server.move_all();
    server.cache->abort(loading.request);
    const StartedRequest again = *server.start({.tokens = server.prompt});
    REQUIRE(again.load);
    CHECK(again.load->medium == Medium::file);
  }
}

TEST_CASE("an image that a load finds damaged while it is stored again is dropped: the tier may have kept it") {
  for (const Combination index : slot_combinations) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = small(index, {.file_bytes = 8000});
    options.kv_tokens = 160;
    slots(options).checkpoints = 2;
    PushedDown server(options);
    const StartedRequest first = *server.start({.tokens = server.prompt});
    REQUIRE(first.load);
    const std::vector<TransferResult> loads = server.carry_out(TransferStatus::damaged);
    server.seen.clear();
    const StartedRequest second = *server.start({.tokens = server.prompt});
    REQUIRE(second.load);
    const std::vector<TransferResult> late_loads = server.carry_out(TransferStatus::damaged);
    const std::vector<Transfer> loading = server.seen;
    server.settle(loads);
    server.move_all();
    server.run(first.request, server.prompt);
    server.cache->finish(first.request);
    server.move_all();
    server.drain();
    server.seen.clear();
    const std::vector<TransferResult> stores = server.carry_out(TransferStatus::done);
    std::vector<ImageKey> stored;
    for (const Transfer& transfer : server.seen)
      if (transfer.kind == Transfer::Kind::store &&
          std::ranges::find(loading, transfer.image, &Transfer::image) != loading.end())
        stored.push_back(transfer.image);
    REQUIRE(std::ssize(stored) > 1);
    server.settle(late_loads);
    server.move_all();
    server.settle(stores);
    server.cache->check_invariants();
    for (const Transfer& transfer : server.take()) {
      server.world.begin(transfer);
      if (transfer.kind == Transfer::Kind::drop) std::erase(stored, transfer.image);
    }
    CHECK(stored.empty());
  }
}

TEST_CASE("draining ends even if files have less room than the tiers above them use") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    TierOptions tiers{.host_bytes = 4000, .file_bytes = 400};
    Server server(small(index, tiers));
    for (Token first = 0; first < 1000; first += 100) server.serve(prompt_of(33, first));
    REQUIRE(server.cache->tiers()->usage(Medium::host).states > 3);
    int rounds = 0;
    for (std::int64_t written = -1; written < server.cache->tiers()->usage(Medium::file).bytes_written; ++rounds) {
      REQUIRE(rounds < 20);
      written = server.cache->tiers()->usage(Medium::file).bytes_written;
      server.drain();
      server.move_all();
    }
    CHECK(server.cache->tiers()->usage(Medium::file).states > 0);
    server.cache->check_invariants();
  }
}

TEST_CASE("a state and KV that a tier can never hold cost it nothing") {
  TierOptions tiers = host;
  tiers.host_bytes = state_bytes + 3 * block_bytes;
  Server server(small(Combination::tree_slots, tiers));
  for (Token first = 0; first < 500; first += 100) server.serve(prompt_of(33, first));
  CHECK(server.cache->tiers()->usage(Medium::host).bytes <= tiers.host_bytes);
  CHECK(server.cache->tiers()->usage(Medium::host).refused_images > 0);
}

TEST_CASE("checkpoints are written through as they are made") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    Server server(small(index, {.file_bytes = 4000, .write_through = true}));
    server.serve(prompt_of(34, 0));
    server.settle({});
    server.move_all();
    CHECK(server.cache->tiers()->usage(Medium::file).states >= 1);
    CHECK(server.cache->tiers()->usage(Medium::file).kv_blocks == 8);
  }
}

TEST_CASE("a full tier that is written through gets a state once a round, and not again when the device gives it up") {
  using enum EvictionOrder;
  for (const Combination index : every_combination)
    for (const EvictionOrder order : {lru, lfu, fifo, slru, priority, gdsf, filo}) {
      if (in_columns(index) && order == gdsf) continue;
      CAPTURE(static_cast<int>(index));
      CAPTURE(name(order));
      // The device keeps a state for longer than the tier, which has room for two prompts.
      RequestCacheOptions options = small(index, {.file_bytes = 2 * (state_bytes + 8 * block_bytes)});
      options.tiers.write_through = true;
      options.eviction = order;
      options.kv_tokens = 240;
      set_checkpoints(options, 5, 10);
      Server server(options);
      const int most = order == filo ? 2 : 1;  // filo prefers an older image to the one that replaced it
      std::size_t stored = 0;
      for (int round = 0; round < 3; ++round) {
        const std::size_t before = server.seen.size();
        for (int prompt = 0; prompt < 16; ++prompt) server.serve(prompt_of(34, 100 * prompt));
        server.settle({});
        server.move_all();
        std::map<std::array<std::uint64_t, 2>, int> stores;
        for (const Transfer& transfer : std::span(server.seen).subspan(before))
          if (transfer.image.content == CacheContent::state && transfer.kind == Transfer::Kind::store)
            ++stores[transfer.image.prefix.words];
        for (const auto& [prefix, times] : stores) CHECK(times <= most);
        stored += stores.size();
      }
      CHECK(stored >= (order == filo ? 12 : 3 * 16));  // filo keeps the oldest states on the device
    }
}

TEST_CASE("tiers refuse invalid options and name them") {
  const auto refused = [](const TierOptions& tiers, const char* what) {
    CAPTURE(what);
    CHECK_THROWS_WITH_AS(static_cast<void>(make_request_cache(small(Combination::tree_slots, tiers))),
                         doctest::Contains(what), InvalidArgument);
  };
  refused({.host_bytes = 103}, "tiers.host_bytes");
  refused({.host_bytes = 104, .file_bytes = 103}, "tiers.file_bytes");
  refused({.host_bytes = 4000, .file_bytes = -1}, "tiers.file_bytes");
  refused({.host_bytes = 4000, .write_through = true}, "tiers.write_through");
  refused({.remote_bytes = 103}, "tiers.remote_bytes");
  refused({.host_bytes = 4000, .state_image_bytes = INT64_MAX}, "tiers.host_bytes");  // with the KV more than 64 bits
  refused({.host_bytes = 4000, .remote_bytes = -1}, "tiers.remote_bytes");
  refused({.remote_bytes = 4000, .max_finds = 0}, "tiers.max_finds");
  refused({.remote_bytes = 4000, .remote_bytes_per_s = -1}, "tiers.remote_bytes_per_s");
  refused({.remote_bytes = 4000, .remote_latency_s = -1}, "tiers.remote_latency_s");
  refused({.host_bytes = 4000, .state_image_bytes = -1}, "tiers.state_image_bytes");
  refused({.host_bytes = 4000, .kv_image_bytes = -1}, "tiers.kv_image_bytes");
  refused({.host_bytes = 4000, .queue_bytes = -1}, "tiers.queue_bytes");
  refused({.host_bytes = 4000, .host_bytes_per_s = -1}, "tiers.host_bytes_per_s");
  refused({.host_bytes = 4000, .file_bytes_per_s = std::numeric_limits<double>::infinity()}, "tiers.file_bytes_per_s");
  refused({.host_bytes = 4000, .tokens_per_s = std::numeric_limits<double>::quiet_NaN()}, "tiers.tokens_per_s");
  RequestCacheOptions forgetful = small(Combination::hash_columns, host);
  columns(forgetful).mode = AlignMode::none;
  CHECK_THROWS_WITH_AS(static_cast<void>(make_request_cache(forgetful)), doctest::Contains("tiers"), InvalidArgument);
  RequestCacheOptions grid = small(Combination::hash_columns, host);
  columns(grid).groups.push_back({.block_size_tokens = 8, .blocks = 6, .conv_window = 3, .layout_fingerprint = 7});
  const auto align = make_request_cache(grid);
  CHECK_THROWS_AS(align->tiers()->attach(Medium::host, {.tokens = 4}), InvalidArgument);
  CHECK(align->tiers()->attach(Medium::host, {.prefix = {{1, 2}}, .tokens = 8, .group = 1}));
  const auto cache = make_request_cache(small(Combination::tree_slots, host));
  CHECK_THROWS_AS(static_cast<void>(cache->tiers()->drain()), InvalidState);
  CHECK_THROWS_AS(cache->tiers()->attach(Medium::file, {.tokens = 4}), InvalidArgument);
  CHECK_THROWS_AS(cache->tiers()->attach(Medium::device, {.tokens = 4}), InvalidArgument);
  CHECK_THROWS_AS(cache->tiers()->attach(Medium::host, {.tokens = 5}), InvalidArgument);
  CHECK_THROWS_AS(cache->tiers()->attach(Medium::host, {.tokens = 0}), InvalidArgument);
  CHECK_THROWS_AS(cache->tiers()->attach(Medium::host, {.tokens = 4, .group = 1}), InvalidArgument);
  CHECK(make_request_cache(small(Combination::tree_slots, {}))->tiers() == nullptr);
}
