// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/memory_resource.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace stateport::test {

/// A resource under test, and those it stands on.
struct ResourceUnderTest {
  std::string name;
  std::vector<std::unique_ptr<MemoryResource>> upstreams;  ///< go after the resource
  std::unique_ptr<MemoryResource> resource;
  std::function<void()> check = [] {};  ///< its own invariants
};

/// A fresh one of every kind of resource: straight from the vendor and the host, and each adaptor in front of one.
[[nodiscard]] std::vector<ResourceUnderTest> every_resource();

/// Fills memory of `kind` with one byte value, and tells whether every byte still has it.
void paint(MemoryKind kind, void* memory, std::size_t bytes, unsigned char value, const Stream& stream);
[[nodiscard]] bool painted(const void* memory, std::size_t bytes, unsigned char value, const Stream& stream);

/// Whether `body` ends the process with SIGABRT, as a failed assertion does. Runs it in a child process.
[[nodiscard]] bool aborts(const std::function<void()>& body);

}  // namespace stateport::test
