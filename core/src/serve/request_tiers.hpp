// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "serve/prefix_waits.hpp"
#include "serve/request_book.hpp"
#include "serve/request_index.hpp"
#include "serve/request_record.hpp"
#include "serve/tenant_marks.hpp"
#include "tier/tier_index.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::detail {

/// Loads of rows that belong to no request (HeldPrefixes).
class PrefixLoads {
 public:
  /// The row may take memory for the first `tokens` tokens, of which `cached_tokens` are on the device.
  [[nodiscard]] virtual bool may_load(RequestId row, std::int64_t tokens, std::int64_t cached_tokens) = 0;
  /// The row waits for nothing any more.
  virtual void end_load(RequestId row) = 0;

 protected:
  ~PrefixLoads() = default;
};

/// The part of a RequestCache that deals with tiers: the loads of requests, and reports about requests to a TierIndex.
class RequestTiers final : public CacheTiers {
 public:
  /// The arguments must outlive it. The options are checked, but for the tiers. `marks` and `waits` may be null.
  RequestTiers(RequestCache& cache, RequestBook& book, RequestIndex& device, TenantMarks* marks, PrefixWaits* waits);

  SettledTransfers settle(std::span<const TransferResult> results) override;
  [[nodiscard]] bool is_loading(RequestId request) const override;
  [[nodiscard]] std::size_t transfers_under_way() const noexcept override { return index_.transfers_under_way(); }
  [[nodiscard]] std::size_t transfers_max() const noexcept override { return index_.transfers_max(); }
  [[nodiscard]] TransferPlan drain() override;
  bool attach(Medium medium, const ImageKey& image) override;
  void set_speeds(const TierSpeeds& speeds) override;
  [[nodiscard]] TierUsage usage(Medium medium) const override;

  [[nodiscard]] TierIndex& index() noexcept { return index_; }
  /// A request was opened. If the remote tier may have more of its prompt, it is asked; if more is known to be below
  /// the device, and worth it, a load for it begins. Both as far as `search` goes. Fills in `started`.
  void start(RequestId request, PromptSearch search, const OpenedPrompt& opened, StartedRequest& started);
  /// The request is a fork, and waits for nothing.
  void fork(RequestId request) noexcept;
  /// The request, which does not wait, was looked up again on the device, and reuses more of its prompt.
  void refresh(RequestId request) noexcept;
  /// Counts the hit of the request, and its losses.
  void count(RequestId request) noexcept;
  [[nodiscard]] bool waits(RequestId request) const noexcept {
    return requests_[request.index()].wait != Wait::nothing;
  }
  /// O(requests).
  [[nodiscard]] WaitingRequests waiting() const noexcept;
  /// True: the request waits for its load, and ends when that does, as aborted.
  [[nodiscard]] bool end_later(RequestId request) noexcept;
  /// The row, of no request, is closed when all that it waits for has ended.
  void end_after_load(RequestId row) noexcept { records_[row.index()].ending = true; }
  void set_prefix_loads(PrefixLoads& loads) noexcept { prefix_loads_ = &loads; }
  /// A request that has no load ends: it waits for answers no longer.
  void stop_asking(RequestId request) noexcept;
  /// As an index reports to its own eviction policy: a prompt once its states are made, and the last state that the
  /// request left.
  void report_prompt(RequestId request, double now_s);
  void report_end(RequestId request, const ReuseHint& hint, double now_s);
  /// A call of the cache ends.
  void end_call() { index_.flush(); }
  /// Forgets these contents in all tiers. The requests of these namespaces are stale already.
  void forget(const Forgotten& forgotten);
  /// All transfers that were decided and not taken.
  [[nodiscard]] TransferPlan take_transfers();
  void check_invariants() const { index_.check_invariants(); }

 private:
  /// The transfers that are named next for a request.
  enum class Stage : std::uint8_t { states, kv, loads };
  enum class Wait : std::uint8_t { nothing, answers, load };
  struct Request {
    TierHit hit;                     ///< of a load that is under way
    std::int64_t device_tokens = 0;  ///< that are reused, now
    std::int64_t cached_tokens = 0;  ///< whose KV was on the device, or below and looked for
    std::int64_t opened_tokens = 0;  ///< whose KV was on the device when it began
    std::int64_t loaded_tokens = 0;  ///< of device_tokens: that its load brought
    std::optional<LostHit> lost;
    Stage stage = Stage::states;
    Wait wait = Wait::nothing;
    bool reported = false;  ///< the index was told of its prompt
    PromptPast past;
  };
  void look(RequestId request, std::int64_t cached_tokens);
  [[nodiscard]] bool ask(RequestId request, const PromptReach& reach);
  [[nodiscard]] bool begin_load(RequestId request, std::int64_t cached_tokens);
  [[nodiscard]] bool look_again(RequestId request);
  void finish_load(RequestId request, bool done);
  void go_on(RequestId request);

  RequestCache& cache_;
  RequestIndex& device_;
  std::span<RequestRecord> records_;
  std::span<OpenedPrompt> opened_;
  const TailUse& tails_;
  CacheStats& stats_;
  TenantMarks* marks_;
  StateChecks* checks_;  ///< null: the cache has none
  PrefixWaits* waits_;
  PrefixLoads* prefix_loads_ = nullptr;
  std::int64_t block_size_;
  TierIndex index_;
  std::vector<Request> requests_;
  std::vector<std::int32_t> load_blocks_;
  std::vector<SlotId> load_slots_;
};

}  // namespace stateport::detail
