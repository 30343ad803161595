// SPDX-License-Identifier: Apache-2.0
// CPU launch of a step: the decisions are few and taken first, by the calling thread; then one launch moves the bytes
// of all groups, every thread the same number of them.
#include "../align_launch.hpp"

#include "byte_ranges.hpp"

#include <vector>

namespace stateport::kernels {

class AlignLauncher::Scratch {
 public:
  Scratch(std::int32_t groups, std::int32_t max_rows) : copies(static_cast<std::size_t>(groups)) {
    decided.reserve(static_cast<std::size_t>(max_rows));
    for (std::vector<SlotCopy>& group : copies) group.reserve(static_cast<std::size_t>(max_rows));
  }

  std::vector<AlignRow> decided;              ///< [rows] of one group
  std::vector<std::vector<SlotCopy>> copies;  ///< per group, rows with work
};

AlignLauncher::AlignLauncher(std::int32_t groups, std::int32_t max_rows)
    : scratch_(std::make_unique<Scratch>(groups, max_rows)) {}
AlignLauncher::AlignLauncher(AlignLauncher&&) noexcept = default;
AlignLauncher& AlignLauncher::operator=(AlignLauncher&&) noexcept = default;
AlignLauncher::~AlignLauncher() = default;

namespace {

/// Bytes [begin, end) of all groups' copies laid end to end.
void copy_groups(std::span<const AlignGroupView> groups, std::span<const std::vector<SlotCopy>> copies,
                 std::uint64_t begin, std::uint64_t end, std::size_t nontemporal_min) {
  std::uint64_t group_begin = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const CopyTableView& table = groups[g].table;
    const std::uint64_t bytes = slot_bytes_of(table) * copies[g].size();
    const std::uint64_t from = std::clamp(begin, group_begin, group_begin + bytes) - group_begin;
    const std::uint64_t to = std::clamp(end, group_begin, group_begin + bytes) - group_begin;
    if (from < to)
      for_byte_range(table, from, to, [&](std::uint64_t row, const ElementRange& range) {
        copy_range(table.routes[range.tensor], copies[g][row], range, nontemporal_min);
      });
    group_begin += bytes;
  }
}

}  // namespace

void AlignLauncher::step(const char* label, const Stream& stream, std::span<const AlignGroupView> groups,
                         const AlignGroupView*, const AlignBatchView& batch, AlignCounters* counters) {
  std::uint64_t bytes = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::vector<AlignRow>& decided = scratch_->decided;
    std::vector<SlotCopy>& copies = scratch_->copies[g];
    decided.clear();
    copies.clear();
    for (std::int32_t row = 0; row < batch.rows; ++row) decided.push_back(decide_align_row(groups[g], batch, row));
    if (batch.phase != AlignPhase::pre)
      for (std::int32_t row = 0; row < batch.rows; ++row)
        for_each_forward_state(
            groups[g], batch, row, decided[static_cast<std::size_t>(row)],
            [](HeldTokens& held, std::uint32_t, std::int64_t tokens) { held = pack_held(0, tokens); });
    for (const AlignRow& row : decided) {
      copy_held_tokens(groups[g], row.copy);
      remember_align_row(groups[g], batch, row);
      counters->skipped_parts += row.skipped_parts;
      if (row.moves()) copies.push_back(row.copy);
    }
    bytes += slot_bytes_of(groups[g].table) * copies.size();
  }
  if (bytes == 0) return;
  const std::size_t nontemporal_min = nontemporal_bytes_min(bytes);
  for_each_thread(stream, label, bytes, [&](std::uint64_t begin, std::uint64_t end) {
    copy_groups(groups, scratch_->copies, begin, end, nontemporal_min);
  });
}

}  // namespace stateport::kernels
