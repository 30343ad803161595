// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/memory_resource.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/backends/transfer.hpp>

#include <vector>

namespace stateport::detail {

/// The values in memory of the resource, there when it returns. Throws as Buffer and copy_bytes.
template <class T>
[[nodiscard]] Buffer upload(MemoryResource& resource, const std::vector<T>& values) {
  const Stream stream = Stream::default_stream();
  Buffer buffer(resource, values.size() * sizeof(T));
  copy_bytes(stream, buffer.data(), values.data(), values.size() * sizeof(T));
  stream.synchronize();
  return buffer;
}

}  // namespace stateport::detail
