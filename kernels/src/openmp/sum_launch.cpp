// SPDX-License-Identifier: Apache-2.0
// CPU launches of StateIntegrity.
#include "../sum_launch.hpp"

#include "../lane_sums.hpp"
#include "../settle_check.hpp"
#include "byte_ranges.hpp"
#include "byte_sums.hpp"
#include "sum_parts.hpp"

namespace stateport::kernels {

bool can_sum_copies(const CopyTable& table) noexcept {
  return table.moves_bytes();
}

void sum_rows(const char* label, const Stream& stream, const SumTableView& table, std::span<const SlotCopy> rows,
              const CheckSums& sums) {
  const CopyTableView& tiles = table.tiles;
  for_each_thread(stream, label, slot_bytes_of(tiles) * rows.size(), [&](std::uint64_t begin, std::uint64_t end) {
    for_byte_range(tiles, begin, end, [&](std::uint64_t row, const ElementRange& range) {
      if (rows[row].src_slot < 0) return;
      const TensorRoute& route = tiles.routes[range.tensor];
      const SumRule& rule = table.rules[range.tensor];
      const std::byte* const src = route.src_of(rows[row].src_slot);
      PartSum part;
      if (route.mode == TensorRoute::Mode::elements)
        add_elements(0, 1, part, route, src, static_cast<std::uint32_t>(range.first), range.count, rule.exponents);
      else
        part =
            sum_of_bytes(src + range.first, range.count, static_cast<std::uint32_t>(range.first / 4), rule.exponents);
      if (rule.scales_begin != 0) look_at_scales(0, 1, part, src, rule.scales_begin, range.first, range.count);
      add_to(sums.of(rows[row].conv_shift)[range.tensor], part);
    });
  });
}

void settle_checks(const char*, const Stream&, const CheckRing& ring, std::uint32_t first, std::uint32_t count,
                   std::uint32_t turn) {
  // Too little for several threads.
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t check = (first + i) % ring.checks_max;
    CheckEntry& entry = ring.entries[check];
    if (entry.turn != turn) continue;
    const GroupSums& group = ring.groups[entry.group];
    const std::uint32_t fault = settle_tensors(0, 1, entry, group, ring.sums.of(static_cast<std::int32_t>(check)));
    settle_slot(entry, group, fault, &entry.verdict);
  }
}

}  // namespace stateport::kernels
