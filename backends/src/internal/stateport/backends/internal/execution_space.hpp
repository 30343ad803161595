// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

namespace stateport {

class Stream;

/// Where kernels run: the device of this build. src/<vendor>/native_stream.cpp checks that it is that vendor's.
using ExecutionSpace = Kokkos::DefaultExecutionSpace;

/// The execution-space instance of a stream: one per stream, made with it. Valid while the stream is named. Throws
/// BackendError when the device runtime has ended.
[[nodiscard]] const ExecutionSpace& execution_space(const Stream& stream);

}  // namespace stateport
