// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What the vendor's runtime keeps for the calling thread, which the library shares with the engine. One source for
/// each vendor.
namespace stateport::test {

/// The last error that nobody has fetched, which stays; 0: none.
[[nodiscard]] int pending_error();
[[nodiscard]] int device_count();
[[nodiscard]] int current_device();
void make_current(int device);

}  // namespace stateport::test
