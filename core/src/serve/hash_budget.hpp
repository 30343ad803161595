// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/slot_pool.hpp>
#include <stateport/core/slots/slot_allocator.hpp>

#include "serve/elastic_index.hpp"
#include "serve/hashed_kv.hpp"
#include "serve/request_book.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace stateport::detail {

/// What HashSlots evicts where KV and checkpoints share one memory, by a budget or in an arena. States are the
/// candidates: KV is evicted as soon as no state needs it, since no request can continue from it.
class HashBudget final : public ElasticIndex {
 public:
  /// The arguments must outlive this.
  HashBudget(RequestBook& book, HashedKv& kv, SlotPool& slots, SlotAllocator& allocator);

  /// The allocator evicted the state of this block.
  void note_victim(BlockId block) {
    if (shares_ || trims_) victims_.push_back(block);
  }
  /// Evicts the KV that only these states needed, whose memory the allocator has given away.
  void drop_useless_of_victims();
  /// Gives the states that the request made or continued from ticks of their own, the deepest first, so that their
  /// order never depends on block ids. When it began there was a state after `known_tokens` tokens.
  void order_uses(RequestId request, std::int64_t known_tokens);
  /// If no state and no request needs this block it is evicted, and those before it, up to one that is needed.
  void drop_useless(BlockId block);
  /// Evicts down to SlotLayout::budget_bytes, if that is set.
  void keep();
  /// Checkpoints that there are.
  [[nodiscard]] std::int64_t states() const noexcept;

  [[nodiscard]] std::int32_t free_numbers(MemoryPart part) const noexcept override;
  [[nodiscard]] bool is_free(MemoryPart part, std::int32_t number) const override;
  void close(MemoryPart part, std::span<const NumberRange> ranges) override;
  void open(MemoryPart part, std::int32_t first, std::int32_t count) override;
  void count_movable(MemoryPart part, std::int32_t count, std::span<std::int32_t> by_extent) override;
  void vacate(MemoryPart part, std::vector<SlotCopy>& copies) override;
  bool evict_least() override;
  /// See SharedIndex: a state goes with the KV that it alone needed.
  bool evict_own();
  bool evict_held_state() override;
  /// Evicts a demoted state (SessionBook). False: there is none.
  bool evict_demoted_state();

 private:
  [[nodiscard]] bool is_movable(MemoryPart part, std::int32_t number) const;
  /// Where tenants have shares: the asking tenant may have the block evicted.
  [[nodiscard]] bool is_takeable(BlockId block) const;
  bool drop_rest();

  RequestBook& book_;
  HashedKv& kv_;
  SlotPool& slots_;
  SlotAllocator& allocator_;
  bool shares_;                   ///< KV and states share one memory
  bool trims_ = false;            ///< evict_own() runs
  std::int32_t next_held_ = 0;    ///< slot at which evict_held_state() goes on
  std::vector<BlockId> victims_;  ///< whose states were evicted since the last drop_useless_of_victims()
  /// By account: the end of useless KV that the floor of its tenant kept. It goes before any state of that tenant.
  std::vector<BlockId> rests_;
};

}  // namespace stateport::detail
