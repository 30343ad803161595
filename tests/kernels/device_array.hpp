// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/transfer.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace stateport::test {

/// An array in device memory.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values)
      : buffer_(resource_, std::max<std::size_t>(1, values.size()) * sizeof(T)) {
    if (!values.empty()) copy_bytes(Stream::default_stream(), buffer_.data(), values.data(), values.size() * sizeof(T));
    Stream::default_stream().synchronize();
  }
  [[nodiscard]] T* data() { return buffer_.as<T>(); }

 private:
  DeviceResource resource_;
  Buffer buffer_;
};

template <class T>
std::vector<T> from_device(const T* data, std::size_t count) {
  std::vector<T> values(count);
  copy_bytes(Stream::default_stream(), values.data(), data, count * sizeof(T));
  Stream::default_stream().synchronize();
  return values;
}

}  // namespace stateport::test
