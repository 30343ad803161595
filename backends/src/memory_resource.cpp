// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/memory_resource.hpp>

#include <stateport/core/model/error.hpp>

#include "containers/assert.hpp"
#include "live_memory.hpp"

#include <bit>

namespace stateport {

std::string_view to_string(MemoryKind kind) noexcept {
  switch (kind) {
    case MemoryKind::device:
      return "device";
    case MemoryKind::pinned_host:
      return "pinned_host";
    case MemoryKind::host:
      return "host";
  }
  return "unknown";
}

MemoryResource::~MemoryResource() {
  // The derived parts are gone: `this` is the identity of those that own their memory alone.
  STATEPORT_ASSERT(!detail::has_live_memory(this) && "a resource outlives the memory it gave");
}

void* MemoryResource::allocate(std::size_t bytes, std::size_t alignment, const Stream& stream) {
  require(std::has_single_bit(alignment) && alignment <= max_alignment, "alignment", alignment,
          "must be a power of two up to 4096");
  if (bytes == 0) return nullptr;
  void* const memory = do_allocate(bytes, alignment, stream);
  detail::note_allocated(do_identity(), memory, bytes, alignment);
  return memory;
}

void MemoryResource::deallocate(void* memory, std::size_t bytes, std::size_t alignment, const Stream& stream) noexcept {
  if (memory == nullptr) return;
  STATEPORT_ASSERT(detail::note_deallocated(do_identity(), memory, bytes, alignment) &&
                   "memory is given back to an equal resource, once, with the bytes and alignment of its allocation");
  do_deallocate(memory, bytes, alignment, stream);
}

}  // namespace stateport
