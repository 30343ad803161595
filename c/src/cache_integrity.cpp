// SPDX-License-Identifier: Apache-2.0
// Checks of checkpoints that a request cache names.
#include <stateport/c/cache_integrity.h>

#include "arguments.hpp"
#include "cache_object.hpp"
#include "guard.hpp"
#include "state_checks.hpp"

#include <vector>

using namespace stateport;
using namespace stateport::c;

namespace {
using HeldCache = Held<CacheObject>;
}

stateport_status stateport_request_cache_take_checks(stateport_request_cache* cache,
                                                     const stateport_state_check** checks, size_t* count) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const stateport_state_check*& reported = checked(checks, "checks");
    std::size_t& reported_count = checked(count, "count");
    to_c(held->integrity().take(), held->checks);
    reported = held->checks.data();
    reported_count = held->checks.size();
  });
}

stateport_status stateport_request_cache_withdraw(stateport_request_cache* cache, const stateport_state_fault* faults,
                                                  size_t count, int32_t* withdrawn) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    std::int32_t& reported = checked(withdrawn, "withdrawn");
    std::vector<StateFault> given;
    for (const stateport_state_fault& fault : array(faults, count, "faults")) given.push_back(from_c(fault));
    reported = held->integrity().withdraw(given);
  });
}

stateport_status stateport_request_cache_integrity_usage(stateport_request_cache* cache,
                                                         stateport_integrity_usage* out) {
  return guarded([&] {
    const HeldCache held(cache, "cache");
    const Out result(out, "out");
    const IntegrityUsage& usage = held->integrity().usage();
    result.write({.published = usage.published,
                  .reads = usage.reads,
                  .changed = usage.faults[STATEPORT_FAULT_CHANGED],
                  .other_state = usage.faults[STATEPORT_FAULT_OTHER_STATE],
                  .not_finite = usage.faults[STATEPORT_FAULT_NOT_FINITE],
                  .withdrawn_states = usage.withdrawn_states,
                  .unchecked_states = usage.unchecked_states,
                  .checks_max = usage.checks_max});
  });
}
