// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace stateport {

/// Where memory lies. In an OpenMP build all three are host memory.
enum class MemoryKind : std::uint8_t {
  device,       ///< the build's device; its address means nothing to the host on a GPU
  pinned_host,  ///< page-locked host memory that the device can read and write
  host          ///< ordinary host memory
};
[[nodiscard]] std::string_view to_string(MemoryKind kind) noexcept;

/// Gives and takes memory in the order of a stream: memory from `allocate` may be used by work that is enqueued on that
/// stream from now on; memory given to `deallocate` may still be in use by work enqueued on that stream so far. Use on
/// another stream is ordered by the caller with an Event.
///
/// Every resource of this library may be called from several threads at once (a CallbackResource as far as its
/// functions may). A resource must outlive the memory it gave; Debug and sanitizer builds assert that, and that memory
/// goes back to an equal resource with the bytes and the alignment it was asked with.
class MemoryResource {
 public:
  static constexpr std::size_t max_alignment = 4096;     ///< the largest alignment that can be asked for
  static constexpr std::size_t default_alignment = 256;  ///< whole cache lines on every device, for kernels

  virtual ~MemoryResource();

  /// Returns `bytes` of uninitialised memory at a multiple of `alignment`, or nullptr when bytes == 0 (nothing is
  /// asked for then). Throws InvalidArgument unless alignment is a power of two up to max_alignment, OutOfMemory when
  /// the memory is exhausted, BackendError when the vendor's runtime refuses the call.
  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment, const Stream& stream);

  /// Gives memory back; `bytes` and `alignment` are those of its allocate call. nullptr is ignored.
  void deallocate(void* memory, std::size_t bytes, std::size_t alignment, const Stream& stream) noexcept;

  [[nodiscard]] MemoryKind kind() const noexcept { return do_kind(); }

  /// Equal resources may give back each other's memory.
  friend bool operator==(const MemoryResource& a, const MemoryResource& b) noexcept {
    return a.do_identity() == b.do_identity();
  }

 protected:
  MemoryResource() = default;
  MemoryResource(const MemoryResource&) = default;
  MemoryResource& operator=(const MemoryResource&) = default;

  /// bytes > 0 and alignment is valid. Throws OutOfMemory or BackendError; never returns nullptr.
  [[nodiscard]] virtual void* do_allocate(std::size_t bytes, std::size_t alignment, const Stream& stream) = 0;
  /// memory != nullptr and bytes > 0.
  virtual void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment, const Stream& stream) noexcept = 0;
  [[nodiscard]] virtual MemoryKind do_kind() const noexcept = 0;
  /// Names the owner of the memory: the resource itself, unless several objects share one owner (a heap, a device).
  [[nodiscard]] virtual const void* do_identity() const noexcept { return this; }
};

}  // namespace stateport
