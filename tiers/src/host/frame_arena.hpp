// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::tiers {

/// How images of several sizes share memory that is cut into equal frames: a frame holds images of one kind, at a
/// stride that divides it. So every image of kind k lies at base + place * strides[k], whatever its frame.
struct FrameSizes {
  std::size_t frame_bytes = 0;
  std::vector<std::size_t> strides;  ///< of each kind, in bytes: at least the image, a multiple of 4 KiB
  [[nodiscard]] std::int32_t places(std::size_t kind) const {
    return static_cast<std::int32_t>(frame_bytes / strides[kind]);
  }
};

/// The frame that wastes least in its worst kind, among those up to 1/16 larger than the largest image, or larger by
/// the smallest image. `image_bytes` are multiples of 4 KiB, one for each kind, at least one.
[[nodiscard]] FrameSizes choose_frames(std::span<const std::size_t> image_bytes);

/// Which places of some frames are taken. A frame without a taken place is free for every kind. A place is taken from
/// the frame that its kind took from last; when that is full, from the fullest quarter of the partly used frames, so
/// that others become empty; at last from an empty frame. take, give: O(places of a frame / 64). Allocates only in its
/// constructor. Not thread-safe.
class FrameArena {
 public:
  /// Frames [first, first + frames); places of kind k are numbered from first * places_per_frame[k] on.
  FrameArena(std::int32_t first, std::int32_t frames, std::span<const std::int32_t> places_per_frame);

  /// The number of a place for an image of this kind, or none.
  [[nodiscard]] std::optional<std::int32_t> take(std::size_t kind) noexcept;
  /// Precondition: the place is taken, by this kind.
  void give(std::size_t kind, std::int32_t place) noexcept;

  /// How many places of this kind could be taken now, if no other kind took any.
  [[nodiscard]] std::int32_t room(std::size_t kind) const noexcept {
    return free_places_[kind] + empty_frames_ * places_[kind];
  }
  [[nodiscard]] std::int32_t frames() const noexcept { return static_cast<std::int32_t>(frames_.size()); }
  [[nodiscard]] std::int32_t empty_frames() const noexcept { return empty_frames_; }

  /// Throws std::logic_error naming the first broken invariant; `taken(kind, place)` says which places should be taken.
  template <class Taken>
  void check_invariants(Taken&& taken) const {
    check_lists();
    for (std::size_t frame = 0; frame < frames_.size(); ++frame)
      for (std::size_t kind = 0; kind < places_.size(); ++kind)
        for (std::int32_t i = 0; i < places_[kind]; ++i) {
          const bool held = frames_[frame].kind == static_cast<std::int32_t>(kind) && is_taken(frame, i);
          check_place(held == taken(kind, (first_ + static_cast<std::int32_t>(frame)) * places_[kind] + i));
        }
  }

 private:
  static constexpr std::int32_t none = -1;
  static constexpr std::int32_t quarters = 4;

  struct Frame {
    std::int32_t kind = none;  ///< of its images; none while it is empty
    std::int32_t used = 0;
    std::int32_t list = none;  ///< none: full
    std::int32_t before = none;
    std::int32_t after = none;
  };

  /// 0: empty frames. 1 + 4 * kind + q: frames of which q quarters are used. none: full.
  [[nodiscard]] std::int32_t list_of(const Frame& frame) const noexcept;
  /// Puts a frame into the list that it belongs to now.
  void relink(std::int32_t frame) noexcept;
  void unlink(std::int32_t frame) noexcept;
  void link(std::int32_t frame, std::int32_t list) noexcept;
  [[nodiscard]] std::int32_t frame_with_room(std::size_t kind) const noexcept;
  /// Marks the first place that is not taken. Precondition: there is one.
  [[nodiscard]] std::int32_t take_in(std::int32_t frame) noexcept;
  [[nodiscard]] bool is_taken(std::size_t frame, std::int32_t place) const noexcept {
    return (taken_[frame * words_ + static_cast<std::size_t>(place / 64)] >> (place % 64) & 1) != 0;
  }
  void check_lists() const;
  static void check_place(bool ok);

  std::int32_t first_;
  std::vector<std::int32_t> places_;       ///< [kinds] of one frame
  std::size_t words_;                      ///< of a frame's bits
  std::vector<Frame> frames_;              ///< [frames]
  std::vector<std::uint64_t> taken_;       ///< [frames, words_] one bit a place
  std::vector<std::int32_t> heads_;        ///< [1 + 4 * kinds]
  std::vector<std::int32_t> last_;         ///< [kinds] the frame of the last take
  std::vector<std::int32_t> free_places_;  ///< [kinds] in frames of the kind
  std::int32_t empty_frames_;
};

}  // namespace stateport::tiers
