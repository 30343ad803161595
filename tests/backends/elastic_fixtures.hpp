// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/elastic_resource.hpp>

#include "fake_virtual_memory.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace stateport::test {

inline constexpr std::size_t fake_granule = 4096;

using Calls = std::vector<std::string>;

inline ElasticResource elastic(FakeDevice& device, std::size_t limit_bytes, std::size_t granularity_bytes = 0) {
  return ElasticResource({.limit_bytes = limit_bytes, .granularity_bytes = granularity_bytes},
                         std::make_unique<FakeVirtualMemory>(device));
}

/// An allocation that goes back by itself.
struct FakePlace {
  FakePlace(ElasticResource& owner, std::size_t size)
      : resource(owner),
        bytes(size),
        base(static_cast<std::byte*>(owner.allocate(size, 256, Stream::default_stream()))) {}
  FakePlace(const FakePlace&) = delete;
  FakePlace& operator=(const FakePlace&) = delete;
  ~FakePlace() { resource.deallocate(base, bytes, 256, Stream::default_stream()); }

  [[nodiscard]] MemoryRange at(std::size_t first, std::size_t count) const {
    return {.address = base + first * fake_granule, .bytes = count * fake_granule};
  }

  ElasticResource& resource;
  std::size_t bytes;
  std::byte* base;
};

}  // namespace stateport::test
