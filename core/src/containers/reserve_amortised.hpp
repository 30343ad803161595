// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

namespace stateport::detail {

/// Makes room for `count` elements in all. A vector without room for them gets at least twice the room that it had, so
/// that many small steps cost O(count).
template <class Vector>
void reserve_amortised(Vector& vector, std::size_t count) {
  if (count > vector.capacity()) vector.reserve(std::max(count, 2 * vector.capacity()));
}

}  // namespace stateport::detail
