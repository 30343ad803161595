// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <stateport/core/hash/block_hasher.hpp>
#include <stateport/core/pool/block_pool.hpp>
#include <stateport/core/pool/slot_pool.hpp>
#include <stateport/core/slots/checkpoint_planner.hpp>
#include <stateport/core/slots/prefix_matcher.hpp>
#include <stateport/core/slots/slot_allocator.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "cache.hpp"
#include "live_slots.hpp"

namespace stateport::engine {

/// Finds states by block hash: a block of KV may have a slot with the state after it. Prefill takes checkpoints where
/// CheckpointPlanner says; decoding takes one wherever a step ends on a block boundary.
///
/// One store holds everything: slots that the pool gave the engine for good are live, all others belong to blocks.
class SlotsCache final : public EngineCache {
 public:
  explicit SlotsCache(const CacheOptions& options);

  [[nodiscard]] bool start(Sequence& sequence) override;
  [[nodiscard]] bool reserve(const Row& row) override;
  void before_forward(std::span<const Row> rows) override;
  void read_state(const Row& row, ModelState& state) override { states_.read(live(*row.sequence), state); }
  void wrote_state(const Row& row, std::int64_t done, const ModelState& state) override;
  void after_forward(std::span<const Row> rows) override;
  void stop(Sequence& sequence, bool aborted) override;
  void reset() override;
  [[nodiscard]] std::size_t kv_indices() const override;
  [[nodiscard]] CacheCounts counts() const override;
  void check_invariants() const override;

 private:
  struct Request {
    PromptHashes hashes;          ///< of the full blocks of all known tokens
    std::vector<BlockId> blocks;  ///< its row of the block table
    std::size_t registered = 0;   ///< leading blocks that are found by hash
    std::int32_t matched_blocks = 0;
    std::int64_t skip = 0;  ///< tokens that the next chunk leaves out
    bool restored = true;   ///< the live slot holds what `start` found
    RestorePlan restore;
    SlotId pinned;  ///< the restore's source
  };

  [[nodiscard]] SlotId live(const Sequence& sequence) const { return live_[static_cast<std::size_t>(sequence.slot)]; }
  [[nodiscard]] Request& request(const Sequence& sequence) {
    return requests_[static_cast<std::size_t>(sequence.slot)];
  }
  void restore(std::span<const Row> rows);
  void plan_checkpoints(std::span<const Row> rows);
  void register_blocks(const Sequence& sequence);
  void checkpoint_live(const Sequence& sequence);

  CacheOptions options_;
  BlockHasher hasher_;
  BlockPool blocks_;
  SlotPool slots_;
  std::vector<SlotId> live_;  ///< by request slot
  SlotAllocator allocator_;
  PrefixMatcher matcher_;
  CheckpointPlanner planner_;
  LiveSlots states_;
  DeviceResource memory_;
  StateStore scratch_;  ///< what the scan saves inside chunks, packed by rows
  StateIo scratch_io_;
  SlotCopier committer_;
  std::vector<Request> requests_;            ///< by request slot
  std::vector<PlannedCheckpoints> planned_;  ///< by row of the batch
  std::vector<std::int32_t> first_scratch_;  ///< by row of the batch
  CacheCounts counts_;
};

}  // namespace stateport::engine
