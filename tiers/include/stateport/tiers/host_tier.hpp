// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/memory_resource.hpp>
#include <stateport/core/tier/transfer_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace stateport {

/// Sizes are those of whole images, header included, and multiples of 4 KiB.
struct HostTierOptions {
  std::size_t budget_bytes = 0;   ///< for images that lookup finds; whole frames of it are used. 0: none
  std::size_t staging_bytes = 0;  ///< for images on their way to or from a file, beside the budget, in whole frames
  std::vector<std::size_t> state_image_bytes;  ///< [groups]
  std::size_t kv_image_bytes = 0;              ///< of one block; 0: no KV comes here
  /// The memory is set to zero before it goes back to its resource. Until then the bytes of an image stay after it is
  /// removed, up to its place's next image, whose sections replace all that a load or a tier reads of it.
  bool scrub = false;
};

/// Names an image in a HostTier. When that image is gone the name is stale, and names nothing ever again.
struct HostImage {
  std::uint32_t index = UINT32_MAX;
  std::uint32_t version = 0;
  [[nodiscard]] constexpr bool valid() const noexcept { return index != UINT32_MAX; }
  friend constexpr bool operator==(const HostImage&, const HostImage&) noexcept = default;
};

/// Images in one range of host memory: where each lies, and which may be read or replaced. It copies nothing; it
/// decides no eviction. The life of an image:
///
///                 reserve              publish                  pin, unpin
///     (nothing) ───────────► copying ───────────► ready  ◄──────────────────► ready, 1 … n readers
///         ▲                     │ remove            │ remove                      │ remove
///         │                     │ no readers        │                             ▼
///         ├─────────────────────┴───────────────────┘                  leaving, 1 … n readers
///         └───────────────────────────────────────────────────────────────────────┘ the last unpin
///
///     copying   its bytes are on their way. lookup finds it; only a copy enqueued behind that one may read it. It may
///               be pinned, and is leaving when it is removed then
///     ready     its bytes are there, for everybody
///     leaving   lookup finds it no more (a new image may have its key), but its readers do
///
/// A reader is who reads or writes the bytes outside the order of the device's copies: a thread that writes a file. A
/// copy that a device does is none: its place may be given to another image while the copy waits, because the copy
/// that fills that image is enqueued behind it. StateTiers keeps all its copies in one such order.
///
/// Places. Images of several sizes share the memory, which is cut into frames as large as the largest image: a frame
/// holds one large image or many small ones of one size, and is free for any size when it is empty. An image of kind k
/// lies at data() + place * stride_bytes(k), so a StateStore::view of stride stride_bytes(k) has the place as slot.
/// Kinds: the state of group g is kind g, the KV of a block kind groups().
///
/// Nothing but keys() allocates after construction. Not thread-safe; the bytes of an image are their readers' and
/// writers' own.
class HostTier {
 public:
  enum class State : std::uint8_t { gone, copying, ready, leaving };

  /// Takes all its memory from `resource`, which must outlive it; pinning it may take seconds. Throws InvalidArgument:
  /// no size, a size that is 0 or not a multiple of 4 KiB, a budget that is neither 0 nor room for one frame, more than
  /// 2^31 - 1 places; OutOfMemory. Without budget and staging there are no places.
  HostTier(MemoryResource& resource, const HostTierOptions& options);
  HostTier(HostTier&&) noexcept;
  HostTier& operator=(HostTier&&) noexcept;
  ~HostTier();

  [[nodiscard]] std::int32_t groups() const noexcept;
  [[nodiscard]] std::int32_t kinds() const noexcept;
  /// The kind of an image. Throws InvalidArgument for a group that is not there (of KV: another one than 0), and for KV
  /// without kv_image_bytes.
  [[nodiscard]] std::int32_t kind_of(const ImageKey& key) const;

  /// Where place 0 of every kind lies; a multiple of 4 KiB.
  [[nodiscard]] std::byte* data() const noexcept;
  [[nodiscard]] std::size_t stride_bytes(std::int32_t kind) const noexcept;
  /// Places of a kind, staging included: the slots of a view.
  [[nodiscard]] std::int32_t places(std::int32_t kind) const noexcept;
  [[nodiscard]] std::size_t frame_bytes() const noexcept;

  /// For each key the image that is copying or ready, or none; `images` is as long as `keys`. Returns how many are
  /// there. O(1) a key; 1,000 keys among 10^6 images in 10 to 15 us.
  std::int64_t lookup(std::span<const ImageKey> keys, std::span<HostImage> images) const;
  [[nodiscard]] HostImage find(const ImageKey& key) const;
  /// Of all images that lookup finds, in no order. O(images).
  [[nodiscard]] std::vector<ImageKey> keys() const;

  /// Makes room for an image that is copying from now on. None when no place of its kind is free. Throws
  /// InvalidArgument as kind_of, and for a key that is there.
  [[nodiscard]] std::optional<HostImage> reserve(const ImageKey& key);
  /// The same in staging memory: lookup never finds it, keys may be there many times, and it has one reader, who
  /// made it.
  [[nodiscard]] std::optional<HostImage> reserve_staging(const ImageKey& key);
  /// Says that the bytes are there. False, without effect, for an image that is gone or leaving.
  bool publish(HostImage image);
  /// One reader more, or less. Throws InvalidArgument for an image that is gone, and for one less than none.
  void pin(HostImage image);
  void unpin(HostImage image);
  /// Forgets an image, at once or with its last reader. False for one that is gone or leaving.
  bool remove(HostImage image);

  [[nodiscard]] State state(HostImage image) const noexcept;
  /// These throw InvalidArgument for an image that is gone.
  [[nodiscard]] const ImageKey& key(HostImage image) const;
  [[nodiscard]] std::int32_t place(HostImage image) const;
  [[nodiscard]] std::span<std::byte> bytes(HostImage image) const;

  struct Usage {
    std::int64_t images = 0;  ///< copying, ready and leaving; staging not counted
    std::int64_t copying = 0;
    std::int64_t staging_images = 0;
    std::int32_t frames = 0;  ///< staging not counted, nor in the next two
    std::int32_t empty_frames = 0;
    std::size_t image_bytes = 0;
  };
  [[nodiscard]] const Usage& usage() const noexcept;
  /// Images of a kind that fit if all frames held that kind, and those that still fit now.
  [[nodiscard]] std::int64_t capacity(std::int32_t kind) const noexcept;
  [[nodiscard]] std::int64_t room(std::int32_t kind) const noexcept;
  [[nodiscard]] std::int64_t staging_room(std::int32_t kind) const noexcept;

  /// Recounts everything; throws std::logic_error naming the first broken invariant.
  void check_invariants() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stateport
