// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tier/transfer_plan.hpp>

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace stateport {

/// KV that an engine keeps where no tier of ours is.
class KvDirectory {
 public:
  /// How many of these blocks, from the first one on, can be loaded. Each is named by its prefix (BlockDigest::prefix);
  /// those before the first are on the device. Must not throw or call the cache.
  [[nodiscard]] virtual std::int64_t leading_blocks(std::span<const PrefixHash> blocks) = 0;

 protected:
  KvDirectory() = default;
  ~KvDirectory() = default;
};

/// How fast loads are, and how fast the engine computes a prompt. 0: not known.
struct TierSpeeds {
  double host_bytes_per_s = 0;
  double file_bytes_per_s = 0;
  double tokens_per_s = 0;
  double remote_bytes_per_s = 0;
  double remote_latency_s = 0;  ///< of one round trip: a load from the remote tier takes it once. 0: none
};

/// The tiers of a RequestCache below the device. Without room on the host, in files and in the remote tier there are no
/// tiers.
///
/// The remote tier is shared: other caches store there, too, and its capacity and its eviction are its own. So a cache
/// does not know all that it has, and start() asks: see Transfer::Kind::find and TierLoad. Contents that the cache
/// forgets stay there: no drop is named. Contents that it believes to be there may be gone.
struct TierOptions {
  std::int64_t host_bytes = 0;  ///< for images on the host; 0: no host tier
  std::int64_t file_bytes = 0;  ///< for images in files; 0: no file tier
  /// The bytes of images in the remote tier that this cache remembers, at most; 0: no remote tier. For each block of KV
  /// (with kv_elsewhere: state) that fits in any tier the cache takes some 250 bytes of memory.
  std::int64_t remote_bytes = 0;
  /// The largest number of images of states that start() asks the remote tier for, those of the longest prefixes first;
  /// -1: it asks for nothing. KV is asked for only up to the deepest state that is known or found. A request that ends
  /// does not wait for its answers. start() asks nothing while more of these are missing than max_requests requests ask
  /// for at once.
  std::int32_t max_finds = 4096;
  /// The bytes that the image of one state takes in a tier, all groups together, and those of the KV of one block. 0:
  /// those that RequestCacheOptions::memory names. With kv_elsewhere the bytes of KV have no meaning.
  std::int64_t state_image_bytes = 0;
  std::int64_t kv_image_bytes = 0;
  /// The bytes that stores and moves under way may have together. One that does not fit is dropped and counted.
  std::int64_t queue_bytes = std::numeric_limits<std::int64_t>::max();
  /// True: every checkpoint goes to the slowest tier as soon as it is made. False: it goes to the fastest tier when the
  /// device evicts it, and to the next when that tier does. A full tier takes back what it has evicted only in place
  /// of a checkpoint that the order evicts before it.
  bool write_through = false;
  /// See TierSpeeds. A hit below the device is taken if loading it takes less time than computing it, or if a speed
  /// that this needs is not known.
  double host_bytes_per_s = 0;
  double file_bytes_per_s = 0;
  double tokens_per_s = 0;
  double remote_bytes_per_s = 0;
  double remote_latency_s = 0;

  /// If set, the engine keeps the KV that leaves the device by its own means, and tiers hold states alone: start() asks
  /// for the KV before a state below the device (index hash in columns: or on it), and the request loads that KV with
  /// Medium::elsewhere. Must outlive the cache.
  KvDirectory* kv_elsewhere = nullptr;

  [[nodiscard]] constexpr TierSpeeds speeds() const noexcept {
    return {.host_bytes_per_s = host_bytes_per_s,
            .file_bytes_per_s = file_bytes_per_s,
            .tokens_per_s = tokens_per_s,
            .remote_bytes_per_s = remote_bytes_per_s,
            .remote_latency_s = remote_latency_s};
  }
  [[nodiscard]] constexpr bool enabled() const noexcept { return host_bytes > 0 || file_bytes > 0 || remote_bytes > 0; }
};

/// Throws InvalidArgument for a number that is negative or not finite, and names it as a member of `argument`.
void check_tier_speeds(const TierSpeeds& speeds, std::string_view argument);

/// Throws InvalidArgument: a negative number, one that is not finite, write_through without a tier of files or a remote
/// one, or a tier with less room than the image of a state of `state_bytes` and a block of `kv_bytes`.
void check_tier_options(const TierOptions& options, std::int64_t state_bytes, std::int64_t kv_bytes);

/// Transfers between one tier and all other media in one direction.
struct TierTraffic {
  std::int64_t transfers = 0;  ///< decided and not ended
  std::int64_t bytes = 0;      ///< of these
  /// Transfers that ended since construction, indexed by TransferStatus.
  std::array<std::int64_t, transfer_status_count> ended = {};
  friend constexpr bool operator==(const TierTraffic&, const TierTraffic&) noexcept = default;
};

/// Contents of one tier, and its work. Counters count from construction.
struct TierUsage {
  std::int64_t states = 0;
  std::int64_t kv_blocks = 0;
  std::int64_t bytes = 0;          ///< with what is on its way into the tier
  std::int64_t bytes_written = 0;  ///< into the tier
  std::int64_t bytes_read = 0;     ///< by loads and moves
  std::int64_t loads = 0;          ///< requests that loaded something from it, from no slower tier
  std::int64_t hit_tokens = 0;     ///< that these did not compute
  /// The time that computing the hit tokens would take, less that of these requests' loads, which include those from
  /// faster tiers. A load with an unknown speed adds 0. Loading KV that the engine keeps takes no time here.
  double saved_s = 0;
  std::int64_t evicted_states = 0;
  std::int64_t dropped_states = 0;  ///< came to the tier and were not worth their place
  std::int64_t refused_images = 0;  ///< found no room or no place in the queue, or were not written
  std::int64_t lost_images = 0;     ///< that a load or a copy did not find as they should be
  std::int64_t asked_images = 0;    ///< finds that were answered
  std::int64_t found_images = 0;    ///< finds that were `done`
  TierTraffic reads;                ///< loads, and copies from this tier
  TierTraffic writes;               ///< stores, and copies to this tier
  TierTraffic finds;                ///< of the remote tier alone; finds have no bytes
  friend constexpr bool operator==(const TierUsage&, const TierUsage&) noexcept = default;
};

}  // namespace stateport
