// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/memory_resource.hpp>

#include <cstddef>

namespace stateport {

/// The engine's own allocator (such as PyTorch's caching allocator) behind two function pointers. As thread-safe as
/// those functions are.
class CallbackResource final : public MemoryResource {
 public:
  struct Callbacks {
    /// Returns memory that is ordered on `native_stream`, or nullptr when exhausted; may throw, which passes through.
    void* (*allocate)(std::size_t bytes, std::size_t alignment, void* native_stream, void* context) = nullptr;
    /// Takes it back. Must not throw.
    void (*deallocate)(void* memory, std::size_t bytes, std::size_t alignment, void* native_stream,
                       void* context) = nullptr;
    void* context = nullptr;  ///< handed to both; its target must outlive the resource
    MemoryKind kind = MemoryKind::device;
  };

  /// Throws InvalidArgument when a function is missing.
  explicit CallbackResource(const Callbacks& callbacks);

 private:
  /// Throws OutOfMemory{bytes, 0} for nullptr. Gives memory back that it cannot use, and throws: BackendError if the
  /// memory is not aligned as asked, InvalidArgument if it belongs to another device than the one in use.
  void* do_allocate(std::size_t bytes, std::size_t alignment, const Stream& stream) override;
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment, const Stream& stream) noexcept override;
  MemoryKind do_kind() const noexcept override { return callbacks_.kind; }

  Callbacks callbacks_;
};

}  // namespace stateport
