// SPDX-License-Identifier: Apache-2.0
// Pins and prefetches of a request cache.
#include <stateport/c/cache_prefixes.h>

#include "arguments.hpp"
#include "cache_object.hpp"
#include "guard.hpp"
#include "read_prompt.hpp"

using namespace stateport;
using namespace stateport::c;

namespace {

using HeldCache = Held<CacheObject>;

ReadPrompt read_prompt(const stateport_prompt* prompt) {
  return ReadPrompt(read_struct<stateport_prompt>(prompt, "prompt"));
}

}  // namespace

stateport_status stateport_request_cache_pin(stateport_request_cache* cache, const stateport_prompt* prompt,
                                             double lease_s, stateport_pinned_prefix* out) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const ReadPrompt given = read_prompt(prompt);
    const Out result(out, "out");
    const PinnedPrefix pinned = held->prefixes().pin(given.prompt(), lease_s);
    result.write({.pin = pinned.pin, .tokens = pinned.tokens, .refused = pinned.refused});
  });
}

stateport_status stateport_request_cache_unpin(stateport_request_cache* cache, uint64_t pin, uint8_t* unpinned) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    std::uint8_t& result = checked(unpinned, "unpinned");
    result = held->prefixes().unpin(pin) ? 1 : 0;
  });
}

stateport_status stateport_request_cache_prefetch(stateport_request_cache* cache, const stateport_prompt* prompt,
                                                  stateport_prefetch* out) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const ReadPrompt given = read_prompt(prompt);
    const Out result(out, "out");
    const Prefetch started = held->prefixes().prefetch(given.prompt());
    const TierLoad load = started.load.value_or(TierLoad{.medium = Medium::device});
    held->transfers.clear();
    result.write(held->with_transfers(stateport_prefetch{.prefetch = started.prefetch,
                                                         .cached_tokens = started.cached_tokens,
                                                         .load_tokens = load.tokens,
                                                         .load_bytes = load.bytes,
                                                         .load_medium = static_cast<std::int32_t>(load.medium),
                                                         .refused = started.refused},
                                      started.transfers));
  });
}

stateport_status stateport_request_cache_prefetching(stateport_request_cache* cache, uint64_t prefetch,
                                                     uint8_t* under_way) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    std::uint8_t& result = checked(under_way, "under_way");
    result = held->prefixes().is_prefetching(prefetch) ? 1 : 0;
  });
}

stateport_status stateport_request_cache_prefix_usage(stateport_request_cache* cache, stateport_prefix_usage* out) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const Out result(out, "out");
    const PrefixUsage& usage = held->prefixes().usage();
    result.write({.pins = usage.pins,
                  .pinned_kv_tokens = usage.pinned_kv_tokens,
                  .pinned_states = usage.pinned_states,
                  .pinned_bytes = usage.pinned_bytes,
                  .prefetches = usage.prefetches,
                  .made_pins = usage.made_pins,
                  .refused_pins = usage.refused_pins,
                  .ended_leases = usage.ended_leases,
                  .made_prefetches = usage.made_prefetches,
                  .refused_prefetches = usage.refused_prefetches,
                  .prefetched_tokens = usage.prefetched_tokens});
  });
}
