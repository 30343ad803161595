// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/internal/execution_space.hpp>

#include <cstdint>
#include <optional>

namespace stateport::detail {

/// The state that all Streams of one native stream share. When the device runtime ends, `space` is emptied, and a
/// native stream that is not the engine's is gone after its work, even if a Stream still names it.
struct StreamState {
  enum class Owner : std::uint8_t {
    engine,   ///< Stream::from_native
    library,  ///< Stream::create
    runtime   ///< Stream::default_stream
  };

  StreamState(ExecutionSpace instance, void* native_stream, Owner owner_of_native);
  ~StreamState();
  StreamState(const StreamState&) = delete;
  StreamState& operator=(const StreamState&) = delete;

  void end() noexcept;

  std::optional<ExecutionSpace> space;
  void* native;  ///< nullptr when gone
  Owner owner;
  bool gone = false;  ///< the native stream
};

}  // namespace stateport::detail
