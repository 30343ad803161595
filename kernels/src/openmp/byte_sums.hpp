// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../state_sums.hpp"

#include <cstddef>
#include <cstdint>

namespace stateport::kernels {

/// The sum of bytes of a slot, from word `first_word` on, with the widest vectors that the processor has. Any
/// alignment.
[[nodiscard]] PartSum sum_of_bytes(const std::byte* src, std::size_t bytes, std::uint32_t first_word,
                                   ExponentMask mask) noexcept;

/// The same of bytes that it copies as stream_copy() does, in one pass over memory.
[[nodiscard]] PartSum copy_and_sum(std::byte* dst, const std::byte* src, std::size_t bytes, std::uint32_t first_word,
                                   ExponentMask mask, std::size_t nontemporal_min) noexcept;

}  // namespace stateport::kernels
