// SPDX-License-Identifier: Apache-2.0
#include "live_memory.hpp"

#ifdef STATEPORT_ENABLE_ASSERT
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#endif

namespace stateport::detail {

#ifdef STATEPORT_ENABLE_ASSERT
namespace {

struct Extent {
  std::size_t bytes;
  std::size_t alignment;
};

/// The watch of allocations makes none that it counts, or that a test lets fail.
template <class T>
struct OwnMemory {
  using value_type = T;
  OwnMemory() = default;
  template <class U>
  OwnMemory(const OwnMemory<U>&) noexcept {}
  [[nodiscard]] T* allocate(std::size_t count) noexcept {
    void* const memory = std::malloc(count * sizeof(T));
    if (memory == nullptr) std::abort();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t) noexcept { std::free(memory); }
  friend bool operator==(const OwnMemory&, const OwnMemory&) noexcept = default;
};

using Place = std::pair<const void*, void*>;  ///< identity, address

struct LiveMemory {
  std::mutex mutex;
  std::map<Place, Extent, std::less<>, OwnMemory<std::pair<const Place, Extent>>> extents;
};

// Never destroyed: memory may be given back by objects of static storage.
LiveMemory& live_memory() noexcept {
  alignas(LiveMemory) static std::byte place[sizeof(LiveMemory)];
  static auto* const live = ::new (place) LiveMemory;
  return *live;
}

}  // namespace

void note_allocated(const void* identity, void* memory, std::size_t bytes, std::size_t alignment) noexcept {
  LiveMemory& live = live_memory();
  const std::lock_guard lock(live.mutex);
  live.extents[{identity, memory}] = {bytes, alignment};
}

bool note_deallocated(const void* identity, void* memory, std::size_t bytes, std::size_t alignment) noexcept {
  LiveMemory& live = live_memory();
  const std::lock_guard lock(live.mutex);
  const auto found = live.extents.find({identity, memory});
  if (found == live.extents.end()) return false;
  if (found->second.bytes != bytes || found->second.alignment != alignment) return false;
  live.extents.erase(found);
  return true;
}

bool has_live_memory(const void* identity) noexcept {
  LiveMemory& live = live_memory();
  const std::lock_guard lock(live.mutex);
  const auto first = live.extents.lower_bound({identity, nullptr});
  return first != live.extents.end() && first->first.first == identity;
}
#else
void note_allocated(const void*, void*, std::size_t, std::size_t) noexcept {}
bool note_deallocated(const void*, void*, std::size_t, std::size_t) noexcept {
  return true;
}
bool has_live_memory(const void*) noexcept {
  return false;
}
#endif

}  // namespace stateport::detail
