// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace stateport::kernels {

/// What the teams of one launch count while they share out work, see gpu/team_work.hpp. In device memory, zero between
/// launches. One launch at a time may use it.
struct alignas(16) WorkQueue {
  std::uint32_t claimed = 0;
  std::uint32_t arrived = 0;
  std::uint32_t ended = 0;
};

}  // namespace stateport::kernels
