// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tier/transfer_plan.hpp>
#include <stateport/parts/image_types.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace stateport {

/// A cache of images below the device, for an engine that keeps its own cache on the device: which tier has the image
/// of a key, what is on its way, and what a full tier evicts. Each image stands for itself: there are no parents, and a
/// state needs no KV. This class decides and moves no byte. StateTiers::execute carries its transfers out.
///
///     put, get, ask, remove, drain → execute the transfers of the plan
///     poll → settle → execute the transfers of the plan
///
/// The life of an image in one tier:
///
///     absent ── put, evicted above, write-through ──► waiting ── room ──► coming ── done ──► present
///        ▲                                               └── no room ──► absent ◄── failed ──┘  │
///        └── evicted from the slowest tier, moved down, lost, removed ──────────────────────────┘
///
/// Room. A full tier evicts images in the order of `eviction`, but for images that are pinned, read or under way. An
/// image waits while transfers are under way that may make room, and else goes to the next tier. A copy takes the place
/// only of images that the order evicts before it. A transfer that is answered `no_room` is named again, after its tier
/// has set 1/16 of its room aside for gaps (once a settle()); images that arrive use this up. The remote tier evicts
/// by itself: its transfer is not named again. If loads from that lower tier are under way, the image waits for the
/// end of one instead, once: loads come first in the queues of StateTiers.
///
/// Of the images of one call the first counts as used last: in a prefix all later images need those before them.
///
/// O(images) a call, besides the costs of VictimOrder; drain is O(all images). Nothing allocates after construction:
/// it takes some 60 bytes for each of the smallest images that the tiers have room for, and 140 more for each image
/// that was ever held at a time. All calls that take images throw InvalidArgument, and have changed nothing, for tokens
/// < 0 and for a content or group without image bytes. Not thread-safe.
class ImageCache {
 public:
  /// Throws InvalidArgument: a negative number, no tier, no images, a tier with less room than one of each image, an
  /// order that needs more than keys, images_under_way_max of 0.
  explicit ImageCache(const ImageCacheOptions& options);
  ImageCache(ImageCache&&) noexcept;
  ImageCache& operator=(ImageCache&&) noexcept;
  ~ImageCache();

  /// Stores images from places on the device (slots, of KV blocks) into the fastest tier. Images that it has, and those
  /// on their way into any tier, count as stored. The places must stay as they are until the request has ended. Throws
  /// InvalidArgument for another number of places, and for a negative one.
  ImagePlan put(std::span<const ImageKey> images, std::span<const std::int32_t> places);
  /// Loads images into places, each from the fastest tier that has it, up to the first that no tier has. A load that is
  /// not `done` makes its tier forget the image. Throws as put.
  ImagePlan get(std::span<const ImageKey> images, std::span<const std::int32_t> places);
  /// Asks the remote tier for the images that no tier is known to have. Throws InvalidState without a remote tier.
  ImagePlan ask(std::span<const ImageKey> images);
  /// Forgets images in host memory and files, pinned ones too, and the knowledge that the remote tier has them. An
  /// image that is on its way is forgotten when it arrives, unless it is put again.
  ImagePlan remove(std::span<const ImageKey> images);
  /// Copies images that only the host has to files, or without these to the remote tier, as far as there is room.
  /// It ends when a call names nothing and nothing is under way.
  ImagePlan drain();
  /// These transfers ended, in any order. Throws InvalidArgument, and has changed nothing, for one that is not under
  /// way or is named twice. O(n log n).
  ImagePlan settle(std::span<const TransferResult> results);

  /// Returns the number of leading images that a tier has. where: empty, or as many as images: the fastest tier of
  /// each.
  std::size_t find(std::span<const ImageKey> images, std::span<std::optional<Medium>> where = {}) const;
  /// Counts as a use of the images that are known.
  void touch(std::span<const ImageKey> images);
  /// No tier evicts these images before unpin. False, and nothing is pinned: no tier has one of them.
  [[nodiscard]] bool pin(std::span<const ImageKey> images);
  /// Undoes one pin of each image. Throws InvalidArgument, and has changed nothing, for one that is not pinned.
  void unpin(std::span<const ImageKey> images);
  /// The tier has this image, from before this cache was made. False: there is no room for it, and it is to be removed.
  /// Throws InvalidArgument for a medium that is no tier of this cache.
  [[nodiscard]] bool attach(Medium medium, const ImageKey& image);

  /// Transfers that are not answered, and those that wait.
  [[nodiscard]] std::size_t under_way() const noexcept;
  /// All zero for a medium that is no tier of this cache.
  [[nodiscard]] ImageTierUsage usage(Medium medium) const noexcept;
  /// The largest number of transfers of one plan.
  [[nodiscard]] std::size_t transfers_max() const noexcept;
  /// Throws std::logic_error naming the first violation. O(images).
  void check_invariants() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stateport
