// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/memory_range.hpp>
#include <stateport/backends/memory_resource.hpp>

#include <cstddef>
#include <memory>
#include <span>

namespace stateport {

namespace detail {
class ElasticMemory;
class VirtualMemory;
}  // namespace detail

/// Addresses of the build's device whose physical memory comes and goes. `allocate` reserves addresses and no memory;
/// `map` puts memory behind a part of them, `unmap` takes it away. Addresses never change: a captured graph stays
/// valid, as long as it uses mapped memory alone.
///
///     ElasticResource resource({.limit_bytes = std::size_t{8} << 30});
///     void* place = resource.allocate(std::size_t{64} << 30, 256, stream);  // addresses
///     if (resource.map(place, 4 * resource.granularity())) …                // memory
///
/// Work that uses memory which is not mapped faults; in an OpenMP build the program ends with SIGSEGV. All physical
/// memory of one resource counts against one limit. Memory that was unmapped is kept for the next `map`; trim() gives
/// it back to the system.
///
/// On a GPU: cuMemMap and its like, or hipMemMap and its like. In an OpenMP build: mmap; the pages of mapped memory
/// come with their first use. `deallocate` waits for its stream; other calls wait as long as the vendor's own do.
/// None may be made while a stream is captured into a graph.
///
/// Thread-safe. An ElasticResource is equal to itself alone. It must outlive its memory.
class ElasticResource final : public MemoryResource {
 public:
  struct Options {
    std::size_t limit_bytes = 0;  ///< of physical memory at a time
    /// Memory comes in multiples of this: a power of two, and a multiple of the smallest granule that the device has
    /// (2 MiB on a GPU, a page on a host). 0: that granule. Every granule of addresses costs 8 bytes of the host. From
    /// 2 MiB on, an OpenMP build asks the system for huge pages, with which memory moves more than ten times as fast.
    std::size_t granularity_bytes = 0;
  };

  /// Throws InvalidArgument for limit_bytes == 0 or a wrong granularity; BackendError unless a Runtime has started the
  /// device, and where the device cannot map memory.
  explicit ElasticResource(const Options& options);
  /// For tests: other calls than those of the device.
  ElasticResource(const Options& options, std::unique_ptr<detail::VirtualMemory> calls);
  ~ElasticResource() override;
  ElasticResource(const ElasticResource&) = delete;
  ElasticResource& operator=(const ElasticResource&) = delete;

  /// Every allocation begins at a multiple of this, and takes whole multiples of addresses.
  [[nodiscard]] std::size_t granularity() const noexcept;
  [[nodiscard]] std::size_t limit_bytes() const noexcept;
  /// Never above limit_bytes().
  [[nodiscard]] std::size_t mapped_bytes() const noexcept;
  /// mapped_bytes(), and the physical memory that is kept for the next `map`. Never above limit_bytes().
  [[nodiscard]] std::size_t held_bytes() const noexcept;

  /// Maps all of the ranges or none. Returns false, with nothing changed, when mapped_bytes() would exceed the limit,
  /// and when the system refuses. Contents are undefined. A range is whole multiples of granularity() inside of one
  /// allocation, and not mapped; the addresses of several ascend, without overlap. Throws InvalidArgument for others;
  /// BackendError when the system refuses both the call and the way back (the part that stays mapped counts as mapped).
  /// Allocates nothing. O(granules).
  [[nodiscard]] bool map(std::span<const MemoryRange> ranges);
  [[nodiscard]] bool map(void* address, std::size_t bytes);

  /// Takes the memory away; contents are lost. The caller sees to it that no work uses the ranges any more. Ranges are
  /// as those of `map`, and wholly mapped. Throws InvalidArgument for others; BackendError when the system refuses: all
  /// of the ranges stay mapped then, with contents undefined. Allocates nothing else. O(granules).
  void unmap(std::span<const MemoryRange> ranges);
  void unmap(void* address, std::size_t bytes);

  /// Whether all granules of the range, a range as those of `map`, have memory. Throws InvalidArgument for other
  /// ranges.
  [[nodiscard]] bool is_mapped(void* address, std::size_t bytes) const;

  /// Gives the memory that is not mapped back to the system.
  void trim() noexcept;

 private:
  /// Throws OutOfMemory when the system has not so many addresses.
  void* do_allocate(std::size_t bytes, std::size_t alignment, const Stream& stream) override;
  /// Waits for the stream, and unmaps.
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment, const Stream& stream) noexcept override;
  MemoryKind do_kind() const noexcept override { return MemoryKind::device; }

  std::unique_ptr<detail::ElasticMemory> memory_;
  int device_id_;  ///< in use when this was made
};

}  // namespace stateport
