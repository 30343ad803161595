// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/publication_check.hpp>
#include <stateport/core/pool/block_pool.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "evict/tenant_ledger.hpp"
#include "hash/namespace_tag.hpp"
#include "serve/cache_news.hpp"
#include "serve/request_options.hpp"
#include "serve/session_book.hpp"
#include "serve/state_checks.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace stateport::detail {

/// The blocks of states of one group of layers. An index by hash finds them by hash, too. Block 0 stands for a column
/// that holds nothing; the last one is never handed out.
class StateBlocks final : private BlockListener {
 public:
  /// `eviction`: which state goes first; null: the least recently used. `owners`: of the blocks; null: tenants have no
  /// shares. `sessions`, `checks`: null if the cache has none.
  StateBlocks(const StateGroup& group, std::int32_t index, CacheNews& news, std::shared_ptr<EvictionPolicy> eviction,
              TenantOwners* owners, SessionBook* sessions, StateChecks* checks);
  ~StateBlocks();
  StateBlocks(const StateBlocks&) = delete;
  StateBlocks& operator=(const StateBlocks&) = delete;

  [[nodiscard]] std::int32_t block_size() const noexcept { return block_size_; }
  /// The block that holds the state after exactly this prefix; none if there is none.
  [[nodiscard]] BlockId find(BlockHash key, const PrefixHash& prefix, std::int64_t tokens) const;
  /// Blocks that belong to the caller; their contents are forgotten. False: too few, nothing changed.
  [[nodiscard]] bool take(std::span<BlockId> blocks);
  void retain(BlockId block) { pool_.retain({&block, 1}); }
  void release(std::span<const BlockId> blocks);
  /// The block can be found from now on if it holds state@tokens in both parts, and no other block with this state can.
  /// True if that is new. A block that cannot be found is free when it is released.
  bool publish(BlockId block, BlockHash key, const PrefixHash& prefix, std::int64_t tokens, const NamespaceTag& tag);
  /// No hash finds these states any more. A block that nobody holds is free.
  void forget(const Forgotten& forgotten);
  /// The same for the state in this block, which is found by its hash.
  void withdraw(BlockId block);
  [[nodiscard]] PublicationCheck& publication() noexcept { return publication_; }
  [[nodiscard]] const PublicationCheck& publication() const noexcept { return publication_; }
  /// Blocks that take() could give out now.
  [[nodiscard]] std::int64_t available() const noexcept { return pool_.free_blocks() + pool_.cached_blocks(); }
  [[nodiscard]] std::int32_t ref_count(BlockId block) const { return pool_.ref_count(block); }
  [[nodiscard]] std::int64_t evictions() const noexcept { return evictions_; }
  /// Blocks that hold a state, of running requests or found by hash.
  [[nodiscard]] std::int64_t used() const noexcept {
    return pool_.block_count() - reserved_state_blocks - pool_.free_blocks();
  }
  /// Evicts a demoted state (SessionBook) that no request holds. False: there is none.
  bool evict_demoted();
  /// Evicts a state that is found by hash. False: none can be evicted.
  bool evict_one() { return pool_.cached_blocks() > 0 && pool_.evict(1); }
  void reset();
  void check_invariants() const { pool_.check_invariants(); }

 private:
  void take_null_block();
  /// The state is not found by its hash any more.
  void lose(BlockId block);
  void on_blocks_unreferenced(std::span<const BlockId>) override {}
  void on_blocks_deregistered(std::span<const BlockId> blocks, std::span<const BlockHash> hashes) override;

  std::int32_t block_size_;
  std::int32_t group_;
  TenantOwners* owners_;
  SessionBook* sessions_;  ///< null: the cache has none
  StateChecks* checks_;    ///< the same
  BlockPool pool_;
  PublicationCheck publication_;
  CacheNews& news_;
  std::vector<PrefixHash> prefix_of_;     ///< by block, of those that are registered
  std::unique_ptr<NamespaceTag[]> tags_;  ///< by block, written when it is registered
  std::vector<std::uint8_t> found_;       ///< by block: it is the one that its hash finds
  std::int64_t evictions_ = 0;
  std::vector<BlockId> all_;  ///< scratch, with room for every block
};

}  // namespace stateport::detail
