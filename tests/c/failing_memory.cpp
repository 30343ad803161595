// SPDX-License-Identifier: Apache-2.0
// For C: allocations of the library that fail.
#include <stateport/c/status.h>

#include "heap_counter.hpp"

#include <cstdint>

namespace {
std::uint64_t failing = 0;
std::uint64_t before = 0;
std::uint64_t random = 1;
}  // namespace

extern "C" {
extern std::int64_t memory_failures;
extern std::int32_t memory_calls_apart;
std::int64_t memory_failures = 0;
#if defined(STATEPORT_ENABLE_ASSERT) && !defined(STATEPORT_TEST_DEVICE_MEMORY)
std::int32_t memory_calls_apart = 32;  // with sanitizers a check takes thirty times as long
#else
std::int32_t memory_calls_apart = 1;
#endif

void fail_no_allocation() {
  failing = 0;  // a call whose arguments call, too, is made as it is
  random = random * 6364136223846793005 + 1442695040888963407;
#ifdef STATEPORT_TEST_DEVICE_MEMORY
  // Kokkos makes a string of it, without which the transfers of a launch fail.
  stateport::test::spare_heap_allocations_of(sizeof "stateport::copy_slots");
#endif
}

void fail_allocation() {
  // Not by counting: a loop that tries again until a transfer is done may make as many calls each time.
  if ((random >> 33) % static_cast<std::uint64_t>(memory_calls_apart) != 0) return;
  before = stateport::test::heap_allocations();
#if defined(STATEPORT_ENABLE_ASSERT) || defined(STATEPORT_TEST_DEVICE_MEMORY)
  // With sanitizers, or threads and folders, a call takes ten times as long: the first ones, then fewer.
  failing += 1 + failing / 4;
#else
  ++failing;
#endif
  constexpr std::uint64_t alone = 2;  // every other time: all that follow fail, too
  stateport::test::fail_heap_allocation(failing, failing % alone == 0);
}

bool ran_out(stateport_status status) {
  stateport::test::fail_heap_allocation(0);
  if (failing == 0) return false;
  const bool failed = stateport::test::heap_allocations() - before >= failing;
  memory_failures += failed;
  return failed && status == STATEPORT_OUT_OF_MEMORY;
}
}
