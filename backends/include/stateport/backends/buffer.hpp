// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/memory_resource.hpp>
#include <stateport/backends/stream.hpp>

#include <cstddef>
#include <optional>
#include <utility>

namespace stateport {

/// Owns memory of a resource and gives it back, in the order of its stream, when it goes. Move-only; a moved-from
/// buffer is empty. The resource must outlive it.
class Buffer {
 public:
  /// Empty: no memory, no resource, 0 bytes.
  Buffer() noexcept = default;
  /// Uninitialised memory on the default stream, or on `stream`. Throws as MemoryResource::allocate.
  Buffer(MemoryResource& resource, std::size_t bytes, std::size_t alignment = MemoryResource::default_alignment);
  Buffer(MemoryResource& resource, std::size_t bytes, std::size_t alignment, const Stream& stream);
  ~Buffer() { reset(); }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer taken(std::move(other));
    swap(taken);
    return *this;
  }

  [[nodiscard]] void* data() noexcept { return data_; }
  [[nodiscard]] const void* data() const noexcept { return data_; }
  /// The memory as elements of T. The caller answers for size and alignment.
  template <class T>
  [[nodiscard]] T* as() noexcept {
    return static_cast<T*>(data_);
  }
  template <class T>
  [[nodiscard]] const T* as() const noexcept {
    return static_cast<const T*>(data_);
  }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_; }
  [[nodiscard]] bool empty() const noexcept { return bytes_ == 0; }

  /// Gives the memory back in the order of `stream` instead: the stream that uses it last.
  void set_stream(const Stream& stream) noexcept { stream_ = stream; }
  /// Gives the memory back now. The buffer is empty then.
  void reset() noexcept;
  void swap(Buffer& other) noexcept;

 private:
  MemoryResource* resource_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t alignment_ = 0;
  std::optional<Stream> stream_;  ///< set when data_ is
};

}  // namespace stateport
