// SPDX-License-Identifier: Apache-2.0
#include "image_cache_impl.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

namespace stateport {
namespace {

using detail::bit;
using detail::ImageEntry;
using detail::ImageTier;
using detail::index_of;
using detail::MediumSet;
using detail::UnderWay;

constexpr std::int64_t gap_parts = 16;  // an image that found no room makes its tier keep this part of it free
constexpr std::array<Medium, 3> tier_media = {Medium::host, Medium::file, Medium::remote};

std::int64_t capacity_of(const ImageCacheOptions& options, Medium medium) {
  return medium == Medium::host ? options.host_bytes
                                : (medium == Medium::file ? options.file_bytes : options.remote_bytes);
}

std::string_view name_of(Medium medium) {
  return medium == Medium::host ? "host_bytes" : (medium == Medium::file ? "file_bytes" : "remote_bytes");
}

const ImageCacheOptions& checked(const ImageCacheOptions& options) {
  std::int64_t largest = 0;
  const auto read = [&](std::int64_t bytes, std::string_view argument, bool may_be_none) {
    require(bytes >= (may_be_none ? 0 : 1), argument, bytes, may_be_none ? "must not be negative" : "must be positive");
    largest = std::max(largest, bytes);
  };
  read(options.kv_image_bytes, "kv_image_bytes", true);
  for (const std::int64_t bytes : options.state_image_bytes) read(bytes, "state_image_bytes", false);
  require(largest > 0, "kv_image_bytes", options.kv_image_bytes, "is 0, and there are no state_image_bytes either");
  std::int64_t room = 0;
  for (const Medium medium : tier_media) {
    const std::int64_t bytes = capacity_of(options, medium);
    require(bytes == 0 || bytes >= largest, name_of(medium), bytes, "must be 0, or at least the bytes of an image");
    room = std::max(room, bytes);
  }
  require(room > 0, "host_bytes", options.host_bytes, "must be positive, or file_bytes or remote_bytes");
  require(options.queue_bytes > 0, "queue_bytes", options.queue_bytes, "must be positive");
  require(options.images_under_way_max >= 1 && options.images_under_way_max < INT32_MAX, "images_under_way_max",
          options.images_under_way_max, "must be from 1 to 2^31 - 2");
  const EvictionOrder order = options.eviction;
  require(order != EvictionOrder::hix && order != EvictionOrder::gdsf && order != EvictionOrder::priority, "eviction",
          name(order), "ranks by facts that a key alone does not tell");
  return options;
}

/// Every tier full of the smallest images, and those under way.
std::size_t entries_of(const ImageCacheOptions& options) {
  std::int64_t smallest = options.kv_image_bytes;
  for (const std::int64_t bytes : options.state_image_bytes)
    if (smallest == 0 || bytes < smallest) smallest = bytes;
  std::size_t images = options.images_under_way_max;
  for (const Medium medium : tier_media) images += static_cast<std::size_t>(capacity_of(options, medium) / smallest);
  return std::min<std::size_t>(images, INT32_MAX);
}

/// Whether a copy that was answered so did not find its source as it should be. The others speak of its destination.
bool is_source_lost(TransferStatus status) noexcept {
  using enum TransferStatus;
  return status == gone || status == damaged || status == foreign_layout || status == wrong_position;
}

}  // namespace

ImageCache::Impl::Impl(const ImageCacheOptions& options)
    : options_(checked(options)),
      policy_(make_eviction_policy(options.eviction)),
      entries_(entries_of(options)),
      requests_(options.images_under_way_max) {
  place_of_.fill(tier_media.size());
  tiers_.reserve(tier_media.size());
  for (const Medium medium : tier_media) {
    const std::int64_t capacity = capacity_of(options, medium);
    if (capacity == 0) continue;
    place_of_[index_of(medium)] = tiers_.size();
    tiers_.emplace_back(medium, capacity, *policy_, entries_);
  }
  // An image comes into one tier at a time, and loads and finds are images that requests wait for.
  const std::size_t unanswered = entries_.capacity() + options.images_under_way_max;
  const std::size_t dropped = entries_.capacity() * tiers_.size();
  transfers_.reserve(unanswered, dropped);
  ids_.reserve(unanswered);
  victims_.resize(entries_.capacity());
  transfers_max_ = unanswered + dropped;
}

void ImageCache::Impl::check(std::span<const ImageKey> images) const {
  const auto groups = static_cast<std::int32_t>(options_.state_image_bytes.size());
  for (const ImageKey& image : images) {
    require(image.tokens >= 0, "images.tokens", image.tokens, "must not be negative");
    if (image.content == CacheContent::state) {
      require(image.group >= 0 && image.group < groups, "images.group", image.group, "has no state_image_bytes");
    } else {
      require(options_.kv_image_bytes > 0, "images.content", "kv_block", "has no kv_image_bytes");
      require(image.group == 0, "images.group", image.group, "must be 0 for KV");
    }
  }
}

void ImageCache::Impl::check(std::span<const ImageKey> images, std::span<const std::int32_t> places) const {
  check(images);
  require(places.size() == images.size(), "places", places.size(), "must be as many as images");
  for (const std::int32_t place : places) require(place >= 0, "places", place, "must not be negative");
}

void ImageCache::Impl::check(std::span<const TransferResult> results) {
  require(results.size() <= transfers_.size(), "results", results.size(), "are more than transfers under way");
  ids_.clear();
  for (const TransferResult& result : results) {
    require(transfers_.find(result.id) != nullptr, "results.id", result.id, "is not under way");
    ids_.push_back(result.id);
  }
  std::ranges::sort(ids_);
  const auto twice = std::ranges::adjacent_find(ids_);
  require(twice == ids_.end(), "results.id", twice == ids_.end() ? 0 : *twice, "is named twice");
}

void ImageCache::Impl::use(std::uint32_t at) noexcept {
  ImageEntry& entry = entries_[at];
  entry.used_tick = ++tick_;
  if (entry.hits < UINT32_MAX) ++entry.hits;
  for (ImageTier& tier : tiers_)
    if (tier.has(at)) tier.used(at);
}

void ImageCache::Impl::tidy(std::uint32_t at) {
  const ImageEntry& entry = entries_[at];
  if (entry.is_held()) return;
  if (entry.in == 0) return entries_.release(at);
  for (ImageTier& tier : tiers_)
    if (tier.has(at)) tier.offer(at);
}

bool ImageCache::Impl::attach(Medium medium, const ImageKey& image) {
  ImageTier& tier = this->tier(medium);
  if (const std::uint32_t known = entries_.find(image); known != none && tier.has(known)) return true;
  if (tier.usage.bytes + bytes_of(image) > tier.capacity_bytes()) return false;
  const std::uint32_t at = entries_.intern(image);
  if (at == none) return false;
  const ImageEntry& entry = entries_[at];
  if (entry.task != Task::none && entry.to == medium) return true;  // its transfer ends as `done`
  tier.usage.bytes += bytes_of(image);
  tier.enter(at);
  if (entry.used_tick == 0) entries_[at].created_tick = tick_ + 1;
  use(at);
  tidy(at);
  return true;
}

void ImageCache::Impl::put(const ImageKey& image, std::int32_t place, RequestId request) {
  const std::uint32_t at = entries_.intern(image);
  if (at == none) return requests_.miss(request);
  ImageEntry& entry = entries_[at];
  if (entry.used_tick == 0) entry.created_tick = tick_ + 1;
  use(at);
  if (tiers_.front().has(at)) return;
  if (entry.task != Task::none) {
    // Equal keys have equal contents. The source of a copy is gone if the image was removed meanwhile.
    const bool comes = !entry.unwanted || entry.task == Task::store;
    entry.unwanted = !comes;
    return requests_.miss(request, comes ? 0 : 1);
  }
  if (!requests_.has_room()) {
    requests_.miss(request, entry.in == 0 ? 1 : 0);
    return tidy(at);
  }
  requests_.add_image(request);
  entry.request = request;
  entry.place = place;
  begin(at, Task::store, Medium::device, tiers_.front().medium());
}

bool ImageCache::Impl::get(const ImageKey& image, std::int32_t place, RequestId request) {
  const std::uint32_t at = entries_.find(image);
  if (at == none || entries_[at].in == 0 || !requests_.has_room()) return false;
  const Medium from = detail::fastest(entries_[at].in);
  requests_.add_image(request);
  ++entries_[at].reads;
  ++tier(from).busy;
  ++tier(from).loads;
  transfers_.name({.kind = Transfer::Kind::load,
                   .image = image,
                   .from = from,
                   .to = Medium::device,
                   .place = place,
                   .request = request},
                  {.kind = Transfer::Kind::load, .from = from, .node = at, .request = request});
  return true;
}

void ImageCache::Impl::ask(const ImageKey& image, RequestId request) {
  const std::uint32_t known = entries_.find(image);
  if (known != none && entries_[known].in != 0) return use(known);
  const std::uint32_t at = requests_.has_room() ? entries_.intern(image) : none;
  if (at == none) return requests_.miss(request);
  if (entries_[at].used_tick == 0) entries_[at].created_tick = tick_ + 1;
  use(at);
  requests_.add_image(request);
  ++entries_[at].reads;
  transfers_.name(
      {.kind = Transfer::Kind::find, .image = image, .from = Medium::remote, .to = Medium::remote, .request = request},
      {.kind = Transfer::Kind::find, .from = Medium::remote, .node = at, .request = request});
}

void ImageCache::Impl::remove(const ImageKey& image) {
  const std::uint32_t at = entries_.find(image);
  if (at == none) return;
  for (ImageTier& tier : tiers_)
    if (tier.has(at)) leave(tier, at);
  entries_[at].unwanted = entries_[at].task != Task::none;
  tidy(at);
}

void ImageCache::Impl::drain() {
  const Medium durable = has_tier(Medium::file) ? Medium::file : tiers_.back().medium();
  if (durable == tiers_.front().medium()) return;
  for (std::uint32_t at = 0; at < entries_.made(); ++at)
    if (entries_[at].in == bit(Medium::host) && entries_[at].task == Task::none)
      begin(at, Task::copy, Medium::host, durable);
}

ImagePlan ImageCache::Impl::plan(RequestId request) {
  for (bool again = true; again;) {
    again = false;
    for (ImageTier& tier : tiers_) again = work_off(tier) || again;
  }
  if (request.valid()) requests_.close(request);
  return {.request = request, .transfers = transfers_.take_plan(), .ended = requests_.take_ended()};
}

void ImageCache::Impl::begin(std::uint32_t at, Task task, Medium from, Medium to) {
  ImageEntry& entry = entries_[at];
  entry.task = task;
  entry.has_waited = false;
  entry.from = from;
  entry.to = to;
  if (from != Medium::device) ++tier(from).busy;
  if (task == Task::move) tier(from).leaving_bytes += bytes_of(at);
  tier(to).push_back(at);
  ++waiting_;
}

/// Starts or refuses images in their order, up to the first that has to wait. True: something has changed.
bool ImageCache::Impl::work_off(ImageTier& tier) {
  bool changed = false;
  while (tier.first_waiting() != none) {
    const std::uint32_t at = tier.first_waiting();
    const Room room = turn(tier, at);
    if (room == Room::later) break;
    tier.pop_front();
    --waiting_;
    changed = true;
    if (room == Room::now)
      start(tier, at);
    else
      refuse(tier, at);
  }
  return changed;
}

ImageCache::Impl::Room ImageCache::Impl::turn(ImageTier& tier, std::uint32_t at) {
  const ImageEntry& entry = entries_[at];
  const bool has_source = entry.task == Task::store || (entry.in & bit(entry.from)) != 0;
  if (entry.unwanted || !has_source) return Room::none;
  const bool queued = tier.medium() != Medium::host && tier.queued_bytes > 0;
  if (queued && tier.queued_bytes + bytes_of(at) > options_.queue_bytes) return Room::later;
  if (tier.writes_wait) return Room::later;
  return make_room(tier, at);
}

/// Evicts the images that have to go for this one, all of them or none. Those that are moved down make no room until
/// they have arrived.
ImageCache::Impl::Room ImageCache::Impl::make_room(ImageTier& tier, std::uint32_t at) {
  const std::int64_t room = tier.capacity_bytes() - bytes_of(at);
  const std::int64_t most = room - std::min(tier.gap_bytes, room);
  if (tier.usage.bytes <= most) return Room::now;
  const std::int64_t need = tier.usage.bytes - tier.leaving_bytes - most;
  if (need <= 0) return Room::later;
  const bool is_copy = entries_[at].task == Task::copy || entries_[at].task == Task::move;
  for (std::size_t some = 8;; some *= 2) {
    const auto victims = std::span(victims_).first(std::min(some, victims_.size()));
    const std::size_t found = tier.peek(victims);
    std::size_t count = 0;
    for (std::int64_t left = need; left > 0 && count < found; ++count) {
      if (is_copy && !tier.precedes(victims[count], at)) return Room::none;
      left -= bytes_of(victims[count]);
      if (left > 0) continue;
      for (const std::uint32_t victim : victims.first(count + 1)) evict(tier, victim);
      return tier.usage.bytes <= most ? Room::now : Room::later;
    }
    if (found < some) return tier.busy > 0 ? Room::later : Room::none;
  }
}

void ImageCache::Impl::evict(ImageTier& tier, std::uint32_t at) {
  ++tier.usage.evicted_images;
  const ImageTier* const next = below(tier);
  if (next != nullptr && !next->has(at)) return begin(at, Task::move, tier.medium(), next->medium());
  leave(tier, at);
  tidy(at);
}

void ImageCache::Impl::leave(ImageTier& tier, std::uint32_t at) {
  tier.leave(at, bytes_of(at));
  transfers_.drop(tier.medium(), entries_[at].key);
}

void ImageCache::Impl::start(ImageTier& tier, std::uint32_t at) {
  const ImageEntry& entry = entries_[at];
  const bool is_store = entry.task == Task::store;
  const auto kind = is_store ? Transfer::Kind::store : Transfer::Kind::copy;
  tier.usage.bytes += bytes_of(at);
  tier.queued_bytes += bytes_of(at);
  ++tier.busy;
  transfers_.name({.kind = kind,
                   .image = entry.key,
                   .from = entry.from,
                   .to = tier.medium(),
                   .place = is_store ? entry.place : -1,
                   .request = is_store ? entry.request : RequestId{}},
                  {.kind = kind, .from = entry.from, .to = tier.medium(), .node = at});
}

/// A store that finds no room goes to the next tier.
void ImageCache::Impl::refuse(ImageTier& tier, std::uint32_t at) {
  ImageEntry& entry = entries_[at];
  if (!entry.unwanted) {
    tier.gap_bytes = 0;
    ++tier.usage.refused_images;
  }
  ImageTier* const next = entry.task == Task::store && !entry.unwanted && entry.in == 0 ? below(tier) : nullptr;
  if (next == nullptr) return end_task(at, entry.task == Task::store && entry.in != 0);
  entry.to = next->medium();
  next->push_back(at);
  ++waiting_;
}

/// After `no_room`. False: the tier has nothing left to give up. The remote tier evicts by itself. Images that found no
/// room together have one cause: the gap grows once for all of them. A task waits for a load only once, so that it ends
/// while loads overlap.
bool ImageCache::Impl::can_try_again(ImageTier& tier, std::uint32_t at) {
  if (tier.medium() != Medium::host && tier.loads > 0 && !std::exchange(entries_[at].has_waited, true)) {
    tier.writes_wait = true;
    return true;
  }
  if (tier.medium() == Medium::remote) return false;
  if (tier.gap_grew) return true;
  const std::int64_t most = tier.capacity_bytes() - bytes_of(at);
  if (tier.gap_bytes >= most) return false;
  tier.gap_bytes = std::min(most, tier.gap_bytes + std::max<std::int64_t>(tier.capacity_bytes() / gap_parts, 1));
  return tier.gap_grew = true;
}

/// The task of an image has ended. A move that failed gives the image up all the same: else nothing makes room again.
void ImageCache::Impl::end_task(std::uint32_t at, bool arrived) {
  ImageEntry& entry = entries_[at];
  if (entry.from != Medium::device) --tier(entry.from).busy;
  if (entry.task == Task::move && tier(entry.from).has(at)) {
    if (arrived || (entry.pins == 0 && entry.reads == 0))
      leave(tier(entry.from), at);
    else
      tier(entry.from).leaving_bytes -= bytes_of(at);
  }
  const Task task = std::exchange(entry.task, Task::none);
  entry.unwanted = false;
  if (task == Task::store) requests_.end_image(entry.request, arrived);
  const bool goes_on = task == Task::store && options_.write_through && tier(entry.to).has(at);
  if (goes_on && !tiers_.back().has(at)) return begin(at, Task::copy, entry.to, tiers_.back().medium());
  tidy(at);
}

void ImageCache::Impl::settle(const TransferResult& result) {
  const UnderWay part = *transfers_.find(result.id);
  transfers_.erase(result.id);
  switch (part.kind) {
    case Transfer::Kind::load:
      return loaded(part, result.status);
    case Transfer::Kind::find:
      return found(part, result.status);
    default:
      return arrived(part, result.status);
  }
}

void ImageCache::Impl::arrived(const UnderWay& part, TransferStatus status) {
  const std::uint32_t at = part.node;
  ImageTier& tier = this->tier(part.to);
  const std::int64_t bytes = bytes_of(at);
  const bool unwanted = entries_[at].unwanted;
  const bool done = status == TransferStatus::done;
  tier.queued_bytes -= bytes;
  --tier.busy;
  if (status == TransferStatus::no_room && !unwanted && can_try_again(tier, at)) {
    tier.usage.bytes -= bytes;
    tier.push_front(at);
    ++waiting_;
    return;
  }
  if (done) {
    tier.enter(at);
    ++tier.usage.written_images;
    tier.gap_bytes -= std::min(tier.gap_bytes, bytes / gap_parts);
    if (unwanted) leave(tier, at);
  } else {
    tier.usage.bytes -= bytes;
    ++tier.usage.refused_images;
  }
  if (part.kind == Transfer::Kind::copy && is_source_lost(status)) {
    ImageTier& source = this->tier(part.from);
    ++source.usage.lost_images;
    if (source.has(at)) leave(source, at);
  }
  end_task(at, done && !unwanted);
}

void ImageCache::Impl::loaded(const UnderWay& part, TransferStatus status) {
  ImageTier& tier = this->tier(part.from);
  const bool done = status == TransferStatus::done;
  --entries_[part.node].reads;
  --tier.busy;
  --tier.loads;
  tier.writes_wait = false;
  ++(done ? tier.usage.read_images : tier.usage.lost_images);
  if (!done && tier.has(part.node)) leave(tier, part.node);
  requests_.end_image(part.request, done);
  tidy(part.node);
}

void ImageCache::Impl::found(const UnderWay& part, TransferStatus status) {
  const std::uint32_t at = part.node;
  ImageTier& tier = this->tier(Medium::remote);
  const bool done = status == TransferStatus::done;
  const ImageEntry& entry = entries_[at];
  ++tier.usage.asked_images;
  tier.usage.found_images += done ? 1 : 0;
  const bool comes = entry.task != Task::none && entry.to == Medium::remote;
  if (done && !comes && !tier.has(at) && make_room(tier, at) == Room::now) {
    tier.usage.bytes += bytes_of(at);
    tier.enter(at);
  }
  --entries_[at].reads;
  requests_.end_image(part.request, entry.in != 0);
  tidy(at);
}

}  // namespace stateport
