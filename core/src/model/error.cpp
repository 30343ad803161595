// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>

#include <fmt/format.h>

namespace stateport {

InvalidArgument::InvalidArgument(std::string_view argument, std::string_view value, std::string_view rule)
    : CallerError(fmt::format("{} = {} ({})", argument, value, rule)), argument_(argument), value_(value) {}

InvalidState::InvalidState(std::string_view call, std::string_view reason)
    : CallerError(fmt::format("{}: {}", call, reason)), call_(call), reason_(reason) {}

OutOfMemory::OutOfMemory(std::string_view resource, std::size_t required_bytes, std::size_t available_bytes)
    : std::runtime_error(fmt::format("{}: out of memory (required {} bytes, available {} bytes)", resource,
                                     required_bytes, available_bytes)),
      required_bytes_(required_bytes),
      available_bytes_(available_bytes) {}

BackendError::BackendError(std::string_view call, std::string_view reason)
    : std::runtime_error(fmt::format("{}: {}", call, reason)) {}

SlotCapacityError::SlotCapacityError(std::int64_t required, std::int64_t available)
    : std::runtime_error(fmt::format("not enough state slots (required {}, available {})", required, available)),
      required_(required),
      available_(available) {}

namespace detail {

void throw_invalid(std::string_view argument, std::int64_t value, std::string_view rule) {
  throw InvalidArgument(argument, fmt::to_string(value), rule);
}

void throw_invalid(std::string_view argument, double value, std::string_view rule) {
  throw InvalidArgument(argument, fmt::to_string(value), rule);
}

void throw_invalid(std::string_view argument, std::string_view value, std::string_view rule) {
  throw InvalidArgument(argument, value, rule);
}

void throw_invalid_state(std::string_view call, std::string_view reason) {
  throw InvalidState(call, reason);
}

void throw_invalid_state(std::string_view call, std::string_view what, std::int64_t value, std::string_view rule) {
  throw InvalidState(call, fmt::format("{} = {} ({})", what, value, rule));
}

void throw_broken_invariant(std::string_view structure, std::string_view what) {
  throw std::logic_error(fmt::format("{}: {}", structure, what));
}

}  // namespace detail
}  // namespace stateport
