// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace stateport::perf {

/// The caches that are compared with the same done by hand.
enum class DecodeCache : std::uint8_t { hash_slots, tree_slots, hash_columns };

/// R1's workload: requests that all decode, one batch a step. With drafts a row keeps between one and all of its
/// tokens. Each lives for `steps` steps; then others take their place.
struct DecodeShape {
  static constexpr std::int32_t requests = 256;
  static constexpr std::int32_t block_size = 256;  ///< of KV, and of checkpoints while decoding
  static constexpr std::int32_t prompt_tokens = 1000;
  static constexpr std::int32_t steps = 400;

  DecodeCache cache = DecodeCache::hash_slots;
  std::int32_t drafts = 0;
  BlockHashKind hash = BlockHashKind::sha256;

  /// The options of make_request_cache(). The peer that decodes by hand follows them, too.
  [[nodiscard]] RequestCacheOptions options() const;
  /// Tokens that row `i` keeps in each step.
  [[nodiscard]] std::int32_t kept(std::int32_t i) const noexcept { return drafts > 0 ? 1 + i % (1 + drafts) : 1; }
  /// Prompt number `number`: no two share a token.
  static void fill_prompt(std::span<Token> prompt, std::int32_t number);
};

class DecodeWorkload {
 public:
  virtual ~DecodeWorkload() = default;
  DecodeWorkload(const DecodeWorkload&) = delete;
  DecodeWorkload& operator=(const DecodeWorkload&) = delete;

  /// Ends the requests that run, and runs the prompts of others.
  virtual void start() = 0;
  /// One decode step of all of them: the work before the pass and after it.
  virtual void step() = 0;

 protected:
  DecodeWorkload() = default;
};

/// Through RequestCache::plan and commit.
[[nodiscard]] std::unique_ptr<DecodeWorkload> decode_with_request_cache(const DecodeShape& shape);
/// The peer: the calls of the classes below it, as an engine would write them for this workload and no other. Nothing
/// is checked, and no row can be void, replaced or planned ahead.
[[nodiscard]] std::unique_ptr<DecodeWorkload> decode_by_hand(const DecodeShape& shape);

}  // namespace stateport::perf
