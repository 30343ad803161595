// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/block_pool.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "serve/growing_hashes.hpp"
#include "serve/kv_places.hpp"
#include "serve/request_book.hpp"
#include "serve/request_record.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace stateport::detail {

/// KV blocks of requests, found by hash: a BlockPool, and for each request its blocks and the hashes of its tokens.
/// Nothing allocates after construction.
class HashedKv final : private BlockListener {
 public:
  explicit HashedKv(RequestBook& book);
  ~HashedKv();
  HashedKv(const HashedKv&) = delete;
  HashedKv& operator=(const HashedKv&) = delete;

  /// Hashes the tokens of a request that begins.
  void hash(RequestId request, std::span<const Token> tokens, const PromptNames& names);
  /// The leading blocks of the request's hashed tokens that are cached, confirmed by the whole prefix hash. Valid until
  /// the next call.
  [[nodiscard]] std::span<const BlockId> match(RequestId request);
  /// The request begins with these blocks, instead of those that it has.
  void begin(RequestId request, std::span<const BlockId> blocks);
  /// The fork holds the whole blocks of the first `tokens` tokens of its point, which has their hashes.
  void fork(RequestId fork, RequestId point, std::int64_t tokens);
  /// The requests have each other's blocks from now on.
  void swap(RequestId one, RequestId other) { std::swap(rows_[one.index()], rows_[other.index()]); }
  /// How many leading blocks the request holds, or can hold because they are cached.
  [[nodiscard]] std::size_t cached_blocks(RequestId request) const;
  /// The request holds the cached blocks of its first `blocks` blocks, too.
  void hold_cached(RequestId request, std::size_t blocks);
  [[nodiscard]] bool reserve(RequestId request, std::int64_t upto);
  /// With this number of computed tokens a block is full that cannot be found yet.
  [[nodiscard]] bool fills_block(RequestId request, std::int64_t computed) const noexcept {
    return computed >= static_cast<std::int64_t>(rows_[request.index()].registered + 1) * block_size_;
  }
  /// The block by which others find the content of the i-th block of the request's prompt; none: it cannot be found.
  [[nodiscard]] BlockId findable(RequestId request, std::size_t i) const;
  /// Others find the first `tokens` tokens of the request's prompt, whole blocks: no other content has the key of one.
  [[nodiscard]] bool finds_all(RequestId request, std::int64_t tokens) const;
  /// The blocks of `tokens`, all of which are computed, can be found from now on. Where a block with the same content
  /// can be found already, the request holds that one from now on, and its own is free: no content is cached twice.
  void register_full(RequestId request, std::span<const Token> tokens, const PromptNames& names);
  /// A state at the end of this block of the request was published; and whether one was at the end of a cached block.
  void note_state(RequestId request, std::size_t block);
  [[nodiscard]] bool had_state(BlockId block) const noexcept { return had_state_[block.index()] != 0; }
  void end(RequestId request);
  /// Evicts a demoted block (SessionBook) that no request holds. False: there is none.
  bool evict_demoted();
  /// Evicts a block that no request holds. False: none can be evicted.
  bool evict_one() { return pool_.cached_blocks() > 0 && pool_.evict(1); }
  /// Blocks that hold tokens, of running requests or found by hash.
  [[nodiscard]] std::int64_t used_blocks() const noexcept { return pool_.block_count() - 1 - pool_.free_blocks(); }
  /// Blocks that could be found and went, since construction.
  [[nodiscard]] std::int64_t evicted_blocks() const noexcept { return evicted_blocks_; }
  /// No block is found any more; without an event for each.
  void reset();
  /// No hash finds these blocks any more, which it answers: those that are still held.
  [[nodiscard]] std::span<const BlockId> forget(const Forgotten& forgotten);

  [[nodiscard]] BlockPool& pool() noexcept { return pool_; }
  [[nodiscard]] const BlockPool& pool() const noexcept { return pool_; }
  [[nodiscard]] KvPlaces& places() noexcept { return places_; }
  [[nodiscard]] const KvPlaces& places() const noexcept { return places_; }
  [[nodiscard]] const GrowingHashes& hashes(RequestId request) const noexcept { return rows_[request.index()].hashes; }
  [[nodiscard]] std::span<const BlockId> blocks(RequestId request) const noexcept {
    return rows_[request.index()].blocks;
  }
  [[nodiscard]] KvRow row(RequestId request) const noexcept {
    return {.ids = std::span(rows_[request.index()].ids), .tokens_per_id = block_size_};
  }

 private:
  struct Row {
    GrowingHashes hashes;
    std::vector<BlockId> blocks;
    std::vector<std::int32_t> ids;  ///< where these lie
    std::size_t registered = 0;     ///< leading blocks that are found by hash
  };

  [[nodiscard]] bool find_places(std::int64_t blocks);
  [[nodiscard]] bool find_share(std::int64_t blocks);
  void read_from(RequestId request, std::size_t i, BlockId block);
  /// The block is not found by its hash any more.
  void lose(BlockId block);
  void on_blocks_unreferenced(std::span<const BlockId>) override {}
  void on_blocks_deregistered(std::span<const BlockId> blocks, std::span<const BlockHash> hashes) override;

  std::int32_t block_size_;
  PromptHasher hasher_;
  BlockPool pool_;
  KvPlaces places_;
  RequestBook& book_;
  TenantOwners* owners_;                  ///< of blocks; null: tenants have no shares
  std::vector<PrefixHash> prefix_of_;     ///< by block, of those that are registered
  std::vector<std::uint8_t> found_;       ///< by block: it is the one that its hash finds
  std::vector<std::uint8_t> had_state_;   ///< by block, of those that are found
  std::unique_ptr<NamespaceTag[]> tags_;  ///< by block, written when it is registered
  std::int64_t evicted_blocks_ = 0;
  std::vector<Row> rows_;  ///< by request
  std::vector<BlockId> matched_;
  std::vector<BlockHash> parents_;
  std::vector<BlockId> forgotten_;  ///< of one call
};

}  // namespace stateport::detail
