// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>

#include <cstddef>

/// Calls of src/transfer.cpp to the vendor's runtime; one source per vendor. The arguments are checked, bytes > 0.
namespace stateport::detail {

void enqueue_copy(const Stream& stream, void* dst, const void* src, std::size_t bytes);
void enqueue_fill(const Stream& stream, void* dst, std::byte value, std::size_t bytes);

}  // namespace stateport::detail
