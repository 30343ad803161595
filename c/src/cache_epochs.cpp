// SPDX-License-Identifier: Apache-2.0
// Contents of a request cache that are to be forgotten.
#include <stateport/c/cache_epochs.h>

#include "arguments.hpp"
#include "cache_object.hpp"
#include "guard.hpp"
#include "prefix_tree.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

using namespace stateport;
using namespace stateport::c;

namespace {

using HeldCache = Held<CacheObject>;

static_assert(sizeof(stateport_forget_record) == 32);
static_assert(STATEPORT_FORGET_NAME_SPACE == static_cast<int>(ForgetBy::name_space) &&
              STATEPORT_FORGET_EXTRA_KEY == static_cast<int>(ForgetBy::extra_key) &&
              STATEPORT_FORGET_SALT == static_cast<int>(ForgetBy::salt) &&
              STATEPORT_FORGET_ALL == static_cast<int>(ForgetBy::all));

stateport_forget_record to_c(const ForgetRecord& record) noexcept {
  const std::uint64_t names = std::uint64_t{record.extra_key} << 32 | record.salt;
  return {.cache = record.cache, .call = record.call, .names = names, .by = static_cast<std::int32_t>(record.by)};
}

ForgetRecord from_c(const stateport_forget_record& record) {
  require(record.reserved == 0, "records.reserved", record.reserved, "must be 0");
  return {.cache = record.cache,
          .call = record.call,
          .extra_key = static_cast<std::uint32_t>(record.names >> 32),
          .salt = static_cast<std::uint32_t>(record.names),
          .by = enumerator(record.by, ForgetBy::all, "records.by")};
}

}  // namespace

stateport_status stateport_request_cache_advance_epoch(stateport_request_cache* cache, uint64_t epoch,
                                                       uint64_t* current) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const std::uint64_t begun = held->cache->epochs().advance(epoch);
    if (current != nullptr) *current = begun;
  });
}

stateport_status stateport_request_cache_epoch(stateport_request_cache* cache, uint64_t* epoch) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    checked(epoch, "epoch") = held->cache->epochs().current();
  });
}

stateport_status stateport_request_cache_forget(stateport_request_cache* cache, const stateport_namespace* name_space,
                                                int32_t by) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    held->cache->epochs().forget(stateport::c::from_c(name_space), enumerator(by, ForgetBy::all, "by"));
  });
}

stateport_status stateport_request_cache_forgotten(stateport_request_cache* cache, stateport_forget_record* out,
                                                   size_t capacity, size_t* count) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const auto room = array(out, capacity, "out");
    std::size_t& reported = checked(count, "count");
    const std::span<const ForgetRecord> records = held->cache->epochs().forgotten();
    reported = records.size();
    for (std::size_t i = 0; i < std::min(room.size(), records.size()); ++i) room[i] = to_c(records[i]);
  });
}

stateport_status stateport_request_cache_adopt_forgotten(stateport_request_cache* cache,
                                                         const stateport_forget_record* records, size_t count,
                                                         uint8_t* adopted) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    std::vector<ForgetRecord> given;
    for (const stateport_forget_record& record : array(records, count, "records")) given.push_back(from_c(record));
    const bool is_adopted = held->cache->epochs().adopt(given);
    if (adopted != nullptr) *adopted = is_adopted ? 1 : 0;
  });
}

stateport_status stateport_request_cache_is_stale(stateport_request_cache* cache, int64_t request, uint8_t* stale) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    std::uint8_t& reported = checked(stale, "stale");
    reported = held->cache->epochs().is_stale(RequestId{request}) ? 1 : 0;
  });
}
