// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tier/admission.hpp"
#include "tier/load_time.hpp"
#include "tier/residency.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::detail {

/// The part of a prompt that a request can load from the tiers.
struct TierHit {
  std::int64_t tokens = 0;         ///< 0: nothing; else the request can start behind these
  std::int64_t walked_tokens = 0;  ///< whose KV is on the device or below
  std::int64_t bytes = 0;          ///< to load
  Medium medium = Medium::device;  ///< the slowest tier that something is loaded from; elsewhere: none of them
  std::int64_t gained_tokens = 0;  ///< beyond the device's own hit
  double saved_s = 0;              ///< time of computing these less that of the load; 0: not known
  bool costs_more = false;         ///< there was a hit, but computing is faster
  bool device_state = false;       ///< its state is on the device: KV alone is loaded
};

/// Finds the hits of prompts in the tiers, and loads them: find(), hold(), load(), then one end_part() for each image.
/// A hit that is not loaded after hold() is let go.
class TierLoads {
 public:
  TierLoads(const TierSetup& setup, Residency& contents, Admission& admission, TierTransfers& transfers,
            const LoadTime& times);

  /// The deepest position, at most `usable_tokens` and beyond `device_tokens`, whose state is below the device, or on
  /// it with KV that is not (TierSetup::states_apart), and whose KV is on it (the first `cached_tokens`) or below, if
  /// loading it is worth it. O(blocks).
  [[nodiscard]] TierHit find(std::span<const PrefixHash> prefixes, std::int64_t device_tokens,
                             std::int64_t cached_tokens, std::int64_t usable_tokens);
  /// The contents of the hit are not evicted before let_go(), or the end of the load.
  void hold(const TierHit& hit, std::span<const PrefixHash> prefixes, std::int64_t cached_tokens);
  void let_go(const TierHit& hit, std::span<const PrefixHash> prefixes, std::int64_t cached_tokens);
  /// Names the loads of the hit: the KV of blocks from `cached_tokens` on, into kv_blocks[i], and the state, into
  /// slots[g]; no slots for a state that is on the device. The stores of the last flush() must not read these places.
  void load(RequestId request, const TierHit& hit, std::span<const PrefixHash> prefixes, std::int64_t cached_tokens,
            std::span<const std::int32_t> kv_blocks, std::span<const SlotId> slots);
  /// One image of a load was answered. After the last one: whether all images were loaded.
  std::optional<bool> end_part(const UnderWay& part, TransferStatus status);
  /// The number of images that are not answered yet.
  [[nodiscard]] std::size_t unanswered() const noexcept;

 private:
  struct Load {
    TierHit hit;
    std::int64_t left = 0;  ///< images; 0: nothing is loaded
    bool failed = false;
    std::vector<std::uint32_t> nodes;  ///< of KV, and last that of the state if it is loaded
  };

  [[nodiscard]] std::size_t kv_reaches(std::span<const PrefixHash> prefixes, std::size_t cached,
                                       std::int64_t usable_tokens) const;
  template <class Visit>
  void for_each_content(const TierHit& hit, std::span<const PrefixHash> prefixes, std::int64_t cached_tokens,
                        Visit&& visit);

  Residency& contents_;
  TierLevels& levels_;
  TierNodes& nodes_;
  Admission& admission_;
  TierTransfers& transfers_;
  const LoadTime& times_;
  std::int64_t block_size_;
  KvDirectory* kv_elsewhere_;
  std::vector<Load> loads_;  ///< by request
};

}  // namespace stateport::detail
