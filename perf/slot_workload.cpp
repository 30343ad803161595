// SPDX-License-Identifier: Apache-2.0
#include "slot_workload.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include <stateport/core/error.hpp>

namespace stateport::perf {

std::int32_t slots_in_pool(const StateSpec& spec) {
  return static_cast<std::int32_t>(pool_bytes / spec.slot_bytes());
}

std::vector<std::int32_t> shuffled_slots(const StateStore& store) {
  std::vector<std::int32_t> slots(static_cast<std::size_t>(store.slots()));
  std::iota(slots.begin(), slots.end(), 0);
  std::ranges::shuffle(slots, std::mt19937_64(1));
  return slots;
}

void fill_randomly(const StateStore& store) {
  std::uint64_t value = 1;
  for (const StateTensorView& tensor : store.tensors()) {
    auto* const words = reinterpret_cast<std::uint64_t*>(tensor.base);
    const auto count = static_cast<std::size_t>(tensor.slot_stride_bytes) * static_cast<std::size_t>(store.slots()) / 8;
    for (std::size_t i = 0; i < count; ++i) words[i] = value = value * 6364136223846793005u + 1442695040888963407u;
  }
}

CopyWorkload::CopyWorkload(const StateSpec& spec, std::int32_t requests)
    : store_(resource_, spec, {.slots = slots_in_pool(spec)}) {
  require(2 * requests <= store_.slots(), "requests", requests, "two states of each must fit into the pool");
  fill_randomly(store_);
  const std::vector<std::int32_t> order = shuffled_slots(store_);
  for (std::size_t next = 0; next + 2 * static_cast<std::size_t>(requests) <= order.size();) {
    std::vector<SlotCopy> plan;
    for (std::int32_t i = 0; i < requests; ++i, next += 2)
      plan.push_back(SlotCopy::whole(order[next], order[next + 1]));
    plans_.push_back(std::move(plan));
  }
}

std::vector<Chunk> CopyWorkload::chunks(int round) const {
  std::vector<Chunk> result;
  for (const SlotCopy& copy : plan(round))
    for (const StateTensorView& tensor : store_.tensors())
      result.push_back({tensor.slot_data(SlotId{copy.dst_slot}), tensor.slot_data(SlotId{copy.src_slot}),
                        tensor.spec.natural_bytes()});
  return result;
}

double CopyWorkload::moved_bytes() const {
  return 2.0 * static_cast<double>(plan(0).size()) * static_cast<double>(store_.spec().slot_bytes());
}

bool CopyWorkload::copies_exactly() const {
  for (const Chunk& chunk : chunks(0)) std::memset(chunk.dst, 0xA5, chunk.bytes);
  run(0);
  return std::ranges::all_of(chunks(0),
                             [](const Chunk& chunk) { return std::memcmp(chunk.dst, chunk.src, chunk.bytes) == 0; });
}

}  // namespace stateport::perf
