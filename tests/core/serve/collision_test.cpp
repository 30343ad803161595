// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/hash/block_hasher.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "random_engine.hpp"
#include "tier_server.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

using namespace stateport;
using namespace stateport::test;
using Tokens = StateWorld::Tokens;

namespace {

struct SaltedBlock {
  std::string_view salt;
  std::array<Token, 4> tokens;
};

/// First blocks of two tenants with one 63-bit key under xxh3_128, and different digests. Found as `one_key`.
constexpr std::array<SaltedBlock, 2> one_key_of_tenants = {
    {{"b", {1207531, 710360, 377369, 1}}, {"a", {949596, 1597246, 27063, 1}}}};

BlockDigest digest_of(const SaltedBlock& block, std::uint64_t seed = 0) {
  BlockHasher hasher({.kind = BlockHashKind::xxh3_128, .block_size_tokens = 4, .seed = seed});
  const ExtraKey salt{.id = block.salt};
  return hasher.hash_block({}, block.tokens, {&salt, 1});
}

Tokens salted_prompt(const SaltedBlock& block, std::int32_t more) {
  Tokens tokens(block.tokens.begin(), block.tokens.end());
  for (Token i = 0; i < more; ++i) tokens.push_back(i);
  return tokens;
}

RequestCacheOptions options_with_tiers(Combination index, const TierOptions& tiers) {
  RequestCacheOptions options = small(index, tiers);
  options.scrub = true;
  if (in_columns(index)) columns(options).groups[0].blocks = 8;
  return options;
}

/// Serves a prompt of one tenant and one of the other; the world checks all states and KV that are read.
void check_shares_nothing(const RequestCacheOptions& options, std::size_t which, std::int32_t more) {
  const SaltedBlock& block = one_key_of_tenants[which];
  const SaltedBlock& other = one_key_of_tenants[1 - which];
  for (const bool is_below : {false, true}) {
    CAPTURE(is_below);
    Server server(options);
    server.serve(salted_prompt(block, more), {.salt = block.salt});
    if (is_below) push_down(server);
    const StartedRequest strange = server.serve(salted_prompt(other, more), {.salt = other.salt});
    CHECK(strange.reused_tokens == 0);
    CHECK(!strange.load.value_or(TierLoad{}).tokens);
    CHECK(strange.lost.has_value() != strange.load.has_value());
    CHECK(strange.lost.value_or(LostHit::never_stored) == LostHit::never_stored);
    // Nor does the salt of one make the tokens of the other its own.
    const StartedRequest mixed = server.serve(salted_prompt(block, more), {.salt = other.salt});
    CHECK(mixed.reused_tokens == 0);
    CHECK(!mixed.load.value_or(TierLoad{}).tokens);
    CHECK(mixed.lost.has_value() != mixed.load.has_value());
    CHECK(mixed.lost.value_or(LostHit::never_stored) == LostHit::never_stored);
    CHECK(server.cache->stats().hit_tokens == 0);
    // The tenant's own prefix is found again, even while the other tenant's prefix with the same key is on the device.
    // The device may have evicted its KV when the other prefix took its key.
    push_down(server);
    if (is_below) server.serve(salted_prompt(block, more), {.salt = block.salt});
    const std::int64_t hit_tokens = server.cache->stats().hit_tokens;
    CHECK((hit_tokens > 0) == is_below);
    server.serve(salted_prompt(other, more), {.salt = other.salt});
    CHECK(server.cache->stats().hit_tokens > hit_tokens);
  }
}

}  // namespace

TEST_CASE("prompts of two tenants whose blocks have the same key share nothing, on the device and below it") {
  REQUIRE(digest_of(one_key_of_tenants[0]).key() == digest_of(one_key_of_tenants[1]).key());
  REQUIRE(digest_of(one_key_of_tenants[0]).prefix() != digest_of(one_key_of_tenants[1]).prefix());
  CHECK(digest_of(one_key_of_tenants[0], 5).key() != digest_of(one_key_of_tenants[1], 5).key());
  constexpr std::array tiers = {TierOptions{.host_bytes = 4000}, TierOptions{.file_bytes = 4000},
                                TierOptions{.remote_bytes = 4000}};
  for (const Combination index : every_combination)
    for (const TierOptions& below : tiers) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(below.file_bytes);
      CAPTURE(below.remote_bytes);
      for (const std::size_t which : {0u, 1u})
        for (const std::int32_t more : {1, 30}) {  // with a state behind the block, and without
          CAPTURE(which);
          CAPTURE(more);
          check_shares_nothing(options_with_tiers(index, below), which, more);
        }
    }
}

TEST_CASE("a state of another prefix with one key is no hit behind KV that has taken the key") {
  for (const Combination index : every_combination)
    for (const std::size_t which : {0u, 1u}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(which);
      const SaltedBlock& block = one_key_of_tenants[which];
      const SaltedBlock& other = one_key_of_tenants[1 - which];
      RequestCacheOptions options = options_with_tiers(index, {.host_bytes = 4000});
      if (!in_columns(index)) slots(options).checkpoints = 4;
      Server server(options);
      server.serve(salted_prompt(block, 1), {.salt = block.salt});   // a state after the block
      server.serve(salted_prompt(other, 30), {.salt = other.salt});  // one much later
      const StartedRequest started = server.serve(salted_prompt(other, 1), {.salt = other.salt});
      CHECK(started.reused_tokens == 0);
      CHECK(!started.load.value_or(TierLoad{}).tokens);
    }
}

TEST_CASE("KV of another prefix with one key is loaded all the same when the remote tier answers") {
  for (const Combination index : every_combination)
    for (const std::size_t which : {0u, 1u}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(which);
      const SaltedBlock& block = one_key_of_tenants[which];
      const SaltedBlock& other = one_key_of_tenants[1 - which];
      Server server(options_with_tiers(index, {.remote_bytes = 4000}));
      server.serve(salted_prompt(other, 30), {.salt = other.salt});
      push_down(server);
      server.cache->reset();  // forgets the images of the remote tier
      server.serve(salted_prompt(block, 1), {.salt = block.salt});
      CHECK(server.cache->stats().hit_tokens == 0);
      const StartedRequest started = server.serve(salted_prompt(other, 30), {.salt = other.salt});
      CHECK(started.load.has_value());
      CHECK(server.cache->stats().hit_tokens == 32);
    }
}

TEST_CASE("an image below the device with one half of a prefix's hash is no hit") {
  for (const Combination index : every_combination) {
    CAPTURE(static_cast<int>(index));
    const Tokens prompt = test::prompt_of(34, 0);
    BlockHasher hasher({.kind = BlockHashKind::xxh3_128, .block_size_tokens = 4});
    PromptHashes hashes;
    hasher.hash_prompt(prompt, {}, hashes);
    for (const std::size_t word : {0u, 1u, 2u}) {
      CAPTURE(word);
      Server server(small(index, {.file_bytes = 4000}));
      for (std::size_t i = 0; i < hashes.prefixes.size(); ++i) {
        PrefixHash prefix = hashes.prefixes[i];
        if (word < 2) prefix.words[word] ^= 1;
        const auto tokens = static_cast<std::int64_t>(4 * (i + 1));
        CHECK(server.cache->tiers()->attach(Medium::file,
                                            {.prefix = prefix, .tokens = tokens, .content = CacheContent::kv_block}));
        CHECK(server.cache->tiers()->attach(Medium::file, {.prefix = prefix, .tokens = tokens}));
      }
      const StartedRequest started = *server.start({.tokens = prompt});
      CHECK(started.load.has_value() == (word == 2));
    }
  }
}
