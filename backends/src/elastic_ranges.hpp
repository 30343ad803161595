// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>

/// The addresses of all ElasticResources that live. A vendor's runtime does not know those without memory.
namespace stateport::detail {

void note_elastic(const void* address, std::size_t bytes, int device_id);
void forget_elastic(const void* address) noexcept;
/// The device of an address; none if it is of no ElasticResource.
[[nodiscard]] std::optional<int> elastic_device(const void* address) noexcept;

}  // namespace stateport::detail
