// SPDX-License-Identifier: Apache-2.0
// Images below the device by key.
#include <stateport/c/image_cache.h>
#include <stateport/parts/image_cache.hpp>

#include "arguments.hpp"
#include "guard.hpp"
#include "handle_table.hpp"
#include "transfers.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <vector>

using namespace stateport;
using namespace stateport::c;

namespace {

static_assert(sizeof(stateport_ended_images) == 16);

struct ImageCacheObject final : Object {
  static constexpr Kind kind = Kind::image_cache;
  explicit ImageCacheObject(const ImageCacheOptions& options) : Object(kind), cache(options) {
    transfers.reserve(cache.transfers_max());
    ended.reserve(options.images_under_way_max + 1);
  }

  ImageCache cache;
  // Of the last plan.
  std::vector<stateport_transfer> transfers;
  std::vector<stateport_ended_images> ended;
};

using HeldImages = Held<ImageCacheObject>;

ImageCacheOptions read_options(const stateport_image_cache_options* options) {
  const auto given = read_struct<stateport_image_cache_options>(options, "options");
  const auto states = array(given.state_image_bytes, given.state_groups, "state_image_bytes");
  ImageCacheOptions wanted{.host_bytes = given.host_bytes,
                           .file_bytes = given.file_bytes,
                           .remote_bytes = given.remote_bytes,
                           .kv_image_bytes = given.kv_image_bytes,
                           .state_image_bytes = {states.begin(), states.end()},
                           .write_through = given.write_through != 0};
  if (given.queue_bytes != 0) wanted.queue_bytes = given.queue_bytes;
  if (given.eviction != 0) wanted.eviction = enumerator(given.eviction, EvictionOrder::filo, "eviction");
  if (given.images_under_way_max != 0) wanted.images_under_way_max = given.images_under_way_max;
  return wanted;
}

/// Calls `decide(cache)` and answers its plan. The vectors have room for it.
template <class Decide>
void answer(const HeldImages& held, stateport_image_plan* out, Decide&& decide) {
  const Out result(out, "out");
  const ImagePlan plan = decide(held->cache);
  held->transfers.clear();
  held->ended.clear();
  for (const Transfer& transfer : plan.transfers) held->transfers.push_back(to_c(transfer));
  for (const EndedImages& images : plan.ended) held->ended.push_back({images.request.value(), images.missing});
  result.write({.request = plan.request.value(),
                .transfers = held->transfers.data(),
                .transfer_count = held->transfers.size(),
                .ended = held->ended.data(),
                .ended_count = held->ended.size()});
}

/// The same for a call with keys: decide(cache, keys).
template <class Decide>
stateport_status answer_for(stateport_image_cache* cache, const stateport_image_key* images, std::size_t count,
                            stateport_image_plan* out, Decide&& decide) {
  return guarded([&] {
    const HeldImages held(cache, "cache");
    const std::vector<ImageKey> keys = read_keys(images, count, "images");
    answer(held, out, [&](ImageCache& of) { return decide(of, keys); });
  });
}

}  // namespace

stateport_status stateport_image_cache_create(const stateport_image_cache_options* options,
                                              stateport_image_cache** out) {
  return guarded([&] { create(out, [&] { return std::make_shared<ImageCacheObject>(read_options(options)); }); });
}

stateport_status stateport_image_cache_destroy(stateport_image_cache* cache) {
  return guarded([&] { destroy<ImageCacheObject>(cache, "cache"); });
}

stateport_status stateport_image_cache_check(stateport_image_cache* cache) {
  return guarded([&] { HeldImages(cache, "cache")->cache.check_invariants(); });
}

stateport_status stateport_image_cache_put(stateport_image_cache* cache, const stateport_image_key* images,
                                           const int32_t* places, size_t count, stateport_image_plan* out) {
  return answer_for(cache, images, count, out, [&](ImageCache& of, std::span<const ImageKey> keys) {
    return of.put(keys, array(places, count, "places"));
  });
}

stateport_status stateport_image_cache_get(stateport_image_cache* cache, const stateport_image_key* images,
                                           const int32_t* places, size_t count, stateport_image_plan* out) {
  return answer_for(cache, images, count, out, [&](ImageCache& of, std::span<const ImageKey> keys) {
    return of.get(keys, array(places, count, "places"));
  });
}

