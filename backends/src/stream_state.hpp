// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/internal/execution_space.hpp>

#include <optional>

namespace stateport::detail {

/// What all Streams that name one native stream share. When the device runtime ends, `space` is emptied and an owned
/// native stream is destroyed, whoever still names it.
struct StreamState {
  StreamState(ExecutionSpace instance, void* native_stream, bool is_owned);
  ~StreamState();
  StreamState(const StreamState&) = delete;
  StreamState& operator=(const StreamState&) = delete;

  void end() noexcept;

  std::optional<ExecutionSpace> space;
  void* native;
  bool owned;  ///< made by Stream::create
};

}  // namespace stateport::detail
