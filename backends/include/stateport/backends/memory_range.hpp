// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace stateport {

/// A part of an allocation.
struct MemoryRange {
  void* address = nullptr;
  std::size_t bytes = 0;
};

}  // namespace stateport
