// SPDX-License-Identifier: Apache-2.0
#pragma once

/// STATEPORT_ASSERT(condition): an internal contract. It aborts with file and line in Debug and sanitizer builds
/// (STATEPORT_ENABLE_ASSERT is set by the build) and costs nothing elsewhere. Callers' mistakes are never
/// asserted: they throw InvalidArgument in every build.
namespace stateport::detail {
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line) noexcept;
}

#ifdef STATEPORT_ENABLE_ASSERT
#define STATEPORT_ASSERT(condition) \
  ((condition) ? static_cast<void>(0) : ::stateport::detail::assertion_failed(#condition, __FILE__, __LINE__))
#else
#define STATEPORT_ASSERT(condition) static_cast<void>(0)
#endif
