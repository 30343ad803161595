// SPDX-License-Identifier: Apache-2.0
// Policies and hints.
#include "eviction.hpp"

#include <stateport/core/model/error.hpp>

#include "arguments.hpp"

#include <algorithm>
#include <cfloat>

namespace stateport::c {
namespace {

static_assert(STATEPORT_EVICT_HIX == static_cast<int>(EvictionOrder::hix) &&
              STATEPORT_EVICT_GDSF == static_cast<int>(EvictionOrder::gdsf) &&
              STATEPORT_EVICT_LRU == static_cast<int>(EvictionOrder::lru) &&
              STATEPORT_EVICT_LFU == static_cast<int>(EvictionOrder::lfu) &&
              STATEPORT_EVICT_FIFO == static_cast<int>(EvictionOrder::fifo) &&
              STATEPORT_EVICT_SLRU == static_cast<int>(EvictionOrder::slru) &&
              STATEPORT_EVICT_PRIORITY == static_cast<int>(EvictionOrder::priority) &&
              STATEPORT_EVICT_MRU == static_cast<int>(EvictionOrder::mru) &&
              STATEPORT_EVICT_FILO == static_cast<int>(EvictionOrder::filo));

}  // namespace

MemoryCost read_memory_cost(std::int64_t state_bytes, std::int64_t kv_bytes_per_token) {
  if (state_bytes == 0 && kv_bytes_per_token == 0) return {};
  return {.state_bytes = state_bytes, .kv_bytes_per_token = kv_bytes_per_token};
}

NamedEviction read_eviction(const stateport_eviction_options* options, const char* argument) {
  const auto given = read_struct<stateport_eviction_options>(options, argument);
  const EvictionOrder order = enumerator(given.order, EvictionOrder::filo, "order");
  require(given.samples >= -1, "samples", given.samples, "must be a number, 0 for the default or -1 for all");
  EvictionOptions wanted;
  if (given.benefit_linear != 0 || given.benefit_quadratic != 0)
    wanted.benefit = {given.benefit_linear, given.benefit_quadratic};
  if (given.positions != 0) wanted.positions = given.positions;
  if (given.samples != 0) wanted.samples = given.samples;
  return {order, wanted, read_memory_cost(given.state_bytes, given.kv_bytes_per_token)};
}

std::shared_ptr<EvictionPolicy> make_policy(const stateport_eviction_options* options, const char* argument) {
  if (options == nullptr) return nullptr;
  const NamedEviction wanted = read_eviction(options, argument);
  return make_eviction_policy(wanted.order, wanted.options, wanted.memory);
}

/// Nothing that is refused becomes valid by rounding.
float probability(double given) {
  require(given >= 0 && given < 1, "hint.continues", given, "must be a probability above 0 and below 1, or 0 for none");
  return given == 0 ? 0 : std::clamp(static_cast<float>(given), FLT_MIN, 1 - FLT_EPSILON);
}

ReuseHint from_c(const stateport_reuse_hint& given) {
  const ReuseHint wanted{.last_turn = given.last_turn != 0,
                         .tool_call_pending = given.tool_call_pending != 0,
                         .continues = probability(given.continues),
                         .factor = given.factor == 0 ? 1 : given.factor,
                         .expected_idle_s = given.expected_idle_s,
                         .session = given.session};
  check_hint(wanted);
  return wanted;
}

ReuseHint read_hint(const stateport_reuse_hint* hint, const char* argument) {
  return from_c(read_optional_struct(hint, argument));
}

}  // namespace stateport::c
