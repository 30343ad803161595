// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "serve/growing_hashes.hpp"
#include "serve/request_record.hpp"
#include "serve/tenant_marks.hpp"
#include "tier/tier_index.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::detail {

/// What an index found for a prompt.
struct OpenedPrompt {
  std::int64_t reused_tokens = 0;
  std::int64_t cached_tokens = 0;  ///< whose KV is cached, >= reused_tokens
  std::optional<LostHit> lost;
};

/// What the tiers ask of the index of the device.
class LoadTarget {
 public:
  /// The hashes of the whole blocks of the request's first `tokens` tokens, or of more.
  [[nodiscard]] virtual const GrowingHashes& hashes_of(RequestId request, std::int64_t tokens) = 0;
  /// How many leading tokens of the prompt have KV on the device that the request holds, or could hold now: others may
  /// have stored and evicted some since it was opened. What reserve_load() takes as `cached_tokens`.
  [[nodiscard]] virtual std::int64_t cached_now(RequestId request) = 0;
  /// So much of the prompt is cached, on the device or below: where it leaves that is a branch point.
  virtual void note_cached(RequestId /*request*/, std::int64_t /*tokens*/) {}
  /// Takes KV for the first `tokens` tokens, of which `cached_tokens` are on the device, and a slot in each group for
  /// the state after them, and keeps what the device has of them. The blocks of KV behind the cached ones go to
  /// `kv_blocks`. Without `slots` the state is on the device already, and is kept there. False: no room; nothing was
  /// taken but KV, which stays with the request.
  [[nodiscard]] virtual bool reserve_load(RequestId request, std::int64_t tokens, std::int64_t cached_tokens,
                                          std::vector<std::int32_t>& kv_blocks, std::span<SlotId> slots) = 0;
  /// `done`: KV and state are there, and can be found; the request continues from them as from any hit. Else what was
  /// taken goes back.
  virtual void end_load(RequestId request, std::int64_t tokens, bool done) = 0;
  /// The index may have given the request more memory, or other.
  virtual void note_memory(RequestId request) = 0;

 protected:
  ~LoadTarget() = default;
};

/// The part of a RequestCache that deals with tiers: what requests load, and what a TierIndex is told of them.
class RequestTiers final : public CacheTiers {
 public:
  /// What is named here must outlive it. `options` are checked, but for the tiers. `marks`, `listener`: null, or told.
  RequestTiers(RequestCache& cache, LoadTarget& target, std::span<RequestRecord> records, CacheStats& stats,
               TenantMarks* marks, TierListener* listener);

  [[nodiscard]] TransferPlan take_transfers() override;
  [[nodiscard]] std::size_t transfers_to_take() const noexcept override { return index_.transfers_to_take(); }
  std::int32_t settle(std::span<const TransferResult> results) override;
  [[nodiscard]] bool is_loading(RequestId request) const override;
  [[nodiscard]] std::size_t transfers_under_way() const noexcept override { return index_.transfers_under_way(); }
  void drain() override;
  bool attach(Medium medium, const ImageKey& image) override;
  void set_speeds(const TierSpeeds& speeds) override;
  [[nodiscard]] TierUsage usage(Medium medium) const override;

  [[nodiscard]] TierIndex& index() noexcept { return index_; }
  /// Throws InvalidState unless the transfers of the last plan or commit were taken.
  void check_taken(const char* call) const;
  /// A request was opened. If the remote tier may have more of its prompt, it is asked; if more is known to be below
  /// the device, and worth it, a load for it begins. Both as far as `search` goes. Fills in `started`, and counts the
  /// request unless it waits.
  void start(RequestId request, PromptSearch search, const OpenedPrompt& opened, StartedRequest& started);
  [[nodiscard]] bool waits(RequestId request) const noexcept {
    return requests_[request.index()].wait != Wait::nothing;
  }
  /// True: the request waits for its load, and ends when that does, as aborted.
  [[nodiscard]] bool end_later(RequestId request) noexcept;
  /// A request that has no load ends: it waits for answers no longer.
  void stop_asking(RequestId request) noexcept;
  [[nodiscard]] bool has_ended(RequestId request) const noexcept { return requests_[request.index()].ended; }
  /// As an index tells its own eviction policy: of a prompt once its states are made, and of what the request left.
  void tell_prompt(RequestId request, double now_s);
  void tell_end(RequestId request, const ReuseHint& hint, double now_s);
  /// A call of the cache ends; `planned`: the next one must wait until the transfers are taken.
  void end_call(bool planned);
  void check_reset() const;
  void check_invariants() const { index_.check_invariants(); }

 private:
  /// What is named next for a request.
  enum class Stage : std::uint8_t { states, kv, loads };
  enum class Wait : std::uint8_t { nothing, answers, load };
  struct Request {
    TierHit hit;                     ///< of a load that is under way
    std::int64_t device_tokens = 0;  ///< that are reused, now
    std::int64_t cached_tokens = 0;  ///< whose KV was on the device, or below and looked for
    std::int64_t opened_tokens = 0;  ///< whose KV was on the device when it began
    std::optional<LostHit> lost;
    Stage stage = Stage::states;
    Wait wait = Wait::nothing;
    bool ended = false;  ///< while it waited for its load
    bool told = false;   ///< the index was told of its prompt
    PromptPast past;
  };
  void look(RequestId request, std::int64_t cached_tokens);
  [[nodiscard]] bool ask(RequestId request, const PromptReach& reach);
  [[nodiscard]] bool begin_load(RequestId request, std::int64_t cached_tokens);
  [[nodiscard]] bool look_again(RequestId request);
  void finish_load(RequestId request, bool done);
  void go_on(RequestId request);
  void count(RequestId request) noexcept;

  RequestCache& cache_;
  LoadTarget& target_;
  std::span<RequestRecord> records_;
  CacheStats& stats_;
  TenantMarks* marks_;
  std::int64_t block_size_;
  TierIndex index_;
  std::vector<Request> requests_;
  bool untaken_ = false;  ///< transfers of a plan or a commit
  std::vector<std::int32_t> load_blocks_;
  std::vector<SlotId> load_slots_;
};

}  // namespace stateport::detail
