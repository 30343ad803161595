// SPDX-License-Identifier: Apache-2.0
#include <stateport/parts/image_cache.hpp>

#include <stateport/core/model/error.hpp>

#include "image_cache_impl.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace stateport {
namespace {
constexpr auto none = detail::ImageEntry::none;
}

ImageCache::ImageCache(const ImageCacheOptions& options) : impl_(std::make_unique<Impl>(options)) {}
ImageCache::ImageCache(ImageCache&&) noexcept = default;
ImageCache& ImageCache::operator=(ImageCache&&) noexcept = default;
ImageCache::~ImageCache() = default;

ImagePlan ImageCache::put(std::span<const ImageKey> images, std::span<const std::int32_t> places) {
  impl_->check(images, places);
  const RequestId request = impl_->requests().open();
  for (std::size_t i = images.size(); i-- > 0;) impl_->put(images[i], places[i], request);
  return impl_->plan(request);
}

ImagePlan ImageCache::get(std::span<const ImageKey> images, std::span<const std::int32_t> places) {
  impl_->check(images, places);
  const RequestId request = impl_->requests().open();
  std::size_t begun = 0;
  while (begun < images.size() && impl_->get(images[begun], places[begun], request)) ++begun;
  impl_->requests().miss(request, images.size() - begun);
  touch(images.first(begun));
  return impl_->plan(request);
}

ImagePlan ImageCache::ask(std::span<const ImageKey> images) {
  require_state(impl_->has_tier(Medium::remote), "ask", "there is no remote tier");
  impl_->check(images);
  const RequestId request = impl_->requests().open();
  for (std::size_t i = images.size(); i-- > 0;) impl_->ask(images[i], request);
  return impl_->plan(request);
}

ImagePlan ImageCache::remove(std::span<const ImageKey> images) {
  impl_->check(images);
  for (const ImageKey& image : images) impl_->remove(image);
  return impl_->plan();
}

ImagePlan ImageCache::drain() {
  impl_->drain();
  return impl_->plan();
}

ImagePlan ImageCache::settle(std::span<const TransferResult> results) {
  impl_->check(results);
  impl_->begin_settle();
  for (const TransferResult& result : results) impl_->settle(result);
  return impl_->plan();
}

std::size_t ImageCache::find(std::span<const ImageKey> images, std::span<std::optional<Medium>> where) const {
  impl_->check(images);
  require(where.empty() || where.size() == images.size(), "where", where.size(), "must be as many as images");
  std::size_t leading = 0;
  for (std::size_t i = 0; i < images.size() && (leading == i || !where.empty()); ++i) {
    const std::uint32_t at = impl_->entries().find(images[i]);
    const bool there = at != none && impl_->entries()[at].in != 0;
    leading += there && leading == i ? 1 : 0;
    if (!where.empty()) where[i] = there ? std::optional(detail::fastest(impl_->entries()[at].in)) : std::nullopt;
  }
  return leading;
}

void ImageCache::touch(std::span<const ImageKey> images) {
  impl_->check(images);
  for (std::size_t i = images.size(); i-- > 0;)
    if (const std::uint32_t at = impl_->entries().find(images[i]); at != none) impl_->use(at);
}

bool ImageCache::pin(std::span<const ImageKey> images) {
  if (find(images) < images.size()) return false;
  for (const ImageKey& image : images) ++impl_->entries()[impl_->entries().find(image)].pins;
  return true;
}

void ImageCache::unpin(std::span<const ImageKey> images) {
  impl_->check(images);
  for (std::size_t i = 0; i < images.size(); ++i) {
    const std::uint32_t at = impl_->entries().find(images[i]);
    if (at != none && impl_->entries()[at].pins > 0) {
      --impl_->entries()[at].pins;
      continue;
    }
    for (std::size_t k = 0; k < i; ++k) ++impl_->entries()[impl_->entries().find(images[k])].pins;
    require(false, "images", i, "is the index of an image that is not pinned, or not as often");
  }
  for (const ImageKey& image : images)
    if (const std::uint32_t at = impl_->entries().find(image); at != none) impl_->tidy(at);
}

bool ImageCache::attach(Medium medium, const ImageKey& image) {
  require(impl_->has_tier(medium), "medium", static_cast<int>(medium), "is no tier of this cache");
  impl_->check({&image, 1});
  return impl_->attach(medium, image);
}

std::size_t ImageCache::under_way() const noexcept {
  return impl_->under_way();
}

ImageTierUsage ImageCache::usage(Medium medium) const noexcept {
  return impl_->has_tier(medium) ? impl_->tier(medium).usage : ImageTierUsage{};
}

std::size_t ImageCache::transfers_max() const noexcept {
  return impl_->transfers_max();
}

void ImageCache::check_invariants() const {
  impl_->check_invariants();
}

void ImageCache::Impl::check_invariants() const {
  const auto check = [](bool ok, std::string_view what) { require_invariant(ok, "ImageCache", what); };
  entries_.check_invariants();
  requests_.check_invariants();
  transfers_.check_invariants();
  struct Sums {
    std::int64_t images = 0, bytes = 0, queued = 0, leaving = 0;
    std::uint32_t busy = 0;
  };
  std::array<Sums, medium_count> sums;
  std::size_t waiting = 0;
  std::size_t coming = 0;
  std::size_t reads = 0;
  for (std::uint32_t at = 0; at < entries_.made(); ++at) {
    const detail::ImageEntry& entry = entries_[at];
    if (!entry.used) continue;
    check(entry.in != 0 || entry.is_held(), "an entry holds nothing");
    check(!entry.unwanted || entry.task != Task::none, "an image that is not coming is unwanted");
    const bool is_copy = entry.task == Task::copy || entry.task == Task::move;
    reads += entry.reads;
    waiting += entry.waits ? 1 : 0;
    if (entry.task != Task::none) {
      check((entry.in & detail::bit(entry.to)) == 0 || entry.unwanted, "an image comes to where it is");
      if (is_copy) ++sums[detail::index_of(entry.from)].busy;
      if (!entry.waits) {
        ++coming;
        ++sums[detail::index_of(entry.to)].busy;
        sums[detail::index_of(entry.to)].bytes += bytes_of(at);
        sums[detail::index_of(entry.to)].queued += bytes_of(at);
      }
    }
    for (const detail::ImageTier& tier : tiers_) {
      if (!tier.has(at)) continue;
      Sums& sum = sums[detail::index_of(tier.medium())];
      ++sum.images;
      sum.bytes += bytes_of(at);
      sum.leaving += entry.is_leaving(tier.medium()) ? bytes_of(at) : 0;
      check(tier.is_complete(at), "an image is no candidate for eviction");
    }
  }
  check(waiting == waiting_, "an image that waits is counted wrong");
  check(coming + reads == transfers_.size(), "a transfer is lost");
  for (const detail::ImageTier& tier : tiers_) {
    const Sums& sum = sums[detail::index_of(tier.medium())];
    check(tier.usage.images == sum.images && tier.usage.bytes == sum.bytes, "contents of a tier are counted wrong");
    check(tier.queued_bytes == sum.queued && tier.leaving_bytes == sum.leaving, "bytes under way are counted wrong");
    check(tier.busy == sum.busy + tier.loads, "transfers of a tier are counted wrong");
    check(tier.usage.bytes <= tier.capacity_bytes(), "a tier holds too much");
    check(tier.gap_bytes >= 0 && tier.gap_bytes < tier.capacity_bytes(), "a tier keeps all of its room free");
    check(!tier.writes_wait || tier.loads > 0, "images wait for a load that is not under way");
  }
}

}  // namespace stateport
