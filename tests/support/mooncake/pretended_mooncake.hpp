// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace stateport::test {

/// Faults of the pretended clients of Mooncake, from the next call on.
struct MooncakeFaults {
  int setup = 0;  ///< its answer
  int put = 0;    ///< the answer to every object; 0: none
  int get = 0;
  bool calls = false;  ///< every call fails as a whole
  bool registration = false;
  bool memory = false;  ///< the thread of a put has none behind it
};
void set_faults(const MooncakeFaults& faults);
/// Registered buffers, and bytes that were moved from or to memory that is not in one.
[[nodiscard]] int registered_buffers();
[[nodiscard]] int unregistered_moves();

}  // namespace stateport::test
