// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/kernels/state_store.hpp>

#include <cstdint>
#include <optional>

namespace stateport::kernels {

/// Whether two stores share memory, found from the addresses of all tensors and slots. nullopt: no byte lies in a slot
/// of both. A number n: slot s of `source` is slot s + n of `destination`, tensor by tensor; views of one pool from
/// different slots on are so. Throws InvalidArgument for stores that share memory in any other way: the copies of one
/// launch would overwrite each other. O(tensors of the one x tensors of the other).
[[nodiscard]] std::optional<std::int64_t> shared_slots(const StateStore& source, const StateStore& destination);

}  // namespace stateport::kernels
