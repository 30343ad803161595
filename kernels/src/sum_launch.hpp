// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>
#include <stateport/core/pool/copy_plan.hpp>

#include "copy_table.hpp"
#include "state_sums.hpp"
#include "sum_table.hpp"

#include <cstdint>
#include <span>

/// The launches of StateIntegrity, implemented once for GPUs (gpu/) and once for CPUs (openmp/).
namespace stateport::kernels {

/// One check in memory that host and device share. The host writes all of it, before a launch; the device writes the
/// verdict, last.
struct CheckEntry {
  std::uint64_t content = 0;
  std::int32_t slot = 0;
  std::int32_t group = 0;
  std::uint32_t published = 0;
  std::uint32_t turn = 0;  ///< the launch that settles it
  std::uint32_t verdict = 0;
  std::uint32_t unused = 0;
};
static_assert(sizeof(CheckEntry) == 32);

/// A verdict: its code, and in the bits above the first tensor + 1 for which it holds.
enum class VerdictCode : std::uint32_t { pending, passed, changed, other_state, not_finite };
inline constexpr std::uint32_t verdict_code_bits = 3;

/// The publications that are remembered of the slots of one group, in device memory.
struct GroupSums {
  std::uint64_t* contents = nullptr;  ///< [slots]; 0: never published
  std::uint64_t* sums = nullptr;      ///< [slots, tensors]
  std::uint32_t tensors = 0;
};

/// The checks of a ring as a kernel sees them. Check i lies in entry i modulo checks_max, and so do its sums.
struct CheckRing {
  CheckEntry* entries = nullptr;
  CheckSums sums;
  const GroupSums* groups = nullptr;
  std::uint32_t checks_max = 0;
};

/// Whether copies by this table can sum the bytes that they move. All its tensors are moved bit for bit then, without
/// gaps.
[[nodiscard]] bool can_sum_copies(const CopyTable& table) noexcept;

/// Adds the bytes of src_slot of each row to the sums of check `conv_shift`; a negative slot skips the row. One launch
/// for each 192 rows on a GPU.
void sum_rows(const char* label, const Stream& stream, const SumTableView& table, std::span<const SlotCopy> rows,
              const CheckSums& sums);

/// Settles those of the entries [first, first + count), counted modulo checks_max, that have this turn: one launch.
/// Compares or remembers their sums, sets these to 0, and writes the verdict. No slot may be published in a launch that
/// settles another check of it.
void settle_checks(const char* label, const Stream& stream, const CheckRing& ring, std::uint32_t first,
                   std::uint32_t count, std::uint32_t turn);

}  // namespace stateport::kernels
