// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/pool_resource.hpp>

#include <stateport/backends/event.hpp>
#include <stateport/core/model/error.hpp>

#include "pool_blocks.hpp"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace stateport {

using detail::PoolBlocks;

namespace {
constexpr std::size_t slab_alignment = MemoryResource::max_alignment;  // an aligned request fits a slab's start
// Far above any memory, far below an overflow of the sums in PoolBlocks.
constexpr std::size_t largest_request_bytes = SIZE_MAX / 4;
}  // namespace

/// Every function expects the mutex to be held.
struct PoolResource::Impl {
  struct Lane {
    Stream stream;
    std::optional<Event> event = std::nullopt;  ///< made when another stream first takes over memory of this one
  };

  Impl(MemoryResource& from, const Options& chosen) : upstream(from), options(chosen) {
    lanes.reserve(static_cast<std::size_t>(PoolBlocks::max_lanes));
  }

  /// The lane of a stream, a new one if need be, or -1 when all are taken. Allocates nothing.
  std::int32_t find_lane(const Stream& stream) noexcept;
  /// The lane that gives to and takes from `stream`; work on the stream may use its free blocks from now on.
  std::int32_t lane_for_taking(const Stream& stream);
  /// Work enqueued on `to` from now on may use the free blocks of lane `from`.
  void order(std::int32_t from, const Stream& to);
  std::byte* take_over(std::size_t bytes, std::size_t alignment, std::int32_t lane);
  void absorb_all(std::int32_t lane);
  /// Adds a slab that holds `bytes`, or says how much upstream has left.
  bool grow(std::size_t bytes, std::int32_t lane, std::size_t& available_bytes);
  bool try_slab(std::size_t bytes, std::int32_t lane, std::size_t& available_bytes);
  std::size_t release_free_slabs(std::int32_t lane) noexcept;
  void synchronize_all() noexcept;

  Stream& stream_of(std::int32_t lane) noexcept { return lanes[static_cast<std::size_t>(lane)].stream; }
  [[nodiscard]] std::int32_t lane_count() const noexcept { return static_cast<std::int32_t>(lanes.size()); }

  MemoryResource& upstream;
  Options options;
  mutable std::mutex mutex;
  PoolBlocks blocks;
  std::vector<Lane> lanes;
};

namespace {
void synchronize_quietly(const Stream& stream) noexcept {
  try {
    stream.synchronize();
  } catch (const BackendError&) {
    // The device has failed or the runtime has ended: no work can use the memory any more.
  }
}
}  // namespace

std::int32_t PoolResource::Impl::find_lane(const Stream& stream) noexcept {
  const auto found = std::ranges::find(lanes, stream, &Lane::stream);
  if (found != lanes.end()) return static_cast<std::int32_t>(found - lanes.begin());
  if (lane_count() == PoolBlocks::max_lanes) return -1;
  lanes.push_back({stream});
  return blocks.add_lane();
}

std::int32_t PoolResource::Impl::lane_for_taking(const Stream& stream) {
  const std::int32_t lane = find_lane(stream);
  if (lane >= 0) return lane;
  order(0, stream);
  return 0;
}

void PoolResource::Impl::order(std::int32_t from, const Stream& to) {
  Lane& lane = lanes[static_cast<std::size_t>(from)];
  if (!lane.event) lane.event.emplace();
  lane.event->record(lane.stream);
  lane.event->wait(to);
}

// One other stream's block is enough most of the time, and leaves the others as they are; joining the free blocks of
// all streams is the last resort before upstream.
std::byte* PoolResource::Impl::take_over(std::size_t bytes, std::size_t alignment, std::int32_t lane) {
  bool others_have_some = false;
  for (std::int32_t other = 0; other < lane_count(); ++other) {
    if (other == lane || !blocks.has_free(other)) continue;
    others_have_some = true;
    if (!blocks.fits(bytes, alignment, other)) continue;
    order(other, stream_of(lane));
    return blocks.take(bytes, alignment, other);
  }
  if (!others_have_some) return nullptr;
  absorb_all(lane);
  return blocks.take(bytes, alignment, lane);
}

void PoolResource::Impl::absorb_all(std::int32_t lane) {
  for (std::int32_t other = 0; other < lane_count(); ++other) {
    if (other == lane || !blocks.has_free(other)) continue;
    order(other, stream_of(lane));
    blocks.absorb(other, lane);
  }
}

bool PoolResource::Impl::try_slab(std::size_t bytes, std::int32_t lane, std::size_t& available_bytes) {
  try {
    void* const memory = upstream.allocate(bytes, slab_alignment, stream_of(lane));
    blocks.add_slab({static_cast<std::byte*>(memory), bytes}, lane);
    return true;
  } catch (const OutOfMemory& exhausted) {
    available_bytes = exhausted.available_bytes();
    return false;
  }
}

