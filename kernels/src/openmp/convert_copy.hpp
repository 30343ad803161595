// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/element_type.hpp>

#include <cstddef>
#include <cstdint>

namespace stateport::kernels {

/// Converts src[0, count) → dst[0, count) on the calling thread, with the widest vectors that the processor has and,
/// from `nontemporal_min` destination bytes on, with non-temporal stores (see stream_copy). fp32, fp16 and bf16; any
/// alignment; no overlap.
void convert_copy(std::byte* dst, ElementType dst_type, const std::byte* src, ElementType src_type, std::uint32_t count,
                  std::size_t nontemporal_min) noexcept;

}  // namespace stateport::kernels
