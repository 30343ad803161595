// SPDX-License-Identifier: Apache-2.0
// For C: allocations of the library that fail.
#include <stateport/c/status.h>

#include "heap_counter.hpp"

#include <cstdint>

namespace {
std::uint64_t failing = 0;
std::uint64_t before = 0;
}  // namespace

extern "C" {
extern std::int64_t memory_failures;
std::int64_t memory_failures = 0;

void fail_no_allocation() {
  failing = 0;
}

void fail_allocation() {
  before = stateport::test::heap_allocations();
#ifdef STATEPORT_ENABLE_ASSERT  // with sanitizers a call takes ten times as long: the first ones, then fewer
  failing += 1 + failing / 4;
#else
  ++failing;
#endif
  constexpr std::uint64_t alone = 2;  // every other time: all that follow fail, too
  stateport::test::fail_heap_allocation(failing, failing % alone == 0);
}

bool ran_out(stateport_status status) {
  stateport::test::fail_heap_allocation(0);
  const bool failed = stateport::test::heap_allocations() - before >= failing;
  memory_failures += failed;
  return failed && status == STATEPORT_OUT_OF_MEMORY;
}
}
