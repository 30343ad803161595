// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "serve/prefix_waits.hpp"
#include "serve/request_book.hpp"
#include "serve/request_index.hpp"
#include "serve/request_tiers.hpp"

#include <optional>

namespace stateport::detail {

/// How much of its prompt a request reuses: the lookup of its start, later ones, and waits for other requests.
class RequestLookups {
 public:
  /// The arguments must outlive it.
  RequestLookups(RequestBook& book, RequestIndex& index);

  /// Null if prompts do not wait for other requests.
  [[nodiscard]] PrefixWaits* prefix_waits() noexcept { return waits_ ? &*waits_ : nullptr; }
  void set_tiers(RequestTiers& tiers) noexcept { tiers_ = &tiers; }

  /// The request was opened, and begins from there unless it waits for something.
  [[nodiscard]] StartedRequest start(RequestId request, PromptSearch search, const OpenedPrompt& opened);
  /// See RequestCache. The request has not begun, and is in no outstanding pass.
  [[nodiscard]] std::optional<StartedRequest> refresh(RequestId request);
  /// With these options requests can wait.
  [[nodiscard]] bool can_wait() const noexcept { return tiers_ != nullptr || waits_; }
  /// The request waits for a tier or for another request.
  [[nodiscard]] bool waits(RequestId request) const noexcept {
    return (tiers_ != nullptr && tiers_->waits(request)) || (waits_ && waits_->waits(request));
  }
  [[nodiscard]] WaitingRequests waiting() const noexcept {
    WaitingRequests waiting = tiers_ != nullptr ? tiers_->waiting() : WaitingRequests{};
    if (waits_) waiting.for_requests = waits_->waiting();
    return waiting;
  }
  /// The request begins to compute.
  void begin(RequestId request) noexcept;
  /// Counts the hit and the losses of a request that begins, or ends without that.
  void count(RequestId request) noexcept;
  /// The request ends: it computes nothing more.
  void end(RequestId request);
  /// A pass was committed.
  void commit();
  void check() const;

 private:
  [[nodiscard]] StartedRequest answer(StartedRequest started) const;
  [[nodiscard]] bool look_up_again(RequestId request);
  void end_waits();

  RequestBook& book_;
  RequestIndex& index_;
  std::optional<PrefixWaits> waits_;  ///< with options.share_running
  RequestTiers* tiers_ = nullptr;
};

}  // namespace stateport::detail
