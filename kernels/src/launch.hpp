// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>
#include <stateport/core/pool/copy_plan.hpp>

#include "copy_table.hpp"
#include "labels.hpp"
#include "state_sums.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

/// The launches, implemented once for GPUs (gpu/) and once for CPUs (openmp/); kernels/CMakeLists.txt picks one.
namespace stateport::kernels {

/// Largest tile of this backend. GPUs: enough independent 16-byte accesses for one team, small enough to balance. CPUs:
/// a thread copies one tile between two looks at the table.
extern const std::size_t tile_bytes_max;

/// Plans of up to this many rows allocate nothing, ever.
inline constexpr std::size_t prepared_rows = 512;

/// Slot counts against which rows decided on the device are checked.
struct SlotLimits {
  std::int32_t src_slots = 0;
  std::int32_t dst_slots = 0;
};

/// Carries plans from the host to a kernel. Allocates only when a plan is longer than prepared_rows and than all
/// before it.
class Launcher {
 public:
  Launcher();
  Launcher(Launcher&&) noexcept;
  Launcher& operator=(Launcher&&) noexcept;
  ~Launcher();

  /// Enqueues every kernel of the table once without work. The first launch of a source file makes Kokkos copy tables
  /// to the device and wait, and the first one of a kernel may load it: neither may happen while a graph is captured.
  void prepare(const Stream& stream, const CopyTableView& table);

  /// The launch named `label`. Rows before `first_source_rows` read source 0, the others source 1: conv tensors from
  /// src_slot, recurrent ones from recurrent_src_slot, either negative to skip; dst_slot is valid. One launch; none if
  /// there is no row.
  void copy_rows(const char* label, const Stream& stream, const CopyTableView& table, std::span<const SlotCopy> rows,
                 std::uint32_t first_source_rows);
  /// copy_rows of whole states from source 0, which also adds the bytes of a row to the sums of check `conv_shift`, if
  /// that is not negative. can_sum_copies() holds for the table.
  void copy_rows_with_sums(const Stream& stream, const CopyTableView& table, std::span<const SlotCopy> rows,
                           const CheckSums& sums);
  /// Rows in device memory, looked at when the kernel runs; a row with a negative or too large slot is skipped.
  void copy_rows_on_device(const Stream& stream, const CopyTableView& table, const SlotCopy* rows, std::uint32_t count,
                           const SlotLimits& limits);
  /// Zeroes dst_slot of each row.
  void clear_rows(const Stream& stream, const CopyTableView& table, std::span<const SlotCopy> rows);

 private:
  class Staging;
  std::unique_ptr<Staging> staging_;
};

}  // namespace stateport::kernels
