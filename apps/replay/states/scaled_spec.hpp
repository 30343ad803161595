// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/state_spec.hpp>

#include <cstddef>
#include <string>

namespace stateport::replay {

/// The largest spec like `full` whose state has at most `state_bytes_max` bytes: first fewer layers (4 at least, so
/// that tensors keep their real sizes), then smaller heads and channels, then fewer layers again. Every tensor is a
/// multiple of 16 bytes. `full` itself if it fits. Throws InvalidArgument when even the smallest spec is too large.
[[nodiscard]] StateSpec scale_to_fit(const StateSpec& full, std::size_t state_bytes_max);

/// "36 layers, conv [3, 8192] bf16, recurrent [32, 128, 128] bf16": the first tensor of each kind stands for all.
[[nodiscard]] std::string describe(const StateSpec& spec);

}  // namespace stateport::replay
