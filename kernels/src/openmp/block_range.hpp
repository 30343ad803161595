// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../copy_table.hpp"

#include <cstddef>
#include <cstdint>

namespace stateport::kernels {

/// copy_blocks() of blocks [first, first + count) on the calling thread, with the widest vectors that the processor has
/// and, for ranges that write `nontemporal_min` bytes or more, with non-temporal stores (see stream_copy).
void copy_block_range(const TensorRoute& route, std::byte* dst, const std::byte* src, std::uint32_t first,
                      std::uint32_t count, std::size_t nontemporal_min) noexcept;

}  // namespace stateport::kernels
