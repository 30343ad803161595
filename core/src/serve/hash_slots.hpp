// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/slots/prefix_matcher.hpp>
#include <stateport/core/slots/slot_allocator.hpp>

#include "serve/hash_budget.hpp"
#include "serve/hashed_kv.hpp"
#include "serve/request_index.hpp"

#include <cstdint>
#include <vector>

namespace stateport::detail {

/// The index by block hash with states in slots: requests run in live slots of their own; a KV block may have a
/// checkpoint in another.
class HashSlots final : public RequestIndex, private BlockListener {
 public:
  explicit HashSlots(RequestBook& book);
  ~HashSlots() override;

  [[nodiscard]] CacheUsage usage() const noexcept override;

  std::optional<OpenedPrompt> open(RequestId request, const PromptNames& names) override;
  std::optional<OpenedPrompt> refresh(RequestId request) override;
  [[nodiscard]] bool fork(RequestId fork, RequestId point, bool takes_over) override;
  [[nodiscard]] PromptChunk split(const RequestRecord& record, std::int64_t start, std::int64_t tokens) const override;
  bool reserve(RequestId request, std::int64_t upto) override { return kv_.reserve(request, upto); }
  void place(Pass& pass, std::size_t index) override;
  void unplace(Pass&) override {}
  void settle(Pass& pass, std::size_t index, std::int32_t sampled) override;
  [[nodiscard]] std::int64_t quiet_until(RequestId request) const override;
  void publish(Pass& pass) override;
  void close(RequestId request, RequestEnd how, const ReuseHint& hint) override;
  [[nodiscard]] bool has_state(RequestId request, std::int64_t tokens) const override;
  void forget_all() override;
  void forget(const Forgotten& forgotten) override;
  void withdraw(std::size_t group, SlotId slot) override;
  [[nodiscard]] KvRow kv_of(RequestId request) const override { return kv_.row(request); }
  [[nodiscard]] std::span<const std::int32_t> slots_of(RequestId request, std::size_t) const override {
    return columns_of(requests_[request.index()].columns);
  }
  [[nodiscard]] const GrowingHashes& hashes_of(RequestId request, std::int64_t) override { return kv_.hashes(request); }
  [[nodiscard]] std::int64_t cached_now(RequestId request) override {
    return std::ssize(kv_.blocks(request)) * options_.block_size_tokens;
  }
  [[nodiscard]] bool reserve_load(RequestId request, std::int64_t tokens, std::int64_t cached_tokens,
                                  std::vector<std::int32_t>& kv_blocks, std::span<SlotId> slots) override;
  SlotId end_load(RequestId request, std::int64_t tokens, bool done) override;
  bool evict_own() override { return budget_.evict_own(); }
  void check() const override;

 private:
  struct Request {
    LiveColumns columns = no_columns;
    SlotId pinned;                  ///< the checkpoint that the first pass restores
    SlotId loading;                 ///< where a checkpoint is loaded to, pinned
    std::int64_t known_tokens = 0;  ///< of the deepest state that was there when it began
    bool reported = false;          ///< the eviction policy knows of it, or will after this commit
    PromptPast past;                ///< the policy's knowledge then
  };
  struct Recency {
    BlockId block;
    std::int64_t tick = 0;
  };
  /// Where the state of a checkpoint is when the pass is over.
  enum class Source : std::uint8_t { scratch, live, step };
  struct Checkpoint {
    RequestId request;
    BlockId block;
    StateTag tag;
    Source source = Source::live;
    SlotId from;           ///< scratch or live
    std::int32_t row = 0;  ///< step: of the pass
    std::int32_t step = 0;
    bool named = false;  ///< a position of Prompt::breakpoints
  };

  void on_blocks_unreferenced(std::span<const BlockId>) override {}
  void on_blocks_deregistered(std::span<const BlockId> blocks, std::span<const BlockHash> hashes) override;

  [[nodiscard]] BlockMatch look_up(RequestId request);
  [[nodiscard]] OpenedPrompt take_hit(RequestId request, const BlockMatch& match);
  void note(RequestId request, std::int64_t tokens, Checkpoint checkpoint);
  void keep_what_fits(std::int64_t available);
  void take_slots_by_shares();
  void store(const Checkpoint& checkpoint, SlotId slot);
  void make_findable(RequestId request, BlockId block, const StateTag& tag, SlotId slot);
  void lose_state(BlockId block);
  void report_prompt(RequestId request);
  void report_end(RequestId request, const ReuseHint& hint);

  HashedKv kv_;
  SlotPool slots_;
  SlotAllocator allocator_;
  HashBudget budget_;
  PrefixMatcher matcher_;
  std::vector<Request> requests_;
  std::vector<Checkpoint> checkpoints_;  ///< of this commit
  std::vector<BlockId> blocks_;
  std::vector<SlotId> given_;
  std::vector<RequestId> to_report_;      ///< whose prompts this commit completed
  std::vector<SlotId> published_slot_;    ///< by block: where its state was published
  std::vector<PrefixHash> state_prefix_;  ///< by slot
  std::vector<BlockId> matched_;
  std::vector<std::int64_t> positions_;  ///< of the saves of one row
  std::vector<Recency> passed_over_;     ///< of one lookup
  std::int64_t lost_with_blocks_ = 0;    ///< states that went with their block
  std::vector<std::uint32_t> noted_;     ///< by block: the last commit that noted a checkpoint for it
  std::uint32_t commit_ = 1;
  std::vector<std::uint8_t> is_loading_;  ///< by block: a state is being loaded into its slot
};

}  // namespace stateport::detail
