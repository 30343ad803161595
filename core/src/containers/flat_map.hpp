// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "containers/table.hpp"

#include <tsl/robin_map.h>
#include <tsl/robin_set.h>

#include <cstddef>
#include <functional>
#include <utility>

namespace stateport {

/// The one hash map of the project: open addressing, backward-shift erase, no allocation while the size stays below
/// the reserved capacity.
template <class Key, class Value, class Hash = std::hash<Key>, class Equal = std::equal_to<Key>>
using FlatMap = tsl::robin_map<Key, Value, Hash, Equal, TableAllocator<std::pair<Key, Value>>>;

/// The set that goes with it.
template <class Key, class Hash = std::hash<Key>>
using FlatSet = tsl::robin_set<Key, Hash, std::equal_to<Key>, TableAllocator<Key>>;

namespace detail {
/// Makes room for `count` entries in all, at least doubling the room: many small steps stay amortised.
template <class Key, class Value, class Hash, class Equal>
void reserve_amortised(FlatMap<Key, Value, Hash, Equal>& map, std::size_t count) {
  if (static_cast<float>(count) > static_cast<float>(map.bucket_count()) * map.max_load_factor()) map.reserve(count);
}
}  // namespace detail

}  // namespace stateport
