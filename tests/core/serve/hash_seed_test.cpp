// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/serve/request_cache.hpp>

#include "tier_server.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

using namespace stateport;
using namespace stateport::test;

namespace {

RequestCacheOptions seeded(Combination index, BlockHashKind kind, std::uint64_t seed) {
  RequestCacheOptions options = small(index, {.host_bytes = 4000, .remote_bytes = 4000, .write_through = true});
  options.events = true;
  options.hash = kind;
  options.hash_seed = seed;
  return options;
}

std::set<std::array<std::uint64_t, 2>> names_in_remote_tier(const Server& server) {
  std::set<std::array<std::uint64_t, 2>> names;
  for (const ImageKey& key : server.world.keys(Medium::remote)) names.insert(key.prefix.words);
  return names;
}

std::set<std::array<std::uint64_t, 2>> names_in_events(RequestCache& cache) {
  std::set<std::array<std::uint64_t, 2>> names;
  std::array<CacheEvent, 256> events;
  for (const CacheEvent& event : std::span(events).first(cache.take_events(events)))
    if (event.kind != CacheEvent::Kind::cleared) names.insert(event.prefix.words);
  return names;
}

template <class Names>
bool share(const Names& a, const Names& b) {
  return std::ranges::any_of(a, [&](const auto& name) { return b.contains(name); });
}

}  // namespace

TEST_CASE("caches share a remote tier if they have one seed, and nothing else of it or of their events if not") {
  for (const BlockHashKind kind : {BlockHashKind::sha256, BlockHashKind::xxh3_128})
    for (const Combination index : every_combination) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(static_cast<int>(kind));
      const auto prompt = prompt_of(34, 0);
      Server first(seeded(index, kind, 71));
      Server same(seeded(index, kind, 71));
      Server other(seeded(index, kind, 72));
      Server none(seeded(index, kind, 0));
      for (Server* server : {&same, &other, &none}) server->world.share_remote(first.world);
      first.serve(prompt);
      const auto of_first = names_in_remote_tier(first);
      const auto told_first = names_in_events(*first.cache);
      REQUIRE(!of_first.empty());
      CHECK(share(of_first, told_first));
      for (Server* server : {&other, &none}) {
        CHECK(!server->serve(prompt).load.value_or(TierLoad{}).tokens);
        CHECK(server->cache->tiers()->usage(Medium::remote).found_images == 0);
        CHECK(server->cache->stats().hit_tokens == 0);
        CHECK(!share(told_first, names_in_events(*server->cache)));
      }
      same.serve(prompt);
      CHECK(same.cache->tiers()->usage(Medium::remote).found_images > 0);
      CHECK(same.cache->stats().hit_tokens == 32);
      CHECK(share(told_first, names_in_events(*same.cache)));
    }
}
