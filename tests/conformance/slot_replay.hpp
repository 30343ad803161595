// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/block_pool.hpp>
#include <stateport/core/pool/slot_pool.hpp>
#include <stateport/core/slots/slot_allocator.hpp>
#include <stateport/parts/checkpoint_planner.hpp>

#include "suite.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stateport::conformance {

[[nodiscard]] std::vector<BlockId> blocks_of(const Json& list);
[[nodiscard]] Json ids_json(std::span<const BlockId> blocks);
[[nodiscard]] Json ids_json(std::span<const SlotId> slots);

/// The prefill chunk that an "offsets" row or op describes.
[[nodiscard]] PrefillChunk chunk_of(const Json& row, std::int32_t prefill_row, SlotId live_slot,
                                    std::span<const BlockId> blocks, std::span<const PrefixHash> prefixes);
/// {offsets, blocks, eos_block, has_any}
[[nodiscard]] Json planned_json(const PlannedCheckpoints& planned, bool has_any);

/// A block pool whose free blocks can be given made-up ref counts, ticks and hashes, as some recorded cases do
/// (kv_set). For blocks in use kv_set becomes real operations.
class TamperedPool final : public BlockDirectory {
 public:
  explicit TamperedPool(const BlockPoolOptions& options) : pool_(options) {}

  [[nodiscard]] BlockPool& pool() noexcept { return pool_; }
  void set_ref_count(BlockId block, std::int32_t count);
  void set_tick(BlockId block, std::int64_t tick);
  void set_hash(BlockId block, BlockHash hash) { made_up_[block].hash = hash; }
  /// Forgets the invented hash, count and tick of these blocks: they are in use now.
  void forget(std::span<const BlockId> blocks);

  [[nodiscard]] std::int32_t block_count() const noexcept override { return pool_.block_count(); }
  [[nodiscard]] std::int32_t ref_count(BlockId block) const override;
  [[nodiscard]] std::int64_t last_use_tick(BlockId block) const override;
  [[nodiscard]] BlockHash hash(BlockId block) const override;
  [[nodiscard]] BlockId parent(BlockId block) const override { return pool_.parent(block); }
  [[nodiscard]] std::size_t find_prefix(std::span<const BlockHash> hashes, std::span<BlockId> out) const override {
    return pool_.find_prefix(hashes, out);
  }
  void add_listener(BlockListener& listener) override;
  void remove_listener(BlockListener& listener) noexcept override;

 private:
  struct MadeUp {
    std::optional<std::int32_t> ref_count;
    std::optional<std::int64_t> tick;
    std::optional<BlockHash> hash;
  };
  void tell(BlockId block);

  BlockPool pool_;
  std::map<BlockId, MadeUp> made_up_;
};

/// Replays the ops of one recorded case on the library and on plain payload arrays, which only the copy plans change.
class SlotReplay {
 public:
  explicit SlotReplay(const Json& config);

  /// Runs one op and compares result or error, and the state if the op has one. Throws if they differ.
  void run(const Json& op);
  /// Runs one op of a hazard case: whatever was recorded, the safe rules hold afterwards.
  void run_safely(const Json& op);
  /// Compares every part of the state that `expected` has.
  void expect_state(const Json& expected) const;
  [[nodiscard]] Json state(const Json& parts) const;
  [[nodiscard]] SlotAllocator& states() noexcept { return states_; }
  void check_invariants() const;

 private:
  using Layers = std::array<std::vector<std::int64_t>, 2>;
  struct Payload {
    Layers ssm;
    Layers conv;
    void resize(std::size_t slots);
    void fill(std::size_t slot, const Json& args);
    [[nodiscard]] Json read(std::size_t slot) const;
  };

  [[nodiscard]] Json call(const std::string& op, const Json& args);
  // Each runs the ops of its kind; false for another op.
  [[nodiscard]] bool call_slots(const std::string& op, const Json& args, Json& result);
  [[nodiscard]] bool call_blocks(const std::string& op, const Json& args, Json& result);
  [[nodiscard]] bool call_payload(const std::string& op, const Json& args, Json& result);
  [[nodiscard]] bool call_planner(const std::string& op, const Json& args, Json& result);
  [[nodiscard]] bool refused_by_rule(const std::string& op, const Json& args);
  void expect_refusal(const Json& op, const std::string& error);
  [[nodiscard]] Json allocate_slots(const Json& args);
  void set_blocks(const Json& args);
  [[nodiscard]] Json plan(const Json& args);
  [[nodiscard]] Json commit();
  [[nodiscard]] SlotId live_slot(std::int64_t request) const;
  static void execute(CopyPlan plan, const Payload& from, Payload& to, bool same_store);

  TamperedPool blocks_;
  SlotPool slots_;
  SlotAllocator states_;
  CheckpointPlanner planner_;
  Payload cached_;
  Payload live_;
  Payload scratch_;
  std::map<std::int64_t, SlotId> live_slots_;                ///< by request
  std::map<std::int64_t, std::vector<BlockId>> block_rows_;  ///< by request
  std::int64_t first_prefill_ = 0;
  /// (hash, block) that were recorded for a block without a slot: the library refuses them.
  std::set<std::pair<BlockHash, std::int32_t>> refused_;
};

}  // namespace stateport::conformance
