// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace stateport::kernels {

/// The length from which ranges bypass the caches in a launch that writes `launch_bytes`. Bytes of a small launch are
/// likely still there when the forward reads them, so that only long ranges gain. Those of a large one are gone, or
/// evict memory that the forward needs: only ranges of few cache lines are then left to memcpy. Measured with a
/// last-level cache of 32 MiB (nontemporal_bench): copying and at once reading again breaks even at 4 to 8 MiB, the
/// copy alone gains 1.2 to 1.4x at any size, and ranges of 1 KiB already gain.
[[nodiscard]] constexpr std::size_t nontemporal_bytes_min(std::uint64_t launch_bytes) noexcept {
  constexpr std::uint64_t small_launch_bytes = std::uint64_t{4} << 20;
  return launch_bytes < small_launch_bytes ? std::size_t{128} << 10 : std::size_t{2} << 10;
}

/// memcpy below `nontemporal_min` bytes, non-temporal stores from there on. Ranges must not overlap. The caller's
/// thread calls finish_stream_copies() before it tells anyone that its copies are done.
void stream_copy(std::byte* dst, const std::byte* src, std::size_t bytes, std::size_t nontemporal_min) noexcept;

/// As stream_copy, with non-temporal stores for any length: for one of many pieces of a long range.
void stream_piece(std::byte* dst, const std::byte* src, std::size_t bytes) noexcept;

/// Orders the non-temporal stores of this thread before everything that follows.
void finish_stream_copies() noexcept;

}  // namespace stateport::kernels