bool PoolResource::Impl::grow(std::size_t bytes, std::int32_t lane, std::size_t& available_bytes) {
  blocks.reserve();
  const std::size_t slab_bytes = std::max(bytes, options.slab_bytes);
  if (try_slab(slab_bytes, lane, available_bytes)) return true;
  if (bytes < slab_bytes && try_slab(bytes, lane, available_bytes)) return true;
  absorb_all(lane);
  return release_free_slabs(lane) > 0 && try_slab(bytes, lane, available_bytes);
}

std::size_t PoolResource::Impl::release_free_slabs(std::int32_t lane) noexcept {
  std::size_t released_bytes = 0;
  while (const auto slab = blocks.remove_free_slab(lane)) {
    upstream.deallocate(slab->memory, slab->bytes, slab_alignment, stream_of(lane));
    released_bytes += slab->bytes;
  }
  return released_bytes;
}

void PoolResource::Impl::synchronize_all() noexcept {
  for (const Lane& lane : lanes) synchronize_quietly(lane.stream);
}

PoolResource::PoolResource(MemoryResource& upstream) : PoolResource(upstream, Options{}) {}

PoolResource::PoolResource(MemoryResource& upstream, const Options& options) {
  require(options.slab_bytes > 0, "slab_bytes", options.slab_bytes, "must be positive");
  require(options.slab_bytes <= largest_request_bytes, "slab_bytes", "too large", "must be an amount of memory");
  require(options.initial_bytes <= largest_request_bytes, "initial_bytes", "too large", "must be an amount of memory");
  impl_ = std::make_unique<Impl>(upstream, options);
  impl_->options.slab_bytes = PoolBlocks::rounded(options.slab_bytes);
  if (options.initial_bytes == 0) return;
  impl_->blocks.reserve();
  const std::int32_t lane = impl_->find_lane(Stream::default_stream());
  std::size_t available_bytes = 0;
  if (!impl_->try_slab(PoolBlocks::rounded(options.initial_bytes), lane, available_bytes))
    throw OutOfMemory("PoolResource", options.initial_bytes, available_bytes);
}

PoolResource::~PoolResource() {
  if (impl_->lanes.empty()) return;
  impl_->synchronize_all();
  for (std::int32_t lane = 1; lane < impl_->lane_count(); ++lane) impl_->blocks.absorb(lane, 0);
  impl_->release_free_slabs(0);
}

std::size_t PoolResource::release_unused(const Stream& stream) {
  const std::lock_guard lock(impl_->mutex);
  const std::int32_t lane = impl_->lane_for_taking(stream);
  impl_->absorb_all(lane);
  return impl_->release_free_slabs(lane);
}

std::size_t PoolResource::reserved_bytes() const noexcept {
  const std::lock_guard lock(impl_->mutex);
  return impl_->blocks.reserved_bytes();
}

std::size_t PoolResource::used_bytes() const noexcept {
  const std::lock_guard lock(impl_->mutex);
  return impl_->blocks.used_bytes();
}

void PoolResource::check_invariants() const {
  const std::lock_guard lock(impl_->mutex);
  impl_->blocks.check_invariants();
}

void* PoolResource::do_allocate(std::size_t bytes, std::size_t alignment, const Stream& stream) {
  const std::lock_guard lock(impl_->mutex);
  if (bytes > largest_request_bytes) throw OutOfMemory("PoolResource", bytes, 0);
  const std::size_t block_bytes = PoolBlocks::rounded(bytes);
  const std::int32_t lane = impl_->lane_for_taking(stream);
  impl_->blocks.reserve();
  if (std::byte* memory = impl_->blocks.take(block_bytes, alignment, lane)) return memory;
  if (std::byte* memory = impl_->take_over(block_bytes, alignment, lane)) return memory;
  std::size_t available_bytes = 0;
  if (!impl_->grow(block_bytes, lane, available_bytes)) throw OutOfMemory("PoolResource", bytes, available_bytes);
  impl_->blocks.reserve();
  return impl_->blocks.take(block_bytes, alignment, lane);
}

void PoolResource::do_deallocate(void* memory, std::size_t, std::size_t, const Stream& stream) noexcept {
  const std::lock_guard lock(impl_->mutex);
  std::int32_t lane = impl_->find_lane(stream);
  if (lane < 0) {
    synchronize_quietly(stream);
    lane = 0;
  }
  impl_->blocks.give(static_cast<std::byte*>(memory), lane);
}

MemoryKind PoolResource::do_kind() const noexcept {
  return impl_->upstream.kind();
}

}  // namespace stateport
