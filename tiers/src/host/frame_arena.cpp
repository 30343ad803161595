// SPDX-License-Identifier: Apache-2.0
#include "host/frame_arena.hpp"

#include <stateport/core/model/error.hpp>

#include "containers/assert.hpp"

#include <algorithm>
#include <bit>

namespace stateport::tiers {
namespace {

constexpr std::size_t page_bytes = 4096;

/// The smallest divisor of `pages` that is at least `least`. O(sqrt(pages)).
std::size_t divisor_from(std::size_t pages, std::size_t least) {
  std::size_t best = pages;
  for (std::size_t low = 1; low * low <= pages; ++low) {
    if (pages % low != 0) continue;
    if (low >= least) best = std::min(best, low);
    if (pages / low >= least) best = std::min(best, pages / low);
  }
  return best;
}

}  // namespace

FrameSizes choose_frames(std::span<const std::size_t> image_bytes) {
  const auto [smallest, largest] = std::ranges::minmax(image_bytes);
  const std::size_t first = largest / page_bytes;
  const std::size_t last = first + std::max(first / 16, smallest / page_bytes - 1);
  double best_use = 0;
  FrameSizes best;
  for (std::size_t pages = first; pages <= last; ++pages) {
    FrameSizes sizes{.frame_bytes = pages * page_bytes};
    double use = 1;
    for (const std::size_t bytes : image_bytes) {
      sizes.strides.push_back(divisor_from(pages, bytes / page_bytes) * page_bytes);
      use = std::min(use, static_cast<double>(bytes) / static_cast<double>(sizes.strides.back()));
    }
    if (use <= best_use) continue;
    best_use = use;
    best = std::move(sizes);
  }
  return best;
}

FrameArena::FrameArena(std::int32_t first, std::int32_t frames, std::span<const std::int32_t> places_per_frame)
    : first_(first),
      places_(places_per_frame.begin(), places_per_frame.end()),
      words_(static_cast<std::size_t>(std::ranges::max(places_per_frame) + 63) / 64),
      frames_(static_cast<std::size_t>(frames)),
      taken_(frames_.size() * words_),
      heads_(1 + quarters * places_.size(), none),
      last_(places_.size(), none),
      free_places_(places_.size(), 0),
      empty_frames_(frames) {
  for (std::int32_t frame = frames - 1; frame >= 0; --frame) link(frame, 0);
}

std::optional<std::int32_t> FrameArena::take(std::size_t kind) noexcept {
  const std::int32_t number = frame_with_room(kind);
  if (number == none) return {};
  Frame& frame = frames_[static_cast<std::size_t>(number)];
  if (frame.kind == none) {
    frame.kind = static_cast<std::int32_t>(kind);
    free_places_[kind] += places_[kind];
    --empty_frames_;
  }
  ++frame.used;
  --free_places_[kind];
  relink(number);
  last_[kind] = number;
  return (first_ + number) * places_[kind] + take_in(number);
}

void FrameArena::give(std::size_t kind, std::int32_t place) noexcept {
  const std::int32_t number = place / places_[kind] - first_;
  const auto index = static_cast<std::size_t>(number);
  const std::int32_t bit = place % places_[kind];
  Frame& frame = frames_[index];
  STATEPORT_ASSERT(frame.kind == static_cast<std::int32_t>(kind) && is_taken(index, bit));
  taken_[index * words_ + static_cast<std::size_t>(bit / 64)] &= ~(std::uint64_t{1} << (bit % 64));
  --frame.used;
  ++free_places_[kind];
  if (frame.used == 0) {
    frame.kind = none;
    free_places_[kind] -= places_[kind];
    ++empty_frames_;
  }
  relink(number);
}

std::int32_t FrameArena::frame_with_room(std::size_t kind) const noexcept {
  const std::int32_t last = last_[kind];
  if (last != none) {
    const Frame& frame = frames_[static_cast<std::size_t>(last)];
    if (frame.kind == static_cast<std::int32_t>(kind) && frame.used < places_[kind]) return last;
  }
  for (std::size_t quarter = quarters; quarter > 0; --quarter)
    if (const std::int32_t head = heads_[quarters * kind + quarter]; head != none) return head;
  return heads_[0];
}

std::int32_t FrameArena::take_in(std::int32_t frame) noexcept {
  std::uint64_t* const words = &taken_[static_cast<std::size_t>(frame) * words_];
  std::size_t word = 0;
  while (words[word] == ~std::uint64_t{0}) ++word;
  const int bit = std::countr_one(words[word]);
  words[word] |= std::uint64_t{1} << bit;
  return static_cast<std::int32_t>(word) * 64 + bit;
}

std::int32_t FrameArena::list_of(const Frame& frame) const noexcept {
  if (frame.used == 0) return 0;
  const std::int32_t places = places_[static_cast<std::size_t>(frame.kind)];
  if (frame.used == places) return none;
  return 1 + quarters * frame.kind + static_cast<std::int32_t>(std::int64_t{frame.used} * quarters / places);
}

void FrameArena::relink(std::int32_t frame) noexcept {
  const Frame& entry = frames_[static_cast<std::size_t>(frame)];
  const std::int32_t list = list_of(entry);
  if (list == entry.list) return;
  unlink(frame);
  link(frame, list);
}

void FrameArena::unlink(std::int32_t frame) noexcept {
  const Frame& entry = frames_[static_cast<std::size_t>(frame)];
  if (entry.list == none) return;
  if (entry.after != none) frames_[static_cast<std::size_t>(entry.after)].before = entry.before;
  if (entry.before != none)
    frames_[static_cast<std::size_t>(entry.before)].after = entry.after;
  else
    heads_[static_cast<std::size_t>(entry.list)] = entry.after;
}

void FrameArena::link(std::int32_t frame, std::int32_t list) noexcept {
  Frame& entry = frames_[static_cast<std::size_t>(frame)];
  entry.list = list;
  entry.before = none;
  entry.after = none;
  if (list == none) return;
  std::int32_t& head = heads_[static_cast<std::size_t>(list)];
  entry.after = head;
  if (head != none) frames_[static_cast<std::size_t>(head)].before = frame;
  head = frame;
}

void FrameArena::check_lists() const {
  std::vector<std::int32_t> free_places(places_.size(), 0);
  std::int32_t empty = 0, unlisted = 0;
  for (std::size_t i = 0; i < frames_.size(); ++i) {
    const Frame& frame = frames_[i];
    std::int32_t used = 0;
    for (std::size_t word = 0; word < words_; ++word) used += std::popcount(taken_[i * words_ + word]);
    require_invariant(used == frame.used, "FrameArena", "a frame counts its places wrongly");
    require_invariant((used == 0) == (frame.kind == none), "FrameArena", "an empty frame has a kind");
    require_invariant(frame.list == list_of(frame), "FrameArena", "a frame is in a wrong list");
    empty += used == 0;
    unlisted += frame.list == none;
    if (used > 0)
      free_places[static_cast<std::size_t>(frame.kind)] += places_[static_cast<std::size_t>(frame.kind)] - used;
  }
  require_invariant(empty == empty_frames_ && free_places == free_places_, "FrameArena", "the room is counted wrongly");
  std::int32_t listed = 0;
  for (std::size_t list = 0; list < heads_.size(); ++list) {
    std::int32_t before = none;
    for (std::int32_t at = heads_[list]; at != none; at = frames_[static_cast<std::size_t>(at)].after, ++listed) {
      const Frame& frame = frames_[static_cast<std::size_t>(at)];
      require_invariant(frame.list == static_cast<std::int32_t>(list) && frame.before == before, "FrameArena",
                        "a list is broken");
      before = at;
    }
  }
  require_invariant(listed + unlisted == frames(), "FrameArena", "a frame is lost");
}

void FrameArena::check_place(bool ok) {
  require_invariant(ok, "FrameArena", "a place is taken that no image has, or the reverse");
}

}  // namespace stateport::tiers
