// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/host_tier.hpp>

#include <stateport/backends/buffer.hpp>
#include <stateport/core/model/error.hpp>

#include "containers/hash_index.hpp"
#include "containers/prefetch.hpp"
#include "containers/table.hpp"
#include "host/frame_arena.hpp"

#include <string.h>

#include <algorithm>
#include <array>

namespace stateport {
namespace {

constexpr std::size_t page_bytes = MemoryResource::max_alignment;
/// Nearly every search ends in its first bucket: 1,000 keys at random among 10^6 images take 15 us, against 17 with 30
/// percent. An image has 53 bytes of buckets then, and at least 4 KiB of its own.
constexpr std::size_t index_load_percent = 15;

/// Keys that differ in anything have different hashes, but for chance. A prefix hash is mixed well already.
std::uint32_t hash_of(const ImageKey& key) noexcept {
  const std::uint64_t kind = static_cast<std::uint64_t>(key.content) << 32 | static_cast<std::uint32_t>(key.group);
  std::uint64_t mixed = (key.prefix.words[0] ^ key.prefix.words[1] * 0xC2B2AE3D27D4EB4F) * 0x9E3779B97F4A7C15;
  mixed ^= mixed >> 32 ^ static_cast<std::uint64_t>(key.tokens) ^ kind << 24;
  return static_cast<std::uint32_t>(mixed * 0xD6E8FEB86659FD93 >> 32);
}

void require_sizes(const HostTierOptions& options) {
  const auto fits = [](std::size_t bytes) { return bytes > 0 && bytes % page_bytes == 0; };
  for (const std::size_t bytes : options.state_image_bytes)
    require(fits(bytes), "state_image_bytes", bytes, "must be a multiple of 4096, and not 0");
  require(options.kv_image_bytes % page_bytes == 0, "kv_image_bytes", options.kv_image_bytes,
          "must be a multiple of 4096");
  require(!options.state_image_bytes.empty() || options.kv_image_bytes > 0, "state_image_bytes", "empty",
          "there must be states or KV");
}

std::vector<std::size_t> sizes_of(const HostTierOptions& options) {
  require_sizes(options);
  std::vector<std::size_t> sizes = options.state_image_bytes;
  if (options.kv_image_bytes > 0) sizes.push_back(options.kv_image_bytes);
  return sizes;
}

}  // namespace

class HostTier::Impl {
 public:
  Impl(MemoryResource& resource, const HostTierOptions& options)
      : sizes(sizes_of(options)),
        groups(static_cast<std::int32_t>(options.state_image_bytes.size())),
        frames(tiers::choose_frames(sizes)),
        budget_frames(options.budget_bytes / frames.frame_bytes),
        staging_frames((options.staging_bytes + frames.frame_bytes - 1) / frames.frame_bytes),
        places(checked_places(options)),
        visible(0, static_cast<std::int32_t>(budget_frames), places),
        staging(static_cast<std::int32_t>(budget_frames), static_cast<std::int32_t>(staging_frames), places),
        memory(resource, (budget_frames + staging_frames) * frames.frame_bytes, page_bytes),
        scrub(options.scrub) {
    const auto most = static_cast<std::size_t>(std::ranges::max(places));
    images.reserve(most * (budget_frames + staging_frames));
    index.reserve(most * budget_frames);
    usage.frames = visible.frames();
    usage.empty_frames = visible.frames();
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (scrub && memory.size_bytes() > 0) ::explicit_bzero(memory.as<std::byte>(), memory.size_bytes());
  }

  /// Where an image is in its life, and its parts. In a cache line of its own: look-ups read all of them at random.
  struct alignas(64) Image {
    ImageKey key;
    std::int32_t place = 0;
    std::uint32_t version = 0;
    std::int32_t readers = 0;
    std::int16_t kind = 0;
    State state = State::gone;
    bool in_staging = false;
    std::uint32_t next_free = detail::HashIndex::none;
  };

  [[nodiscard]] std::vector<std::int32_t> checked_places(const HostTierOptions& options) const {
    require(options.budget_bytes == 0 || budget_frames > 0, "budget_bytes", options.budget_bytes,
            "must be room for one frame, which is at least the largest image");
    std::vector<std::int32_t> result;
    for (std::size_t kind = 0; kind < sizes.size(); ++kind) {
      result.push_back(frames.places(kind));
      const std::size_t all_frames = std::max<std::size_t>(budget_frames + staging_frames, 1);
      require(static_cast<std::size_t>(result.back()) <= INT32_MAX / all_frames, "budget_bytes", options.budget_bytes,
              "must be fewer than 2^31 images");
    }
    return result;
  }

