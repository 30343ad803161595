// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/c/status.h>

#include <cstdint>
#include <stdexcept>
#include <string_view>

namespace stateport::c {

/// A handle that names no object of the wanted kind.
class InvalidHandle : public std::runtime_error {
 public:
  InvalidHandle(std::string_view argument, std::string_view value, std::string_view wanted);
};

/// An expected outcome that C learns from the status: a pool has too little. Nothing has changed.
class NoCapacity : public std::runtime_error {
 public:
  NoCapacity(std::string_view what, std::int64_t required, std::int64_t available);
};

/// Keeps the text of the exception in flight for stateport_last_error() and returns its status. Call it in a handler.
[[nodiscard]] stateport_status keep_exception() noexcept;

/// The only way from C into the library: runs `body`, which reports errors by exceptions.
template <class Body>
[[nodiscard]] stateport_status guarded(Body&& body) noexcept {
  try {
    body();
    return STATEPORT_OK;
  } catch (...) {
    return keep_exception();
  }
}

}  // namespace stateport::c
