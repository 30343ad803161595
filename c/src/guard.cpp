// SPDX-License-Identifier: Apache-2.0
#include "guard.hpp"

#include <stateport/core/model/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <new>

namespace stateport::c {
namespace {

// A plain array: it needs no destructor, so a thread may ask for its last error until its very end.
constexpr std::size_t text_bytes = 1024;
thread_local std::array<char, text_bytes> last_error = {};

stateport_status keep(stateport_status status, const char* text) noexcept {
  const std::size_t length = std::min(std::strlen(text), last_error.size() - 1);
  std::memcpy(last_error.data(), text, length);
  last_error[length] = '\0';
  return status;
}

}  // namespace

InvalidHandle::InvalidHandle(std::string_view argument, std::string_view value, std::string_view wanted)
    : std::runtime_error(fmt::format("{} = {} (must be the handle of a {})", argument, value, wanted)) {}

NoCapacity::NoCapacity(std::string_view what, std::int64_t required, std::int64_t available)
    : std::runtime_error(fmt::format("not enough {} (required {}, available {})", what, required, available)) {}

stateport_status keep_exception() noexcept {
  try {
    throw;
  } catch (const InvalidHandle& failure) {
    return keep(STATEPORT_INVALID_HANDLE, failure.what());
  } catch (const InvalidArgument& failure) {
    return keep(STATEPORT_INVALID_ARGUMENT, failure.what());
  } catch (const InvalidState& failure) {
    return keep(STATEPORT_INVALID_STATE, failure.what());
  } catch (const NoCapacity& failure) {
    return keep(STATEPORT_NO_CAPACITY, failure.what());
  } catch (const SlotCapacityError& failure) {
    return keep(STATEPORT_NO_CAPACITY, failure.what());
  } catch (const OutOfMemory& failure) {
    return keep(STATEPORT_OUT_OF_MEMORY, failure.what());
  } catch (const BackendError& failure) {
    return keep(STATEPORT_BACKEND_ERROR, failure.what());
  } catch (const std::bad_alloc&) {
    return keep(STATEPORT_OUT_OF_MEMORY, "host: out of memory");
  } catch (const std::length_error&) {
    return keep(STATEPORT_OUT_OF_MEMORY, "host: out of memory (more elements than there can be)");
  } catch (const std::exception& failure) {
    return keep(STATEPORT_INTERNAL_ERROR, failure.what());
  } catch (...) {
    return keep(STATEPORT_INTERNAL_ERROR, "an exception of unknown type");
  }
}

}  // namespace stateport::c

const char* stateport_last_error() {
  return stateport::c::last_error.data();
}
const char* stateport_version() {
  return STATEPORT_VERSION;
}
