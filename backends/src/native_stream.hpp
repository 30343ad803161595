// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/internal/execution_space.hpp>

/// Calls of src/stream.cpp to the vendor's runtime; one source per vendor. Functions that are not noexcept throw
/// BackendError.
namespace stateport::detail {

/// An instance that runs on `native`. Throws InvalidArgument for a stream that cannot exist in this build.
[[nodiscard]] ExecutionSpace make_execution_space(void* native);
[[nodiscard]] void* native_stream(const ExecutionSpace& space) noexcept;

/// A stream that no default stream waits for, on the device in use.
[[nodiscard]] void* create_native_stream();
/// Ends it after the work it holds.
void destroy_native_stream(void* native) noexcept;
void synchronize_native_stream(void* native);

}  // namespace stateport::detail
