// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/elastic_resource.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/state_spec.hpp>
#include <stateport/kernels/elastic_store.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace stateport::test {

/// Two layers whose recurrent tensors take 3/4 and 1/2 of a granule, so that 4 slots are whole granules: 5 of them.
/// Conv tensors are small beside them.
[[nodiscard]] inline StateSpec elastic_states(std::size_t granularity) {
  const auto words = static_cast<std::int64_t>(granularity / 4);
  const ConvShape conv{.window = 3, .dim = 5};
  return StateSpec({StateTensorSpec::conv(0, conv),
                    {.layer = 0, .shape = {1, 3, words / 4}},
                    StateTensorSpec::conv(1, conv),
                    {.layer = 1, .shape = {1, 2, words / 4}}});
}

/// K and V of two layers, 1/2 of a granule each: 2 blocks are whole granules, 4 of them.
[[nodiscard]] inline StateSpec elastic_kv(std::size_t granularity) {
  const auto words = static_cast<std::int64_t>(granularity / 4);
  std::vector<StateTensorSpec> tensors;
  for (const std::int32_t layer : {0, 0, 1, 1}) tensors.push_back({.layer = layer, .shape = {1, 1, words / 2}});
  return StateSpec(std::move(tensors));
}

[[nodiscard]] inline std::size_t device_granularity() {
  static const std::size_t granularity = ElasticResource({.limit_bytes = 1}).granularity();
  return granularity;
}

/// Calls `use(memory, bytes)` for every slot of an extent in every tensor that moves.
template <class Use>
void for_each_part(const ElasticStore& store, std::int32_t extent, Use&& use) {
  const std::int32_t first = extent * store.extent().count;
  const std::int32_t end = std::min(first + store.extent().count, store.store().slots());
  for (const StateTensorView& tensor : store.store().tensors()) {
    if (tensor.spec.kind == StateKind::conv) continue;
    for (std::int32_t slot = first; slot < end; ++slot)
      use(tensor.slot_data(SlotId{slot}), tensor.spec.natural_bytes());
  }
}

inline void paint(const ElasticStore& store, std::int32_t extent, unsigned char value) {
  for_each_part(store, extent, [&](std::byte* memory, std::size_t bytes) {
    fill_bytes(Stream::default_stream(), memory, std::byte{value}, bytes);
  });
}

/// Whether every byte of an extent has the value.
[[nodiscard]] inline bool is_painted(const ElasticStore& store, std::int32_t extent, unsigned char value) {
  bool all = true;
  std::vector<std::byte> seen;
  for_each_part(store, extent, [&](const std::byte* memory, std::size_t bytes) {
    seen.resize(bytes);
    copy_bytes(Stream::default_stream(), seen.data(), memory, bytes);
    Stream::default_stream().synchronize();
    all = all && std::ranges::all_of(seen, [&](std::byte byte) { return byte == std::byte{value}; });
  });
  return all;
}

}  // namespace stateport::test
