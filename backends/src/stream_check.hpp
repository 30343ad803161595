// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>

namespace stateport::detail {

/// Throws BackendError when the device runtime has ended since the stream was named.
void require_usable(const Stream& stream);

}  // namespace stateport::detail
