// SPDX-License-Identifier: Apache-2.0
// Where memory has several nodes, a page lies near the thread that touches it first. Tested through the page faults of
// each thread, which need no second node.
#include <stateport/backends/device.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

using namespace stateport;

namespace {

/// Page faults without disk access of every thread of this process so far, as in proc(5); empty on other systems.
std::map<std::string, std::int64_t> page_faults() {
  constexpr int fields_before = 7;  // between the name, which ends with the last ')', and minflt
  std::map<std::string, std::int64_t> faults;
  std::error_code none;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", none)) {
    std::ifstream file(task.path() / "stat");
    const std::string stat((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::istringstream fields(stat.substr(stat.rfind(')') + 1));
    std::string skipped;
    for (int i = 0; i < fields_before; ++i) fields >> skipped;
    fields >> faults[task.path().filename().string()];
  }
  return faults;
}

/// The share of the page faults of `launch` that its busiest thread takes may exceed a fair one by a quarter.
template <class Launch>
void check_spread(const Launch& launch) {
  const std::map<std::string, std::int64_t> before = page_faults();
  launch();
  std::int64_t all = 0;
  std::int64_t most = 0;
  for (const auto& [thread, faults] : page_faults()) {
    const auto old = before.find(thread);
    const std::int64_t taken = faults - (old == before.end() ? 0 : old->second);
    all += taken;
    most = std::max(most, taken);
  }
  CHECK(all >= 32);  // the stores below have as many huge pages
  CHECK(most <= all / static_cast<std::int64_t>(before.size()) + all / 4);
}

}  // namespace

TEST_CASE("the first launch over a new store touches its pages from all threads alike") {
  if (!backend_info().host_reads_device_memory || page_faults().empty()) return;
  constexpr std::int32_t slots = 64;
  const StateSpec spec = StateSpec::uniform(2, {}, {.shape = {256, 1024, 1}});  // 2 MiB a slot
  const Stream stream = Stream::default_stream();
  DeviceResource resource;
  const StateStore source(resource, spec, {.slots = 1});
  SlotCopier(source).clear_slots(stream, std::vector{SlotId{0}});  // also starts the threads
  const StateStore store(resource, spec, {.slots = slots});
  SUBCASE("clearing it") {
    std::vector<SlotId> all;
    for (std::int32_t slot = 0; slot < slots; ++slot) all.emplace_back(slot);
    SlotCopier copier(store);
    check_spread([&] { copier.clear_slots(stream, all); });
  }
  SUBCASE("copying into it") {
    std::vector<SlotCopy> plan;
    for (std::int32_t slot = 0; slot < slots; ++slot) plan.push_back(SlotCopy::whole(0, slot));
    SlotCopier copier(source, store);
    check_spread([&] { copier.copy_slots(stream, plan); });
  }
}
