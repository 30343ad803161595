// SPDX-License-Identifier: Apache-2.0
// GPU launch of a commit: every team lists the entries that commit anything, and takes its part of their tiles.
#include "../step_launch.hpp"

#include <stateport/core/model/error.hpp>

#include "copy_tile.hpp"
#include "work_queues.hpp"
#include "work_share.hpp"

namespace stateport::kernels {

class StepLauncher::Scratch {
 public:
  WorkQueues queues;
};

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
  WorkQueue* queue;

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    constexpr std::uint32_t lanes = deciding_shape<code>.lanes;
    WorkList<StepCopy>& list = work_list<StepCopy>(team);
    const CopyTableView& table = states.table;
    const auto lane = static_cast<std::uint32_t>(team.team_rank());
    TeamWork work(team, queue, list.claims);
    bool any = false;
    const std::uint32_t entry_count = entries.count();
    for (std::uint32_t begin = 0; begin < entry_count; begin += listed_rows_max) {
      const std::uint32_t count = entry_count - begin < listed_rows_max ? entry_count - begin : listed_rows_max;
      const std::uint32_t listed = list_work<lanes>(team, count, list, [&](std::uint32_t i, StepCopy& copy) {
        return states.commits_at(entries, begin + i, copy);
      });
      if (listed == 0) continue;
      any = true;
      take_tiles(work, table, listed, [&](std::uint32_t i, const Tile& tile) {
        const StepCopy& copy = list[i];
        if (tile.mode == TensorRoute::Mode::bytes)
          return copy_bytes_by_lanes(
              lane, lanes, in_global_memory(tile.dst_of(copy.slot)),
              in_global_memory(tile.src_of(copy.request) + copy.step * states.step_stride_bytes[tile.tensor]),
              tile.bytes());
        if constexpr (code != CopyCode::words) {
          const TensorRoute& route = table.routes[tile.tensor];
          copy_elements_of<code, lanes>(lane, route, in_global_memory(route.dst_of(copy.slot)),
                                        in_global_memory(states.src_of(tile.tensor, copy)), tile);
        }
      });
    }
    if (any) work.end();
  }
};

template <CopyCode code>
void launch_commit(const char* label, const Stream& stream, const StepTable& table, const StepEntries& entries,
                   WorkQueue* queue) {
  const std::uint64_t items = std::uint64_t{entries.count()} * table.table.tile_count;
  require(items <= launch_items_max, "rows", entries.rows, "have more tiles than one launch counts");
  constexpr LaunchShape shape = deciding_shape<code>;
  auto policy = resident_teams<shape>(execution_space(stream), items);
  policy.set_scratch_size(0, Kokkos::PerTeam(work_list_bytes<StepCopy>));
  enqueue(label, policy, CommitStep<code>{table, entries, queue});
}

}  // namespace

void StepLauncher::commit(const char* label, const Stream& stream, const StepTable& table, const StepEntries& entries) {
  const bool words = table.table.code == CopyCode::words;
  (words ? launch_commit<CopyCode::words> : launch_commit<CopyCode::elements>)(label, stream, table, entries,
                                                                               scratch_->queues.next(stream));
}

}  // namespace stateport::kernels
