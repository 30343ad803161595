// SPDX-License-Identifier: Apache-2.0
// GPU launch of a commit: every team lists the entries that commit anything, and takes its share of their tiles.
#include "../step_launch.hpp"

#include "copy_tile.hpp"
#include "work_share.hpp"

namespace stateport::kernels {

class StepLauncher::Scratch {};

StepLauncher::StepLauncher(std::int32_t) : scratch_(std::make_unique<Scratch>()) {}
StepLauncher::StepLauncher(StepLauncher&&) noexcept = default;
StepLauncher& StepLauncher::operator=(StepLauncher&&) noexcept = default;
StepLauncher::~StepLauncher() = default;

namespace {

/// Scratch states and the store that they go to are not in blocks.
template <CopyCode code>
struct CommitStep {
  StepTable states;
  StepEntries entries;

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    WorkList<StepCopy>& list = work_list<StepCopy>(team);
    const CopyTableView& table = states.table;
    const std::uint32_t entry_count = entries.count();
    for (std::uint32_t begin = 0; begin < entry_count; begin += listed_rows_max) {
      const std::uint32_t count = entry_count - begin < listed_rows_max ? entry_count - begin : listed_rows_max;
      const std::uint32_t listed = list_work(team, count, list, [&](std::uint32_t i, StepCopy& copy) {
        return states.commits_at(entries, begin + i, copy);
      });
      if (listed == 0) continue;
      for_each_tile(team, table, listed, [&](std::uint32_t i, const Tile& tile) {
        const StepCopy& copy = list.work[i];
        const TensorRoute& route = table.routes[tile.tensor];
        const std::byte* const src = in_global_memory(states.src_of(tile.tensor, copy));
        copy_elements_of<code>(team, route, in_global_memory(route.dst_of(copy.slot)), src, tile);
      });
      team.team_barrier();
    }
  }
};

template <CopyCode code>
void launch(const char* label, const Stream& stream, const StepTable& table, const StepEntries& entries) {
  Policy policy = policy_for(execution_space(stream), std::uint64_t{entries.count()} * table.table.tile_count);
  add_work_list<StepCopy>(policy);
  enqueue(label, policy, CommitStep<code>{table, entries});
}

}  // namespace

void StepLauncher::commit(const char* label, const Stream& stream, const StepTable& table, const StepEntries& entries) {
  const bool bytes = table.table.code == CopyCode::bytes;
  (bytes ? launch<CopyCode::bytes> : launch<CopyCode::elements>)(label, stream, table, entries);
}

}  // namespace stateport::kernels
