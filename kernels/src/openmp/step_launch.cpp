// SPDX-License-Identifier: Apache-2.0
// CPU launch of a commit: entries that commit nothing are left out first, so that they do not unbalance the threads.
#include "../step_launch.hpp"

#include "byte_ranges.hpp"

#include <vector>

namespace stateport::kernels {

class StepLauncher::Scratch {
 public:
  std::vector<StepCopy> copies;
};

StepLauncher::StepLauncher(std::int32_t requests) : scratch_(std::make_unique<Scratch>()) {
  scratch_->copies.reserve(2 * static_cast<std::size_t>(requests));
}
StepLauncher::StepLauncher(StepLauncher&&) noexcept = default;
StepLauncher& StepLauncher::operator=(StepLauncher&&) noexcept = default;
StepLauncher::~StepLauncher() = default;

void StepLauncher::commit(const char* label, const Stream& stream, const StepTable& table, const StepEntries& entries) {
  std::vector<StepCopy>& copies = scratch_->copies;
  copies.clear();
  for (std::uint32_t entry = 0; entry < entries.count(); ++entry) {
    StepCopy copy;
    if (table.commits_at(entries, entry, copy)) copies.push_back(copy);
  }
  const std::uint64_t bytes = slot_bytes_of(table.table) * copies.size();
  const std::size_t nontemporal_min = nontemporal_bytes_min(bytes);
  for_each_thread(stream, label, bytes, [&](std::uint64_t begin, std::uint64_t end) {
    for_byte_range(table.table, begin, end, [&](std::uint64_t i, const ElementRange& range) {
      const TensorRoute& route = table.table.routes[range.tensor];
      copy_elements_of(route, route.dst_of(copies[i].slot), table.src_of(range.tensor, copies[i]), range,
                       nontemporal_min);
    });
  });
}

}  // namespace stateport::kernels