  [[nodiscard]] std::size_t kind_of(const ImageKey& key) const {
    if (key.content == CacheContent::kv_block) {
      require(sizes.size() > static_cast<std::size_t>(groups), "image.content", "kv_block", "no KV is kept here");
      require(key.group == 0, "image.group", key.group, "must be 0 of KV");
      return static_cast<std::size_t>(groups);
    }
    require(key.content == CacheContent::state, "image.content", static_cast<int>(key.content), "is no content");
    require(key.group >= 0 && key.group < groups, "image.group", key.group, "is not a group of these states");
    return static_cast<std::size_t>(key.group);
  }

  [[nodiscard]] HostImage name(std::uint32_t number) const noexcept { return {number, images[number].version}; }
  [[nodiscard]] bool there(HostImage image) const noexcept {
    return image.index < images.size() && images[image.index].version == image.version &&
           images[image.index].state != State::gone;
  }
  [[nodiscard]] Image& at(HostImage image) {
    require(there(image), "image", image.index, "is gone");
    return images[image.index];
  }

  [[nodiscard]] HostImage find(const ImageKey& key, std::uint32_t hash) const noexcept {
    const std::uint32_t number = index.find(hash, [&](std::uint32_t other) { return images[other].key == key; });
    return number == detail::HashIndex::none ? HostImage{} : name(number);
  }

  /// A record for an image in a place that was taken.
  [[nodiscard]] std::uint32_t record(const ImageKey& key, std::size_t kind, std::int32_t place, bool in_staging) {
    std::uint32_t number = first_free;
    if (number == detail::HashIndex::none) {
      number = static_cast<std::uint32_t>(images.size());
      images.emplace_back();
    } else {
      first_free = images[number].next_free;
    }
    Image& image = images[number];
    image.key = key;
    image.place = place;
    image.readers = in_staging ? 1 : 0;
    image.kind = static_cast<std::int16_t>(kind);
    image.state = State::copying;
    image.in_staging = in_staging;
    return number;
  }

  void give_back(std::uint32_t number) noexcept {
    Image& image = images[number];
    const auto kind = static_cast<std::size_t>(image.kind);
    (image.in_staging ? staging : visible).give(kind, image.place);
    if (image.in_staging) {
      --usage.staging_images;
    } else {
      --usage.images;
      usage.image_bytes -= sizes[kind];
    }
    usage.empty_frames = visible.empty_frames();
    image.state = State::gone;
    ++image.version;
    image.next_free = first_free;
    first_free = number;
  }

