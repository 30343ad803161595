// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/cache_event.hpp>
#include <stateport/core/serve/request_types.hpp>

#include "serve/event_queue.hpp"
#include "tier/tier_index.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace stateport::detail {

/// Publishes changes of the device cache to the event queue and to the tier index. Publishes changes of the tiers to
/// the event queue, too.
class CacheNews final : private TierListener {
 public:
  explicit CacheNews(bool events) : has_events_(events) {}
  CacheNews(const CacheNews&) = delete;
  CacheNews& operator=(const CacheNews&) = delete;

  /// The tiers, which must outlive all later calls.
  void set_tiers(TierIndex& tiers) noexcept { tiers_ = &tiers; }
  [[nodiscard]] TierListener* listener() noexcept { return has_events_ ? this : nullptr; }
  [[nodiscard]] bool has_events() const noexcept { return has_events_; }
  /// At most `events` wait to be taken.
  void reserve(std::size_t events) {
    if (has_events_) events_.reserve(events);
  }
  /// False: there is no listener, and the calls below may be left out.
  [[nodiscard]] bool on() const noexcept { return has_events_ || tiers_ != nullptr; }

  /// The KV of a block after `tokens` tokens lies in KV block `block`.
  void kv_stored(const PrefixHash& prefix, const PrefixHash& parent, std::int64_t tokens, std::int32_t block,
                 const NamespaceTag& tag) {
    push({.kind = CacheEvent::Kind::stored, .prefix = prefix, .parent = parent, .tokens = tokens});
    if (tiers_ != nullptr) tiers_->stores().kv_stored(prefix, parent, tokens, block, tag);
  }
  /// KV of the device lies elsewhere. No event: what can be found is the same.
  void kv_moved(std::span<const std::int32_t> moved_to) {
    if (tiers_ != nullptr) tiers_->stores().kv_moved(moved_to);
  }
  void kv_removed(const PrefixHash& prefix) {
    push({.kind = CacheEvent::Kind::removed, .prefix = prefix});
    if (tiers_ != nullptr) tiers_->stores().kv_lost(prefix);
  }
  void state_stored(std::int32_t group, const PrefixHash& prefix, std::int64_t tokens, SlotId slot) {
    push({.kind = CacheEvent::Kind::stored,
          .content = CacheContent::state,
          .group = group,
          .prefix = prefix,
          .tokens = tokens});
    if (tiers_ != nullptr) tiers_->stores().state_stored(prefix, static_cast<std::size_t>(group), slot);
  }
  void state_removed(std::int32_t group, const PrefixHash& prefix) {
    push({.kind = CacheEvent::Kind::removed, .content = CacheContent::state, .group = group, .prefix = prefix});
    if (withdraws_ && tiers_ != nullptr) tiers_->withdraw_state(prefix);
    if (tiers_ != nullptr) tiers_->stores().state_lost(prefix, static_cast<std::size_t>(group));
  }
  /// States that are removed from now on are withdrawn: no tier stores or keeps them.
  void set_withdrawing(bool withdraws) noexcept { withdraws_ = withdraws; }
  void cleared() { push({.kind = CacheEvent::Kind::cleared}); }
  std::size_t take(std::span<CacheEvent> out) { return events_.take(out); }

 private:
  void on_tier(Medium medium, bool stored, const ImageKey& image) override {
    push({.kind = stored ? CacheEvent::Kind::stored : CacheEvent::Kind::removed,
          .content = image.content,
          .medium = medium,
          .group = image.group,
          .prefix = image.prefix,
          .tokens = stored ? image.tokens : 0});
  }

  void push(const CacheEvent& event) noexcept {
    if (has_events_) events_.push(event);
  }

  bool has_events_;
  bool withdraws_ = false;
  EventQueue events_;
  TierIndex* tiers_ = nullptr;
};

}  // namespace stateport::detail
