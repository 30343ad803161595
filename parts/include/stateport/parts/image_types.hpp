// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/model/ids.hpp>
#include <stateport/core/tier/transfer_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// Options and answers of an ImageCache.
namespace stateport {

/// Without room for images in any tier there is no cache.
struct ImageCacheOptions {
  std::int64_t host_bytes = 0;    ///< for images on the host; 0: no host tier
  std::int64_t file_bytes = 0;    ///< for images in files; 0: no file tier
  std::int64_t remote_bytes = 0;  ///< of images in the remote tier that this cache remembers; 0: no remote tier
  /// The bytes that the image of one KV block takes in a tier (ImageLayout::image_bytes). 0: there are no images of KV.
  std::int64_t kv_image_bytes = 0;
  std::vector<std::int64_t> state_image_bytes = {};  ///< [groups] the same of the state of each group
  /// Images go to the slowest tier as soon as a faster one has them, and stay in both. False: when the faster one
  /// evicts them, to the next one. Without effect with one tier.
  bool write_through = false;
  /// The bytes of stores and copies that are under way into files at a time, and into the remote tier. More of them
  /// wait. At most as many as the mover of the bytes takes: of a StateTiers its staging memory and its queue.
  std::int64_t queue_bytes = std::int64_t{64} << 20;
  /// Every order but hix, gdsf and priority, which rank by facts that a key alone does not tell.
  EvictionOrder eviction = EvictionOrder::lru;
  /// The images that requests may wait for at a time, at most. A call counts images beyond it as missing.
  std::size_t images_under_way_max = std::size_t{1} << 16;
};

/// A put, get or ask that has ended.
struct EndedImages {
  RequestId request;
  std::int64_t missing = 0;  ///< put: images that no tier has; get: that were not loaded; ask: that are nowhere
  friend constexpr bool operator==(const EndedImages&, const EndedImages&) noexcept = default;
};

/// The answer of a call. The spans are valid until the next call that answers a plan.
struct ImagePlan {
  RequestId request;                    ///< the number of this put, get or ask; of other calls: none
  std::span<const Transfer> transfers;  ///< to be carried out in this order
  std::span<const EndedImages> ended;   ///< requests that have ended with this call
};

/// Contents of one tier, and its work since construction.
struct ImageTierUsage {
  std::int64_t images = 0;
  std::int64_t bytes = 0;           ///< with the images that are on their way into the tier
  std::int64_t written_images = 0;  ///< into the tier
  std::int64_t read_images = 0;     ///< by loads
  std::int64_t evicted_images = 0;  ///< left for others, with those that went to the next tier
  std::int64_t refused_images = 0;  ///< found no room, or were not written
  std::int64_t lost_images = 0;     ///< were missing or damaged when they were read
  std::int64_t asked_images = 0;    ///< finds that were answered
  std::int64_t found_images = 0;    ///< finds that were `done`
  friend constexpr bool operator==(const ImageTierUsage&, const ImageTierUsage&) noexcept = default;
};

}  // namespace stateport
