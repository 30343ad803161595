// SPDX-License-Identifier: Apache-2.0
#include "elastic_ranges.hpp"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <new>

namespace stateport::detail {
namespace {

struct ElasticRange {
  std::size_t bytes;
  int device_id;
};

struct ElasticRanges {
  std::mutex mutex;
  std::map<std::uintptr_t, ElasticRange> ranges;  ///< by their first address
};

// Never destroyed: memory may be given back by objects of static storage. Its place is static, so that a look-up never
// allocates.
ElasticRanges& elastic_ranges() noexcept {
  alignas(ElasticRanges) static std::byte place[sizeof(ElasticRanges)];
  static auto* const ranges = new (place) ElasticRanges;
  return *ranges;
}

std::uintptr_t key_of(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

void note_elastic(const void* address, std::size_t bytes, int device_id) {
  ElasticRanges& known = elastic_ranges();
  const std::lock_guard lock(known.mutex);
  known.ranges[key_of(address)] = {.bytes = bytes, .device_id = device_id};
}

void forget_elastic(const void* address) noexcept {
  ElasticRanges& known = elastic_ranges();
  const std::lock_guard lock(known.mutex);
  known.ranges.erase(key_of(address));
}

std::optional<int> elastic_device(const void* address) noexcept {
  ElasticRanges& known = elastic_ranges();
  const std::lock_guard lock(known.mutex);
  const auto after = known.ranges.upper_bound(key_of(address));
  if (after == known.ranges.begin()) return {};
  const auto& [base, range] = *std::prev(after);
  if (key_of(address) - base >= range.bytes) return {};
  return range.device_id;
}

}  // namespace stateport::detail
