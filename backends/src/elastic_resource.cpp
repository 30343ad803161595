// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/elastic_resource.hpp>

#include "elastic_memory.hpp"
#include "elastic_ranges.hpp"
#include "native_device.hpp"

#include <utility>

namespace stateport {

ElasticResource::ElasticResource(const Options& options)
    : ElasticResource(options, detail::native_virtual_memory(detail::device_in_use())) {}

ElasticResource::ElasticResource(const Options& options, std::unique_ptr<detail::VirtualMemory> calls)
    : memory_(
          std::make_unique<detail::ElasticMemory>(std::move(calls), options.limit_bytes, options.granularity_bytes)),
      device_id_(detail::device_in_use()) {}

ElasticResource::~ElasticResource() = default;

std::size_t ElasticResource::granularity() const noexcept {
  return memory_->granularity();
}
std::size_t ElasticResource::limit_bytes() const noexcept {
  return memory_->limit_bytes();
}
std::size_t ElasticResource::mapped_bytes() const noexcept {
  return memory_->mapped_bytes();
}
std::size_t ElasticResource::held_bytes() const noexcept {
  return memory_->held_bytes();
}

bool ElasticResource::map(std::span<const MemoryRange> ranges) {
  return memory_->map(ranges);
}
bool ElasticResource::map(void* address, std::size_t bytes) {
  const MemoryRange range{.address = address, .bytes = bytes};
  return memory_->map({&range, 1});
}

void ElasticResource::unmap(std::span<const MemoryRange> ranges) {
  memory_->unmap(ranges);
}
void ElasticResource::unmap(void* address, std::size_t bytes) {
  const MemoryRange range{.address = address, .bytes = bytes};
  memory_->unmap({&range, 1});
}

bool ElasticResource::is_mapped(void* address, std::size_t bytes) const {
  return memory_->is_mapped({.address = address, .bytes = bytes});
}

void ElasticResource::trim() noexcept {
  memory_->trim();
}

void* ElasticResource::do_allocate(std::size_t bytes, std::size_t alignment, const Stream&) {
  void* const memory = memory_->allocate(bytes, alignment);
  try {
    detail::note_elastic(memory, memory_->reserved_bytes(bytes), device_id_);
  } catch (...) {
    memory_->deallocate(memory);
    throw;
  }
  return memory;
}

void ElasticResource::do_deallocate(void* memory, std::size_t, std::size_t, const Stream& stream) noexcept {
  try {
    stream.synchronize();  // a stream that cannot be waited for has ended its work
  } catch (...) {
  }
  detail::forget_elastic(memory);
  memory_->deallocate(memory);
}

}  // namespace stateport
