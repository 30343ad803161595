// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/internal/virtual_memory.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace stateport::detail {
namespace {

constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

std::size_t page_bytes() noexcept {
  const long bytes = ::sysconf(_SC_PAGESIZE);
  return bytes > 0 ? static_cast<std::size_t>(bytes) : 4096;
}

/// Addresses whose pages nobody may touch. Memory comes with the first use of pages that may be touched, so a handle
/// names none.
class HostMemory final : public VirtualMemory {
 public:
  [[nodiscard]] std::size_t granularity() const noexcept override { return page_bytes_; }
  [[nodiscard]] bool unmaps_runs() const noexcept override { return true; }

  [[nodiscard]] Status reserve(std::size_t bytes, std::size_t alignment, void*& address) noexcept override;
  void free(void* address, std::size_t bytes) noexcept override { static_cast<void>(::munmap(address, bytes)); }

  [[nodiscard]] Status create(std::size_t, Handle& handle) noexcept override {
    handle = 0;
    return 0;
  }
  void release(Handle) noexcept override {}

  [[nodiscard]] Status map(void*, std::size_t, Handle) noexcept override { return 0; }
  [[nodiscard]] Status allow(void* address, std::size_t bytes) noexcept override {
    return ::mprotect(address, bytes, PROT_READ | PROT_WRITE) == 0 ? 0 : errno;
  }
  [[nodiscard]] Status unmap(void* address, std::size_t bytes) noexcept override;

  [[nodiscard]] std::string text(Status refusal) const override { return std::strerror(refusal); }

 private:
  std::size_t page_bytes_ = page_bytes();
};

VirtualMemory::Status HostMemory::reserve(std::size_t bytes, std::size_t alignment, void*& address) noexcept {
  const std::size_t all = bytes + alignment - page_bytes_;
  void* const base = ::mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return errno;
  auto* const first = static_cast<std::byte*>(base);
  const std::size_t gap = (alignment - reinterpret_cast<std::uintptr_t>(first) % alignment) % alignment;
  if (gap > 0) static_cast<void>(::munmap(first, gap));
  if (all - gap > bytes) static_cast<void>(::munmap(first + gap + bytes, all - gap - bytes));
  address = first + gap;
#if defined(MADV_HUGEPAGE)
  // Advice that is refused costs speed, not memory: it is no error.
  if (alignment >= huge_page_bytes) static_cast<void>(::madvise(address, bytes, MADV_HUGEPAGE));
#endif
  return 0;
}

VirtualMemory::Status HostMemory::unmap(void* address, std::size_t bytes) noexcept {
  // In this order no thread sees zeros where its data was: it faults.
  const bool done = ::mprotect(address, bytes, PROT_NONE) == 0 && ::madvise(address, bytes, MADV_DONTNEED) == 0;
  if (done) return 0;
  const Status refusal = errno;
  static_cast<void>(::mprotect(address, bytes, PROT_READ | PROT_WRITE));
  return refusal;
}

}  // namespace

std::unique_ptr<VirtualMemory> native_virtual_memory(int) {
  return std::make_unique<HostMemory>();
}

}  // namespace stateport::detail
