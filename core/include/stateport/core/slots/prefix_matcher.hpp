// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/block_directory.hpp>
#include <stateport/core/pool/slot_pool.hpp>
#include <stateport/core/slots/slot_allocator.hpp>
#include <stateport/core/stats/cache_stats.hpp>

#include <cstdint>
#include <optional>
#include <span>

namespace stateport {

struct PrefixMatcherOptions {
  std::int32_t block_size_tokens = 16;
  std::int32_t min_remaining_tokens = 1;  ///< a skip leaves at least this many tokens of the chunk to the forward
  bool hybrid = true;                     ///< false: attention only, every matched block can be skipped
  std::uint64_t layout_fingerprint = 0;   ///< of the states that a restore accepts
};

/// One prefill chunk: tokens [finished, finished + chunk) of a prompt whose full blocks have these hashes.
struct MatchQuery {
  std::int64_t finished_tokens = 0;
  std::int64_t chunk_tokens = 0;
  std::span<const BlockHash> keys;
  std::span<const PrefixHash> prefixes;  ///< as many as keys
};

struct BlockMatch {
  std::int32_t first_block = 0;      ///< of the chunk; the request holds the blocks before it already
  std::int32_t required_blocks = 0;  ///< that the prompt touches up to the end of the chunk
  std::int32_t matched_blocks = 0;   ///< from first_block on, found in the KV cache
  /// Blocks from the start of the prompt up to the farthest state inside the KV match; 0 if there is none.
  std::int32_t state_blocks = 0;
  std::int64_t skip_tokens = 0;  ///< of the chunk
  /// The state to restore before the forward: exactly at finished + skip. Present iff the model is hybrid and skips.
  std::optional<FoundState> state;
  StateTag wanted;  ///< the tag that a restore of `state` must find

  /// KV matched but not skipped, and why. No value: nothing was lost, or a continuation chunk.
  std::int64_t lost_tokens = 0;
  std::optional<LostHit> lost;

  [[nodiscard]] std::int32_t new_blocks() const noexcept { return required_blocks - first_block - matched_blocks; }
};

/// Combines KV match and state match: how many tokens of a chunk need no forward.
///
/// skip = (farthest block with a state inside the KV match) · block size. If that leaves too few tokens: the next lower
/// block that has a state, else 0. A state counts only if its tag is exactly that prefix, so a collision of keys is a
/// miss. A continuation chunk of a hybrid model never skips: its live state has not seen the tokens that it would skip.
///
/// O(blocks of the chunk), allocates nothing. Thread-safe as long as directory and states do not change.
class PrefixMatcher {
 public:
  /// `states` may be null: a hybrid model without a state cache shares KV and skips nothing. Both must outlive the
  /// matcher. Throws InvalidArgument for a block size or min_remaining_tokens < 1.
  PrefixMatcher(const BlockDirectory& blocks, const SlotAllocator* states, const PrefixMatcherOptions& options);

  /// Writes the matched blocks into `matched` (room for keys.size() blocks, the first matched_blocks are set). Throws
  /// InvalidArgument for negative counts, lists of different lengths and too small a `matched`.
  [[nodiscard]] BlockMatch match(const MatchQuery& query, std::span<BlockId> matched) const;

 private:
  void skip_attention_only(const MatchQuery& query, BlockMatch& match) const;
  void skip_hybrid(const MatchQuery& query, std::span<const BlockId> matched, BlockMatch& match) const;
  [[nodiscard]] std::optional<FoundState> usable_state(const MatchQuery& query, std::int32_t blocks,
                                                       StateTag& wanted) const;

  const BlockDirectory& blocks_;
  const SlotAllocator* states_;
  PrefixMatcherOptions options_;
};

}  // namespace stateport
