// SPDX-License-Identifier: Apache-2.0
// One device serves a process. Streams and memory of another one are refused where they are named first, because a
// kernel would fault on it, or run on the wrong device, long after the call that was wrong.
#include <stateport/backends/internal/device_checks.hpp>

#include <stateport/core/model/error.hpp>

#include "elastic_ranges.hpp"
#include "native_device.hpp"

#include <fmt/format.h>

#include <cstdint>

namespace stateport::detail {
namespace {

void require_in_use(int device_id, const char* argument, const void* value, const char* what) {
  const int in_use = device_in_use();
  require(device_id == in_use, argument, reinterpret_cast<std::uintptr_t>(value),
          fmt::format("is {} of device {}, and device {} is in use", what, device_id, in_use));
}

}  // namespace

MemoryPlace place_of(const void* memory) {
  if (const auto device_id = elastic_device(memory))
    return {.kind = MemoryPlace::Kind::device, .device_id = *device_id};
  return native_place_of(memory);
}

void require_device_in_use(const void* memory, const char* argument) {
  const MemoryPlace place = place_of(memory);
  if (place.kind == MemoryPlace::Kind::device) require_in_use(place.device_id, argument, memory, "memory");
}

void require_stream_in_use(void* native) {
  require_in_use(device_of_stream(native), "native", native, "a stream");
}

void require_reachable(const void* memory, const char* argument) {
  const MemoryPlace place = place_of(memory);
  if (place.kind == MemoryPlace::Kind::device) require_in_use(place.device_id, argument, memory, "memory");
  if (place.kind == MemoryPlace::Kind::pageable_host)
    require(reaches_pageable_memory(), argument, reinterpret_cast<std::uintptr_t>(memory),
            "is pageable memory of the host, which the device cannot reach");
}

}  // namespace stateport::detail
