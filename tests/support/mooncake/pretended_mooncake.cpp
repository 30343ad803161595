// SPDX-License-Identifier: Apache-2.0
#include "pretended_mooncake.hpp"

#include "heap_counter.hpp"
#include "store_c.h"

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

constexpr int not_found = -704;
constexpr int invalid = -600;

struct Buffer {
  std::size_t bytes = 0;
  mooncake_store_t client = nullptr;
};

/// One master and its clients, in this process.
struct World {
  std::mutex mutex;
  std::map<std::string, std::vector<char>> objects;
  std::map<const char*, Buffer> buffers;
  stateport::test::MooncakeFaults faults;
  int unregistered_moves = 0;

  void check(const void* memory, std::size_t bytes) {
    const auto* begin = static_cast<const char*>(memory);
    auto after = buffers.upper_bound(begin);
    const bool fits =
        after != buffers.begin() && begin + bytes <= std::prev(after)->first + std::prev(after)->second.bytes;
    unregistered_moves += fits ? 0 : 1;
  }
};

World& world() {
  static World instance;
  return instance;
}

}  // namespace

namespace stateport::test {

void set_faults(const MooncakeFaults& faults) {
  const std::lock_guard lock(world().mutex);
  world().faults = faults;
}

int registered_buffers() {
  const std::lock_guard lock(world().mutex);
  return static_cast<int>(world().buffers.size());
}

int unregistered_moves() {
  const std::lock_guard lock(world().mutex);
  return world().unregistered_moves;
}

}  // namespace stateport::test

mooncake_store_t mooncake_store_create() {
  return new int(0);
}

void mooncake_store_destroy(mooncake_store_t store) {
  const std::lock_guard lock(world().mutex);
  std::erase_if(world().buffers, [store](const auto& buffer) { return buffer.second.client == store; });
  delete static_cast<int*>(store);
}

int mooncake_store_setup(mooncake_store_t, const char*, const char*, uint64_t, uint64_t, const char*, const char*,
                         const char*) {
  const std::lock_guard lock(world().mutex);
  return world().faults.setup;
}

int mooncake_store_batch_put_from(mooncake_store_t, const char** keys, void** buffers, const size_t* sizes,
                                  size_t count, const mooncake_replicate_config_t* config, int* results_out) {
  const std::lock_guard lock(world().mutex);
  if (world().faults.calls || config->replica_num == 0) return -1;
  for (std::size_t i = 0; i < count; ++i) {
    world().check(buffers[i], sizes[i]);
    results_out[i] = world().faults.put;
    const auto* bytes = static_cast<const char*>(buffers[i]);
    if (results_out[i] == 0) world().objects.try_emplace(keys[i], bytes, bytes + sizes[i]);
  }
  if (world().faults.memory) stateport::test::fail_heap_allocation(1, true);
  return 0;
}

int mooncake_store_batch_get_into(mooncake_store_t, const char** keys, void** buffers, const size_t* sizes,
                                  size_t count, int64_t* results_out) {
  const std::lock_guard lock(world().mutex);
  if (world().faults.calls) return -1;
  for (std::size_t i = 0; i < count; ++i) {
    world().check(buffers[i], sizes[i]);
    const auto found = world().objects.find(keys[i]);
    results_out[i] = world().faults.get;
    if (results_out[i] != 0) continue;
    if (found == world().objects.end()) {
      results_out[i] = not_found;
    } else if (found->second.size() > sizes[i]) {
      results_out[i] = invalid;
    } else {
      std::memcpy(buffers[i], found->second.data(), found->second.size());
      results_out[i] = static_cast<int64_t>(found->second.size());
    }
  }
  return 0;
}

int mooncake_store_batch_is_exist(mooncake_store_t, const char** keys, size_t count, int* results_out) {
  const std::lock_guard lock(world().mutex);
  if (world().faults.calls) return -1;
  for (std::size_t i = 0; i < count; ++i) results_out[i] = world().objects.contains(keys[i]) ? 1 : 0;
  return 0;
}

int64_t mooncake_store_get_size(mooncake_store_t, const char* key) {
  const std::lock_guard lock(world().mutex);
  const auto found = world().objects.find(key);
  return found == world().objects.end() ? not_found : static_cast<int64_t>(found->second.size());
}

int mooncake_store_remove(mooncake_store_t, const char* key, int force) {
  const std::lock_guard lock(world().mutex);
  if (world().faults.calls || force == 0) return -1;
  return world().objects.erase(key) > 0 ? 0 : not_found;
}

int mooncake_store_register_buffer(mooncake_store_t store, void* buffer, size_t size) {
  const std::lock_guard lock(world().mutex);
  if (world().faults.registration) return invalid;
  world().buffers[static_cast<const char*>(buffer)] = {size, store};
  return 0;
}

int mooncake_store_unregister_buffer(mooncake_store_t, void* buffer) {
  const std::lock_guard lock(world().mutex);
  if (world().faults.registration) return invalid;
  return world().buffers.erase(static_cast<const char*>(buffer)) > 0 ? 0 : invalid;
}
