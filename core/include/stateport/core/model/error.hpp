// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/ids.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace stateport {

/// A caller's mistake: a wrong argument (InvalidArgument) or a call at a wrong time (InvalidState). Nothing has
/// changed.
class CallerError : public std::logic_error {
 protected:
  using std::logic_error::logic_error;
};

/// Names the argument, its value and the rule that it broke: "<argument> = <value> (<rule>)". A number that names
/// nothing is a wrong argument too: a free slot, an evicted node, a request that has ended.
class InvalidArgument : public CallerError {
 public:
  InvalidArgument(std::string_view argument, std::string_view value, std::string_view rule);

  [[nodiscard]] const std::string& argument() const noexcept { return argument_; }
  [[nodiscard]] const std::string& value() const noexcept { return value_; }

 private:
  std::string argument_;
  std::string value_;
};

/// The object is not in a state for this call: it comes too early, too late or twice, or it needs an option that is
/// off. The same arguments can be right at another time. Names the call and the reason: "<call>: <reason>".
class InvalidState : public CallerError {
 public:
  InvalidState(std::string_view call, std::string_view reason);

  [[nodiscard]] const std::string& call() const noexcept { return call_; }
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }

 private:
  std::string call_;
  std::string reason_;
};

/// Memory is exhausted: a device, a host or a budget could not give `required_bytes`.
class OutOfMemory : public std::runtime_error {
 public:
  OutOfMemory(std::string_view resource, std::size_t required_bytes, std::size_t available_bytes);

  [[nodiscard]] std::size_t required_bytes() const noexcept { return required_bytes_; }
  [[nodiscard]] std::size_t available_bytes() const noexcept { return available_bytes_; }

 private:
  std::size_t required_bytes_;
  std::size_t available_bytes_;
};

/// A vendor runtime refused a call, or there is no device: "<call>: <the runtime's own reason>".
class BackendError : public std::runtime_error {
 public:
  BackendError(std::string_view call, std::string_view reason);
};

/// A pool cannot give the slots that a step requires. Nothing has changed.
class SlotCapacityError : public std::runtime_error {
 public:
  SlotCapacityError(std::int64_t required, std::int64_t available);

  [[nodiscard]] std::int64_t required() const noexcept { return required_; }
  [[nodiscard]] std::int64_t available() const noexcept { return available_; }

 private:
  std::int64_t required_;
  std::int64_t available_;
};

namespace detail {
[[noreturn]] void throw_invalid(std::string_view argument, std::int64_t value, std::string_view rule);
[[noreturn]] void throw_invalid(std::string_view argument, double value, std::string_view rule);
[[noreturn]] void throw_invalid(std::string_view argument, std::string_view value, std::string_view rule);
[[noreturn]] void throw_invalid_state(std::string_view call, std::string_view reason);
[[noreturn]] void throw_invalid_state(std::string_view call, std::string_view what, std::int64_t value,
                                      std::string_view rule);
/// Thrown by check_invariants(): a defect of this library, not of its caller.
[[noreturn]] void throw_broken_invariant(std::string_view structure, std::string_view what);
}  // namespace detail

/// Throws InvalidArgument unless `ok`. The text reads "<argument> = <value> (<rule>)".
template <std::integral Value>
constexpr void require(bool ok, std::string_view argument, Value value, std::string_view rule) {
  if (!ok) [[unlikely]]
    detail::throw_invalid(argument, static_cast<std::int64_t>(value), rule);
}
/// The value is written as short as it can be read back, also "nan" and "inf". Write the condition so that NaN fails
/// it: `value >= 0`, not `!(value < 0)`.
template <std::floating_point Value>
constexpr void require(bool ok, std::string_view argument, Value value, std::string_view rule) {
  if (!ok) [[unlikely]]
    detail::throw_invalid(argument, static_cast<double>(value), rule);
}
template <class Tag>
constexpr void require(bool ok, std::string_view argument, Id<Tag> id, std::string_view rule) {
  if (!ok) [[unlikely]]
    detail::throw_invalid(argument, static_cast<std::int64_t>(id.value()), rule);
}
constexpr void require(bool ok, std::string_view argument, RequestId id, std::string_view rule) {
  if (!ok) [[unlikely]]
    detail::throw_invalid(argument, id.value(), rule);
}
inline void require(bool ok, std::string_view argument, std::string_view value, std::string_view rule) {
  if (!ok) [[unlikely]]
    detail::throw_invalid(argument, value, rule);
}

/// Throws InvalidState unless `ok`. The text reads "<call>: <reason>".
inline void require_state(bool ok, std::string_view call, std::string_view reason) {
  if (!ok) [[unlikely]]
    detail::throw_invalid_state(call, reason);
}
/// The same with the value that is in the way: "<call>: <what> = <value> (<rule>)".
template <std::integral Value>
constexpr void require_state(bool ok, std::string_view call, std::string_view what, Value value,
                             std::string_view rule) {
  if (!ok) [[unlikely]]
    detail::throw_invalid_state(call, what, static_cast<std::int64_t>(value), rule);
}

/// Used by check_invariants(): throws std::logic_error "<structure>: <what>" unless `ok`.
inline void require_invariant(bool ok, std::string_view structure, std::string_view what) {
  if (!ok) [[unlikely]]
    detail::throw_broken_invariant(structure, what);
}

}  // namespace stateport
