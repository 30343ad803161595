// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/core/align/align_planner.hpp>
#include <stateport/core/hash/block_hasher.hpp>
#include <stateport/core/pool/block_pool.hpp>
#include <stateport/kernels/state_store.hpp>

#include "cache.hpp"
#include "state_io.hpp"

namespace stateport::engine {

/// What the modes whose states lie in cache blocks share: KV blocks found by hash; groups of layers, each with blocks
/// of states of its own size; publication of a block whose state is the one at its boundary.
class BlockTableCache : public EngineCache {
 public:
  [[nodiscard]] bool start(Sequence& sequence) override;
  void stop(Sequence& sequence, bool aborted) override;
  void reset() override;
  [[nodiscard]] std::size_t kv_indices() const override;
  [[nodiscard]] CacheCounts counts() const override;
  void check_invariants() const override;

 protected:
  /// `group_blocks`: of states, of each group, beside the null block.
  BlockTableCache(const CacheOptions& options, AlignMode mode, std::int32_t group_blocks);

  /// Blocks of states of one group: block id = slot of the store. Block 0 is null.
  class Group : public BlockListener {
   public:
    Group(const CacheOptions& options, std::size_t index, std::int32_t blocks, const Stream& stream);
    void reset();
    void on_blocks_unreferenced(std::span<const BlockId>) override {}
    void on_blocks_deregistered(std::span<const BlockId> blocks, std::span<const BlockHash> hashes) override;

    std::int32_t block_size = 1;
    BlockPool pool;
    DeviceResource memory;
    StateStore store;
    StateIo io;
    std::int64_t evictions = 0;

   private:
    void take_null_block();
  };

  [[nodiscard]] std::size_t index_of(const Sequence& sequence) const { return static_cast<std::size_t>(sequence.slot); }
  /// The request's row of the block table begins with this hit: `tokens` whole blocks, the last of them `block`.
  virtual void begin_row(std::size_t slot, std::size_t group, std::int64_t tokens, BlockId block) = 0;
  virtual void began(std::size_t slot, std::int64_t tokens) = 0;
  /// Gives every block of the row back to `released`.
  virtual void end_row(std::size_t slot, std::size_t group, std::vector<BlockId>& released) = 0;
  virtual void ended(std::size_t slot, bool aborted) = 0;
  [[nodiscard]] virtual std::span<const std::int32_t> columns(std::size_t slot, std::size_t group) const = 0;

  [[nodiscard]] bool reserve_kv(const Row& row);
  /// Blocks that belong to the caller; what they held is forgotten. False: too few.
  [[nodiscard]] bool take_blocks(std::size_t group, std::span<BlockId> blocks);
  /// Full KV blocks, and blocks of states whose boundary was passed, can be found from now on.
  void publish(const Sequence& sequence);
  /// The block of a column; throws std::logic_error for a null one.
  [[nodiscard]] SlotId block_at(std::size_t slot, std::size_t group, std::int32_t column) const;

  CacheOptions options_;
  Stream stream_ = Stream::default_stream();
  std::deque<Group> groups_;
  AlignPlanner planner_;
  CacheCounts counts_;

 private:
  struct Request {
    PromptHashes hashes;  ///< of the full KV blocks of all known tokens
    std::vector<BlockId> kv_blocks;
    std::size_t registered = 0;  ///< leading KV blocks that are found by hash
  };
  [[nodiscard]] AlignOptions planner_options(AlignMode mode, std::int32_t group_blocks) const;
  [[nodiscard]] std::int64_t longest_hit(const Sequence& sequence, std::span<const BlockHash> keys,
                                         std::size_t kv_blocks) const;
  void register_kv(const Sequence& sequence);
  void publish_states(const Sequence& sequence, std::size_t group);

  BlockHasher hasher_;
  BlockPool kv_;
  std::vector<Request> requests_;  ///< by request slot
};

}  // namespace stateport::engine
