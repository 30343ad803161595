// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace stateport::kernels {

/// Rows of up to this many bytes gain from shift_short_rows: windows of up to 32 tokens of 2 bytes.
inline constexpr std::size_t short_row_bytes_max = 64;

/// Rows of a ds conv state, shifted: bytes [shift, row) of each source row → bytes [0, row - shift) of the destination
/// row, whose other bytes stay. A step moves 32 bytes, which are several rows of a short window. dst == src, or ranges
/// that do not overlap; any alignment; `bytes` is a multiple of row_bytes, which is at most short_row_bytes_max.
void shift_short_rows(std::byte* dst, const std::byte* src, std::size_t bytes, std::size_t row_bytes,
                      std::size_t shift_bytes) noexcept;

}  // namespace stateport::kernels
