// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/parts/image_cache.hpp>

#include "image_entries.hpp"
#include "image_requests.hpp"
#include "image_tier.hpp"
#include "tier/tier_transfers.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace stateport {

/// Who changes an entry ends with tidy(): it releases one that holds nothing, and offers the others for eviction.
class ImageCache::Impl {
 public:
  using Task = detail::ImageEntry::Task;
  static constexpr std::uint32_t none = detail::ImageEntry::none;

  explicit Impl(const ImageCacheOptions& options);

  /// Throws InvalidArgument for a key that this cache has no images of.
  void check(std::span<const ImageKey> images) const;
  void check(std::span<const ImageKey> images, std::span<const std::int32_t> places) const;
  void check(std::span<const TransferResult> results);

  [[nodiscard]] detail::ImageTier& tier(Medium medium) noexcept { return tiers_[place_of_[detail::index_of(medium)]]; }
  [[nodiscard]] const detail::ImageTier& tier(Medium medium) const noexcept {
    return tiers_[place_of_[detail::index_of(medium)]];
  }
  [[nodiscard]] bool has_tier(Medium medium) const noexcept {
    return medium < Medium::elsewhere && place_of_[detail::index_of(medium)] < tiers_.size();
  }

  void put(const ImageKey& image, std::int32_t place, RequestId request);
  /// False: no tier has it, or the request can wait for no more images.
  [[nodiscard]] bool get(const ImageKey& image, std::int32_t place, RequestId request);
  void ask(const ImageKey& image, RequestId request);
  void remove(const ImageKey& image);
  void drain();
  /// Results that follow are of one call.
  void begin_settle() noexcept {
    for (detail::ImageTier& tier : tiers_) tier.gap_grew = false;
  }
  void settle(const TransferResult& result);
  /// Starts whatever has room now, and answers the plan of the call.
  [[nodiscard]] ImagePlan plan(RequestId request = {});

  void use(std::uint32_t at) noexcept;
  void tidy(std::uint32_t at);
  [[nodiscard]] bool attach(Medium medium, const ImageKey& image);
  void check_invariants() const;

  detail::ImageEntries& entries() noexcept { return entries_; }
  detail::ImageRequests& requests() noexcept { return requests_; }
  [[nodiscard]] std::size_t under_way() const noexcept { return transfers_.size() + waiting_; }
  [[nodiscard]] std::size_t transfers_max() const noexcept { return transfers_max_; }

 private:
  enum class Room : std::uint8_t { now, later, none };

  [[nodiscard]] std::int64_t bytes_of(const ImageKey& key) const noexcept {
    return key.content == CacheContent::state ? options_.state_image_bytes[static_cast<std::size_t>(key.group)]
                                              : options_.kv_image_bytes;
  }
  [[nodiscard]] std::int64_t bytes_of(std::uint32_t at) const noexcept { return bytes_of(entries_[at].key); }
  /// Null below the slowest tier.
  [[nodiscard]] detail::ImageTier* below(const detail::ImageTier& tier) noexcept {
    return &tier == &tiers_.back() ? nullptr : &tiers_[place_of_[detail::index_of(tier.medium())] + 1];
  }
  void begin(std::uint32_t at, Task task, Medium from, Medium to);
  [[nodiscard]] bool work_off(detail::ImageTier& tier);
  [[nodiscard]] Room turn(detail::ImageTier& tier, std::uint32_t at);
  [[nodiscard]] Room make_room(detail::ImageTier& tier, std::uint32_t at);
  void evict(detail::ImageTier& tier, std::uint32_t at);
  void leave(detail::ImageTier& tier, std::uint32_t at);
  void start(detail::ImageTier& tier, std::uint32_t at);
  void refuse(detail::ImageTier& tier, std::uint32_t at);
  [[nodiscard]] bool can_try_again(detail::ImageTier& tier, std::uint32_t at);
  void end_task(std::uint32_t at, bool arrived);
  void arrived(const detail::UnderWay& part, TransferStatus status);
  void loaded(const detail::UnderWay& part, TransferStatus status);
  void found(const detail::UnderWay& part, TransferStatus status);

  ImageCacheOptions options_;
  std::shared_ptr<EvictionPolicy> policy_;
  detail::ImageEntries entries_;
  std::vector<detail::ImageTier> tiers_;                 ///< from the fastest on
  std::array<std::size_t, medium_count> place_of_ = {};  ///< by medium: in tiers_, or its size
  detail::ImageRequests requests_;
  detail::TierTransfers transfers_;
  std::size_t transfers_max_;
  std::size_t waiting_ = 0;
  std::uint64_t tick_ = 0;
  std::vector<TransferId> ids_;         ///< scratch of check()
  std::vector<std::uint32_t> victims_;  ///< scratch of make_room()
};

}  // namespace stateport
