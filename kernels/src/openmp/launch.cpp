// SPDX-License-Identifier: Apache-2.0
// CPU launches: every thread takes the same number of bytes of the whole step, wherever they lie, so that a 60 KiB conv
// state and a 2 MiB recurrent state balance without any scheduling.
#include "../launch.hpp"

#include "../block_copy.hpp"
#include "byte_ranges.hpp"
#include "byte_sums.hpp"
#include "sum_parts.hpp"

#include <cstring>
#include <vector>

namespace stateport::kernels {

const std::size_t tile_bytes_max = std::size_t{1} << 20;

/// Host plans are read where the caller keeps them, because launches are synchronous; rows decided on the device are
/// first reduced to those with work, so that skipped rows do not unbalance the threads.
class Launcher::Staging {
 public:
  std::vector<SlotCopy> rows;
};

Launcher::Launcher() : staging_(std::make_unique<Staging>()) {}
Launcher::Launcher(Launcher&&) noexcept = default;
Launcher& Launcher::operator=(Launcher&&) noexcept = default;
Launcher::~Launcher() = default;

void Launcher::prepare(const Stream&, const CopyTableView&) {}

void Launcher::copy_rows(const char* label, const Stream& stream, const CopyTableView& table,
                         std::span<const SlotCopy> rows, std::uint32_t first_source_rows) {
  if (rows.empty() || table.tile_count == 0) return;
  const std::uint64_t bytes = slot_bytes_of(table) * rows.size();
  const std::size_t nontemporal_min = nontemporal_bytes_min(bytes);
  for_each_thread(stream, label, bytes, [&](std::uint64_t begin, std::uint64_t end) {
    for_byte_range(table, begin, end, [&](std::uint64_t row, const ElementRange& range) {
      const std::uint32_t source = row < first_source_rows ? 0 : 1;
      copy_range(table.routes[source * table.tensor_count + range.tensor], rows[row], range, nontemporal_min);
    });
  });
}

void Launcher::copy_rows_with_sums(const Stream& stream, const CopyTableView& table, std::span<const SlotCopy> rows,
                                   const CheckSums& sums) {
  if (rows.empty() || table.tile_count == 0) return;
  const std::uint64_t bytes = slot_bytes_of(table) * rows.size();
  const std::size_t nontemporal_min = nontemporal_bytes_min(bytes);
  for_each_thread(stream, labels::copy_slots_with_sums, bytes, [&](std::uint64_t begin, std::uint64_t end) {
    for_byte_range(table, begin, end, [&](std::uint64_t i, const ElementRange& range) {
      const TensorRoute& route = table.routes[range.tensor];
      SlotCopy row = rows[i];
      const std::int32_t check = row.conv_shift;
      row.conv_shift = 0;
      if (check < 0) return copy_range(route, row, range, nontemporal_min);
      const std::uint64_t first = range.first * route.element_bytes;
      const PartSum part =
          copy_and_sum(route.dst_of(row.dst_slot) + first, route.src_of(row.src_slot) + first,
                       std::size_t{range.count} * route.element_bytes, static_cast<std::uint32_t>(first / 4),
                       exponent_mask(route.src_type), nontemporal_min);
      add_to(sums.of(check)[range.tensor], part);
    });
  });
}

void Launcher::copy_rows_on_device(const Stream& stream, const CopyTableView& table, const SlotCopy* rows,
                                   std::uint32_t count, const SlotLimits& limits) {
  std::vector<SlotCopy>& work = staging_->rows;
  work.clear();
  for (SlotCopy row : std::span(rows, count)) {
    if (row.dst_slot < 0 || row.dst_slot >= limits.dst_slots) continue;
    if (row.src_slot >= limits.src_slots || row.conv_shift < 0) row.src_slot = -1;
    if (row.recurrent_src_slot >= limits.src_slots) row.recurrent_src_slot = -1;
    if (row.src_slot >= 0 || row.recurrent_src_slot >= 0) work.push_back(row);
  }
  copy_rows(labels::copy_slots_on_device, stream, table, work, static_cast<std::uint32_t>(work.size()));
}

void Launcher::clear_rows(const Stream& stream, const CopyTableView& table, std::span<const SlotCopy> rows) {
  if (rows.empty() || table.tile_count == 0) return;
  for_each_thread(stream, labels::clear_slots, slot_bytes_of(table) * rows.size(),
                  [&](std::uint64_t begin, std::uint64_t end) {
                    for_byte_range(table, begin, end, [&](std::uint64_t row, const ElementRange& range) {
                      const TensorRoute& route = table.routes[range.tensor];
                      const auto bytes = static_cast<std::uint64_t>(route.element_bytes);
                      std::byte* const dst = route.dst_of(rows[row].dst_slot);
                      if (route.mode == TensorRoute::Mode::blocks)
                        zero_blocks(0, 1, route, dst, static_cast<std::uint32_t>(range.first), range.count);
                      else if (route.dst_dense)
                        std::memset(dst + range.first * bytes, 0, range.count * bytes);
                      else
                        zero_elements(0, 1, route, dst, range.first, range.count);
                    });
                  });
}

}  // namespace stateport::kernels
