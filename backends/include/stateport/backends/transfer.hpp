// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>

#include <cstddef>

namespace stateport {

/// Enqueues the copy of `bytes` from src to dst, between any kinds of memory; the runtime finds the direction from the
/// addresses. Never waits, except that ordinary (not pinned) host memory may be copied before the call returns. In an
/// OpenMP build the copy is done on return. Throws InvalidArgument for nullptr with bytes > 0 and for ranges that
/// overlap, BackendError when the vendor's runtime refuses. dst == src does nothing.
void copy_bytes(const Stream& stream, void* dst, const void* src, std::size_t bytes);

/// Enqueues the filling of `bytes` at dst with `value`. Throws as copy_bytes.
void fill_bytes(const Stream& stream, void* dst, std::byte value, std::size_t bytes);

}  // namespace stateport
