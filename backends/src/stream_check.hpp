// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace stateport {

class Stream;

namespace detail {

/// Throws BackendError when the device runtime has ended since the stream was named.
void require_usable(const Stream& stream);

}  // namespace detail
}  // namespace stateport