stateport_status stateport_image_cache_ask(stateport_image_cache* cache, const stateport_image_key* images,
                                           size_t count, stateport_image_plan* out) {
  return answer_for(cache, images, count, out, [](ImageCache& of, const auto& keys) { return of.ask(keys); });
}

stateport_status stateport_image_cache_remove(stateport_image_cache* cache, const stateport_image_key* images,
                                              size_t count, stateport_image_plan* out) {
  return answer_for(cache, images, count, out, [](ImageCache& of, const auto& keys) { return of.remove(keys); });
}

stateport_status stateport_image_cache_drain(stateport_image_cache* cache, stateport_image_plan* out) {
  return guarded([&] {
    const HeldImages held(cache, "cache");
    answer(held, out, [](ImageCache& of) { return of.drain(); });
  });
}

stateport_status stateport_image_cache_settle(stateport_image_cache* cache, const stateport_transfer_result* results,
                                              size_t count, stateport_image_plan* out) {
  return guarded([&] {
    const HeldImages held(cache, "cache");
    std::vector<TransferResult> ended;
    for (const stateport_transfer_result& result : array(results, count, "results")) ended.push_back(from_c(result));
    answer(held, out, [&](ImageCache& of) { return of.settle(ended); });
  });
}

stateport_status stateport_image_cache_find(stateport_image_cache* cache, const stateport_image_key* images,
                                            size_t count, int32_t* media, size_t* leading) {
  return guarded([&] {
    const HeldImages held(cache, "cache");
    const std::vector<ImageKey> keys = read_keys(images, count, "images");
    std::size_t& found = checked(leading, "leading");
    std::vector<std::optional<Medium>> where(media == nullptr ? 0 : count);
    found = held->cache.find(keys, where);
    std::ranges::transform(where, media, [](const std::optional<Medium>& medium) {
      return medium ? static_cast<std::int32_t>(*medium) : STATEPORT_NONE;
    });
  });
}

stateport_status stateport_image_cache_touch(stateport_image_cache* cache, const stateport_image_key* images,
                                             size_t count) {
  return guarded([&] {
    const HeldImages held(cache, "cache");
    held->cache.touch(read_keys(images, count, "images"));
  });
}

stateport_status stateport_image_cache_pin(stateport_image_cache* cache, const stateport_image_key* images,
                                           size_t count, stateport_flag* pinned) {
  return guarded([&] {
    const HeldImages held(cache, "cache");
    const std::vector<ImageKey> keys = read_keys(images, count, "images");
    stateport_flag& result = checked(pinned, "pinned");
    result = held->cache.pin(keys) ? 1 : 0;
  });
}

stateport_status stateport_image_cache_unpin(stateport_image_cache* cache, const stateport_image_key* images,
                                             size_t count) {
  return guarded([&] {
    const HeldImages held(cache, "cache");
    held->cache.unpin(read_keys(images, count, "images"));
  });
}

stateport_status stateport_image_cache_attach(stateport_image_cache* cache, int32_t medium,
                                              const stateport_image_key* images, size_t count, uint8_t* attached) {
  return guarded([&] {
    const HeldImages held(cache, "cache");
    const Medium where = medium_from_c(medium, "medium");
    const std::vector<ImageKey> keys = read_keys(images, count, "images");
    const auto room = array(attached, count, "attached");
    static_cast<void>(held->cache.find(keys));  // refuses all of them, or none
    for (std::size_t i = 0; i < count; ++i) room[i] = held->cache.attach(where, keys[i]) ? 1 : 0;
  });
}

stateport_status stateport_image_cache_under_way(stateport_image_cache* cache, size_t* out) {
  return guarded([&] {
    const HeldImages held(cache, "cache");
    checked(out, "out") = held->cache.under_way();
  });
}

stateport_status stateport_image_cache_usage(stateport_image_cache* cache, int32_t medium,
                                             stateport_image_tier_usage* out) {
  return guarded([&] {
    const HeldImages held(cache, "cache");
    const Out result(out, "out");
    const ImageTierUsage usage = held->cache.usage(medium_from_c(medium, "medium"));
    result.write({.images = usage.images,
                  .bytes = usage.bytes,
                  .written_images = usage.written_images,
                  .read_images = usage.read_images,
                  .evicted_images = usage.evicted_images,
                  .refused_images = usage.refused_images,
                  .lost_images = usage.lost_images,
                  .asked_images = usage.asked_images,
                  .found_images = usage.found_images});
  });
}
