// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Which memory and streams belong to which device. The vendor's runtime answers, src/<vendor>/device_calls.cpp;
/// src/device_checks.cpp refuses.
namespace stateport::detail {

/// Where memory lies.
struct MemoryPlace {
  enum class Kind : std::uint8_t {
    anywhere,      ///< pinned, managed or unknown: taken as every device's
    device,        ///< of one device
    pageable_host  ///< ordinary memory of the host
  };
  Kind kind = Kind::anywhere;
  int device_id = -1;  ///< of memory of one device
};
/// Addresses of an ElasticResource are memory of its device, mapped or not. The vendor's runtime knows the others.
[[nodiscard]] MemoryPlace place_of(const void* memory);
[[nodiscard]] MemoryPlace native_place_of(const void* memory);  ///< as the vendor's runtime answers
/// Whether kernels of the device in use may read and write pageable memory of the host.
[[nodiscard]] bool reaches_pageable_memory();
/// The device that a native stream was made on.
[[nodiscard]] int device_of_stream(void* native);

/// Throws InvalidArgument, naming both devices, for memory of another device than the one in use.
void require_device_in_use(const void* memory, const char* argument);
/// The same for a native stream.
void require_stream_in_use(void* native);
/// Throws InvalidArgument for memory that kernels of the device in use cannot reach: that of another device, and
/// pageable memory of the host unless the device reads it.
void require_reachable(const void* memory, const char* argument);

}  // namespace stateport::detail
