// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace stateport::kernels {

/// Copies of at least this many bytes bypass the caches: below it the destination is likely still there when the
/// forward reads it, and memcpy is as fast.
inline constexpr std::size_t nontemporal_bytes_min = std::size_t{128} << 10;

/// memcpy for short ranges, non-temporal stores for long ones. Ranges must not overlap. The caller's thread calls
/// finish_stream_copies() before it tells anyone that its copies are done.
void stream_copy(std::byte* dst, const std::byte* src, std::size_t bytes) noexcept;

/// As stream_copy, with non-temporal stores for any length: for one of many pieces of a long range.
void stream_piece(std::byte* dst, const std::byte* src, std::size_t bytes) noexcept;

/// Orders the non-temporal stores of this thread before everything that follows.
void finish_stream_copies() noexcept;

}  // namespace stateport::kernels
