// SPDX-License-Identifier: Apache-2.0
#pragma once

/// State that the vendor's runtime keeps for the calling thread. The library shares it with the engine. One source for
/// each vendor.
namespace stateport::test {

/// The last error that no call has fetched yet, without fetching it; 0: none.
[[nodiscard]] int pending_error();
[[nodiscard]] int device_count();
[[nodiscard]] int current_device();
void make_current(int device);

}  // namespace stateport::test
