// SPDX-License-Identifier: Apache-2.0
// The tiers of a request cache below the device.
#include <stateport/c/cache_tiers.h>

#include "arguments.hpp"
#include "cache_object.hpp"
#include "guard.hpp"
#include "transfers.hpp"

#include <algorithm>
#include <vector>

using namespace stateport;
using namespace stateport::c;

namespace stateport::c {

TierOptions read_tier_options(const stateport_tier_options* options) {
  const auto given = read_optional_struct(options, "tiers");
  TierOptions wanted{.host_bytes = given.host_bytes,
                     .file_bytes = given.file_bytes,
                     .remote_bytes = given.remote_bytes,
                     .state_image_bytes = given.state_image_bytes,
                     .kv_image_bytes = given.kv_image_bytes,
                     .write_through = given.write_through != 0,
                     .host_bytes_per_s = given.host_bytes_per_s,
                     .file_bytes_per_s = given.file_bytes_per_s,
                     .tokens_per_s = given.tokens_per_s,
                     .remote_bytes_per_s = given.remote_bytes_per_s,
                     .remote_latency_s = given.remote_latency_s};
  if (given.max_finds != 0) wanted.max_finds = given.max_finds;
  if (given.queue_bytes != 0) wanted.queue_bytes = given.queue_bytes;
  return wanted;
}

KvFunction read_kv_function(const stateport_request_cache_options* options) {
  const auto given = read_struct<stateport_request_cache_options>(options, "options");
  const auto tiers = read_optional_struct(given.tiers, "tiers");
  return {.call = tiers.leading_blocks, .context = tiers.leading_blocks_context};
}

stateport_tier_usage to_c(const TierUsage& usage) noexcept {
  static_assert(transfer_status_count <= STATEPORT_TRANSFER_STATUSES_MAX);
  stateport_tier_usage reported = {.size = sizeof(stateport_tier_usage),
                                   .states = usage.states,
                                   .kv_blocks = usage.kv_blocks,
                                   .bytes = usage.bytes,
                                   .bytes_written = usage.bytes_written,
                                   .bytes_read = usage.bytes_read,
                                   .loads = usage.loads,
                                   .hit_tokens = usage.hit_tokens,
                                   .evicted_states = usage.evicted_states,
                                   .dropped_states = usage.dropped_states,
                                   .refused_images = usage.refused_images,
                                   .lost_images = usage.lost_images,
                                   .saved_s = usage.saved_s,
                                   .asked_images = usage.asked_images,
                                   .found_images = usage.found_images,
                                   .reads = usage.reads.transfers,
                                   .read_bytes = usage.reads.bytes,
                                   .writes = usage.writes.transfers,
                                   .write_bytes = usage.writes.bytes,
                                   .finds = usage.finds.transfers};
  std::ranges::copy(usage.reads.ended, reported.ended_reads);
  std::ranges::copy(usage.writes.ended, reported.ended_writes);
  std::ranges::copy(usage.finds.ended, reported.ended_finds);
  return reported;
}

}  // namespace stateport::c

namespace {
using HeldCache = Held<CacheObject>;
}

stateport_status stateport_request_cache_settle(stateport_request_cache* cache,
                                                const stateport_transfer_result* results, size_t count,
                                                stateport_settled_transfers* out) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    CacheTiers& tiers = held->tiers();
    const Out result(out, "out");
    std::vector<TransferResult> ended;
    for (const stateport_transfer_result& given : array(results, count, "results")) ended.push_back(from_c(given));
    const SettledTransfers settled = tiers.settle(ended);
    held->transfers.clear();
    result.write(
        held->with_transfers(stateport_settled_transfers{.ready_requests = settled.ready_requests}, settled.transfers));
  });
}

stateport_status stateport_request_cache_loading(stateport_request_cache* cache, const int64_t* requests, size_t count,
                                                 uint8_t* loading) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const CacheTiers& tiers = held->tiers();
    const auto named = array(requests, count, "requests");
    const auto room = array(loading, count, "loading");
    std::vector<std::uint8_t> reported;
    for (const std::int64_t request : named) reported.push_back(tiers.is_loading(RequestId{request}) ? 1 : 0);
    std::ranges::copy(reported, room.begin());
  });
}

stateport_status stateport_request_cache_drain(stateport_request_cache* cache, stateport_transfer_plan* out) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    CacheTiers& tiers = held->tiers();
    const Out result(out, "out");
    const TransferPlan transfers = tiers.drain();
    held->transfers.clear();
    result.write({.transfers = held->keep(transfers), .count = transfers.size()});
  });
}

stateport_status stateport_request_cache_attach(stateport_request_cache* cache, int32_t medium,
                                                const stateport_image_key* images, size_t count, uint8_t* attached,
                                                size_t* done) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    CacheTiers& tiers = held->tiers();
    const Medium where = medium_from_c(medium, "medium");
    const std::vector<ImageKey> keys = read_keys(images, count, "images");
    const auto room = array(attached, count, "attached");
    std::size_t& reported = checked(done, "done");
    for (reported = 0; reported < keys.size(); ++reported) room[reported] = tiers.attach(where, keys[reported]) ? 1 : 0;
  });
}

stateport_status stateport_request_cache_set_speeds(stateport_request_cache* cache,
                                                    const stateport_tier_speeds* speeds) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const auto given = read_struct<stateport_tier_speeds>(speeds, "speeds");
    held->tiers().set_speeds({.host_bytes_per_s = given.host_bytes_per_s,
                              .file_bytes_per_s = given.file_bytes_per_s,
                              .tokens_per_s = given.tokens_per_s,
                              .remote_bytes_per_s = given.remote_bytes_per_s,
                              .remote_latency_s = given.remote_latency_s});
  });
}

stateport_status stateport_request_cache_tier_usage(stateport_request_cache* cache, int32_t medium,
                                                    stateport_tier_usage* out) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const Out result(out, "out");
    const Medium of = medium_from_c(medium, "medium");
    CacheTiers* const tiers = held->cache->tiers();
    result.write(to_c(tiers == nullptr ? TierUsage{} : tiers->usage(of)));
  });
}
