// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/parts/image_types.hpp>

#include "evict/victim_order.hpp"
#include "image_entries.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace stateport::detail {

/// One tier of an ImageCache: its bytes, the order in which it evicts, and the queue of images that are to come into
/// it. Calls are O(1), besides the costs of VictimOrder. Nothing allocates after construction.
class ImageTier {
 public:
  static constexpr std::uint32_t none = ImageEntry::none;

  /// The arguments but the number must outlive this object.
  ImageTier(Medium medium, std::int64_t capacity, const EvictionPolicy& policy, ImageEntries& entries)
      : medium_(medium), capacity_bytes_(capacity), policy_(&policy), entries_(&entries), order_(policy.traits()) {
    order_.reserve(entries.capacity());
  }

  [[nodiscard]] Medium medium() const noexcept { return medium_; }
  [[nodiscard]] std::int64_t capacity_bytes() const noexcept { return capacity_bytes_; }
  [[nodiscard]] bool has(std::uint32_t at) const noexcept { return ((*entries_)[at].in & bit(medium_)) != 0; }

  /// The image is here from now on. `bytes` counts it already if it was coming.
  void enter(std::uint32_t at) noexcept {
    (*entries_)[at].in |= bit(medium_);
    ++usage.images;
  }
  void leave(std::uint32_t at, std::int64_t bytes) noexcept {
    ImageEntry& entry = (*entries_)[at];
    if (entry.is_leaving(medium_)) leaving_bytes -= bytes;
    entry.in &= static_cast<MediumSet>(~bit(medium_));
    usage.bytes -= bytes;
    --usage.images;
    order_.erase(source(), at);
  }

  /// An image that is here may be evicted.
  void offer(std::uint32_t at) { order_.offer(source(), at); }
  void used(std::uint32_t at) noexcept { order_.used(source(), at); }
  /// Writes the next victims and returns their number, at most out.size().
  [[nodiscard]] std::size_t peek(std::span<std::uint32_t> out) { return order_.peek(source(), out); }
  /// Whether the order evicts `at` before `other`.
  [[nodiscard]] bool precedes(std::uint32_t at, std::uint32_t other) const noexcept {
    return order_.precedes(source(), at, other);
  }
  /// False: the tier could evict the image, and the order has lost it.
  [[nodiscard]] bool is_complete(std::uint32_t at) const noexcept {
    return !source().eligible(at) || order_.contains(source(), at);
  }

  [[nodiscard]] std::uint32_t first_waiting() const noexcept { return head_; }
  void push_back(std::uint32_t at) noexcept {
    (*entries_)[at].waits = true;
    (*entries_)[at].next = none;
    if (head_ == none)
      head_ = at;
    else
      (*entries_)[tail_].next = at;
    tail_ = at;
  }
  void push_front(std::uint32_t at) noexcept {
    (*entries_)[at].waits = true;
    if (head_ == none) tail_ = at;
    (*entries_)[at].next = std::exchange(head_, at);
  }
  void pop_front() noexcept {
    ImageEntry& entry = (*entries_)[head_];
    entry.waits = false;
    head_ = std::exchange(entry.next, none);
  }

  ImageTierUsage usage;
  std::int64_t leaving_bytes = 0;  ///< of images that are being moved down and are still here
  std::int64_t queued_bytes = 0;   ///< of stores and copies into this tier that are not answered
  std::int64_t gap_bytes = 0;      ///< kept free, because images found no room
  bool gap_grew = false;           ///< since settle() began
  std::uint32_t busy = 0;          ///< transfers whose answer may make room here
  std::uint32_t loads = 0;         ///< from here
  bool writes_wait = false;        ///< stores and copies into this tier, for the end of a load

 private:
  /// The source of the VictimOrder.
  struct Source {
    const ImageTier& tier;
    [[nodiscard]] bool eligible(std::uint32_t at) const noexcept {
      return tier.has(at) && !(*tier.entries_)[at].is_held();
    }
    [[nodiscard]] std::uint64_t tick(std::uint32_t at) const noexcept { return (*tier.entries_)[at].used_tick; }
    [[nodiscard]] VictimKey key(std::uint32_t at) const noexcept {
      const ImageEntry& entry = (*tier.entries_)[at];
      return tier.policy_->key({.index = at,
                                .used_tick = entry.used_tick,
                                .created_tick = entry.created_tick,
                                .hits = entry.hits,
                                .end_tokens = entry.key.tokens});
    }
  };
  [[nodiscard]] Source source() const noexcept { return {*this}; }

  Medium medium_;
  std::int64_t capacity_bytes_;
  const EvictionPolicy* policy_;
  ImageEntries* entries_;
  VictimOrder<> order_;
  std::uint32_t head_ = none;
  std::uint32_t tail_ = none;
};

}  // namespace stateport::detail