  std::vector<std::size_t> sizes;  ///< [kinds] bytes of an image
  std::int32_t groups;
  tiers::FrameSizes frames;
  std::size_t budget_frames;
  std::size_t staging_frames;
  std::vector<std::int32_t> places;  ///< [kinds] of one frame
  tiers::FrameArena visible;
  tiers::FrameArena staging;
  Buffer memory;
  bool scrub;
  Table<Image> images;
  std::uint32_t first_free = detail::HashIndex::none;
  detail::HashIndex index{index_load_percent};
  Usage usage;
};

HostTier::HostTier(MemoryResource& resource, const HostTierOptions& options)
    : impl_(std::make_unique<Impl>(resource, options)) {}
HostTier::HostTier(HostTier&&) noexcept = default;
HostTier& HostTier::operator=(HostTier&&) noexcept = default;
HostTier::~HostTier() = default;

std::int32_t HostTier::groups() const noexcept {
  return impl_->groups;
}
std::int32_t HostTier::kinds() const noexcept {
  return static_cast<std::int32_t>(impl_->sizes.size());
}
std::int32_t HostTier::kind_of(const ImageKey& key) const {
  return static_cast<std::int32_t>(impl_->kind_of(key));
}
std::byte* HostTier::data() const noexcept {
  return impl_->memory.as<std::byte>();
}
std::size_t HostTier::stride_bytes(std::int32_t kind) const noexcept {
  return impl_->frames.strides[static_cast<std::size_t>(kind)];
}
std::int32_t HostTier::places(std::int32_t kind) const noexcept {
  return impl_->places[static_cast<std::size_t>(kind)] * (impl_->visible.frames() + impl_->staging.frames());
}
std::size_t HostTier::frame_bytes() const noexcept {
  return impl_->frames.frame_bytes;
}

// Three passes over a few keys at a time, so that the misses of all of them are under way together: the buckets, the
// images that they name, the comparison of keys. Whether a key is there cannot be guessed, and a wrong guess of the
// processor costs as much as all the rest of the key: so the passes have no branch for it, and list which keys go on.
std::int64_t HostTier::lookup(std::span<const ImageKey> keys, std::span<HostImage> images) const {
  require(images.size() == keys.size(), "images", images.size(), "must be as many as keys");
  const Impl& impl = *impl_;
  constexpr std::size_t together = 32;
  std::array<std::uint32_t, together> hashes, numbers, held, open;
  std::int64_t found = 0;
  for (std::size_t begin = 0; begin < keys.size(); begin += together) {
    const auto count = static_cast<std::uint32_t>(std::min(together, keys.size() - begin));
    const std::span<const ImageKey> asked = keys.subspan(begin, count);
    const std::span<HostImage> answers = images.subspan(begin, count);
    for (std::uint32_t i = 0; i < count; ++i) {
      hashes[i] = hash_of(asked[i]);
      detail::prefetch(impl.index.bucket(hashes[i]));
    }
    std::size_t helds = 0;
    std::size_t opens = 0;
    const auto note = [&](std::uint32_t i, std::uint32_t number) {
      const bool is_held = number != detail::HashIndex::none;
      detail::prefetch(impl.images.data() + (is_held ? number : 0));
      numbers[i] = number;
      held[helds] = i;
      helds += is_held;
    };
    for (std::uint32_t i = 0; i < count; ++i) {
      const detail::HashIndex::Glance glance = impl.index.glance(hashes[i]);
      note(i, glance.number);
      open[opens] = i;
      opens += !glance.ends;
    }
    for (const std::uint32_t i : std::span(open).first(opens))
      note(i, impl.index.find(hashes[i], [](std::uint32_t) { return true; }));
    std::ranges::fill(answers, HostImage{});
    for (const std::uint32_t i : std::span(held).first(helds)) {
      // Another image of this hash may be in front.
      const bool first = impl.images[numbers[i]].key == asked[i];
      answers[i] = first ? impl.name(numbers[i]) : impl.find(asked[i], hashes[i]);
      found += answers[i].valid();
    }
  }
  return found;
}

HostImage HostTier::find(const ImageKey& key) const {
  return impl_->find(key, hash_of(key));
}

std::vector<ImageKey> HostTier::keys() const {
  std::vector<ImageKey> keys;
  for (const Impl::Image& image : impl_->images)
    if (!image.in_staging && (image.state == State::copying || image.state == State::ready)) keys.push_back(image.key);
  return keys;
}

std::optional<HostImage> HostTier::reserve(const ImageKey& key) {
  const std::size_t kind = impl_->kind_of(key);
  const std::uint32_t hash = hash_of(key);
  require(!impl_->find(key, hash).valid(), "key.tokens", key.tokens, "an image of this key is there");
  const std::optional<std::int32_t> place = impl_->visible.take(kind);
  if (!place) return {};
  const std::uint32_t number = impl_->record(key, kind, *place, false);
  impl_->index.insert(hash, number);
  Usage& usage = impl_->usage;
  ++usage.images;
  ++usage.copying;
  usage.image_bytes += impl_->sizes[kind];
  usage.empty_frames = impl_->visible.empty_frames();
  return impl_->name(number);
}

std::optional<HostImage> HostTier::reserve_staging(const ImageKey& key) {
  const std::size_t kind = impl_->kind_of(key);
  const std::optional<std::int32_t> place = impl_->staging.take(kind);
  if (!place) return {};
  ++impl_->usage.staging_images;
  return impl_->name(impl_->record(key, kind, *place, true));
}

bool HostTier::publish(HostImage image) {
  if (state(image) != State::copying) return false;
  Impl::Image& record = impl_->images[image.index];
  record.state = State::ready;
  if (!record.in_staging) --impl_->usage.copying;
  return true;
}

void HostTier::pin(HostImage image) {
  ++impl_->at(image).readers;
}

void HostTier::unpin(HostImage image) {
  Impl::Image& record = impl_->at(image);
  require(record.readers > 0, "image", image.index, "has no reader");
  --record.readers;
  // No key finds a staging image, so it goes with its last reader.
  if (record.readers == 0 && (record.state == State::leaving || record.in_staging)) impl_->give_back(image.index);
}

bool HostTier::remove(HostImage image) {
  const State before = state(image);
  if (before == State::gone || before == State::leaving) return false;
  Impl::Image& record = impl_->images[image.index];
  if (!record.in_staging) {
    impl_->index.erase(hash_of(record.key), image.index);
    impl_->usage.copying -= before == State::copying;
  }
  record.state = State::leaving;
  if (record.readers == 0) impl_->give_back(image.index);
  return true;
}

HostTier::State HostTier::state(HostImage image) const noexcept {
  return impl_->there(image) ? impl_->images[image.index].state : State::gone;
}
const ImageKey& HostTier::key(HostImage image) const {
  return impl_->at(image).key;
}
std::int32_t HostTier::place(HostImage image) const {
  return impl_->at(image).place;
}
std::span<std::byte> HostTier::bytes(HostImage image) const {
  const Impl::Image& record = impl_->at(image);
  const auto kind = static_cast<std::size_t>(record.kind);
  return {data() + static_cast<std::size_t>(record.place) * impl_->frames.strides[kind], impl_->sizes[kind]};
}

const HostTier::Usage& HostTier::usage() const noexcept {
  return impl_->usage;
}
std::int64_t HostTier::capacity(std::int32_t kind) const noexcept {
  return std::int64_t{impl_->places[static_cast<std::size_t>(kind)]} * impl_->visible.frames();
}
std::int64_t HostTier::room(std::int32_t kind) const noexcept {
  return impl_->visible.room(static_cast<std::size_t>(kind));
}
std::int64_t HostTier::staging_room(std::int32_t kind) const noexcept {
  return impl_->staging.room(static_cast<std::size_t>(kind));
}

void HostTier::check_invariants() const {
  const Impl& impl = *impl_;
  Usage counted{.frames = impl.visible.frames(), .empty_frames = impl.visible.empty_frames()};
  std::vector<std::vector<bool>> taken(impl.sizes.size());
  for (std::size_t kind = 0; kind < taken.size(); ++kind)
    taken[kind].resize(static_cast<std::size_t>(places(static_cast<std::int32_t>(kind))));
  std::size_t findable = 0, gone = 0;
  for (std::uint32_t number = 0; number < impl.images.size(); ++number) {
    const Impl::Image& image = impl.images[number];
    gone += image.state == State::gone;
    if (image.state == State::gone) continue;
    const auto kind = static_cast<std::size_t>(image.kind);
    require_invariant(impl.kind_of(image.key) == kind, "HostTier", "an image has another kind than its key");
    taken[kind].at(static_cast<std::size_t>(image.place)) = true;
    counted.staging_images += image.in_staging;
    counted.images += !image.in_staging;
    counted.image_bytes += image.in_staging ? 0 : impl.sizes[kind];
    counted.copying += !image.in_staging && image.state == State::copying;
    const bool found = !image.in_staging && image.state != State::leaving;
    findable += found;
    require_invariant(!found || find(image.key) == impl.name(number), "HostTier", "an image cannot be found");
    require_invariant(image.readers > 0 || found, "HostTier", "an image that nobody finds or reads is there still");
  }
  std::size_t free_records = 0;
  for (std::uint32_t at = impl.first_free; at != detail::HashIndex::none; at = impl.images[at].next_free)
    ++free_records;
  require_invariant(free_records == gone, "HostTier", "a record is lost");
  require_invariant(findable == impl.index.count(), "HostTier", "the index has another number of images");
  impl.index.check_invariants([&](std::uint32_t number) { return hash_of(impl.images[number].key); });
  const auto is_taken = [&](std::size_t kind, std::int32_t place) {
    return taken[kind][static_cast<std::size_t>(place)];
  };
  impl.visible.check_invariants(is_taken);
  impl.staging.check_invariants(is_taken);
  require_invariant(counted.images == impl.usage.images && counted.copying == impl.usage.copying &&
                        counted.staging_images == impl.usage.staging_images &&
                        counted.image_bytes == impl.usage.image_bytes &&
                        counted.empty_frames == impl.usage.empty_frames,
                    "HostTier", "the usage is counted wrongly");
}

}  // namespace stateport
