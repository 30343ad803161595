// SPDX-License-Identifier: Apache-2.0
// B1: the cost of looking a prompt up in the block cache, beyond hashing it. Peer in the same run: a loop that hashes
// the same bytes with the same function and looks the key up in a flat map.
#include <stateport/core/hash/block_hasher.hpp>
#include <stateport/core/pool/block_pool.hpp>

#include "comparison.hpp"
#include "containers/flat_map.hpp"

#include <benchmark/benchmark.h>
#include <openssl/evp.h>
#include <xxhash.h>

#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

namespace stateport::perf {
namespace {

constexpr std::size_t block_size = 16;
constexpr std::size_t blocks_per_prompt = 2048;  // 32k tokens
constexpr std::size_t prompts = 32;              // rotated, so that map and hashes are not in the nearest caches
constexpr std::size_t message_bytes = 32 + 8 + 4 * block_size + 8;

/// The peer's hash: one prepared message, one call of the library per block.
class BareHash {
 public:
  explicit BareHash(BlockHashKind kind)
      : kind_(kind),
        md_(EVP_MD_fetch(nullptr, "SHA256", nullptr), &EVP_MD_free),
        context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    message_.fill(0);
    message_[32] = block_size;
  }

  BlockDigest operator()(const BlockDigest& parent, const std::int32_t* tokens) {
    std::memcpy(message_.data(), parent.bytes.data(), 32);
    std::memcpy(message_.data() + 40, tokens, 4 * block_size);
    BlockDigest digest;
    if (kind_ == BlockHashKind::xxh3_128) {
      const XXH128_hash_t hash = XXH3_128bits(message_.data(), message_.size());
      std::memcpy(digest.bytes.data(), &hash.low64, 8);
      std::memcpy(digest.bytes.data() + 8, &hash.high64, 8);
    } else {
      EVP_DigestInit_ex2(context_.get(), md_.get(), nullptr);
      EVP_DigestUpdate(context_.get(), message_.data(), message_.size());
      EVP_DigestFinal_ex(context_.get(), digest.bytes.data(), nullptr);
    }
    return digest;
  }

 private:
  BlockHashKind kind_;
  std::unique_ptr<EVP_MD, decltype(&EVP_MD_free)> md_;
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
  std::array<std::uint8_t, message_bytes> message_;
};

/// Random prompts that are all cached, in the pool and in the peer's map.
class Workload {
 public:
  explicit Workload(BlockHashKind kind)
      : hasher_({.kind = kind, .block_size_tokens = block_size}),
        bare_(kind),
        pool_({.blocks = static_cast<std::int32_t>(prompts * blocks_per_prompt) + 1}),
        tokens_(prompts * blocks_per_prompt * block_size),
        matched_(blocks_per_prompt) {
    std::mt19937 random(1);
    for (std::int32_t& token : tokens_) token = static_cast<std::int32_t>(random() % 150000);
    std::vector<BlockId> blocks(prompts * blocks_per_prompt);
    if (!pool_.allocate(blocks)) throw std::runtime_error("the pool is too small");
    map_.reserve(blocks.size());
    for (std::size_t prompt = 0; prompt < prompts; ++prompt) {
      hasher_.hash_prompt(prompt_tokens(prompt), {}, hashes_);
      const std::span own = std::span(blocks).subspan(prompt * blocks_per_prompt, blocks_per_prompt);
      pool_.register_hashes(own, hashes_.keys);
      for (std::size_t i = 0; i < own.size(); ++i) map_[hashes_.keys[i]] = own[i];
    }
  }

  void ours(int round) {
    hasher_.hash_prompt(prompt_tokens(static_cast<std::size_t>(round)), {}, hashes_);
    check(pool_.find_prefix(hashes_.keys, matched_));
  }
  void peer(int round) {
    const std::span tokens = prompt_tokens(static_cast<std::size_t>(round));
    BlockDigest parent;
    std::size_t found = 0;
    for (; found < blocks_per_prompt; ++found) {
      parent = bare_(parent, tokens.data() + found * block_size);
      const auto entry = map_.find(parent.key());
      if (entry == map_.end()) break;
      matched_[found] = entry->second;
    }
    check(found);
  }
  void hash_only(int round) { hasher_.hash_prompt(prompt_tokens(static_cast<std::size_t>(round)), {}, hashes_); }

 private:
  std::span<const std::int32_t> prompt_tokens(std::size_t round) const {
    constexpr std::size_t tokens = blocks_per_prompt * block_size;
    return std::span(tokens_).subspan(round % prompts * tokens, tokens);
  }
  static void check(std::size_t found) {
    if (found != blocks_per_prompt) throw std::runtime_error("a cached prompt was not found");
  }

  BlockHasher hasher_;
  BareHash bare_;
  BlockPool pool_;
  FlatMap<BlockHash, BlockId> map_;
  std::vector<std::int32_t> tokens_;
  std::vector<BlockId> matched_;
  PromptHashes hashes_;
};

void lookup(benchmark::State& state, BlockHashKind kind) {
  Workload workload(kind);
  const Comparison result = report(state,
                                   {{"ours", [&](int round) { workload.ours(round); }},
                                    {"loop", [&](int round) { workload.peer(round); }},
                                    {"hash", [&](int round) { workload.hash_only(round); }}},
                                   0, 101);
  state.counters["ns_per_block"] = result.ours().median_ns / blocks_per_prompt;
}

BENCHMARK_CAPTURE(lookup, sha256, BlockHashKind::sha256)->Iterations(1)->UseManualTime();
BENCHMARK_CAPTURE(lookup, xxh3_128, BlockHashKind::xxh3_128)->Iterations(1)->UseManualTime();

}  // namespace
}  // namespace stateport::perf

BENCHMARK_MAIN();
